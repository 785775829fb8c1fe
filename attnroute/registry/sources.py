"""Checks `source` evidence against the packages it quotes: does `match` still stand within three lines of its line?

Packages are looked for among the installed ones and at given paths: wheels, sdists, source trees called NAME-VERSION
(or NAME-COMMIT), and folders of these. What is not at hand is counted, not guessed.
"""

from __future__ import annotations

import re
import tarfile
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from attnroute.registry.folders import show_path
from attnroute.registry.positions import Map, Node, Scalar, Seq
from attnroute.registry.tables import Tables, read_tables
from attnroute.registry.versions import VersionSyntaxError, is_commit, public

if TYPE_CHECKING:
    from attnroute.registry.problems import Problem

#: Lines around the quoted one in which `match` may stand.
NEAR = 3
#: Reads a file of a package by its path inside it; None if there is none.
Read = Callable[[str], "str | None"]


@dataclass(frozen=True, slots=True)
class Quote:
    """One piece of evidence: package and version, file, line, the text that stands there, and its nodes."""

    name: str
    version: str
    file: str
    line: int
    match: str
    path_node: Scalar
    match_node: Scalar

    @property
    def release(self) -> str:
        """`flashinfer-python 0.7.4`."""
        return f"{self.name} {self.version}"


@dataclass(slots=True)
class SourceReport:
    """How many quotes were looked up, what drifted (`problems`), and how many of which release were not at hand."""

    checked: int = 0
    problems: list[Problem] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)

    @property
    def fine(self) -> bool:
        """Whether nothing drifted."""
        return not self.problems

    def render(self) -> list[str]:
        """For people: each problem, then a line of counts, then what was not at hand."""
        lines = [problem.render() for problem in self.problems]
        lines.append(f"{self.checked} quoted sources looked up, {len(self.problems)} of them moved or gone")
        return lines + [
            f"not at hand: {release} ({count} of the quotes)" for release, count in sorted(self.skipped.items())
        ]

    def to_json(self) -> dict[str, object]:
        """Plain fields, for `--format json`."""
        problems = [problem.to_json() for problem in self.problems]
        return {"checked": self.checked, "problems": problems, "skipped": dict(sorted(self.skipped.items()))}


def validate_sources(
    folder: Path, where: Iterable[Path] = (), overlays: Iterable[Path | str] = (), installed: bool = True
) -> SourceReport:
    """Check every quote of the tables, in the places given and, if `installed`, in installed packages.

    `folder` may be an overlay; it is then checked over the default tables, whose own quotes are not. Raises TableError.
    """
    from attnroute.registry.validate import base_of, default_base

    root = base_of(folder) if not is_packed(folder) else folder
    if root is None:
        base = default_base()
        tables = read_tables(base, (folder, *overlays), show_path(base))
        tables.base.files.clear()
    else:
        tables = read_tables(root, overlays, show_path(root))
    shelf = Shelf(where, installed)
    report = SourceReport()
    lines: dict[tuple[str, str], list[str] | None] = {}
    for quote in quotes(tables):
        read = shelf.find(quote.name, quote.version)
        if read is None:
            report.skipped[quote.release] += 1
            continue
        report.checked += 1
        key = (quote.release, quote.file)
        if key not in lines:
            text = read(quote.file)
            lines[key] = None if text is None else text.splitlines()
        problem = _judge(tables, quote, lines[key])
        if problem is not None:
            report.problems.append(problem)
    report.problems = sorted(set(report.problems))
    return report


def is_packed(path: Path) -> bool:
    """Whether this is the compiled file of a wheel."""
    return path.suffix == ".json" and path.is_file()


def quotes(tables: Tables) -> Iterator[Quote]:
    """Every `path` with `match` of all files; engines quote their own distribution where no package is named."""
    for folder in (tables.base, *tables.overlays):
        for name in folder.files:
            root = tables.raw(folder, name).root
            if root is None:
                continue
            own = f"{root.plain.get('distribution')} {root.plain.get('version')}" if name.startswith("engines/") else ""
            yield from _quotes(root, own)


def _quotes(node: Node, own: str) -> Iterator[Quote]:
    if isinstance(node, Seq):
        for item in node.items:
            yield from _quotes(item, own)
    if not isinstance(node, Map):
        return
    path, match = node.get("path"), node.get("match")
    if isinstance(path, Scalar) and isinstance(match, Scalar):
        release = node.text("source") or node.text("inferred") or own
        name, _, version = release.partition(" ")
        file, _, line = str(path.plain).rpartition(":")
        if version and file and line.isdecimal() and isinstance(match.plain, str):
            yield Quote(name, version, file, int(line), match.plain, path, match)
    for value in node.entries.values():
        yield from _quotes(value, own)


