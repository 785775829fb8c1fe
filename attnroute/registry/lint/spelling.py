"""Sets and ranges that the schema lets pass but that cannot be meant: reversed, repeated, steps that miss the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnroute.registry.dims import DIMENSIONS
from attnroute.registry.headdims import HeadDims
from attnroute.registry.lint.context import Context, Finding
from attnroute.registry.positions import Map, Node, Scalar, Seq
from attnroute.registry.sets import IntSet
from attnroute.registry.versions import VersionRange

if TYPE_CHECKING:
    from collections.abc import Iterator

RULE = "set"
_SETS = {
    d.name: HeadDims.parse if d.kind == "pairs" else IntSet.parse
    for d in DIMENSIONS
    if d.kind in ("ints", "pairs", "dcp")
}


def check(context: Context) -> Iterator[Finding]:
    """Every set and range as written, item by item."""
    for subject, _, item in context.written_rows():
        yield from _box(subject, item)
        yield from _ranges(subject, item)
        for hole in item.maps("exclusions"):
            where = hole.map("where")
            yield from _box(subject, where) if where else ()
            yield from _range(subject, hole.get("versions"))
    for subject, _, item in context.written_traps():
        where = item.map("where")
        yield from _box(subject, where) if where else ()
        yield from _ranges(subject, item)


def _box(subject: str, box: Map) -> Iterator[Finding]:
    for name, parse in _SETS.items():
        node = box.get(name)
        parts: tuple[Node, ...] = node.items if isinstance(node, Seq) else (node,) if node is not None else ()
        seen: set[object] = set()
        for part in parts:
            if not isinstance(part, Scalar) or not isinstance(part.plain, (int, str)):
                continue
            try:
                parse(part.plain)
            except ValueError as error:
                yield Finding(RULE, subject, part, f"{name}: {error}")
                continue
            if str(part.plain) in seen:
                yield Finding(RULE, subject, part, f"{name}: {part.plain!r} stands twice in the list")
            seen.add(str(part.plain))


def _ranges(subject: str, item: Map) -> Iterator[Finding]:
    package = item.map("package")
    for node in package.entries.values() if package else ():
        yield from _range(subject, node)
    env = item.map("env")
    yield from _range(subject, env.get("cuda") if env else None)


def _range(subject: str, node: Node | None) -> Iterator[Finding]:
    if isinstance(node, Scalar) and isinstance(node.plain, str):
        try:
            VersionRange.parse(node.plain)
        except ValueError as error:
            yield Finding(RULE, subject, node, str(error))
