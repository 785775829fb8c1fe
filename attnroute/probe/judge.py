"""What choosing a kernel by a rule loses: the bands', rules of thumb, and what hindsight could not beat."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import attrgetter

from attnroute.probe.fit import CHOSEN, Band, Settings, band_of, fit, pick
from attnroute.probe.grid import hash_of
from attnroute.probe.timings import Kernel, Timed, geometric

Rule = Callable[[Timed], Kernel | None]


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


LEFT_OUT, FOLDS = ("model", "context"), 5
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
    return [e for axis in LEFT_OUT for e in _without(shapes, fallback, attrgetter(axis), CHOSEN)]


def folded(shapes: Sequence[Timed], fallback: Rule, settings: Settings) -> list[tuple[float, Timed, Kernel]]:
    """Losses of bands on shapes left out of the fit: fifths of the models in turn, then fifths of the contexts."""
    out: list[tuple[float, Timed, Kernel]] = []
    for axis in LEFT_OUT:
        out += _without(shapes, fallback, partial(_fold, attrgetter(axis)), settings)
    return out


def _fold(value: Callable[[Timed], object], shape: Timed) -> int:
    return hash_of(f"fold:{value(shape)}") % FOLDS


def _without(
    shapes: Sequence[Timed], fallback: Rule, key: Callable[[Timed], object], settings: Settings
) -> list[tuple[float, Timed, Kernel]]:
    out: list[tuple[float, Timed, Kernel]] = []
    for value in {key(s): None for s in shapes}:
        bands = fit((s for s in shapes if key(s) != value), settings)
        out += losses(by_bands(bands, fallback), [s for s in shapes if key(s) == value])
    return out
