"""Preference bands from timings: few, disjoint, each split only where it pays, and what choosing by them loses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from math import fsum, log

from attnroute.probe.timings import Kernel, Timed, geometric

AXES = ("ratio", "streams", "context", "page")
UNSERVED = 9.0  # cost of a band without a kernel for one of its shapes
# Set by leaving fifths of the models and of the contexts of the fitted shapes out in turn: see docs/preference.md.
PRICE = 0.1  # a band more has to save so much cost, summed over its shapes
LEAST = 3  # shapes in a band, and on each side of a cut
DEPTH = 7  # cuts one within the other
STEEP = 4.0  # how much dearer than small losses large ones are, since the worst counts as well as the mean


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


def order_of(shapes: Sequence[Timed]) -> tuple[tuple[Kernel, float], ...]:
    """Kernels fastest first, with the geometric mean of their relative times over the shapes that they serve.

    A kernel that serves few of them is listed too (layers with sinks and without share a band), but not one timed on
    fewer than LEAST shapes, if there are as many.
    """
    least = min(LEAST, len(shapes))
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
    """By kernel: the logarithm of a shape's relative time, and what picking it costs; large losses are dearer."""
    lost = {k: max(log(shape.loss(k)), 0.0) for k in shape.kernels}
    return {k: (log(shape.relative(k)), x + STEEP * x**2) for k, x in lost.items()}


def _cost(shapes: Sequence[Timed]) -> float:
    """What one band over these shapes costs: all their losses and the price of a band."""
    logs = [_logs(s) for s in shapes]
    sums: dict[Kernel, list[float]] = {}
    for one in logs:
        for kernel, (time, _) in one.items():
            sums.setdefault(kernel, []).append(time)
    least = min(LEAST, len(shapes))
    order = [k for _, k in sorted((fsum(t) / len(t), k) for k, t in sums.items() if len(t) >= least)]
    return PRICE + fsum(next((one[k][1] for k in order if k in one), UNSERVED) for one in logs)


def _cuts(shapes: Sequence[Timed], axis: str) -> list[int]:
    """Where the axis can be cut: at the geometric middle of two values, of ratios at the upper one."""
    values = sorted({getattr(s, axis) for s in shapes})
    return [b if axis == "ratio" else max(a + 1, round((a * b) ** 0.5)) for a, b in pairwise(values)]


Ranges = dict[str, tuple[int | None, int | None]]
Leaves = list[tuple[Ranges, list[Timed]]]


def _split(shapes: list[Timed], depth: int) -> tuple[float, Leaves]:
    """The cost and the leaves of a tree grown greedily, whose cuts stay only where all below them pays."""
    alone = _cost(shapes)
    best: tuple[float, int, str, int] | None = None
    for axis in AXES if depth and alone > PRICE * 2 else ():
        for cut in _cuts(shapes, axis):
            low = [s for s in shapes if getattr(s, axis) < cut]
            if LEAST <= len(low) <= len(shapes) - LEAST:
                cost = _cost(low) + _cost([s for s in shapes if getattr(s, axis) >= cut])
                # of cuts that cost the same, to what every machine agrees on, the one nearest the middle
                found = (round(cost, 9), -min(len(low), len(shapes) - len(low)), axis, cut)
                best = min(best, found) if best else found
    if best is None:
        return alone, [({}, shapes)]
    _, _, axis, cut = best
    total, leaves = 0.0, []
    for low_side in (True, False):
        cost, below_it = _split([s for s in shapes if (getattr(s, axis) < cut) == low_side], depth - 1)
        total += cost
        for ranges, members in below_it:
            lo, hi = ranges.get(axis, (None, None))
            mine = (lo, cut if hi is None else hi) if low_side else (cut if lo is None else lo, hi)
            leaves.append(({**ranges, axis: mine}, members))
    return (total, leaves) if round(total, 9) < round(alone, 9) else (alone, [({}, shapes)])


def fit(shapes: Iterable[Timed]) -> list[Band]:
    """Bands over the shapes that are not held out, with up to DEPTH cuts one within the other.

    Where fewer than LEAST shapes of a cache dtype and head dim were timed there is no band: the default order stays.
    """
    groups: dict[tuple[str, int, bool], list[Timed]] = {}
    for shape in shapes:
        if not shape.held_out:
            groups.setdefault((shape.kv_dtype, shape.head_dim, shape.window > 0), []).append(shape)
    bands = []
    for (kv_dtype, head_dim, windowed), members in sorted(groups.items()):
        if len(members) < LEAST:
            continue
        windows = [s.window for s in members]
        window = (min(windows) // 2, max(windows) * 2) if windowed else None
        for ranges, inside in _split(members, DEPTH)[1]:
            order = order_of(inside)
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


Rule = Callable[[Timed], Kernel | None]


def band_of(bands: Sequence[Band], shape: Timed) -> Band | None:
    """The band that a shape lies in; there is at most one."""
    return next((b for b in bands if b.holds(shape)), None)


def by_bands(bands: Sequence[Band], fallback: Rule) -> Rule:
    """Per request: the first kernel of the shape's band."""

    def rule(shape: Timed) -> Kernel | None:
        band = band_of(bands, shape)
        return (pick(band.order, shape) if band else None) or fallback(shape)

    return rule


Grouping = Callable[[Timed], tuple[object, ...]]


def by_group(shape: Timed) -> tuple[object, ...]:
    """What an engine that cannot switch decides once for."""
    return shape.group


def by_batch(shape: Timed) -> tuple[object, ...]:
    """What an engine decides once for that captures a CUDA graph for each batch size, whatever the context then is."""
    return (*shape.group, shape.batch)


def static(
    bands: Sequence[Band],
    shapes: Sequence[Timed],
    fallback: Rule,
    *,
    workload: bool = True,
    grouping: Grouping = by_group,
) -> Rule:
    """One kernel for each group, that of the least mean relative time as the bands have it.

    The mean is over the points of the workload, as `plan` takes it (here the group's own batches and contexts), or
    without one over all bands that a free batch and context leave open, each weighed by its shapes, as `route` does.
    """
    chosen: dict[tuple[object, ...], Kernel | None] = {}
    for group, same in _grouped(shapes, grouping).items():
        found = (_known if workload else _free)(bands, same)
        served = [k for k in same[0].kernels if all(k in s.kernels for s in same)]
        means = [(_mean(t[k] for t in found), k) for k in served if found and all(k in t for t in found)]
        chosen[group] = min(means)[1] if means else None
    return lambda shape: chosen[grouping(shape)] or fallback(shape)


def _grouped(shapes: Iterable[Timed], grouping: Grouping) -> dict[tuple[object, ...], list[Timed]]:
    groups: dict[tuple[object, ...], list[Timed]] = {}
    for shape in shapes:
        groups.setdefault(grouping(shape), []).append(shape)
    return groups


def _known(bands: Sequence[Band], shapes: Sequence[Timed]) -> list[Mapping[Kernel, float]]:
    held = [band_of(bands, s) for s in shapes]
    return [dict(b.order) if b else {} for b in held]


def _free(bands: Sequence[Band], shapes: Sequence[Timed]) -> list[Mapping[Kernel, float]]:
    return [dict(b.order) for b in bands if any(_may_hold(b, s) for s in shapes) for _ in range(b.shapes)]


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found)


