"""Which values of a declared set are worth an experiment: its edges, its middle, and one step outside."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from attnroute.registry.headdims import HeadDims
    from attnroute.registry.sets import IntSet

#: Pages tried where any page is declared: one token, odd ones, the usual ones, and what hybrid models round up to.
ANY_PAGES = (1, 16, 48, 64, 128, 832)
#: Group ratios tried where they are inside the declared set, and outside it.
RATIOS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 17, 24, 25, 32, 33, 48, 57, 64)
#: Head-dim pairs tried where a free mix is declared.
PAIRS = ((64, 128), (128, 64), (192, 128), (64, 256), (256, 64), (128, 192), (64, 512), (96, 128), (8, 256), (256, 8))
HEAD_LIMIT = 576


@dataclass(frozen=True, slots=True)
class Sample:
    """A value and the reason for it: `edge`, `inside`, `between` (finer steps) or `outside`."""

    value: tuple[int, ...]
    reason: str


def _unique(samples: Iterable[Sample]) -> list[Sample]:
    found: dict[tuple[int, ...], Sample] = {}
    for sample in samples:
        found.setdefault(sample.value, sample)
    return list(found.values())


def int_samples(declared: IntSet, tried: Iterable[int], *, every: int = 12) -> list[Sample]:
    """Edges, all members of a small set, the members among `tried`, and values just outside."""
    tried = tuple(tried)
    members = [v for v in declared.values(4096) if v > 0] if not declared.is_any else sorted(tried)
    samples = [
        Sample((members[0],), "edge"),
        Sample((members[-1],), "edge"),
        Sample((members[len(members) // 2],), "inside"),
    ]
    if declared.is_any or (declared.spans and declared.spans[-1].hi is None):
        samples.pop(1)  # an open end has no last member
    if len(members) <= every:
        samples += [Sample((v,), "inside") for v in members]
    samples += [Sample((v,), "inside") for v in tried if v in declared]
    samples += [Sample((v,), "outside") for v in (*tried, *_beside(members, declared)) if v not in declared]
    return _unique(samples)


def _beside(members: list[int], declared: IntSet) -> list[int]:
    """One step below the first member and one above the last, where the set ends there."""
    if declared.is_any:
        return []
    step = declared.spans[0].step if len(declared.spans) == 1 else 0
    below = members[0] - step if step else members[0] // 2
    above = [] if declared.spans[-1].hi is None else [members[-1] + step if step else members[-1] * 2]
    return [v for v in (below, *above) if v > 0]


def head_samples(declared: HeadDims, *, step: int = 16) -> list[Sample]:
    """Head dims in steps of 16 inside a declared range, its edges, pairs of a free mix, gaps of a list, and beyond."""
    diagonal = sorted({qk for qk, v in declared.members(HEAD_LIMIT) if qk == v})
    pairs = [(qk, v) for qk, v in declared.members(HEAD_LIMIT) if qk != v]
    samples: list[Sample] = []
    if diagonal:
        spread = [d for d in diagonal if d % step == 0 or d in (diagonal[0], diagonal[-1])]
        fine = [d for d in diagonal if d % step]  # where 8 is declared as the step
        samples += [Sample((d, d), "edge") for d in (diagonal[0], diagonal[-1])]
        samples += [Sample((d, d), "inside") for d in spread] + [Sample((d, d), "between") for d in fine]
        samples += [Sample((d, d), "outside") for d in _head_outside(diagonal) if (d, d) not in declared]
    if len(pairs) <= 6:
        samples += [Sample(pair, "edge") for pair in pairs]
    samples += [
        Sample(pair, "inside" if pair in declared else "outside") for pair in PAIRS if pairs or pair == (192, 128)
    ]
    return _unique(samples)


def _head_outside(diagonal: list[int]) -> list[int]:
    """Just below and above the range, between members where a list leaves gaps, and off the step."""
    lo, hi = diagonal[0], diagonal[-1]
    steps = [b - a for a, b in pairwise(diagonal)]
    step = min(steps) if steps else 16
    beyond = [lo - step, hi + step] if steps and max(steps) == step else [lo // 2, hi + 64]
    gaps = [(a + b) // 2 for a, b in pairwise(diagonal) if b - a > step or b - a >= 64]
    off = [lo + step // 2] if step >= 16 and lo + step // 2 < hi else []
    return [d for d in (*beyond, *gaps, *off) if d > 0]


def preferred(declared: IntSet, wanted: Iterable[int]) -> int:
    """The first of `wanted` that is declared, else the smallest member."""
    return next((v for v in wanted if v in declared), declared.smallest())


def preferred_heads(declared: HeadDims) -> tuple[int, int]:
    """A typical head dim of the set."""
    wanted = ((128, 128), (256, 256), (64, 64), (512, 512), (192, 128))
    return next((pair for pair in wanted if pair in declared), next(iter(declared.members(HEAD_LIMIT))))
