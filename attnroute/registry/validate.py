"""Everything that is wrong with tables, at once: reading, schemas, then lint rules."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from attnroute.registry.captures import check_captures
from attnroute.registry.expand import Expander
from attnroute.registry.folders import show_path
from attnroute.registry.lint import RULES
from attnroute.registry.lint.context import MALFORMED, Context, Finding, build
from attnroute.registry.problems import Problem, TableError
from attnroute.registry.schema_check import check as check_schema
from attnroute.registry.tables import Tables, read_tables

if TYPE_CHECKING:
    from collections.abc import Iterable

    from attnroute.registry.positions import Map

#: A folder that holds all of these is a base; one that lacks some is an overlay.
BASE = tuple(f"{name}.yaml" for name in ("kernels", "packages", "reasons", "calls"))


def validate(paths: Iterable[Path | str], base: Path | None = None) -> list[Problem]:
    """Problems of capabilities folders, single files of one, or overlays over `base`; sorted by place.

    `base` is a capabilities folder or a wheel's packed file; by default the tables beside or inside the package. A file
    that lies inside a base folder is checked with that whole folder, but only its own problems are returned.
    """
    found: list[Problem] = []
    overlays: list[Path] = []
    for path in map(Path, paths):
        root = base_of(path)
        if root is None:
            overlays.append(path)
        else:
            problems = _of_base(root)
            only = None if root == path else show_path(path)
            found += problems if only is None else [p for p in problems if p.file == only]
    if overlays:
        found += _of_overlays(overlays, base or default_base())
    return sorted(set(found))


def is_base(folder: Path) -> bool:
    """Whether a folder is a whole capabilities folder rather than an overlay."""
    return all((folder / name).is_file() for name in BASE)


def base_of(path: Path) -> Path | None:
    """The capabilities folder that a path is or lies in, None for an overlay."""
    if path.is_dir():
        return path if is_base(path) else None
    for parent in list(path.parents)[:2]:
        if is_base(parent):
            return parent
    return None


def default_base() -> Path:
    """The tables beside the package in a checkout, else the packed file of a wheel."""
    from attnroute.registry.store import CHECKOUT_FOLDER, DATA_FILE

    return CHECKOUT_FOLDER if is_base(CHECKOUT_FOLDER) else DATA_FILE


def _of_base(folder: Path) -> list[Problem]:
    try:
        return validate_tables(read_tables(folder, (), show_path(folder)))
    except TableError as error:
        return list(error.problems)


def _of_overlays(overlays: list[Path], base: Path) -> list[Problem]:
    """Problems of the overlays on top of the base; those of the base alone are not theirs."""
    try:
        shown = show_path(base) if base.is_dir() else None
        tables = read_tables(base, overlays, shown)
    except TableError as error:
        return list(error.problems)
    files = {
        folder.show(name) if folder.shown else show_path(Path(str(source)))
        for folder in tables.overlays
        for name, source in folder.files.items()
    }
    return [problem for problem in validate_tables(tables) if problem.file in files]


def validate_tables(tables: Tables, only: frozenset[str] | None = None) -> list[Problem]:
    """All problems of tables that are open; reads every file of them.

    `only` names files (`arch/sm90.yaml`) whose schema is checked, for callers that know the others to be sound.
    """
    problems: list[Problem] = []
    for folder in (tables.base, *tables.overlays):
        for name in folder.files:
            document = tables.raw(folder, name)
            if only is None or name in only:
                problems += check_schema(document, schema_name(name))
    problems += check_captures(tables.base)
    context = build(tables, Expander(tables))
    problems += tables.problems
    taken = {(p.file, p.line, p.col) for p in problems}
    # What the schema has refused needs no second opinion in the same place.
    problems += [p for p in lint(context, quiet=bool(problems)) if (p.file, p.line, p.col) not in taken]
    return tidy(problems)


def schema_name(name: str) -> str:
    """The schema of a file by its place in the folder."""
    folder, _, rest = name.partition("/")
    return (
        {"arch": "arch", "engines": "engine"}.get(folder, name.removesuffix(".yaml"))
        if rest
        else name.removesuffix(".yaml")
    )


def lint(context: Context, quiet: bool = False) -> list[Problem]:
    """Findings of all rules, less the exceptions of lint.yaml, plus exceptions that match nothing.

    `quiet` is set when the tables have other faults: a rule that trips over one of them then stays silent.
    """
    findings: list[Finding] = []
    tripped: list[Problem] = []
    for rule in RULES:
        try:
            findings += rule(context)
        except MALFORMED as error:
            if not quiet:
                name = rule.__module__.rpartition(".")[2]
                text = f"the rule {name} cannot understand these tables: {error}"
                tripped.append(Problem(context.tables.base.shown, 1, 1, "lint", text))
    kept, used = [], set()
    exceptions = _exceptions(context.tables)
    for finding in findings:
        hits = [key for key in ((finding.rule, finding.subject),) if key in exceptions]
        used.update(hits)
        if not hits:
            kept.append(finding)
    for key, node in exceptions.items():
        if key not in used:
            text = f"the exception from {key[0]!r} at {key[1]} applies to nothing any more"
            kept.append(Finding("stale-exception", key[1], node, text, "remove it"))
    return tripped + [context.tables.problem(f.node, f.rule, f.message, f.hint) for f in kept]


def _exceptions(tables: Tables) -> dict[tuple[str, str], Map]:
    root = tables.table("lint.yaml")
    found = {}
    for item in root.maps("exceptions") if root else ():
        rule, at = item.text("rule"), item.text("at")
        if rule and at:
            found[rule, at] = item
    return found


def tidy(problems: Iterable[Problem]) -> list[Problem]:
    """Sorted, each once; at a place that YAML itself misreads, only that is said."""
    unique = sorted(set(problems))
    misread = {(p.file, p.line, p.col) for p in unique if p.code == "yaml-1.1"}
    return [p for p in unique if p.code == "yaml-1.1" or (p.file, p.line, p.col) not in misread]