def hindsight(shapes: Sequence[Timed], grouping: Grouping = by_group, *, worst: bool = False) -> Rule:
    """The kernel of each group with the least mean loss, or the least worst one, known only afterwards: no rule can
    lose less.
    """
    chosen = {}
    for group, same in _grouped(shapes, grouping).items():
        served = [k for k in same[0].kernels if all(k in s.kernels for s in same)]
        lost = {k: [s.loss(k) for s in same] for k in served}
        chosen[group] = min(served, key=lambda k: max(lost[k]) if worst else geometric(lost[k])) if served else None
    return lambda shape: chosen[grouping(shape)]


def _may_hold(band: Band, shape: Timed) -> bool:
    """Whether a band fits with batch and context left free."""
    fixed = [(getattr(shape, axis), lo, hi) for axis, lo, hi in band.ranges if axis in ("ratio", "page")]
    same = (band.kv_dtype, band.head_dim, band.window is None) == (shape.kv_dtype, shape.head_dim, shape.window == 0)
    return same and all((lo is None or value >= lo) and (hi is None or value < hi) for value, lo, hi in fixed)


def first_of(*names: str, otherwise: Sequence[str] = ("native_tc", "xqa", "fa3", "fa4")) -> Rule:
    """A rule of thumb: the first of these kernels (`kernel` or `kernel@provider`) that serves the shape."""

    def rule(shape: Timed) -> Kernel | None:
        for name in (*names, *otherwise):
            for kernel in sorted(shape.kernels):
                if name in (kernel[0], "@".join(kernel)):
                    return kernel
        return None

    return rule


def two_line(shape: Timed) -> Kernel | None:
    """XQA up to head 128, else native: what bands have to beat to be worth having."""
    return first_of("xqa" if shape.head_dim <= 128 else "native_tc")(shape)


def vllm_default(shape: Timed) -> Kernel | None:
    """FA3, above head 256 FA4."""
    return first_of("fa3" if shape.head_dim <= 256 else "fa4@vllm", otherwise=("fa4@vllm", "native_tc", "xqa"))(shape)


BASELINES: Mapping[str, Rule] = {
    "XQA up to head 128, else native": two_line,
    "XQA whenever it can": first_of("xqa"),
    "native always": first_of("native_tc"),
    "FA4 (vLLM's) whenever it can": first_of("fa4@vllm"),
    "FA4 (flash-attn-4) whenever it can": first_of("fa4@flash-attn-4"),
    "vLLM's default: FA3, above head 256 FA4": vllm_default,
}


def judged(bands: Sequence[Band], shapes: Sequence[Timed], fallback: Rule) -> dict[str, Rule]:
    """Every rule that a report holds against the others on these shapes, by its title."""
    return {
        "bands, per request": by_bands(bands, fallback),
        "bands, per batch size": static(bands, shapes, fallback, grouping=by_batch),
        "bands, static": static(bands, shapes, fallback),
        "bands, static, workload unknown": static(bands, shapes, fallback, workload=False),
        "hindsight, per batch size": hindsight(shapes, by_batch),
        "hindsight, static": hindsight(shapes),
        "hindsight, static, least worst": hindsight(shapes, worst=True),
        **BASELINES,
    }


def losses(rule: Rule, shapes: Iterable[Timed]) -> list[tuple[float, Timed, Kernel]]:
    """Loss of a rule on each shape that it answers, worst first."""
    out = [(s.loss(k), s, k) for s in shapes if (k := rule(s)) is not None]
    return sorted(out, key=lambda entry: -entry[0])


def left_out(shapes: Sequence[Timed], fallback: Rule) -> list[tuple[float, Timed, Kernel]]:
    """Losses of bands on shapes left out of the fit: each model in turn, then each context."""
    out: list[tuple[float, Timed, Kernel]] = []
    for axis in ("model", "context"):
        for value in {getattr(s, axis): None for s in shapes}:
            bands = fit(s for s in shapes if getattr(s, axis) != value)
            out += losses(by_bands(bands, fallback), [s for s in shapes if getattr(s, axis) == value])
    return sorted(out, key=lambda entry: -entry[0])
