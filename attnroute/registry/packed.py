"""Writes the one file of compiled tables that a wheel carries: a header line, then one section a line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from attnroute.registry.folder_store import folder_store
from attnroute.registry.tables import read_tables

SCHEMA_VERSION = 1


def write(folder: Path, out: Path, version: str | None = None) -> Path:
    """Write `capabilities.json` (JSON lines) into `out`, or to `out` itself if it ends in `.json`.

    Line 1 is the header: schema, version, sha256 of the sources, and each section's [offset, length] in bytes from the
    end of line 1. Sections: catalogue, arch/NAME, evidence/NAME, origins/NAME, engine/NAME, captures-index, and
    sources: the YAML text itself, over which overlays are laid. Raises TableError.
    """
    store = folder_store(folder)
    sections = {name: store.read(name) for name in store.sections}
    files = read_tables(folder).base.files
    sections["sources"] = {name: path.read_text("utf-8") for name, path in files.items() if isinstance(path, Path)}
    lines = {name: _json_line(value) for name, value in sections.items()}
    places, offset = {}, 0
    for name, line in lines.items():
        places[name] = [offset, len(line)]
        offset += len(line) + 1
    header = {"schema": SCHEMA_VERSION, "version": version or store.version, "sha256": store.digest, "sections": places}
    target = out if out.suffix == ".json" else out / "capabilities.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(b"\n".join([_json_line(header), *lines.values()]) + b"\n")
    return target


def _json_line(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
