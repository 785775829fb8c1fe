"""The joint choice: kernels, layout, CUDA-graph level and blocks of all groups together.

Groups of equal geometry are one class. Everything that couples classes is enumerated outside (layout, the graph level
that the whole model must reach, the units of the blocks); inside, each phase of each class takes its best kernel, so
that the work grows with the number of classes and not with the product of their kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from attnroute.registry.dims import GRAPH_LEVELS, LAYOUTS

from .blocks import Blocks, Need, StateNeed, choose_blocks
from .pages import coarser, fits, units

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from .options import Option


@dataclass(frozen=True, slots=True)
class PhaseNeed:
    """One phase of a class: accepted kernels, best first, the share of the attention time, and the graph level that
    full graphs of its step take (None: the step is not captured). An `optional` phase may go without a kernel of its
    own: drafts can be verified as prefill.
    """

    phase: str
    options: tuple[Option, ...]
    share: float
    needs_level: str | None
    paged: bool = True
    optional: bool = False


@dataclass(frozen=True, slots=True)
class GroupClass:
    """Groups of equal geometry. `layers` counts those of all of them. `need` makes the block question for a unit; None
    if nothing is cached.
    """

    phases: tuple[PhaseNeed, ...]
    layers: int
    need: Callable[[int], Need] | None


@dataclass(frozen=True, slots=True)
class Weights:
    """`waste` weighs wasted bytes relative to used ones, `graph` a step that lacks its full graph, per layer."""

    waste: float
    graph: float


@dataclass(frozen=True, slots=True)
class Joint:
    """A complete choice. `chosen` holds one option (None: nothing serves) for each phase of each class, `units` what
    each class's block is a multiple of. `time`, `waste` and `graph` are the weighted parts of the cost, in layers.
    """

    layout: str
    chosen: tuple[tuple[Option | None, ...], ...]
    blocks: Blocks | None
    units: tuple[int, ...]
    time: float
    waste: float
    graph: float

    @property
    def cost(self) -> float:
        return self.time + self.waste + self.graph


def solve(
    classes: Sequence[GroupClass],
    states: Sequence[StateNeed],
    weights: Weights,
    *,
    granule: int,
    asked_block: int | None,
    layout: str | None,
    slack: float,
    one_kernel: bool = False,
) -> Joint | None:
    """The cheapest complete choice, or None if no layout and block suits every group.

    Ties go to the smaller block, then to the catalogue's order of layouts and of kernels. With `one_kernel` a group
    decodes and verifies with the same kernel (as engines do that build one decode path per group), or verifies its
    drafts as prefill.
    """
    total = sum(c.layers for c in classes) or 1
    ranks = {level: n for n, level in enumerate(GRAPH_LEVELS)}
    asks = [ranks[p.needs_level] for c in classes for p in c.phases if p.needs_level]
    levels = sorted({0, *(rank for rank in asks)}, reverse=True)
    memo: dict[tuple[int, ...], Blocks | None] = {}
    best: tuple[tuple[float, int, int], Joint] | None = None
    for place, name in enumerate(_layouts(classes) if layout is None else (layout,)):
        unbound: float | None = None
        for level in (0, *levels[:-1]):
            menus = [_menu(c, name, level, granule, asked_block, slack, one_kernel) for c in classes]
            if not all(menus):
                continue
            least = sum(min(entry.weight for entry in menu) for menu in menus)
            if level == 0:
                unbound = least
            for picks in product(*menus):
                found = _complete(classes, states, weights, name, picks, memo, total, asked_block is not None)
                if found is None:
                    continue
                block = found.blocks.manager_block if found.blocks else 0
                key = (round(found.cost, 9), block, place)
                if best is None or key < best[0]:
                    best = (key, found)
            if level and unbound is not None and least <= unbound + 1e-12:
                break
    return None if best is None else best[1]


def _layouts(classes: Sequence[GroupClass]) -> tuple[str, ...]:
    """The layouts worth trying: the first of the catalogue alone, if every kernel reads it as well as any other."""
    first = LAYOUTS[0]
    options = (o for c in classes for p in c.phases for o in p.options)
    return (first,) if all(o.layouts is None or first in o.layouts for o in options) else LAYOUTS


@dataclass(frozen=True, slots=True)
class _Entry:
    """One way to serve a class: its unit (1 if it caches nothing), what it weighs, the kernels."""

    unit: int
    weight: float
    options: tuple[Option | None, ...]


def _menu(
    item: GroupClass, layout: str, level: int, granule: int, asked: int | None, slack: float, one_kernel: bool
) -> list[_Entry]:
    """The ways to serve a class under a layout and a graph level: for each unit of the block the best kernels, those
    left out that are no better than one with a finer unit. Empty if a phase has kernels and none of them fits.
    """
    per_phase: list[list[Option | None]] = []
    for phase in item.phases:
        fitting = _within_slack([o for o in phase.options if _suits(o, phase, layout, level, asked)], slack)
        if not fitting and phase.options and (level or not phase.optional):
            return []
        kept: list[Option | None] = []
        for option in fitting:
            beaten = (o for o in kept if o is not None and (not one_kernel or o.name == option.name))
            if not any(not phase.paged or coarser(option.pages, o.pages) for o in beaten):
                kept.append(option)
        if not fitting or (one_kernel and phase.optional and not level):
            kept.append(None)
        per_phase.append(kept)
    entries: list[_Entry] = []
    for picks in product(*per_phase):
        if one_kernel and _two_kernels(item, picks):
            continue
        served = [(p, o) for p, o in zip(item.phases, picks, strict=True) if o is not None]
        weight = sum(p.share * (_worst(p) if o is None else o.weight) for p, o in zip(item.phases, picks, strict=True))
        sets = [o.pages for p, o in served if p.paged]
        found = units(sets, granule if asked is None else asked) if item.need is not None else (1,)
        entries += [_Entry(unit, item.layers * weight, picks) for unit in found]
    return _front(entries)


def _two_kernels(item: GroupClass, picks: Sequence[Option | None]) -> bool:
    """Whether single tokens and drafts would be read by different kernels."""
    both = ("decode", "verify")
    names = {o.name for p, o in zip(item.phases, picks, strict=True) if o is not None and p.phase in both}
    return len(names) > 1


def _worst(phase: PhaseNeed) -> float:
    """What a phase without a kernel of its own weighs: more than any that it has."""
    return 1.0 + max((o.weight for o in phase.options), default=0.0)


def _front(entries: Iterable[_Entry]) -> list[_Entry]:
    """Entries that no other beats in both unit and weight; the first of equals stays."""
    kept: list[_Entry] = []
    for entry in sorted(entries, key=lambda e: (e.weight, e.unit)):
        if not any(entry.unit % other.unit == 0 for other in kept):
            kept.append(entry)
    return kept


def _suits(option: Option, phase: PhaseNeed, layout: str, level: int, asked: int | None) -> bool:
    if option.layouts is not None and phase.paged and layout not in option.layouts:
        return False
    if (
        level
        and phase.needs_level
        and GRAPH_LEVELS.index(option.graph_level or "none") < min(level, GRAPH_LEVELS.index(phase.needs_level))
    ):
        return False
    return asked is None or not phase.paged or fits(option.pages, asked)


def _within_slack(options: list[Option], slack: float) -> list[Option]:
    """Of measured kernels those within the slack of the best one; where none is measured, all."""
    times = [o.time for o in options if o.time is not None]
    return options if not times else [o for o in options if o.time is not None and o.time <= min(times) * (1 + slack)]


def _complete(
    classes: Sequence[GroupClass],
    states: Sequence[StateNeed],
    weights: Weights,
    layout: str,
    picks: Sequence[_Entry],
    memo: dict[tuple[int, ...], Blocks | None],
    total: int,
    asked: bool,
) -> Joint | None:
    """A choice with its blocks and costs; None if no page suits the units."""
    sizes = tuple(entry.unit for entry in picks)
    if sizes not in memo:
        needs = [c.need(unit) for c, unit in zip(classes, sizes, strict=True) if c.need is not None]
        memo[sizes] = choose_blocks(needs, states, smallest=asked)
    blocks = memo[sizes]
    if blocks is None and any(c.need is not None for c in classes):
        return None
    lacking = shortfall(classes, [entry.options for entry in picks])
    return Joint(
        layout=layout,
        chosen=tuple(entry.options for entry in picks),
        blocks=blocks,
        units=sizes,
        time=sum(entry.weight for entry in picks),
        waste=weights.waste * total * blocks.waste if blocks is not None else 0.0,
        graph=weights.graph * total * lacking,
    )


def shortfall(classes: Sequence[GroupClass], chosen: Sequence[Sequence[Option | None]]) -> float:
    """The share of the decoding that runs without full graphs: a captured step needs all groups, so that one kernel
    below the level which a phase needs takes the graph of that phase from every layer.
    """
    lacking: dict[str, float] = {}
    for item, options in zip(classes, chosen, strict=True):
        for phase, option in zip(item.phases, options, strict=True):
            if phase.needs_level is None:
                continue
            have = GRAPH_LEVELS.index((option.graph_level if option else None) or "none")
            if have < GRAPH_LEVELS.index(phase.needs_level):
                lacking[phase.phase] = max(lacking.get(phase.phase, 0.0), phase.share)
    return sum(lacking.values())


def model_level(classes: Sequence[GroupClass], chosen: Sequence[Sequence[Option | None]]) -> str:
    """The CUDA-graph level of the whole model: the lowest among the kernels of the most demanding captured step.

    With speculative tokens that is the verify step, which needs `uniform` of every group. If one of them falls short,
    that step has no full graph, and what remains is single-token decoding, at `uniform1` at most.
    """
    steps = [
        (GRAPH_LEVELS.index(phase.needs_level), GRAPH_LEVELS.index((option.graph_level if option else None) or "none"))
        for item, options in zip(classes, chosen, strict=True)
        for phase, option in zip(item.phases, options, strict=True)
        if phase.needs_level is not None
    ]
    cap = len(GRAPH_LEVELS) - 1
    for top in sorted({need for need, _ in steps}, reverse=True):
        if all(have >= need for need, have in steps if need <= top) or top <= GRAPH_LEVELS.index("uniform1"):
            return GRAPH_LEVELS[min(cap, *(have for need, have in steps if need == top))]
        cap = top - 1
    return GRAPH_LEVELS[0]


def best_alone(classes: Sequence[GroupClass]) -> float:
    """What the time would weigh if every phase of every group took its first kernel."""
    return sum(c.layers * p.share * p.options[0].weight for c in classes for p in c.phases if p.options)
