"""Preference bands from timings: few, disjoint, each split only where it pays, and what choosing by them loses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from math import log

from attnroute.probe.timings import Kernel, Timed, geometric

AXES = ("ratio", "batch", "context")
# PRICE, LEAST and DEPTH lose least when each model and each context of the fitted shapes is left out in turn (two-line
# rule where no band is left). Deeper cuts fit those shapes better and lose more on the ones left out.
PRICE = 0.08  # a band more has to save so much loss, summed over its shapes
LEAST = 3  # shapes in a band, and on each side of a split
DEPTH = 1  # cuts one within the other


@dataclass(frozen=True, slots=True)
class Band:
    """Shapes of one cache dtype and head dim within half-open ranges, and kernels' times relative to the fastest."""

    kv_dtype: str
    head_dim: int
    ranges: tuple[tuple[str, int | None, int | None], ...]
    order: tuple[tuple[Kernel, float], ...]
    shapes: int
    worst: float

    def holds(self, shape: Timed) -> bool:
        """Whether a shape lies in the band."""
        if (shape.kv_dtype, shape.head_dim) != (self.kv_dtype, self.head_dim):
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
    found = {k: [s.relative(k) for s in shapes if k in s.kernels] for s in shapes for k in s.kernels}
    means = sorted((geometric(times), k) for k, times in found.items() if len(times) >= least)
    return tuple((k, mean / means[0][0]) for mean, k in means)


def pick(order: Sequence[tuple[Kernel, float]], shape: Timed) -> Kernel | None:
    """The first kernel of an order that serves the shape."""
    return next((k for k, _ in order if k in shape.kernels), None)


def _losses(shapes: Sequence[Timed]) -> tuple[float, float]:
    """(geometric mean, worst) of what choosing by one order loses on the shapes."""
    order = order_of(shapes)
    found = [s.loss(k) for s in shapes if (k := pick(order, s)) is not None]
    return (geometric(found), max(found)) if len(found) == len(shapes) else (9.0, 9.0)


@cache
def _logs(shape: Timed) -> Mapping[Kernel, tuple[float, float]]:
    """Logarithms of a shape's relative time and loss, by kernel."""
    return {k: (log(shape.relative(k)), log(shape.loss(k))) for k in shape.kernels}


def _cost(shapes: Sequence[Timed]) -> float:
    """What one band over these shapes costs: all their losses and the price of a band."""
    logs = [_logs(s) for s in shapes]
    sums: dict[Kernel, list[float]] = {}
    for one in logs:
        for kernel, (time, _) in one.items():
            sums.setdefault(kernel, []).append(time)
    least = min(LEAST, len(shapes))
    order = sorted((sum(t) / len(t), k) for k, t in sums.items() if len(t) >= least)
    lost = [next((one[k][1] for _, k in order if k in one), 9.0) for one in logs]
    return sum(lost) + PRICE


def _cuts(shapes: Sequence[Timed], axis: str) -> list[int]:
    """Where the axis can be cut: at the next value, or at twice the last where they are far apart."""
    values = sorted({getattr(s, axis) for s in shapes})
    return [b if axis == "ratio" or b <= 2 * a else 2 * a for a, b in pairwise(values)]


Sides = tuple[list[Timed], list[Timed]]


def _sides(shapes: Sequence[Timed]) -> Iterator[tuple[str, int, Sides]]:
    for axis in AXES:
        for cut in _cuts(shapes, axis):
            sides = [s for s in shapes if getattr(s, axis) < cut], [s for s in shapes if getattr(s, axis) >= cut]
            if min(map(len, sides)) >= LEAST:
                yield axis, cut, sides


def _reach(shapes: Sequence[Timed], depth: int) -> float:
    """The least cost with up to `depth` further cuts: two together can pay where each alone does not."""
    least = _cost(shapes)
    if depth and least > PRICE * 2:
        least = min([least, *(sum(_reach(side, depth - 1) for side in sides) for _, _, sides in _sides(shapes))])
    return least


