"""Preference bands from timings: few, disjoint, each split only where it pays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from math import fsum, log

from attnroute.probe.timings import Kernel, Timed, geometric

AXES = ("ratio", "streams", "context", "page")
UNSERVED = 9.0  # cost of a band without a kernel for one of its shapes


@dataclass(frozen=True, slots=True)
class Settings:
    """How bands are grown.

    `price`: a band more has to save so much cost, summed over its shapes. `least`: shapes in a band, and on each side
    of a cut. `depth`: cuts one within the other. `steep`: how much dearer than small losses large ones are, since the
    worst counts as well as the mean.
    """

    price: float = 0.05
    least: int = 4
    depth: int = 7
    steep: float = 4.0


#: By leaving fifths of the models and of the contexts of the fitted shapes out in turn: see docs/preference.md.
CHOSEN = Settings()


@dataclass(frozen=True, slots=True)
class Band:
    """Shapes of one cache dtype and head dim within half-open ranges, and kernels' times relative to the fastest.

    `window` spans the windows of layers that see less than their context; None: layers that see all of it.
    """

    kv_dtype: str
    head_dim: int
    window: tuple[int, int] | None
    ranges: tuple[tuple[str, int | None, int | None], ...]
    order: tuple[tuple[Kernel, float], ...]
    shapes: int
    worst: float

    def holds(self, shape: Timed) -> bool:
        """Whether a shape lies in the band."""
        if (shape.kv_dtype, shape.head_dim) != (self.kv_dtype, self.head_dim):
            return False
        if (shape.window > 0) != (self.window is not None):
            return False
        return all(
            (lo is None or getattr(shape, axis) >= lo) and (hi is None or getattr(shape, axis) < hi)
            for axis, lo, hi in self.ranges
        )


def order_of(shapes: Sequence[Timed], least: int) -> tuple[tuple[Kernel, float], ...]:
    """Kernels fastest first, with the geometric mean of their relative times over the shapes that they serve.

    A kernel that serves few of them is listed too (layers with sinks and without share a band), but not one timed on
    fewer than `least` shapes, if there are as many.
    """
    least = min(least, len(shapes))
    found = {k: [s.relative(k) for s in shapes if k in s.kernels] for k in {k: None for s in shapes for k in s.kernels}}
    means = sorted((geometric(times), k) for k, times in found.items() if len(times) >= least)
    return tuple((k, mean / means[0][0]) for mean, k in means)


def pick(order: Sequence[tuple[Kernel, float]], shape: Timed) -> Kernel | None:
    """The first kernel of an order that serves the shape."""
    return next((k for k, _ in order if k in shape.kernels), None)


def _worst(order: Sequence[tuple[Kernel, float]], shapes: Sequence[Timed]) -> float:
    """The largest loss of choosing by one order."""
    picks = [(s, pick(order, s)) for s in shapes]
    return max(UNSERVED if k is None else s.loss(k) for s, k in picks)


@cache
def _logs(shape: Timed) -> Mapping[Kernel, tuple[float, float]]:
    """By kernel: the logarithms of a shape's relative time and of what picking it loses."""
    return {k: (log(shape.relative(k)), max(log(shape.loss(k)), 0.0)) for k in shape.kernels}


def _cost(shapes: Sequence[Timed], settings: Settings) -> float:
    """What one band over these shapes costs: all their losses, large ones dearer, and the price of a band."""
    logs = [_logs(s) for s in shapes]
    sums: dict[Kernel, list[float]] = {}
    for one in logs:
        for kernel, (time, _) in one.items():
            sums.setdefault(kernel, []).append(time)
    least = min(settings.least, len(shapes))
    order = [k for _, k in sorted((fsum(t) / len(t), k) for k, t in sums.items() if len(t) >= least)]
    lost = [next((one[k][1] for k in order if k in one), None) for one in logs]
    return settings.price + fsum(UNSERVED if x is None else x + settings.steep * x**2 for x in lost)


