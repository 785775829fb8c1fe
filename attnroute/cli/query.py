"""`attnroute query`: the rows themselves, filtered; with --expanded every row flat, as the dispatcher sees it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from attnroute.cli import common
from attnroute.cli.text import label_block, table, wrap
from attnroute.errors import UsageError, near_miss, unknown_name
from attnroute.registry.dims import PHASES
from attnroute.registry.headdims import HeadDims
from attnroute.registry.registry import Registry
from attnroute.registry.sets import IntSet
from attnroute.registry.table import ArchTable, Box, Row, bits, names


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `query`."""
    parser.add_argument("--arch", action="append", default=[], help="only this architecture; repeatable")
    parser.add_argument("--kernel", action="append", default=[], help="only this kernel; repeatable")
    parser.add_argument(
        "--provider", action="append", default=[], metavar="PACKAGE", help="only rows of this package; repeatable"
    )
    parser.add_argument("--row", help="only the row, exclusion or trap with this name or id")
    parser.add_argument("--head-dim", type=common.positive, help="only rows that hold this head dim (v equal)")
    parser.add_argument("--phase", choices=PHASES, help="only rows that serve this phase")
    parser.add_argument("--traps", action="store_true", help="traps and exclusions instead of rows")
    parser.add_argument(
        "--expanded", action="store_true", help="the flat row: every dimension, feature and piece of evidence"
    )
    common.add_registry(parser)
    common.add_format(parser)


def run(args: argparse.Namespace) -> int:
    """Exit 0 if something matches, 1 if nothing does."""
    from attnroute.registry.registry import load_registry

    registry = load_registry(args.overlay)
    archs = [registry.arch_id(a) for a in args.arch] or list(registry.archs)
    for kernel in args.kernel:
        if kernel not in registry.catalogue["kernels"]:
            raise UsageError(unknown_name("kernel", kernel, registry.catalogue["kernels"]), code="unknown-kernel")
    for provider in args.provider:
        if provider not in registry.catalogue["packages"]:
            raise UsageError(unknown_name("package", provider, registry.catalogue["packages"]), code="unknown-package")
    if args.row:
        known = {name for arch in archs for name in _named(registry.table(arch))}
        if args.row not in known:
            near = [name for name in known if ("/" in name) == ("/" in args.row)]
            raise UsageError(_unknown_row(args.row, near), code="unknown-row")
    rows = [row for arch in archs for row in registry.table(arch).rows if _row_matches(row, args)]
    boxes = [box for arch in archs for box in registry.table(arch).boxes if _box_matches(box, args)]
    found: list[Any] = boxes if args.traps else rows
    if args.format == "json":
        shown = (
            [box_json(registry, b) for b in boxes]
            if args.traps
            else [row_json(registry, r, args.expanded) for r in rows]
        )
        common.print_json({"tables": registry.label, "traps" if args.traps else "rows": shown})
    else:
        print("\n".join(_render(registry, rows, boxes, args)))
    return 0 if found else 1


def _named(table: ArchTable) -> Iterator[str]:
    """Names and ids of the rows, exclusions and traps of one architecture."""
    for row in table.rows:
        yield from (row.name, row.id)
    for box in table.boxes:
        yield from (box.id, box.id.rpartition("/")[2])


def _unknown_row(name: str, known: list[str]) -> str:
    """The sentence for an unknown name, without the hundreds that are known."""
    near = near_miss(name, known)
    return f"unknown row, exclusion or trap {name!r}" + (f": did you mean {near!r}?" if near else "")


def _row_matches(row: Row, args: argparse.Namespace) -> bool:
    if (args.kernel and row.kernel not in args.kernel) or (args.provider and row.provider not in args.provider):
        return False
    if args.row and args.row not in (row.name, row.id):
        return False
    if args.phase and args.phase not in names(row.dims["phase"]):
        return False
    return args.head_dim is None or (
        "head_dim" in row.dims and (args.head_dim, args.head_dim) in HeadDims.parse(row.dims["head_dim"])
    )


def _box_matches(box: Box, args: argparse.Namespace) -> bool:
    if (args.kernel and box.kernel not in args.kernel) or (args.provider and box.provider not in args.provider):
        return False
    return not args.row or args.row in (box.id, box.id.rpartition("/")[2])


