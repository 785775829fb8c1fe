"""Where table files come from: a capabilities folder, an overlay folder, one file, or the packed file of a wheel."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnroute.registry.positions import MAX_BYTES, Document, parse
from attnroute.registry.problems import Problem, TableError
from attnroute.registry.store import packed_store

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Catalogue files at the top of a folder; `arch/*.yaml` and `engines/*.yaml` lie beside them.
CATALOGUES = ("kernels", "packages", "reasons", "calls", "lint")
#: Data of the probe, at the top of a folder as well. Overlays do not change it.
PROBE_FILES = ("tolerances", "untestable")
SUBFOLDERS = ("arch", "engines")
OVERLAY_VARIABLE = "ATTNROUTE_CAPABILITIES"


@dataclass(frozen=True, slots=True)
class Folder:
    """Table files by their name inside the folder (`kernels.yaml`, `arch/sm90.yaml`), unread.

    `shown` is how messages name the folder. `files` maps a name to a path, or to its text if it came out of a wheel.
    `captures` are the names of the captures, None where it is unknown which there are; they lie below `root`.
    """

    shown: str
    files: dict[str, Path | str]
    captures: tuple[str, ...] | None = None
    root: Path | None = None

    def names(self, sub: str) -> list[str]:
        """Stems of the files below `sub`."""
        return sorted((n[len(sub) + 1 : -5] for n in self.files if n.startswith(sub + "/")), key=natural)

    def show(self, name: str) -> str:
        """How messages name a file of this folder."""
        return f"{self.shown}/{name}" if self.shown else name

    def read(self, name: str) -> Document:
        """Parse one file; a file that cannot be read is a document without a root and with a problem."""
        found, shown = self.files[name], self.show(name)
        if isinstance(found, str):
            return parse(found, shown)
        if not self.shown:
            shown = show_path(found)
        return read_file(found, shown)


def natural(name: str) -> tuple[object, ...]:
    """Sort key with numbers as numbers: sm90 before sm100."""
    digits = "".join(c for c in name if c.isdigit())
    return name.rstrip("0123456789"), int(digits[:12]) if digits else 0, name


def show_path(path: Path) -> str:
    """The path as a person would type it: relative to the working folder if it lies below."""
    absolute = path.absolute()
    return str(absolute.relative_to(Path.cwd())) if absolute.is_relative_to(Path.cwd()) else str(path)


def read_file(path: Path, shown: str) -> Document:
    """Parse a file; size is checked before anything is read, and only regular files are opened."""
    try:
        if not path.is_file():
            missing = "is no regular file" if path.exists() else "does not exist"
            return Document(shown, (), None, [Problem(shown, 1, 1, "file", f"the file {missing}")])
        size = path.stat().st_size
        if size > MAX_BYTES:
            text = f"the file has {size} bytes; tables end at {MAX_BYTES} (4 MiB)"
            return Document(shown, (), None, [Problem(shown, 1, 1, "file-size", text)])
        return parse(path.read_bytes(), shown)
    except OSError as error:
        return Document(shown, (), None, [Problem(shown, 1, 1, "file", f"cannot be read: {error.strerror}")])


def open_folder(path: Path, shown: str | None = None) -> Folder:
    """A capabilities folder, or the packed `capabilities.json` of a wheel (its sections hold the sources)."""
    if path.is_file():
        return _packed(path)
    label = path.name if shown is None else shown
    if not path.is_dir():
        raise TableError([Problem(show_path(path), 1, 1, "file", "there is no such capabilities folder")])
    files: dict[str, Path | str] = {}
    for name in (*CATALOGUES, *PROBE_FILES):
        if (path / f"{name}.yaml").exists():
            files[f"{name}.yaml"] = path / f"{name}.yaml"
    for sub in SUBFOLDERS:
        for file in sorted((path / sub).glob("*.yaml")):
            files[f"{sub}/{file.name}"] = file
    captures = path / "captures"
    names = tuple(sorted(f.name for f in captures.glob("*.json"))) if captures.is_dir() else ()
    return Folder(label, files, names, path)


def _packed(path: Path) -> Folder:
    sources: dict[str, str] = read_section(path, "sources")
    captures: list[dict[str, Any]] = read_section(path, "captures-index")
    return Folder("capabilities", dict(sources), tuple(str(entry["file"]) for entry in captures))


def read_section(path: Path, name: str) -> Any:
    """One section of a packed file, by one seek."""
    return packed_store(path).read(name)


def open_overlay(path: Path) -> Folder:
    """An overlay: a folder laid out like the capabilities folder, or a single file of it."""
    if path.is_dir():
        found = open_folder(path, show_path(path))
        if not found.files:
            text = "the overlay holds no table: expected kernels.yaml, packages.yaml, arch/NAME.yaml or the like"
            raise TableError([Problem(show_path(path), 1, 1, "overlay", text)])
        return found
    if not path.is_file():
        raise TableError([Problem(show_path(path), 1, 1, "file", "there is no such overlay")])
    return Folder("", {table_name(path): path})


def table_name(path: Path) -> str:
    """Which table a lone file is, by its name and, failing that, by the keys at its top."""
    if path.stem in (*CATALOGUES, *PROBE_FILES):
        return f"{path.stem}.yaml"
    if path.parent.name in SUBFOLDERS:
        return f"{path.parent.name}/{path.name}"
    document = read_file(path, show_path(path))
    keys = document.root.entries if document.root else {}
    if "arch" in keys or not keys:
        return f"arch/{path.stem}.yaml"
    if "engine" in keys:
        return f"engines/{path.stem}.yaml"
    for name in CATALOGUES:
        if name in keys:
            return f"{name}.yaml"
    return f"arch/{path.stem}.yaml"


def overlay_paths(overlays: Iterable[Path | str]) -> tuple[Path, ...]:
    """Overlays as given, with text split at the path separator; from the environment use `environment_overlays`."""
    return tuple(Path(part) for item in overlays for part in _split(item))


def _split(item: Path | str) -> list[str]:
    return [str(item)] if isinstance(item, Path) else [part for part in item.split(os.pathsep) if part]


def environment_overlays() -> tuple[Path, ...]:
    """The overlays that ATTNROUTE_CAPABILITIES names (folders or files, separated as in PATH)."""
    return overlay_paths((os.environ.get(OVERLAY_VARIABLE, ""),))
