"""Tables to the compiled form: plain JSON values, one dict an architecture, evidence apart."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnroute.registry import flatten
from attnroute.registry.expand import Expanded, Expander
from attnroute.registry.positions import Map
from attnroute.registry.problems import Problem, TableError
from attnroute.registry.tables import Tables, arch_header, read_tables

if TYPE_CHECKING:
    from attnroute.registry.store import Store

ARCH_KEYS = ("name", "compute_capability", "mirrors")
Overlays = Iterable[Path | str]


@dataclass(frozen=True, slots=True)
class CompiledTables:
    """Everything at once: the catalogue, and per architecture its table, evidence and origins; engines by name."""

    catalogue: dict[str, Any]
    archs: dict[str, dict[str, Any]]
    evidence: dict[str, dict[str, Any]]
    origins: dict[str, dict[str, Any]]
    engines: dict[str, Any]


def arch_ids(folder: Path, overlays: Overlays = ()) -> list[str]:
    """Architectures with a table, in natural order (sm90 before sm100)."""
    return read_tables(folder, overlays).arch_ids()


def compile_arch(folder: Path, arch: str, overlays: Overlays = ()) -> dict[str, Any]:
    """The compiled table of one architecture; reads only its file and those it mirrors or likes. Raises TableError."""
    tables = read_tables(folder, overlays)
    return arch_table(tables, expand_arch(tables, arch))


def evidence(folder: Path, arch: str, overlays: Overlays = ()) -> dict[str, list[dict[str, Any]]]:
    """Evidence by `arch/kernel/row`, `arch/kernel/row#n` (exclusions) and `arch/kernel/trap`. Raises TableError."""
    return evidence_of(expand_arch(read_tables(folder, overlays), arch))


def origins(folder: Path, arch: str, overlays: Overlays = ()) -> dict[str, dict[str, str]]:
    """By `arch/kernel/row`: each key of the flat row and where it is written. Raises TableError."""
    return origins_of(expand_arch(read_tables(folder, overlays), arch))


def compile_catalogue(folder: Path, overlays: Overlays = ()) -> dict[str, Any]:
    """Kernels (without templates), packages, reasons, calls, default order and architectures. Raises TableError."""
    return catalogue_of(read_tables(folder, overlays))


def engine_data(tables: Tables, name: str) -> dict[str, Any]:
    """An engine's data file as plain values. Raises TableError."""
    root = tables.table(f"engines/{name}.yaml") if name in tables.engine_ids() else None
    _stop(tables)
    return dict(root.plain) if root else {}


def compile_folder(path: Path, overlays: Overlays = ()) -> CompiledTables:
    """All of a folder. Raises TableError with every fault met on the way."""
    return compile_tables(read_tables(path, overlays))


def compile_tables(tables: Tables) -> CompiledTables:
    """As `compile_folder`, from tables that are already open."""
    catalogue = catalogue_of(tables)
    expander = Expander(tables)
    flat = {arch: expand_arch(tables, arch, expander) for arch in tables.arch_ids()}
    engines = {name: root.plain for name in tables.engine_ids() if (root := tables.table(f"engines/{name}.yaml"))}
    _stop(tables)
    return CompiledTables(
        catalogue,
        {arch: arch_table(tables, item) for arch, item in flat.items()},
        {arch: evidence_of(item) for arch, item in flat.items()},
        {arch: origins_of(item) for arch, item in flat.items()},
        engines,
    )


def _stop(tables: Tables) -> None:
    if tables.problems:
        raise TableError(sorted(set(tables.problems)))


def expand_arch(tables: Tables, arch: str, expander: Expander | None = None) -> Expanded:
    """The flat table of an architecture. Raises UsageError for an unknown one, TableError for a broken one."""
    from attnroute.errors import UsageError, unknown_name

    if arch not in tables.arch_ids():
        raise UsageError(unknown_name("architecture", arch, tables.arch_ids()), code="arch")
    found = (expander or Expander(tables)).arch(arch)
    _stop(tables)
    if found is not None and found.errors:
        raise TableError([tables.problem(e.node, e.code, e.message) for e in found.errors])
    if found is None:
        raise TableError([Problem(tables.base.show(f"arch/{arch}.yaml"), 1, 1, "file", "the table could not be read")])
    return found


def _guard(tables: Tables, item: Any, make: Any) -> Any:
    """Compile one item; what an invalid table makes Python raise becomes a problem at the item's place."""
    try:
        return make(item)
    except KeyError as error:
        fault = f"key {error.args[0]!r} is missing or unknown" if error.args else "a key is missing"
    except (TypeError, ValueError, AttributeError) as error:
        fault = str(error)
    message = f"{item.id}: {fault}"
    raise TableError([tables.problem(item.node, "table", message, "`attnroute validate` says more")])


