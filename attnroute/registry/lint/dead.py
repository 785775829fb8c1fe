"""Rows that add nothing to another row, and exclusions that cut nothing out of theirs."""

from __future__ import annotations

from itertools import permutations
from typing import TYPE_CHECKING

from attnroute.registry.boxes import row_box
from attnroute.registry.lint.context import MALFORMED, Context, Finding, Hole, View, hole
from attnroute.registry.positions import Map
from attnroute.registry.versions import VersionRange, parse_version

if TYPE_CHECKING:
    from collections.abc import Iterator


def check(context: Context) -> Iterator[Finding]:
    """Rows against rows of their kernel and provider, holes against their row."""
    for views in context.views.values():
        for a, b in permutations(views, 2):
            if (
                (a.row.kernel, a.provider) == (b.row.kernel, b.provider)
                and a.row.own is not None
                and _adds_nothing(a, b)
            ):
                text = f"row {a.row.name!r} adds nothing to row {b.row.name!r} (line {b.name.line})"
                yield Finding("dead-row", a.row.id, a.name, text, "remove it")
        for view in views:
            for own in view.holes:
                if own.own:
                    yield from _dead_hole(view.row.id, own, view.row.node, view.versions)
    section = context.section("kernels")
    for kernel, entry in section.entries.items() if section else ():
        for template in entry.maps("rows") if isinstance(entry, Map) else ():
            if "like" in template.entries:
                continue
            for item in template.maps("exclusions"):
                try:
                    cut = hole(item, True)
                except MALFORMED:
                    continue
                yield from _dead_hole(f"{kernel}/{template.plain.get('row')}", cut, template, None)


def _dead_hole(subject: str, item: Hole, row: Map, versions: VersionRange | None) -> Iterator[Finding]:
    try:
        common = row_box(row.plain).meet(item.box)
        features = row.plain.get("features", {})
        refused = [name for name, asked in item.features.items() if asked and features.get(name) is False]
    except MALFORMED:
        return
    where = item.node.entries["where"]
    if common is None:
        yield Finding(
            "dead-exclusion", subject, where, "the exclusion lies outside its row", "make it a trap, or remove it"
        )
    elif refused:
        yield Finding("dead-exclusion", subject, where, f"the row itself refuses {' '.join(refused)}", "remove it")
    elif versions is not None and item.versions is not None and not versions.overlaps(item.versions):
        node = item.node.entries["versions"]
        yield Finding("dead-exclusion", subject, node, f"the row holds for {versions} only", "remove it")


def _adds_nothing(a: View, b: View) -> bool:
    x, y = a.row.node.plain, b.row.node.plain
    same = all(x.get(key) == y.get(key) for key in ("features", "cuda_graph", "call", "env"))
    if not same or not a.seen <= b.seen or not _within(a.versions, b.versions) or not a.box.inside(b.box):
        return False
    if a.box == b.box and a.seen == b.seen and a.versions == b.versions and a.name.line < b.name.line:
        return False  # of two equal rows the second is the dead one
    return not any(a.box.meet(item.box) is not None for item in b.holes)


def _within(a: VersionRange, b: VersionRange) -> bool:
    if a.commit or b.commit:
        return a.commit == b.commit
    low = b.lo is None or (a.lo is not None and parse_version(a.lo) >= parse_version(b.lo))
    high = b.hi is None or (a.hi is not None and parse_version(a.hi) <= parse_version(b.hi))
    return low and high
