"""What planning costs: many groups, drafts, nothing remembered, and an engine's own rules."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from attnroute import KVGroup, plan
from attnroute.models import StateSpec, StateTensor
from attnroute.registry.registry import default_registry

PACKAGES = {"flashinfer-python": "0.7.4", "vllm": "0.33.0", "flash-attn-4": "4.0.0b36"}
NUMBERS = map(str, itertools.count())


def groups_of(layers: int, name: str) -> list[KVGroup]:
    """Every layer a group of its own, in two geometries: the most groups that so many layers can have."""
    return [
        KVGroup(f"{name}-{i}", 256, 16, 8, sliding_window=1024, layers=(f"{name}.{i}",))
        if i % 4
        else KVGroup(f"{name}-{i}", 512, 16, 2, layers=(f"{name}.{i}",))
        for i in range(layers)
    ]


def hybrid(layers: int, name: str) -> tuple[list[KVGroup], tuple[StateSpec, ...]]:
    """Attention in every fourth layer, recurrent state in the others, and a drafter."""
    full = tuple(f"{name}.{i}" for i in range(0, layers, 4))
    linear = tuple(f"{name}.{i}" for i in range(layers) if i % 4)
    draft = KVGroup(f"draft-{name}", 128, 32, 8, role="draft", causal=False, sliding_window=2048, layers=("d0", "d1"))
    state = StateSpec("gdn", "gdn", linear, (StateTensor("recurrent", (48, 128, 128), "fp32"),))
    return [KVGroup(f"full-{name}", 256, 24, 4, layers=full), draft], (state,)


def forget(arch: str) -> None:
    """Drop what the planner remembered of a table, so that every kernel is judged again."""
    memo = default_registry().table(arch).memo
    for key in [k for k in memo if isinstance(k, tuple) and k[0] == "options"]:
        del memo[key]


@pytest.mark.parametrize("layers", [
    pytest.param(100, marks=pytest.mark.budget(2e-3, "plan, 100 groups of one layer")),
    pytest.param(1000, marks=pytest.mark.budget(20e-3, "plan, 1,000 groups of one layer (growth)")),
])  # fmt: skip
def test_a_group_for_each_layer(benchmark: Any, layers: int) -> None:
    def fresh() -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (groups_of(layers, next(NUMBERS)), "sm120", PACKAGES), {}

    plan(*fresh()[0])
    benchmark.pedantic(plan, setup=fresh, rounds=60, iterations=1)


@pytest.mark.parametrize("layers", [
    pytest.param(100, marks=pytest.mark.budget(2e-3, "plan, hybrid of 100 with drafts, no memory")),
    pytest.param(1000, marks=pytest.mark.budget(20e-3, "plan, hybrid of 1,000 with drafts, no memory")),
])  # fmt: skip
def test_hybrid_without_memory(benchmark: Any, layers: int) -> None:
    def fresh() -> tuple[tuple[Any, ...], dict[str, Any]]:
        groups, state = hybrid(layers, next(NUMBERS))
        forget("sm100")
        return (groups, "sm100", PACKAGES), {"state": state, "num_speculative_tokens": 7}

    arguments, keywords = fresh()
    plan(*arguments, **keywords)
    benchmark.pedantic(plan, setup=fresh, rounds=100, iterations=1)