def row_json(registry: Registry, row: Row, expanded: bool) -> dict[str, Any]:
    """One row as plain values; expanded adds exclusions, evidence and where each value is written."""
    shown: dict[str, Any] = {
        "id": row.id, "arch": row.arch, "kernel": row.kernel, "provider": row.provider, "row": row.name,
        "versions": str(row.versions), "seen": list(row.seen), "proof": row.strength, **row.dims,
        "features": dict(row.features), "call": list(row.calls), "env": dict(row.env),
    }  # fmt: skip
    if expanded:
        whole = registry.table(row.arch)
        index = next(i for i, other in enumerate(whole.rows) if other is row)
        shown["exclusions"] = [box_json(registry, whole.boxes[b]) for b in bits(whole.holes.get(index, 0))]
        shown["evidence"] = registry.evidence(row.arch, row.id)
        shown["origins"] = registry.section(f"origins/{row.arch}").get(row.id, {})
    return shown


def box_json(registry: Registry, box: Box) -> dict[str, Any]:
    """One trap or exclusion as plain values, with its evidence."""
    arch = box.id.split("/", 1)[0]
    return {
        "id": box.id, "kernel": box.kernel, "provider": box.provider, "versions": str(box.versions),
        "where": dict(box.where), "outcome": box.outcome, "why": box.why,
        "evidence": registry.evidence(arch, box.id),
    }  # fmt: skip


def _render(registry: Registry, rows: list[Row], boxes: list[Box], args: argparse.Namespace) -> list[str]:
    lines = [f"tables {registry.label}", ""]
    if args.traps:
        for box in boxes:
            lines += [f"{box.id}  {box.provider} {box.versions.words()}"]
            lines += label_block(f"  {box.outcome}", box.why, 16)
            lines += label_block("  where", _where(box.where), 16)
        return [*lines, f"{len(boxes)} {'trap or exclusion' if len(boxes) == 1 else 'traps and exclusions'}"]
    if args.expanded:
        for row in rows:
            lines += [*_flat(row_json(registry, row, True)), ""]
        return [*lines, _count(rows)]
    head = ["ROW", "PACKAGE", "PHASE", "HEAD", "PAGE", "PROOF"]
    cells = [
        [row.id, f"{row.provider} {row.versions}", " ".join(p[:3] for p in names(row.dims["phase"])), _head(row),
         IntSet.parse(row.dims["page"]).words(), row.strength]
        for row in rows
    ]  # fmt: skip
    if max((len(line) for line in table([head, *cells])), default=0) <= 80:
        return [*lines, *table([head, *cells]), "", f"{_count(rows)}; --expanded shows them whole"]
    for cell in cells:
        lines += [cell[0], *wrap(f"{cell[1]}; {cell[2]}; head {cell[3]}; page {cell[4]}; proof {cell[5]}", 4)]
    return [*lines, "", f"{_count(rows)}; --expanded shows them whole"]


def _count(rows: list[Row]) -> str:
    return f"{len(rows)} row{'' if len(rows) == 1 else 's'}"


def _head(row: Row) -> str:
    if "head_dim" in row.dims:
        return HeadDims.parse(row.dims["head_dim"]).words()
    return f"latent {row.dims.get('latent')} rope {row.dims.get('rope')}"


def _where(where: Any) -> str:
    parts = []
    for key, value in where.items():
        inner = ", ".join(f"{k} {_plain(v)}" for k, v in value.items()) if isinstance(value, dict) else _plain(value)
        parts.append(f"{key} {inner}")
    return "; ".join(parts)


def _plain(value: Any) -> str:
    """A value as the tables write it, lists without brackets."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return " ".join(map(_plain, value)) if isinstance(value, (list, tuple)) else str(value)


def _lines_of(origins: dict[str, str], prefix: str) -> str:
    """The lines on which the parts of a mapping stand: one where they stand together, several after a merge."""
    return " ".join(dict.fromkeys(at.rpartition(":")[0] for key, at in origins.items() if key.startswith(prefix)))


def _flat(shown: dict[str, Any]) -> list[str]:
    origins = shown.pop("origins", {})
    lines = [shown.pop("id")]
    for key, value in shown.items():
        if key in ("arch", "kernel", "row"):
            continue
        if key in ("evidence", "exclusions"):
            for item in value:
                text = ", ".join(f"{k} {v}" for k, v in item.items() if k not in ("evidence", "provider", "kernel"))
                lines += label_block(f"  {key[:-1] if key == 'exclusions' else key}", text, 18)
            continue
        sign = ":" if key == "dtypes" else ""  # `bf16: bf16 fp8_e4m3` reads "query: caches"
        parts = [f"{k}{sign} {_plain(v)}" for k, v in value.items()] if isinstance(value, dict) else [_plain(value)]
        at = origins.get({"versions": "package"}.get(key, key)) or _lines_of(origins, f"{key}.")
        text = ", ".join(parts)
        lines += label_block(f"  {key}", text + (f"   [{at}]" if at else ""), 18)
    return lines