def _judge(tables: Tables, quote: Quote, lines: list[str] | None) -> Problem | None:
    if lines is None:
        return tables.problem(quote.path_node, "source-file", f"{quote.release} has no file {quote.file}")
    hits = [number for number, line in enumerate(lines, 1) if quote.match in line]
    if any(abs(number - quote.line) <= NEAR for number in hits):
        return None
    if hits:
        nearest = min(hits, key=lambda number: abs(number - quote.line))
        text = f"in {quote.release} this stands on line {nearest}, not near line {quote.line}: {quote.match!r}"
        return tables.problem(quote.path_node, "source-drift", text, f"write {quote.file}:{nearest}")
    text = f"{quote.file} of {quote.release} has no such text: {quote.match!r}"
    return tables.problem(quote.match_node, "source-drift", text)


class Shelf:
    """The packages at hand, by normalised name and version; nothing is opened before it is asked for."""

    def __init__(self, where: Iterable[Path], installed: bool) -> None:
        self.installed = installed
        self.places: list[tuple[str, str, Path]] = []
        self.readers: dict[tuple[str, str], Read | None] = {}
        for path in where:
            self._add(path, deep=True)

    def _add(self, path: Path, deep: bool) -> None:
        label = _label(path)
        if label is not None:
            self.places.append((*label, path))
        elif path.is_dir() and deep:
            for inner in sorted(path.iterdir()):
                self._add(inner, deep=False)

    def find(self, name: str, version: str) -> Read | None:
        """How to read files of that release, None if it is not at hand."""
        key = (normal(name), version)
        if key not in self.readers:
            self.readers[key] = self._find(*key)
        return self.readers[key]

    def _find(self, name: str, version: str) -> Read | None:
        for have_name, have_version, path in self.places:
            # A commit names its tree whatever the folder is called.
            if (have_name == name or is_commit(version)) and same_version(have_version, version):
                if path.is_dir():
                    return _tree_reader(path)
                return _wheel_reader(path) if path.suffix == ".whl" else _sdist_reader(path)
        return _installed_reader(name, version) if self.installed and not is_commit(version) else None


def normal(name: str) -> str:
    """A distribution or repository name as names are compared: its last part, lower case, single hyphens."""
    return re.sub(r"[-_.]+", "-", name.rpartition("/")[2]).lower()


def same_version(have: str, wanted: str) -> bool:
    """Whether a folder's or file's version is the one wanted; commits by their common beginning."""
    if is_commit(wanted):
        commit = wanted.removeprefix("git+")
        return re.fullmatch(r"[0-9a-f]{7,40}", have) is not None and (
            commit.startswith(have) or have.startswith(commit)
        )
    try:
        return public(have) == public(wanted)
    except VersionSyntaxError:
        return False


def _label(path: Path) -> tuple[str, str] | None:
    """(name, version) from the name of a wheel, sdist or folder."""
    if path.suffix == ".whl":
        parts = path.name.split("-")
        return (normal(parts[0]), parts[1]) if len(parts) >= 5 else None
    stem = path.name.removesuffix(".tar.gz") if path.name.endswith(".tar.gz") else path.name if path.is_dir() else ""
    name, dash, version = stem.rpartition("-")
    return (normal(name), version) if dash and re.match(r"[0-9]|[0-9a-f]{7,40}\Z", version) else None


def _tree_reader(root: Path) -> Read:
    def read(name: str) -> str | None:
        file = root / name
        try:
            # A table may not make this read outside the tree.
            inside = file.resolve().is_relative_to(root.resolve())
            return file.read_text("utf-8", "replace") if inside and file.is_file() else None
        except OSError:
            return None

    return read


def _wheel_reader(path: Path) -> Read | None:
    try:
        archive = zipfile.ZipFile(path)
    except (OSError, zipfile.BadZipFile):
        return None

    def read(name: str) -> str | None:
        try:
            return archive.read(name).decode("utf-8", "replace")
        except (KeyError, OSError, zipfile.BadZipFile):
            return None

    return read


def _sdist_reader(path: Path) -> Read | None:
    try:
        archive = tarfile.open(path)  # noqa: SIM115 - read as long as the check runs
        members = {member.name.partition("/")[2]: member for member in archive.getmembers() if member.isfile()}
    except (OSError, tarfile.TarError):
        return None

    def read(name: str) -> str | None:
        try:
            stream = archive.extractfile(members[name])
            return None if stream is None else stream.read().decode("utf-8", "replace")
        except (KeyError, OSError, tarfile.TarError):
            return None

    return read


def _installed_reader(name: str, version: str) -> Read | None:
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        found = distribution(name)
    except (PackageNotFoundError, ValueError):
        return None
    if not same_version(found.version, version):
        return None
    return _tree_reader(Path(str(found.locate_file(""))))
