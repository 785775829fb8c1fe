"""What holds for every plan, whatever the groups."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from attnroute import KVGroup, UnservedError, plan
from attnroute.models import StateSpec, StateTensor
from attnroute.planning.plan import Plan

PACKAGES = {"flashinfer-python": "0.7.4", "vllm": "0.33.0"}
ARCHS = ("sm90", "sm100", "sm120")

groups_of_one = st.builds(
    lambda dim, kv, ratio, window, dtype, layers: KVGroup(
        "g", dim, kv * ratio, kv, sliding_window=window, kv_dtype=dtype, layers=tuple(f"l{i}" for i in range(layers))
    ),
    dim=st.sampled_from([64, 128, 192, 256, 512]),
    kv=st.sampled_from([1, 2, 4, 8]),
    ratio=st.sampled_from([1, 4, 8]),
    window=st.sampled_from([None, None, 128, 1024]),
    dtype=st.sampled_from(["auto", "auto", "fp8_e4m3"]),
    layers=st.integers(1, 40),
)


@st.composite
def models(draw: st.DrawFn) -> list[KVGroup]:
    """One to four groups of one cache dtype, named and with layers of their own."""
    found = draw(st.lists(groups_of_one, min_size=1, max_size=4))
    dtype = found[0].kv_dtype
    return [
        replace(g, name=f"g{i}", kv_dtype=dtype, layers=tuple(f"g{i}.{layer}" for layer in g.layers))
        for i, g in enumerate(found)
    ]


@st.composite
def questions(draw: st.DrawFn) -> tuple[list[KVGroup], dict[str, object]]:
    state = draw(st.sampled_from([0, 0, 50_000, 3_350_528]))
    options: dict[str, object] = {
        "arch": draw(st.sampled_from(ARCHS)),
        "packages": PACKAGES,
        "num_speculative_tokens": draw(st.sampled_from([0, 0, 3])),
        "block_size": draw(st.sampled_from([None, None, 16, 32, 64, 128])),
        "prefix_caching": draw(st.booleans()),
        "state": (StateSpec("s", "gdn", ("s0", "s1"), (StateTensor("t", (state,), "int8"),)),) if state else (),
    }
    return draw(models()), options


def made(groups: list[KVGroup], options: dict[str, object]) -> Plan:
    try:
        return plan(groups, **options)  # type: ignore[arg-type]
    except UnservedError:
        assume(False)
        raise


@settings(max_examples=120, deadline=None)
@given(questions())
def test_blocks_hold_the_pages_of_their_kernels(question: tuple[list[KVGroup], dict[str, object]]) -> None:
    found = made(*question)
    assert found.manager_block is not None
    assert all(found.manager_block % (g.block_size or 1) == 0 for g in found.groups)
    asked = question[1]["block_size"]
    for group in found.groups:
        assert group.block_size is not None
        assert group.padding_percent is not None
        assert group.padding_percent >= 0
        assert asked is None or group.block_size % asked == 0  # type: ignore[operator]
        for use in group.phases.values():
            if use is not None and use.page_size is not None:
                assert group.block_size % use.page_size == 0
    if found.mamba is not None:
        assert found.mamba["padding_percent"] >= 0


@settings(max_examples=60, deadline=None)
@given(questions(), st.integers(1, 400), st.integers(1, 100), st.sampled_from([1024, 16384, 100_000]))
def test_more_memory_never_holds_fewer_tokens(
    question: tuple[list[KVGroup], dict[str, object]], gib: int, more: int, longest: int
) -> None:
    groups, options = question
    less = made(groups, {**options, "kv_memory": gib << 30, "max_model_len": longest})
    rich = made(groups, {**options, "kv_memory": (gib + more) << 30, "max_model_len": longest})
    assert less.kv is not None
    assert rich.kv is not None
    assert rich.kv["tokens"] >= less.kv["tokens"] > 0
    assert rich.block_size == less.block_size


@settings(max_examples=60, deadline=None)
@given(questions(), st.randoms(use_true_random=False))
def test_the_order_of_groups_and_layers_changes_nothing(
    question: tuple[list[KVGroup], dict[str, object]], draw: random.Random
) -> None:
    groups, options = question
    shuffled = [replace(g, layers=tuple(draw.sample(g.layers, len(g.layers)))) for g in groups]
    draw.shuffle(shuffled)
    one, two = made(groups, options), made(shuffled, options)
    for group in groups:
        a, b = one.group(group.name), two.group(group.name)
        assert (a.block_size, a.page_bytes, a.phases) == (b.block_size, b.page_bytes, b.phases)
    assert (one.layout, one.graph_level, one.cost) == (two.layout, two.graph_level, two.cost)


@settings(max_examples=40, deadline=None)
@given(questions())
def test_json_goes_round(question: tuple[list[KVGroup], dict[str, object]]) -> None:
    found = made(*question)
    again = Plan.from_json(json.dumps(found.to_json()))
    assert again == found
    assert again.digest == found.digest
    assert again.to_json() == found.to_json()


@settings(max_examples=40, deadline=None)
@given(models(), st.sampled_from(ARCHS))
def test_splitting_a_group_changes_nothing_but_names(groups: list[KVGroup], arch: str) -> None:
    """Each layer as a group of its own is the same model."""
    single = [replace(g, name=layer, layers=(layer,)) for g in groups for layer in g.layers]
    one = made(groups, {"arch": arch, "packages": PACKAGES})
    two = made(single, {"arch": arch, "packages": PACKAGES})
    assert one.cost["waste"] == pytest.approx(two.cost["waste"])
    for group in groups:
        for layer in group.layers:
            assert one.for_layer(layer).phases == two.for_layer(layer).phases


@settings(max_examples=80, deadline=None)
@given(questions())
def test_generic_never_wastes_more_than_vllm(question: tuple[list[KVGroup], dict[str, object]]) -> None:
    """With the kernels that vLLM runs, attnroute's own blocks waste no more of the cache than vLLM's."""
    groups, options = question
    assume(options["block_size"] is None)
    try:
        theirs = plan(groups, **{**options, "packages": None}, engine="vllm")  # type: ignore[arg-type]
    except UnservedError:
        assume(False)
        raise
    force = [
        f"{g.name}:{phase}={use.kernel}@{use.provider}"
        for g in theirs.groups
        for phase, use in g.phases.items()
        if use is not None and use.row is not None and phase != "verify"
    ]
    ours = made(groups, {**options, "packages": theirs.packages, "force": force})
    assert ours.cost["waste"] <= theirs.cost["waste"] + 1e-9
