"""Order among accepted candidates: measured bands first, the documented default order after."""

from __future__ import annotations

from collections.abc import Mapping
from math import exp, log
from typing import Any

from attnroute.registry.headdims import HeadDims
from attnroute.registry.sets import IntSet
from attnroute.registry.table import ArchTable, names
from attnroute.registry.versions import VersionRange, public

from .decision import Preference
from .request import Request


def in_half_open(value: int, span: str) -> bool:
    """Whether `lo..hi` (hi excluded, either end open) holds a count."""
    lo, _, hi = span.partition("..")
    return (not lo or value >= int(lo)) and (not hi or value < int(hi))


def _matches(band: Mapping[str, Any], request: Request) -> bool:
    if request.phase not in names(band["phase"]) or request.kind not in names(band.get("kind", "gqa")):
        return False
    if request.head_dim is None or request.head_dim not in HeadDims.parse(band["head_dim"]):
        return False
    model = request.dtype or "bf16"
    if request.kv_dtype is None or request.kv_dtype not in band["dtypes"].get(model, ()):
        return False
    if request.q_len is not None and request.q_len not in IntSet.parse(band.get("q_len", 1)):
        return False
    for key, value in (
        ("group_ratio", request.group_ratio),
        ("batch", request.batch_size),
        ("context", request.context_len),
    ):
        if value is not None and key in band and not in_half_open(value, str(band[key])):
            return False
    return True


def relative_times(
    table: ArchTable, request: Request, versions: Mapping[tuple[str, str], str]
) -> dict[tuple[str, str], float]:
    """Relative time (1.0 = best of the band) of each (kernel, provider) that the matching bands measured.

    Batch and context left free match several bands: the answer is then the geometric mean over those that measured the
    kernel in the installed version, and a kernel missing from one of them is not ranked by measurement.
    """
    bands = [b for b in table.preference if _matches(b, request)]
    logs: dict[tuple[str, str], list[float]] = {}
    for band in bands:
        for entry in band["kernels"]:
            key = (entry["kernel"], entry["provider"])
            installed = versions.get(key)
            if installed is not None and public(installed) in VersionRange.parse(entry["versions"]):
                logs.setdefault(key, []).append(log(entry["time"]))
    return {key: exp(sum(times) / len(times)) for key, times in logs.items() if len(times) == len(bands)}


def default_rank(table: ArchTable, phase: str, kernel: str) -> int:
    """Place in the default order of the phase; kernels it does not name come last."""
    order = table.default_order.get(phase, ())
    return order.index(kernel) if kernel in order else len(order)


def describe(table: ArchTable, time: float | None, any_measured: bool) -> Preference:
    """The words that go with a place in the order, which never pass a default off as a measurement."""
    if time is not None:
        return Preference(True, round(time, 4), f"measured on {table.arch}, relative time {time:.2f}")
    suffix = ", after the measured ones" if any_measured else ""
    return Preference(False, None, f"default order of {table.arch}, not measured{suffix}")