def _cuts(shapes: Sequence[Timed], axis: str) -> list[int]:
    """Where the axis can be cut: at the geometric middle of two values."""
    values = sorted({getattr(s, axis) for s in shapes})
    return [max(a + 1, round((a * b) ** 0.5)) for a, b in pairwise(values)]


Ranges = dict[str, tuple[int | None, int | None]]
Leaves = list[tuple[Ranges, list[Timed]]]


def _split(shapes: list[Timed], depth: int, settings: Settings) -> tuple[float, Leaves]:
    """The cost and the leaves of a tree grown greedily, whose cuts stay only where all below them pays."""
    alone = _cost(shapes, settings)
    best: tuple[float, int, str, int] | None = None
    for axis in AXES if depth and alone > settings.price * 2 else ():
        for cut in _cuts(shapes, axis):
            low = [s for s in shapes if getattr(s, axis) < cut]
            if settings.least <= len(low) <= len(shapes) - settings.least:
                high = [s for s in shapes if getattr(s, axis) >= cut]
                cost = _cost(low, settings) + _cost(high, settings)
                # of cuts that cost the same, to what every machine agrees on, the one nearest the middle
                found = (round(cost, 9), -min(len(low), len(shapes) - len(low)), axis, cut)
                best = min(best, found) if best else found
    if best is None:
        return alone, [({}, shapes)]
    _, _, axis, cut = best
    total, leaves = 0.0, []
    for low_side in (True, False):
        cost, below_it = _split([s for s in shapes if (getattr(s, axis) < cut) == low_side], depth - 1, settings)
        total += cost
        for ranges, members in below_it:
            lo, hi = ranges.get(axis, (None, None))
            mine = (lo, cut if hi is None else hi) if low_side else (cut if lo is None else lo, hi)
            leaves.append(({**ranges, axis: mine}, members))
    return (total, leaves) if round(total, 9) < round(alone, 9) else (alone, [({}, shapes)])


def fit(shapes: Iterable[Timed], settings: Settings = CHOSEN) -> list[Band]:
    """Bands over the shapes that are not held out.

    Where fewer than `settings.least` shapes of a cache dtype and head dim were timed there is no band: the default
    order stays.
    """
    groups: dict[tuple[str, int, bool], list[Timed]] = {}
    for shape in shapes:
        if not shape.held_out:
            groups.setdefault((shape.kv_dtype, shape.head_dim, shape.window > 0), []).append(shape)
    bands = []
    for (kv_dtype, head_dim, windowed), members in sorted(groups.items()):
        if len(members) < settings.least:
            continue
        windows = [s.window for s in members]
        window = (min(windows) // 2, max(windows) * 2) if windowed else None
        for ranges, inside in _split(members, settings.depth, settings)[1]:
            order = order_of(inside, settings.least)
            spans = tuple((axis, *ranges[axis]) for axis in AXES if axis in ranges)
            bands.append(Band(kv_dtype, head_dim, window, spans, order, len(inside), _worst(order, inside)))
    return merged(bands)


def _place(band: Band) -> list[tuple[int, float]]:
    """Low ends along the axes, so that neighbours stand together."""
    ends = {axis: (lo or 0, hi or float("inf")) for axis, lo, hi in band.ranges}
    return [ends.get(axis, (0, float("inf"))) for axis in AXES]


def merged(bands: list[Band]) -> list[Band]:
    """Bands in a stable order, relative times rounded as the tables write them."""
    rounded = [replace(b, order=tuple((k, round(t, 3)) for k, t in b.order)) for b in bands]
    return sorted(rounded, key=lambda b: (b.kv_dtype, b.head_dim, b.window or (0, 0), _place(b)))


def band_of(bands: Sequence[Band], shape: Timed) -> Band | None:
    """The band that a shape lies in; there is at most one."""
    return next((b for b in bands if b.holds(shape)), None)
