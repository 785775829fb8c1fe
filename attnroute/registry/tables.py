"""Reads a capabilities folder and lays overlays over it, row by row, at the level of positioned values."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from attnroute.registry.folders import CATALOGUES, Folder, natural, open_folder, open_overlay, overlay_paths
from attnroute.registry.positions import Document, Map, Node, Scalar, Seq, make_map, parse, where
from attnroute.registry.problems import Problem

if TYPE_CHECKING:
    from pathlib import Path

#: Lists of named things: the key inside an item that names it.
NAMED_LISTS = {"rows": "row", "kernels": "row", "traps": "trap"}
_BODY = re.compile(r"^(kernels|traps|preference) *:", re.MULTILINE)


@dataclass(slots=True)
class Tables:
    """A base folder plus overlays. Files are parsed when asked for, once; `problems` collects what reading met."""

    base: Folder
    overlays: tuple[Folder, ...]
    documents: dict[str, Document] = field(default_factory=dict)
    merged: dict[str, Map | None] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def arch_ids(self) -> list[str]:
        """Architectures with a table, in natural order."""
        return sorted({n for f in (self.base, *self.overlays) for n in f.names("arch")}, key=natural)

    def engine_ids(self) -> list[str]:
        """Engines with a data file."""
        return sorted({n for f in (self.base, *self.overlays) for n in f.names("engines")})

    def arch(self, name: str) -> Map | None:
        """The merged table of an architecture."""
        return self.table(f"arch/{name}.yaml")

    def table(self, name: str) -> Map | None:
        """The merged root of one table; None if no folder has it or it could not be read."""
        if name not in self.merged:
            self.merged[name] = self._merge(name)
        return self.merged[name]

    def raw(self, folder: Folder, name: str) -> Document:
        """One file of one folder as written."""
        key = folder.show(name) if folder.shown else name + "\0" + str(folder.files[name])
        if key not in self.documents:
            document = folder.read(name)
            self.documents[key] = document
            self.problems += document.problems
        return self.documents[key]

    def _merge(self, name: str) -> Map | None:
        root = self.raw(self.base, name).root if name in self.base.files else None
        claims: Claims = {}
        for folder in self.overlays:
            if name in folder.files:
                over = self.raw(folder, name).root
                if over is not None:
                    under = root if root is not None else make_map(over, {}, {})
                    root = self._lay(under, over, claims, folder)
        return root

    def _lay(self, under: Map, over: Map, claims: Claims, folder: Folder) -> Map:
        """`over` laid on `under`; every named thing it sets is claimed for its overlay, and claimed once."""
        label = folder.shown or next(iter(str(path) for path in folder.files.values()))

        def claim(path: str, key: Scalar, value: Node) -> None:
            owner, first, set_to = claims.setdefault(path, (label, key, value))
            if owner != label and not (isinstance(value, Scalar) and value.plain == set_to.plain):
                text = f"two overlays set {path}: {where(first)} and {where(key)}"
                self.problems.append(self.problem(key, "overlay-conflict", text, "keep it in one of them"))

        entries, keys = dict(under.entries), dict(under.keys)
        for key, node in over.entries.items():
            old = entries.get(key)
            keys.setdefault(key, over.keys[key])
            entries[key] = _join(key, key, old, node, over.keys[key], claim)
        return make_map(under, entries, keys)

    def problem(self, node: Node, code: str, message: str, hint: str | None = None) -> Problem:
        """A problem at a value, with its line's text."""
        return Problem(node.file, node.line, node.col, code, message, self.line_text(node.file, node.line), hint)

    def line_text(self, file: str, line: int) -> str:
        """A line of a file that has been read, empty if it was not."""
        for document in self.documents.values():
            if document.file == file and 0 < line <= len(document.lines):
                return document.lines[line - 1]
        return ""


Claim = Callable[[str, Scalar, Node], None]
#: What an overlay has set: its label, the key and the value.
Claims = dict[str, tuple[str, Scalar, Node]]


