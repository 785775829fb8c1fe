"""Flattens `like` and `mirrors`: every row as it stands on one architecture, each value with its own origin.

Maps (`features`, `env`) merge by key, sets (`dtypes` included: it is one dimension) replace, exclusions add.
`row`, `package` and `seen` are never inherited by `like`; evidence is where the template marks it `every_arch: true`.
A row of a table that mirrors another is laid over the mirrored row of the same name, which gives it everything it does
not say, `package` and `seen` included; one that states its own `like` stands alone and replaces the mirrored row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnroute.registry.positions import Map, Node, Scalar, Seq, make_map

if TYPE_CHECKING:
    from collections.abc import Iterator

    from attnroute.registry.tables import Tables

MERGED_MAPS = ("features", "env")
NEVER_INHERITED = ("row", "package", "seen", "like")


class ExpandError(Exception):
    """A `like` or `mirrors` that leads nowhere or back to itself; `node` is where it is written."""

    def __init__(self, node: Node, code: str, message: str, choices: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.node, self.code, self.message, self.choices = node, code, message, choices


@dataclass(frozen=True, slots=True)
class Row:
    """An expanded row of one architecture.

    `own` is what its table writes (None if it is only mirrored), `under` what that is laid over; `evidence` is its own
    plus what holds everywhere, `mirrored_evidence` what a mirrored table says.
    """

    arch: str
    kernel: str
    name: str
    node: Map
    own: Map | None
    under: Map | None
    evidence: tuple[Map, ...]
    mirrored_evidence: tuple[Map, ...] = ()

    @property
    def id(self) -> str:
        """`arch/kernel/name`, unique in the tables."""
        return f"{self.arch}/{self.kernel}/{self.name}"


@dataclass(frozen=True, slots=True)
class Trap:
    """A trap of one architecture; `own` is False if it comes from the mirrored table."""

    arch: str
    kernel: str
    name: str
    node: Map
    own: bool
    under: Map | None = None

    @property
    def id(self) -> str:
        """`arch/kernel/name`, unique in the tables."""
        return f"{self.arch}/{self.kernel}/{self.name}"


@dataclass(frozen=True, slots=True)
class Expanded:
    """One architecture, flat. `errors` are the rows that could not be expanded."""

    arch: str
    root: Map
    rows: tuple[Row, ...]
    traps: tuple[Trap, ...]
    errors: tuple[ExpandError, ...]


class Expander:
    """Expands architectures of one set of tables; keeps what it has expanded."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.done: dict[str, Expanded] = {}

    def arch(self, name: str, trail: tuple[str, ...] = ()) -> Expanded | None:
        """The flat table of `name`, None if there is none that can be read."""
        if name not in self.done:
            root = self.tables.arch(name)
            if root is None:
                return None
            self.done[name] = self._arch(name, root, trail)
        return self.done[name]

    def _arch(self, arch: str, root: Map, trail: tuple[str, ...]) -> Expanded:
        errors: list[ExpandError] = []
        mirrored = self._mirrored(arch, root, trail, errors)
        rows: dict[tuple[str, str], Row] = {}
        traps: dict[tuple[str, str], Trap] = {}
        if mirrored is not None:
            errors += mirrored.errors
            for row in mirrored.rows:
                kept = row.evidence + row.mirrored_evidence
                rows[row.kernel, row.name] = Row(arch, row.kernel, row.name, row.node, None, row.node, (), kept)
            for trap in mirrored.traps:
                traps[trap.kernel, trap.name] = Trap(arch, trap.kernel, trap.name, trap.node, False)
        for kernel, name, item in named(root, "kernels", "row"):
            try:
                rows[kernel, name] = self._row(arch, kernel, name, item, rows.get((kernel, name)))
            except ExpandError as error:
                errors.append(error)
        for kernel, name, item in named(root, "traps", "trap"):
            before = traps.get((kernel, name))
            node = merge(before.node, item, ()) if before else item
            traps[kernel, name] = Trap(arch, kernel, name, node, True, before.node if before else None)
        return Expanded(arch, root, tuple(rows.values()), tuple(traps.values()), tuple(errors))

    def _mirrored(self, arch: str, root: Map, trail: tuple[str, ...], errors: list[ExpandError]) -> Expanded | None:
        node = root.get("mirrors")
        if not isinstance(node, Scalar) or not isinstance(node.plain, str):
            return None
        if node.plain in (*trail, arch):
            errors.append(
                ExpandError(node, "mirrors", f"{arch} mirrors itself: {' -> '.join((*trail, arch, node.plain))}")
            )
            return None
        known = tuple(self.tables.arch_ids())
        if node.plain not in known:
            errors.append(ExpandError(node, "mirrors", f"unknown architecture {node.plain!r}", known))
            return None
        return self.arch(node.plain, (*trail, arch))

    def _row(self, arch: str, kernel: str, name: str, item: Map, mirrored: Row | None) -> Row:
        own_evidence = tuple(item.maps("evidence"))
        if "like" in item.entries:
            template = self.template(item, ((arch, kernel, name),))
            inherited = tuple(e for e in template.maps("evidence") if e.plain.get("every_arch") is True)
            node = merge(template, item, NEVER_INHERITED)
            return Row(arch, kernel, name, node, item, template, own_evidence + inherited)
        if mirrored is not None and mirrored.own is None:
            node = merge(mirrored.node, item, ("row", "like"))
            return Row(arch, kernel, name, node, item, mirrored.node, own_evidence, mirrored.mirrored_evidence)
        return Row(arch, kernel, name, item, item, None, own_evidence)

    def template(self, item: Map, trail: tuple[tuple[str, ...], ...]) -> Map:
        """What the `like` of a row names, itself flat. Raises ExpandError at the `like`."""
        ref = item.get("like")
        if not isinstance(ref, Scalar) or not isinstance(ref.plain, str):
            raise ExpandError(ref or item, "like", "like names a row as text: KERNEL/ROW or ARCH/KERNEL/ROW")
        path = tuple(ref.plain.split("/"))
        if path in trail:
            raise ExpandError(ref, "like", f"like leads back to itself: {ref.plain}")
        found = self._flat(path, (*trail, path))
        if found is None:
            raise ExpandError(ref, "like", f"like names no row: {ref.plain!r}", self._choices(path))
        return found

    def _flat(self, path: tuple[str, ...], trail: tuple[tuple[str, ...], ...]) -> Map | None:
        """The row at KERNEL/ROW or ARCH/KERNEL/ROW with its own `like` and mirrored row merged in."""
        item, mirrored = None, None
        if len(path) == 2:
            item = next((r for k, n, r in self._templates() if (k, n) == path), None)
        elif len(path) == 3 and path[0] in self.tables.arch_ids():
            root = self.tables.arch(path[0])
            item = next((r for k, n, r in named(root, "kernels", "row") if (k, n) == path[1:]), None) if root else None
            below = (root.text("mirrors") if root else None, *path[1:])
            if below[0] is not None and below not in trail and not (item and "like" in item.entries):
                mirrored = self._flat((below[0], *path[1:]), (*trail, (below[0], *path[1:])))
        if item is None:
            return mirrored
        if "like" in item.entries:
            return merge(self.template(item, trail), item, NEVER_INHERITED)
        return item if mirrored is None else merge(mirrored, item, ("row", "like"))

    def _templates(self) -> Iterator[tuple[str, str, Map]]:
        root = self.tables.table("kernels.yaml")
        kernels = root.map("kernels") if root else None
        for kernel, entry in kernels.entries.items() if kernels else ():
            for row in entry.maps("rows") if isinstance(entry, Map) else ():
                yield kernel, str(row.plain.get("row")), row

    def _choices(self, path: tuple[str, ...]) -> tuple[str, ...]:
        if len(path) == 3:
            root = self.tables.arch(path[0]) if path[0] in self.tables.arch_ids() else None
            if root is None:
                return tuple(f"{arch}/{path[1]}/{path[2]}" for arch in self.tables.arch_ids())
            return tuple(f"{path[0]}/{kernel}/{name}" for kernel, name, _ in named(root, "kernels", "row"))
        return tuple(f"{kernel}/{name}" for kernel, name, _ in self._templates())


def named(root: Map, section: str, key: str) -> Iterator[tuple[str, str, Map]]:
    """(kernel, name, item) of the named lists in a section; unnamed items are left out."""
    kernels = root.map(section)
    for kernel in kernels.entries if kernels else ():
        for item in kernels.maps(kernel) if kernels else ():
            name = item.text(key)
            if name is not None:
                yield kernel, name, item


def merge(under: Map, over: Map, never: tuple[str, ...]) -> Map:
    """`over` laid on `under`; the keys in `never` are not taken from below, evidence is never in the result's below."""
    entries = {k: v for k, v in under.entries.items() if k not in never and k != "evidence"}
    keys = {k: under.keys[k] for k in entries}
    for key, node in over.entries.items():
        below = entries.get(key)
        if key in MERGED_MAPS and isinstance(node, Map) and isinstance(below, Map):
            node = make_map(node, below.entries | node.entries, below.keys | node.keys)
        elif key == "exclusions" and isinstance(node, Seq) and isinstance(below, Seq):
            node = Seq(below.plain + node.plain, node.file, node.line, node.col, below.items + node.items)
        entries[key], keys[key] = node, over.keys[key]
    return make_map(over, entries, keys)
