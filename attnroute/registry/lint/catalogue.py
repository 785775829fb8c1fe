"""The catalogues among themselves: providers, pins, orders, and a reason for every dimension."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnroute.registry.dims import DIMENSIONS, FEATURE_CODES
from attnroute.registry.lint.context import Context, Finding, items
from attnroute.registry.lint.references import order, unknown
from attnroute.registry.positions import Map, Scalar

if TYPE_CHECKING:
    from collections.abc import Iterator

COMPILED = (*(d.name for d in DIMENSIONS), *FEATURE_CODES, "q_dtype", "kv_dtype")


def check(context: Context) -> Iterator[Finding]:
    """kernels.yaml, packages.yaml, reasons.yaml."""
    kernels, packages = context.ids("kernels"), context.ids("packages")
    root = context.tables.table("kernels.yaml")
    if root is not None:
        yield from order("kernels.yaml", root, kernels)
    for name in kernels:
        entry = context.kernel(name)
        providers = entry.map("providers") if entry else None
        for key, node in providers.keys.items() if providers else ():
            if key not in packages:
                yield unknown(name, node, "package", key, packages)
        for item in items(entry.get("compiles") if entry else None):
            if isinstance(item.plain, str) and item.plain not in COMPILED:
                yield unknown(name, item, "dimension or feature", item.plain, COMPILED)
    yield from _pins(context, packages)
    yield from _codes(context)


def _pins(context: Context, packages: tuple[str, ...]) -> Iterator[Finding]:
    section = context.section("packages")
    for name, entry in section.entries.items() if section else ():
        releases = entry.map("releases") if isinstance(entry, Map) else None
        for release in releases.entries.values() if releases else ():
            pins = release.map("pins") if isinstance(release, Map) else None
            for key, node in pins.entries.items() if pins else ():
                if key not in packages:
                    yield unknown(name, pins.keys[key] if pins else node, "package", key, packages)
                elif isinstance(node, Scalar) and node.plain not in (known := context.releases(key) or {}):
                    yield unknown(name, node, f"release of {key}", str(node.plain), known)


def _codes(context: Context) -> Iterator[Finding]:
    section = context.section("reasons")
    wanted = {d.code for d in DIMENSIONS if d.code} | set(FEATURE_CODES.values())
    if section is None:
        return
    for code in sorted(wanted - set(context.ids("reasons"))):
        yield Finding("missing-reason", "reasons.yaml", section, f"no reason has the code {code!r}")
