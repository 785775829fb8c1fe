"""What a row or trap must say once `like` and `mirrors` are expanded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnroute.errors import near_miss
from attnroute.registry.boxes import serves_mla
from attnroute.registry.dims import DIMENSIONS, MLA_KINDS
from attnroute.registry.lint.context import MALFORMED, Context, Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from attnroute.registry.positions import Map

RULE = "missing-key"
_COMMON = tuple(d.name for d in DIMENSIONS if d.omitted == "required" and not d.only_kinds)
_GQA = tuple(d.name for d in DIMENSIONS if d.omitted == "required" and d.only_kinds == ("gqa",))
_MLA = tuple(d.name for d in DIMENSIONS if d.omitted == "required" and d.only_kinds == MLA_KINDS)


def check(context: Context) -> Iterator[Finding]:
    """Architectures, rows, evidence, traps."""
    for arch, flat in context.archs.items():
        for key in ("name", "compute_capability", "kernels"):
            if key not in flat.root.entries and not _misspelt(flat.root, key):
                yield Finding(RULE, arch, flat.root, f"key {key!r} is missing")
        for row in flat.rows:
            if row.own is None or _misspelt(row.own, "like"):
                continue
            try:
                mla = serves_mla(row.node.plain)
            except MALFORMED:
                mla = False
            for key in (*_COMMON, *(_MLA if mla else _GQA), "package", "seen"):
                if key not in row.node.entries and not _misspelt(row.own, key):
                    yield Finding(
                        RULE, row.id, row.node, f"row {row.name!r} does not say {key!r}, nor does what it is like"
                    )
            for key in _GQA if mla else _MLA:
                if key in row.own.entries:
                    text = f"{key!r} does not go with attention kind {row.node.plain.get('kind', 'gqa')}"
                    yield Finding("kind", row.id, row.own.keys[key], text)
            if not row.evidence and not row.mirrored_evidence and not _misspelt(row.own, "evidence"):
                yield Finding("evidence", row.id, row.node, f"row {row.name!r} has no evidence")
        for trap in flat.traps:
            for key in ("package", "where", "outcome", "why", "evidence") if trap.own else ():
                inherited = key == "evidence" and trap.under is not None
                if key not in trap.node.entries and not inherited and not _misspelt(trap.node, key):
                    yield Finding(RULE, trap.id, trap.node, f"trap {trap.name!r} does not say {key!r}")


def _misspelt(item: Map, key: str) -> bool:
    """Whether the key stands there under a wrong name, which the schema has reported."""
    return any(near_miss(other, [key]) for other in item.entries if other not in KNOWN)


KNOWN = frozenset(d.name for d in DIMENSIONS) | {
    *("row", "like", "package", "seen", "call", "env", "exclusions", "evidence", "note", "trap", "where", "outcome"),
    *(
        "why",
        "code",
        "arch",
        "name",
        "compute_capability",
        "mirrors",
        "default_order",
        "kernels",
        "traps",
        "preference",
    ),
}