def arch_table(tables: Tables, flat: Expanded) -> dict[str, Any]:
    """The compiled table of an expanded architecture. Raises TableError."""
    plain = flat.root.plain
    try:
        head = {
            "arch": flat.arch,
            "name": plain["name"],
            "compute_capability": plain["compute_capability"],
            "mirrors": plain.get("mirrors"),
            "default_order": plain.get("default_order") or {},
        }
    except KeyError as error:
        text = f"key {error.args[0]!r} is missing"
        raise TableError([tables.problem(flat.root, "missing-key", text)]) from None
    rows = [_guard(tables, item, flatten.row) for item in flat.rows]
    return head | {
        "releases": flatten.releases(rows),
        "rows": rows,
        "traps": [_guard(tables, item, flatten.trap) for item in flat.traps],
        "preference": [flatten.band(item) for item in flat.root.maps("preference")],
    }


def evidence_of(flat: Expanded) -> dict[str, list[dict[str, Any]]]:
    """Evidence of rows, exclusions and traps by their ids."""
    mirrors = flat.root.plain.get("mirrors")
    found: dict[str, list[dict[str, Any]]] = {}
    for row in flat.rows:
        mirrored = flatten.evidence_items(row.mirrored_evidence, mirrored=mirrors)
        found[row.id] = flatten.evidence_items(row.evidence) + mirrored
        for number, item in enumerate(row.node.maps("exclusions"), 1):
            found[f"{row.id}#{number}"] = flatten.evidence_items(tuple(item.maps("evidence")))
    for band in flat.root.maps("preference"):
        found[f"{flat.arch}/preference/{band.plain.get('band')}"] = flatten.evidence_items(tuple(band.maps("evidence")))
    for trap in flat.traps:
        found[trap.id] = flatten.evidence_items(tuple(trap.node.maps("evidence")))
    return found


def origins_of(flat: Expanded) -> dict[str, dict[str, str]]:
    """Where each value of each row is written."""
    return {row.id: flatten.origins(row) for row in flat.rows}


def catalogue_of(tables: Tables) -> dict[str, Any]:
    """The compiled catalogue. Raises TableError."""
    found: dict[str, Any] = {}
    for name in ("kernels", "packages", "reasons", "calls"):
        root = tables.table(f"{name}.yaml")
        section = root.map(name) if root else None
        found[name] = dict(section.plain) if section else {}
    _stop(tables)
    root = tables.table("kernels.yaml")
    kernels = {name: _without_rows(kernel) for name, kernel in found["kernels"].items()}
    archs = {}
    for arch in tables.arch_ids():
        head = arch_header(tables, arch)
        archs[arch] = {key: head.plain.get(key) for key in ARCH_KEYS} if isinstance(head, Map) else {}
    order = root.plain.get("default_order") if root else None
    return found | {"kernels": kernels, "default_order": order or {}, "archs": archs}


def _without_rows(kernel: Any) -> dict[str, Any]:
    return {key: value for key, value in kernel.items() if key != "rows"} if isinstance(kernel, dict) else {}


def captures_index(folder: Path) -> list[dict[str, Any]]:
    """One entry a capture: its file, machine, packages, date and how many cases and timings it holds."""
    found = []
    for path in sorted((folder / "captures").glob("*.json")):
        try:
            data = json.loads(path.read_bytes())
            kept = {k: data.get(k) for k in ("schema", "gpu", "arch", "driver", "cuda", "torch", "packages", "date")}
            counts = {k: len(data.get(k) or ()) for k in ("cases", "timings")}
        except (OSError, ValueError, AttributeError, TypeError) as error:
            raise TableError([Problem(f"captures/{path.name}", 1, 1, "capture", f"cannot be read: {error}")]) from None
        found.append({"file": path.name} | kept | counts)
    return found


def write_compiled(folder: Path, out: Path, version: str | None = None) -> Path:
    """Write the file that a wheel carries; see `attnroute.registry.packed`. Raises TableError."""
    from attnroute.registry.packed import write

    return write(folder, out, version)


def folder_store(folder: Path, overlays: Overlays = ()) -> Store:
    """A store that compiles sections of YAML folders as they are read; see `attnroute.registry.folder_store`."""
    from attnroute.registry.folder_store import folder_store as open_it

    return open_it(folder, overlays)
