"""An override that says what is already said: it would hide a later change of what it overrides."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnroute.registry.expand import MERGED_MAPS
from attnroute.registry.lint.context import Context, Finding
from attnroute.registry.positions import Map, Node

if TYPE_CHECKING:
    from collections.abc import Iterator

RULE = "same-as-inherited"
_SKIP = ("row", "trap", "like", "evidence", "exclusions", "package", "seen", "note")


def check(context: Context) -> Iterator[Finding]:
    """Keys of a row or trap beside the same keys of what it is like or mirrors."""
    for flat in context.archs.values():
        for row in flat.rows:
            if row.own is not None and row.under is not None:
                yield from _same(row.id, row.own, row.under, _SKIP)
                if "like" not in row.own.entries:
                    yield from _same(
                        row.id, row.own, row.under, tuple(k for k in row.own.keys if k not in ("package", "seen"))
                    )
        for trap in flat.traps:
            if trap.own and trap.under is not None:
                own = next(
                    (
                        t
                        for _, k, t in context.written_traps()
                        if t.plain.get("trap") == trap.name
                        and k == trap.kernel
                        and t.file == trap.node.file
                        and t.line == trap.node.line
                    ),
                    None,
                )
                yield from _same(trap.id, own, trap.under, ("trap", "evidence", "note")) if own else ()


def _same(subject: str, own: Map, under: Map, skip: tuple[str, ...]) -> Iterator[Finding]:
    for key, node in own.entries.items():
        below = under.get(key)
        if key in skip or below is None:
            continue
        if key in MERGED_MAPS and isinstance(node, Map) and isinstance(below, Map):
            for name, value in node.entries.items():
                if name in below.entries and _equal(value, below.entries[name]):
                    yield _finding(subject, node.keys[name], f"{key}.{name}", below.entries[name])
        elif _equal(node, below):
            yield _finding(subject, own.keys[key], key, below)


def _equal(a: Node, b: Node) -> bool:
    return type(a.plain) is type(b.plain) and bool(a.plain == b.plain)


def _finding(subject: str, node: Node, key: str, below: Node) -> Finding:
    return Finding(RULE, subject, node, f"{key} is what {below.file}:{below.line} says already", "leave it out")
