"""What one answer costs once the tables are loaded."""

from __future__ import annotations

import contextlib
import io
import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from attnroute import KVGroup, load_registry, route

ROOT = Path(__file__).resolve().parents[1]
ARCHS = ("sm90", "sm100", "sm103", "sm110", "sm120", "sm121")
PACKAGES = {"flashinfer-python": "0.7.4", "vllm": "0.33.0", "flash-attn-4": "4.0.0b36"}


def requests() -> Iterator[tuple[tuple[KVGroup, str, dict[str, str]], dict[str, Any]]]:
    """Requests drawn from some 180,000, so that hardly one comes twice, with a fixed seed."""
    draw = random.Random(1)
    for number in itertools.count():
        kv_heads = draw.choice([1, 2, 4, 8])
        group = KVGroup(
            f"group-{number}",
            draw.choice([64, 80, 96, 128, 192, 256, 512]),
            kv_heads * draw.choice([1, 4, 7, 8, 16]),
            kv_heads,
            kv_dtype=draw.choice(["auto", "fp8_e4m3"]),
            sliding_window=draw.choice([None, None, 1024]),
            softcap=draw.choice([None, None, 30.0]),
            sinks=draw.random() < 0.2,
        )
        phase = draw.choice(["decode", "verify", "prefill"])
        keywords = {
            "phase": phase,
            "q_len": 4 if phase == "verify" else 1,
            "page_size": draw.choice([None, 16, 64, 128]),
        }
        yield (group, draw.choice(ARCHS), PACKAGES), keywords


@pytest.mark.budget(100e-6, "a fresh request, every candidate explained")
def test_fresh(benchmark: Any) -> None:
    stream = requests()
    for arguments, keywords in itertools.islice(stream, 200):
        route(*arguments, **keywords)

    def explain(*arguments: Any, **keywords: Any) -> int:
        return len(route(*arguments, **keywords).candidates)

    benchmark.pedantic(explain, setup=lambda: next(stream), rounds=3000, iterations=1)


@pytest.mark.budget(1e-6, "a repeated request")
def test_repeated(benchmark: Any) -> None:
    group = KVGroup("global", 512, 16, 2)
    benchmark(route, group, "sm120", PACKAGES)


def hybrid(layers: int, name: str) -> list[KVGroup]:
    """A hybrid with two head dims and a drafter; `name` makes it one that was not planned before."""
    sliding = tuple(index for index in range(layers) if index % 4)
    full = tuple(range(0, layers, 4))
    return [
        KVGroup(f"sliding-{name}", 256, 16, 8, sliding_window=1024, layers=sliding),
        KVGroup(f"global-{name}", 512, 16, 2, layers=full),
        KVGroup(f"draft-{name}", 128, 32, 8, role="draft", layers=(0, 1, 2)),
    ]


@pytest.mark.parametrize("layers", [
    pytest.param(100, marks=pytest.mark.budget(2e-3, "plan, hybrid of 100 layers")),
    pytest.param(1000, marks=pytest.mark.budget(20e-3, "plan, hybrid of 1,000 layers (growth)")),
])  # fmt: skip
def test_plan(benchmark: Any, layers: int) -> None:
    from attnroute import plan

    names = map(str, itertools.count())

    def fresh() -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (hybrid(layers, next(names)), "sm120", PACKAGES), {}

    plan(*fresh()[0])
    benchmark.pedantic(plan, setup=fresh, rounds=200, iterations=1)


@pytest.mark.budget(1.0, "validate all tables")
def test_validate(benchmark: Any) -> None:
    from attnroute.cli.main import main

    load_registry()

    def validate() -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            assert main(["validate", str(ROOT / "capabilities")]) == 0

    benchmark.pedantic(validate, rounds=5, warmup_rounds=1)
