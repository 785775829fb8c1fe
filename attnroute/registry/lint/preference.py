"""Preference bands: disjoint, ordered by time, of known kernels and providers."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, Any

from attnroute.registry.boxes import Box, Value, value
from attnroute.registry.dims import BAND_AXES
from attnroute.registry.lint.context import MALFORMED, Context, Finding
from attnroute.registry.lint.references import unknown
from attnroute.registry.sets import IntSet, Span

if TYPE_CHECKING:
    from collections.abc import Iterator

    from attnroute.registry.positions import Map

RULE = "preference"


def check(context: Context) -> Iterator[Finding]:
    """Bands of each architecture."""
    kernels = context.ids("kernels")
    for arch, flat in context.archs.items():
        bands = []
        for band in flat.root.maps("preference"):
            try:
                bands.append((band, _box(band.plain)))
            except MALFORMED:
                continue
            yield from _order(context, arch, band, kernels)
        for (a, first), (b, second) in combinations(bands, 2):
            if first.meet(second) is not None:
                text = f"the band overlaps band {a.plain.get('band')!r} (line {a.line})"
                yield Finding(RULE, arch, b.get("band") or b, text, "bands are disjoint")


def _order(context: Context, arch: str, band: Map, kernels: tuple[str, ...]) -> Iterator[Finding]:
    last = 0.0
    for choice in band.maps("order"):
        name, provider, time = (choice.plain.get(key) for key in ("kernel", "provider", "time"))
        entry = context.kernel(name) if isinstance(name, str) else None
        providers = entry.map("providers") if entry else None
        if isinstance(name, str) and name not in kernels:
            yield unknown(arch, choice.entries["kernel"], "kernel", name, kernels)
        elif isinstance(provider, str) and providers is not None and provider not in providers.entries:
            yield unknown(arch, choice.entries["provider"], f"provider of {name}", provider, providers.entries)
        if isinstance(time, (int, float)):
            if time < last:
                yield Finding(
                    RULE, arch, choice.entries["time"], f"faster than the one before it ({last})", "sort by time"
                )
            last = float(time)


def _box(plain: dict[str, Any]) -> Box:
    sets: dict[str, Value] = {
        name: value(name, plain[name]) for name in ("phase", "dtypes", "head_dim", "q_len") if name in plain
    }
    sets["kind"] = frozenset({plain.get("kind", "gqa")})
    for name in BAND_AXES:
        if name in plain:
            lo, _, hi = plain[name].partition("..")
            sets[name] = IntSet((Span(int(lo or 0), int(hi) - 1 if hi else None),))
    sets.setdefault("window", IntSet.of([0]))  # a band without one is for other layers than any that names one
    return Box(sets)