def _join(path: str, section: str, old: Node | None, new: Node, key: Scalar, claim: Claim) -> Node:
    """Merge one key: named lists by name, maps of the catalogues by key, everything else is replaced."""
    if isinstance(new, Map) and section in (*CATALOGUES, "traps", "releases", "exceptions"):
        base = old if isinstance(old, Map) else make_map(new, {}, {})
        entries, keys = dict(base.entries), dict(base.keys)
        for name, node in new.entries.items():
            under = entries.get(name)
            keys[name] = new.keys[name]
            if isinstance(node, Seq):
                entries[name] = _join_named(f"{path}.{name}", NAMED_LISTS.get(section, "row"), under, node, claim)
            elif section in ("kernels", "packages") and isinstance(node, Map) and isinstance(under, Map):
                entries[name] = _join_record(f"{path}.{name}", under, node, claim)
            else:
                claim(f"{path}.{name}", new.keys[name], node)
                entries[name] = node
        return make_map(base, entries, keys)
    if section == "default_order" and isinstance(new, Map) and isinstance(old, Map):
        for name, node in new.entries.items():
            claim(f"{path}.{name}", new.keys[name], node)
        return make_map(old, old.entries | new.entries, old.keys | new.keys)
    if section in ("preference", "exceptions") and isinstance(new, Seq) and isinstance(old, Seq):
        return Seq(old.plain + new.plain, old.file, old.line, old.col, old.items + new.items)
    claim(path, key, new)
    return new


def _join_record(path: str, old: Map, new: Map, claim: Claim) -> Map:
    """One kernel or package of a catalogue: its rows by name, its releases by version, other keys replaced."""
    entries, keys = dict(old.entries), dict(old.keys)
    for key, node in new.entries.items():
        under = entries.get(key)
        keys[key] = new.keys[key]
        if key == "rows" and isinstance(node, Seq):
            entries[key] = _join_named(path, "row", under, node, claim)
        elif key in ("releases", "providers") and isinstance(node, Map) and isinstance(under, Map):
            for name, value in node.entries.items():
                claim(f"{path}.{key}.{name}", node.keys[name], value)
            entries[key] = make_map(under, under.entries | node.entries, under.keys | node.keys)
        else:
            claim(f"{path}.{key}", new.keys[key], node)
            entries[key] = node
    return make_map(old, entries, keys)


def _join_named(path: str, name_key: str, old: Node | None, new: Seq, claim: Claim) -> Seq:
    """Items of `new` replace those of `old` with the same name, in place; the others follow."""
    items: list[Node] = list(old.items) if isinstance(old, Seq) else []
    base = len(items)
    index = {item.plain.get(name_key): i for i, item in enumerate(items) if isinstance(item, Map)}
    for item in new.items:
        name = item.entries.get(name_key) if isinstance(item, Map) else None
        if isinstance(name, Scalar) and isinstance(name.plain, str):
            claim(f"{path}/{name.plain}", name, item)
            at = index.get(name.plain)
            if at is not None and at < base:
                items[at] = item
                continue
        items.append(item)
    origin = new if not isinstance(old, Seq) else old
    return Seq([item.plain for item in items], origin.file, origin.line, origin.col, tuple(items))


def read_tables(folder: Path, overlays: Iterable[Path | str] = (), shown: str | None = None) -> Tables:
    """Open a folder (or a wheel's packed file) and overlays, unparsed. Raises TableError if one is missing."""
    return Tables(open_folder(folder, shown), tuple(open_overlay(path) for path in overlay_paths(overlays)))


def arch_header(tables: Tables, name: str) -> Map | None:
    """The keys above `kernels:` of an architecture's table, read without parsing its rows."""
    file = f"arch/{name}.yaml"
    if tables.overlays or file in tables.merged:
        return tables.arch(name)
    source = tables.base.files[file]
    try:
        text = source if isinstance(source, str) else source.read_text("utf-8")
    except (OSError, ValueError):
        return tables.arch(name)
    found = _BODY.search(text)
    return parse(text[: found.start()] if found else text, tables.base.show(file)).root
