"""Traps lie outside the rows: one that swallows a whole row makes that row a lie."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnroute.registry.lint.context import Context, Finding, trap_hole

if TYPE_CHECKING:
    from collections.abc import Iterator


def check(context: Context) -> Iterator[Finding]:
    """Each trap against each row of its kernel and provider."""
    for arch, flat in context.archs.items():
        for trap in flat.traps:
            found = trap_hole(trap) if trap.own else None
            if found is None:
                continue
            provider, hole = found
            for view in context.views[arch]:
                if view.row.kernel != trap.kernel or view.provider != provider or hole.features:
                    continue
                if hole.versions is not None and not any(version in hole.versions for version in view.seen):
                    continue
                if view.box.inside(hole.box):
                    text = f"the trap contains the whole row {view.row.name!r} (line {view.name.line})"
                    node = trap.node.entries["where"]
                    yield Finding("trap-over-row", trap.id, node, text, "remove the row, or narrow one")
