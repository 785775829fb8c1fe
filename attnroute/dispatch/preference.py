"""Order among accepted candidates: measured bands first, the documented default order after."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import exp, log
from typing import Any

from attnroute.registry.dims import BAND_AXES
from attnroute.registry.headdims import HeadDims
from attnroute.registry.sets import IntSet
from attnroute.registry.table import ArchTable, names
from attnroute.registry.versions import VersionRange, public

from .decision import Preference
from .request import Request

_CONTEXT, _WINDOW = BAND_AXES.index("context"), BAND_AXES.index("window")
Point = tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Band:
    """A band as the dispatcher reads it: bounds of some axes, and logarithms of relative times."""

    bounds: tuple[tuple[int, int, float], ...]  # (place in BAND_AXES, at least, below)
    windowed: bool
    least_context: int
    weight: int
    times: tuple[tuple[tuple[str, str], str, float], ...]  # (kernel, provider), versions, log of time

    def holds(self, point: Point, most_context: int | None = None) -> bool:
        """Whether a request may lie in the band; None in `point` is free, a free context up to `most_context`."""
        for axis, low, high in self.bounds:
            value = point[axis]
            if value is not None and not low <= value < high:
                return False
        return most_context is None or point[_CONTEXT] is not None or self.least_context <= most_context


def point(request: Request) -> Point:
    """Where a request lies on each of BAND_AXES, None where it is free."""
    batch, heads = request.batch_size, request.kv_heads
    streams = None if batch is None or heads is None else batch * heads
    return request.group_ratio, batch, streams, request.context_len, request.page, request.window


def open_bands(bands: tuple[Band, ...], request: Request) -> tuple[Band, ...]:
    """The bands that a request may lie in.

    A layer whose window is shorter than its context lies in the bands that name its window. Where none does, and for
    layers that see all, it is the bands without a window, in which a step reads no more than the window holds.
    """
    asked, window, context = point(request), request.window, request.context_len
    some = window is not None or ("window", True) in request.features  # asked for without saying how long
    if some and (window is None or context is None or context > window):
        named = [b for b in bands if b.windowed and _spans(b, window)]
        if named:
            return tuple(b for b in named if b.holds(asked))
    read = context if window is None or context is None else min(context, window)
    plain = (*asked[:_CONTEXT], read, *asked[_CONTEXT + 1 :])
    return tuple(b for b in bands if not b.windowed and b.holds(plain, window))


def _spans(band: Band, window: int | None) -> bool:
    return window is None or any(axis == _WINDOW and low <= window < high for axis, low, high in band.bounds)


def _ends(span: str) -> tuple[int, float]:
    """`lo..hi` (hi excluded, either end open) as numbers."""
    lo, _, hi = span.partition("..")
    return int(lo or 0), int(hi) if hi else float("inf")


@lru_cache(maxsize=1024)
def _within(version: str, versions: str) -> bool:
    return public(version) in VersionRange.parse(versions)


def _matches(band: Mapping[str, Any], request: Request) -> bool:
    """Whether all but the ranges of the band hold the request."""
    if request.phase not in names(band["phase"]) or request.kind not in names(band.get("kind", "gqa")):
        return False
    if request.head_dim is None or request.head_dim not in HeadDims.parse(band["head_dim"]):
        return False
    model = request.dtype or "bf16"
    kv = model if request.kv_dtype == "auto" else request.kv_dtype
    if kv is None or kv not in band["dtypes"].get(model, ()):
        return False
    return request.q_len is None or request.q_len in IntSet.parse(band.get("q_len", 1))


def measured_bands(table: ArchTable, request: Request) -> tuple[Band, ...]:
    """The bands of a request with all of BAND_AXES left free, remembered."""
    if not table.preference:
        return ()
    key = ("bands", request.phase, request.kind, request.head_dim, request.dtype, request.kv_dtype, request.q_len)
    found: tuple[Band, ...] | None = table.memo.get(key)
    if found is None:
        found = table.memo[key] = tuple(_band(b) for b in table.preference if _matches(b, request))
    return found


def _band(band: Mapping[str, Any]) -> Band:
    times = tuple(((e["kernel"], e["provider"]), str(e["versions"]), log(e["time"])) for e in band["kernels"])
    ends = {name: _ends(str(band[name])) for name in BAND_AXES if name in band}
    bounds = tuple((BAND_AXES.index(name), *span) for name, span in ends.items())
    return Band(bounds, "window" in ends, ends.get("context", (0, 0))[0], int(band.get("shapes", 1)), times)


def relative_times(
    bands: tuple[Band, ...], request: Request, versions: Mapping[tuple[str, str], str]
) -> dict[tuple[str, str], float]:
    """Relative time (1.0 = best of the band) of each (kernel, provider) that the matching ones of `bands` measured.

    What is left free (batch, context, page) matches several bands: the answer is then the geometric mean over them,
    each weighed by the shapes it rests on, and a kernel missing from one of them in the installed version is not ranked
    by measurement. The best of a band need not be installed: the others keep their times and thereby their order.
    """
    bands = open_bands(bands, request)
    logs: dict[tuple[str, str], list[float]] = {}
    for band in bands:
        for key, span, time in band.times:
            installed = versions.get(key)
            if installed is not None and _within(installed, span):
                logs.setdefault(key, []).append(time * band.weight)
    whole = sum(band.weight for band in bands)
    return {key: exp(sum(times) / whole) for key, times in logs.items() if len(times) == len(bands)}


def default_rank(table: ArchTable, phase: str, kernel: str) -> int:
    """Place in the default order of the phase; kernels it does not name come last."""
    order = table.default_order.get(phase, ())
    return order.index(kernel) if kernel in order else len(order)


def describe(table: ArchTable, time: float | None, any_measured: bool) -> Preference:
    """The words that go with a place in the order, which never pass a default off as a measurement."""
    return _described(table.arch, time, any_measured)


@lru_cache(maxsize=1024)
def _described(arch: str, time: float | None, any_measured: bool) -> Preference:
    if time is not None:
        return Preference(True, round(time, 4), f"measured on {arch}, relative time {time:.2f}")
    suffix = ", after the measured ones" if any_measured else ""
    return Preference(False, None, f"default order of {arch}, not measured{suffix}")
