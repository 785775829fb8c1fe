"""The joint search on made-up kernels, where the right answer can be worked out by hand."""

from __future__ import annotations

from functools import partial

from attnroute.planning.blocks import Need
from attnroute.planning.joint import GroupClass, Joint, PhaseNeed, Weights, model_level, solve
from attnroute.planning.options import Option, weigh
from attnroute.registry.sets import IntSet


def option(kernel: str, pages: object = "any", **changes: object) -> Option:
    values: dict[str, object] = {
        "kernel": kernel,
        "provider": "package",
        "row": f"sm00/{kernel}/row",
        "pages": IntSet.parse(pages),
        "q_dtype": "bf16",
        "layouts": ("NHD", "HND"),
        "graph_level": "uniform",
        "strength": "source",
        "calls": (),
        "place": 0,
        "time": None,
        "weight": 1.0,
        "unverified": False,
    }
    return Option(**{**values, **changes})  # type: ignore[arg-type]


def ceil(context: int, block: int) -> int:
    return -(-context // block)


def group(
    *phases: PhaseNeed,
    layers: int = 1,
    width: int = 1024,
    contexts: tuple[int, ...] = (4096,),
    span: object = None,
) -> GroupClass:
    def need(unit: int) -> Need:
        return Need(width, layers, unit, span, contexts, tuple(partial(ceil, c) for c in contexts))

    return GroupClass(phases, layers, need)


def decode(*options: Option, level: str = "uniform1") -> PhaseNeed:
    return PhaseNeed("decode", options, 0.75, level)


def prefill(*options: Option) -> PhaseNeed:
    return PhaseNeed("prefill", options, 0.25, None)


def ask(*classes: GroupClass, block: int | None = None, layout: str | None = None, **flags: bool) -> Joint | None:
    return solve(classes, (), Weights(1.0, 0.1), granule=16, asked_block=block, layout=layout, slack=0.05, **flags)


def kernels(joint: Joint | None) -> list[list[str | None]]:
    assert joint is not None
    return [[None if o is None else o.kernel for o in options] for options in joint.chosen]


def test_the_first_kernels_where_nothing_conflicts() -> None:
    joint = ask(group(decode(option("a"), option("b", place=1, weight=1.05)), prefill(option("p"))))
    assert kernels(joint) == [["a", "p"]]
    assert joint is not None
    assert joint.blocks is not None
    assert joint.blocks.sizes == (16,)


def test_one_layout_for_all_groups() -> None:
    one = group(decode(option("a", layouts=("HND",)), option("b", place=1, weight=1.05)), layers=9)
    two = group(decode(option("c", layouts=("NHD",)), option("d", place=1, weight=1.05)), layers=1)
    joint = ask(one, two)
    assert kernels(joint) == [["a"], ["d"]]  # the group with more layers keeps its first kernel
    assert joint is not None
    assert joint.layout == "HND"


def test_no_common_layout() -> None:
    assert ask(group(decode(option("a", layouts=("HND",))), prefill(option("p", layouts=("NHD",))))) is None
    assert ask(group(decode(option("a", layouts=("HND",)))), layout="NHD") is None


def test_an_unknown_layout_fits_any() -> None:
    assert kernels(ask(group(decode(option("a", layouts=None))))) == [["a"]]


def test_the_block_holds_the_page_of_every_phase() -> None:
    joint = ask(group(decode(option("a", [32, 64])), prefill(option("p", 48))))
    assert joint is not None
    assert joint.blocks is not None
    assert joint.blocks.sizes == (96,)


def test_a_large_page_costs_waste_and_may_lose() -> None:
    wide = [option("a", 1024), option("b", 16, place=1, weight=1.05)]
    assert kernels(ask(group(decode(*wide), contexts=(1024,)))) == [["b"]]  # half a block is half of the request
    assert kernels(ask(group(decode(*wide), contexts=(1 << 20,)))) == [["a"]]


def test_measured_kernels_beyond_the_slack_are_out() -> None:
    slow = [option("a", 4096, time=1.0), option("b", 16, place=1, time=1.2, weight=1.2)]
    assert kernels(ask(group(decode(*slow), contexts=(1024,)))) == [["a"]]
    near = [option("a", 4096, time=1.0), option("b", 16, place=1, time=1.04, weight=1.04)]
    assert kernels(ask(group(decode(*near), contexts=(1024,)))) == [["b"]]


def test_blocks_divide_into_each_other_and_pages_are_equal() -> None:
    joint = ask(group(decode(option("a")), width=4096), group(decode(option("b")), width=1024, span="window"))
    assert joint is not None
    assert joint.blocks is not None
    assert joint.blocks.sizes == (16, 64)
    assert joint.blocks.pages == (65536, 65536)


def test_groups_that_hold_the_same_tokens_share_a_table() -> None:
    joint = ask(group(decode(option("a")), width=4096), group(decode(option("b")), width=1024))
    assert joint is not None
    assert joint.blocks is not None
    assert joint.blocks.one_table
    assert joint.blocks.sizes == (16, 16)
    assert joint.blocks.pages == (65536, 16384)


def test_a_graph_needs_every_group() -> None:
    """One small group without graphs would cost all layers theirs, so it takes its second kernel."""
    many = group(decode(option("a")), layers=30)
    few = group(decode(option("x", graph_level="none"), option("y", place=1, weight=1.05)), layers=2)
    joint = ask(many, few)
    assert kernels(joint) == [["a"], ["y"]]
    assert joint is not None
    assert model_level([many, few], joint.chosen) == "uniform"
    lone = group(decode(option("x", graph_level="none"), option("y", place=1, weight=9.0)), layers=32)
    assert kernels(ask(lone)) == [["x"]]  # at nine times the weight the graphs are given up


def test_one_kernel_for_decoding_and_verifying() -> None:
    verify = PhaseNeed("verify", (option("b"), option("c", place=1, weight=1.05)), 0.6, "uniform", True, True)
    first = decode(option("a"), option("c", place=1, weight=1.05))
    assert kernels(ask(group(first, verify))) == [["a", "b"]]
    assert kernels(ask(group(first, verify), one_kernel=True)) == [["c", "c"]]


def test_drafts_may_be_verified_as_prefill() -> None:
    verify = PhaseNeed("verify", (option("b", layouts=("NHD",)),), 0.6, "uniform", True, True)
    assert kernels(ask(group(decode(option("a", layouts=("HND",))), verify))) == [["a", None]]


def test_an_asked_block_drops_kernels() -> None:
    item = group(decode(option("a", 128), option("b", "16../16", place=1, weight=1.05)))
    assert kernels(ask(item)) == [["a"]] or kernels(ask(item)) == [["b"]]
    joint = ask(item, block=64)
    assert kernels(joint) == [["b"]]
    assert joint is not None
    assert joint.blocks is not None
    assert joint.blocks.sizes == (64,)
    assert ask(group(decode(option("a", 128))), block=64) is None


def test_weights_of_unmeasured_kernels_only_keep_the_order() -> None:
    assert [weigh(None, place, {}, 0.05) for place in (0, 1, 2)] == [1.0, 1.05, 1.1]
    measured = {"a": 1.0, "b": 1.3}
    assert weigh(1.3, 1, measured, 0.05) == 1.3
    assert weigh(None, 2, measured, 0.05) > 1.3