def _split(shapes: list[Timed], depth: int) -> list[tuple[dict[str, tuple[int | None, int | None]], list[Timed]]]:
    ahead = min(1, depth - 1)
    found = [(sum(_reach(side, ahead) for side in sides), axis, cut) for axis, cut, sides in _sides(shapes)]
    if not depth or not found or min(found)[0] >= _cost(shapes):
        return [({}, shapes)]
    _, axis, cut = min(found)
    out = []
    for low in (True, False):
        side = [s for s in shapes if (getattr(s, axis) < cut) == low]
        for ranges, members in _split(side, depth - 1):
            lo, hi = ranges.get(axis, (None, None))
            mine = (lo, cut if hi is None else hi) if low else (cut if lo is None else lo, hi)
            out.append(({**ranges, axis: mine}, members))
    return out


def fit(shapes: Iterable[Timed], depth: int = DEPTH) -> list[Band]:
    """Bands over the shapes that are not held out, with up to `depth` cuts one within the other.

    Where fewer than LEAST shapes of a cache dtype and head dim were timed there is no band: the default order stays.
    """
    groups: dict[tuple[str, int], list[Timed]] = {}
    for shape in shapes:
        if not shape.held_out:
            groups.setdefault((shape.kv_dtype, shape.head_dim), []).append(shape)
    bands = []
    for (kv_dtype, head_dim), members in sorted(groups.items()):
        if len(members) < LEAST:
            continue
        for ranges, inside in _split(members, depth):
            order = order_of(inside)
            spans = tuple((axis, *ranges[axis]) for axis in AXES if axis in ranges)
            bands.append(Band(kv_dtype, head_dim, spans, order, len(inside), _losses(inside)[1]))
    return merged(bands)


def merged(bands: list[Band]) -> list[Band]:
    """Bands in a stable order, relative times rounded as the tables write them."""
    rounded = [replace(b, order=tuple((k, round(t, 3)) for k, t in b.order)) for b in bands]
    return sorted(rounded, key=lambda b: (b.kv_dtype, b.head_dim, str(b.ranges)))


Rule = Callable[[Timed], Kernel | None]


def by_bands(bands: Sequence[Band], fallback: Rule) -> Rule:
    """Per request: the first kernel of the shape's band."""

    def rule(shape: Timed) -> Kernel | None:
        band = next((b for b in bands if b.holds(shape)), None)
        return (pick(band.order, shape) if band else None) or fallback(shape)

    return rule


def static(bands: Sequence[Band], shapes: Sequence[Timed], fallback: Rule) -> Rule:
    """One kernel for each group: the best mean over the bands that batch and context left free leave open."""
    chosen: dict[tuple[str, str, int], Kernel | None] = {}
    for shape in shapes:
        if shape.group in chosen:
            continue
        same = [s for s in shapes if s.group == shape.group]
        served = [k for k in same[0].kernels if all(k in s.kernels for s in same)]
        open_bands = [b for b in bands if any(_may_hold(b, s) for s in same)]
        means = [
            (geometric(dict(b.order)[k] for b in open_bands), k)
            for k in served
            if all(k in dict(b.order) for b in open_bands)
        ]
        chosen[shape.group] = min(means)[1] if means and open_bands else None
    return lambda shape: chosen[shape.group] or fallback(shape)


def hindsight(shapes: Sequence[Timed]) -> Rule:
    """The kernel of each group with the least mean loss, known only afterwards: a bound on the mean, not a rule."""
    groups: dict[tuple[str, str, int], list[Timed]] = {}
    for shape in shapes:
        groups.setdefault(shape.group, []).append(shape)
    chosen = {}
    for group, same in groups.items():
        served = [k for k in same[0].kernels if all(k in s.kernels for s in same)]
        chosen[group] = min(served, key=lambda k: geometric(s.loss(k) for s in same)) if served else None
    return lambda shape: chosen[shape.group]


def _may_hold(band: Band, shape: Timed) -> bool:
    """Whether a band fits with batch and context left free."""
    ratio = [(lo, hi) for axis, lo, hi in band.ranges if axis == "ratio"]
    return (band.kv_dtype, band.head_dim) == (shape.kv_dtype, shape.head_dim) and all(
        (lo is None or shape.ratio >= lo) and (hi is None or shape.ratio < hi) for lo, hi in ratio
    )


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
