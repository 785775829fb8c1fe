"""A store over YAML folders: each section is compiled when it is first asked for, each file parsed once."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from attnroute.registry import compile as make
from attnroute.registry.expand import Expander
from attnroute.registry.problems import Problem, TableError
from attnroute.registry.store import Store
from attnroute.registry.tables import Tables, read_tables

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def folder_store(folder: Path, overlays: Iterable[Path | str] = ()) -> Store:
    """Sections as in the wheel's compiled file.

    Raises TableError (file, line, column) for an overlay that cannot be opened; reading a section raises it for tables
    that are invalid.
    """
    from attnroute import __version__

    tables = read_tables(folder, overlays)
    expander = Expander(tables)

    def read(section: str) -> Any:
        kind, _, name = section.partition("/")
        if kind == "catalogue":
            return make.catalogue_of(tables)
        if kind == "captures-index":
            return make.captures_index(folder)
        if kind == "engine":
            return make.engine_data(tables, name)
        flat = make.expand_arch(tables, name, expander)
        if kind == "arch":
            return make.arch_table(tables, flat)
        return make.evidence_of(flat) if kind == "evidence" else make.origins_of(flat)

    archs = [f"{kind}/{arch}" for arch in tables.arch_ids() for kind in ("arch", "evidence", "origins")]
    engines = [f"engine/{name}" for name in tables.engine_ids()]
    count = len(tables.overlays)
    origin = f"{folder} with {count} overlay{'s' if count > 1 else ''}" if count else str(folder)
    return Store(origin, __version__, digest(tables), ("catalogue", *archs, *engines, "captures-index"), read)


def digest(tables: Tables) -> str:
    """sha256 over the names and text of all files, base first, in the order in which they are laid."""
    found = hashlib.sha256()
    for part in (tables.base, *tables.overlays):
        for name, source in sorted(part.files.items()):
            try:
                data = source.encode() if isinstance(source, str) else source.read_bytes()
            except OSError as error:
                raise TableError([Problem(str(source), 1, 1, "file", f"cannot be read: {error.strerror}")]) from None
            found.update(name.encode() + b"\0" + data + b"\0")
    return found.hexdigest()
