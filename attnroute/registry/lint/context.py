"""What rules look at: the merged tables, the flat architectures and, for rows that can be understood, their boxes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from attnroute.registry.boxes import Box, row_box, where_box
from attnroute.registry.positions import Map, Node, Scalar, Seq
from attnroute.registry.versions import VersionRange

if TYPE_CHECKING:
    from collections.abc import Iterator

    from attnroute.registry.expand import Expanded, Expander, Row, Trap
    from attnroute.registry.tables import Tables

MALFORMED = (KeyError, TypeError, ValueError, AttributeError, IndexError)


@dataclass(frozen=True, slots=True)
class Finding:
    """What a rule found: at which value, about what (`sm90/xqa/decode`), and how it is meant to be."""

    rule: str
    subject: str
    node: Node
    message: str
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class Hole:
    """An exclusion or trap that could be understood. `node` is its mapping, `own` whether the row's table wrote it."""

    node: Map
    box: Box
    features: dict[str, bool]
    versions: VersionRange | None
    own: bool


@dataclass(frozen=True, slots=True)
class View:
    """A row whose sets and versions could be understood."""

    row: Row
    name: Node
    provider: str
    versions: VersionRange
    seen: frozenset[str]
    box: Box
    features: dict[str, Any]
    holes: tuple[Hole, ...]


@dataclass(slots=True)
class Context:
    """Everything a rule may ask for. `files` limits what is reported where only some files are of interest."""

    tables: Tables
    archs: dict[str, Expanded]
    views: dict[str, list[View]] = field(default_factory=dict)
    captures: frozenset[str] | None = None

    def section(self, name: str) -> Map | None:
        """The catalogue of that name: `kernels`, `packages`, `reasons`, `calls`."""
        root = self.tables.table(f"{name}.yaml")
        return root.map(name) if root else None

    def ids(self, name: str) -> tuple[str, ...]:
        """The ids of a catalogue."""
        section = self.section(name)
        return tuple(section.entries) if section else ()

    def kernel(self, name: str) -> Map | None:
        """A kernel of the catalogue."""
        section = self.section("kernels")
        return section.map(name) if section else None

    def releases(self, distribution: str) -> dict[str, Any] | None:
        """The known releases of a distribution, None if it is unknown."""
        section = self.section("packages")
        entry = section.plain.get(distribution) if section else None
        found = entry.get("releases") if isinstance(entry, dict) else None
        return found if isinstance(found, dict) else None

    def written_rows(self) -> Iterator[tuple[str, str, Map]]:
        """(subject, kernel, mapping) of every row as written: templates first, then those of the architectures."""
        section = self.section("kernels")
        for kernel, entry in section.entries.items() if section else ():
            for item in entry.maps("rows") if isinstance(entry, Map) else ():
                yield f"{kernel}/{item.plain.get('row')}", kernel, item
        for arch, flat in self.archs.items():
            kernels = flat.root.map("kernels")
            for kernel in kernels.entries if kernels else ():
                for item in kernels.maps(kernel) if kernels else ():
                    yield f"{arch}/{kernel}/{item.plain.get('row')}", kernel, item

    def written_traps(self) -> Iterator[tuple[str, str, Map]]:
        """(subject, kernel, mapping) of every trap as written."""
        for arch, flat in self.archs.items():
            traps = flat.root.map("traps")
            for kernel in traps.entries if traps else ():
                for item in traps.maps(kernel) if traps else ():
                    yield f"{arch}/{kernel}/{item.plain.get('trap')}", kernel, item


def build(tables: Tables, expander: Expander) -> Context:
    """Expand all architectures and understand what can be understood."""
    archs = {name: flat for name in tables.arch_ids() if (flat := expander.arch(name)) is not None}
    names = tables.base.captures
    context = Context(tables, archs, captures=None if names is None else frozenset(names))
    for arch, flat in archs.items():
        context.views[arch] = [view for row in flat.rows if (view := understand(row)) is not None]
    return context


def understand(row: Row) -> View | None:
    """The row's view, None if something in it is malformed (another check has said so)."""
    plain = row.node.plain
    try:
        ((provider, versions),) = plain["package"].items()
        own = set(map(id, row.own.maps("exclusions"))) if row.own is not None else set()
        holes = tuple(hole(item, id(item) in own) for item in row.node.maps("exclusions"))
        return View(
            row,
            row.node.entries["row"],
            provider,
            VersionRange.parse(versions),
            frozenset(plain["seen"]),
            row_box(plain),
            dict(plain.get("features", {})),
            holes,
        )
    except MALFORMED:
        return None


def hole(item: Map, own: bool) -> Hole:
    """An exclusion or the box of a trap; raises where it is malformed."""
    plain = item.plain
    versions = plain.get("versions")
    if versions is None and "package" in plain:
        ((_, versions),) = plain["package"].items()
    spans = None if versions is None else VersionRange.parse(versions)
    return Hole(item, where_box(plain["where"]), dict(plain["where"].get("features", {})), spans, own)


def trap_hole(trap: Trap) -> tuple[str, Hole] | None:
    """(provider, box) of a trap, None if it is malformed."""
    try:
        ((provider, _),) = trap.node.plain["package"].items()
        return provider, hole(trap.node, trap.own)
    except MALFORMED:
        return None


def items(node: Node | None) -> tuple[Scalar, ...]:
    """The scalars of a list, or the scalar itself."""
    if isinstance(node, Seq):
        return tuple(item for item in node.items if isinstance(item, Scalar))
    return (node,) if isinstance(node, Scalar) else ()
