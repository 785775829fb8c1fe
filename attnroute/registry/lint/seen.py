"""Versions that were looked at: known releases inside the row's range."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnroute.registry.lint.context import Context, Finding, items
from attnroute.registry.lint.references import unknown
from attnroute.registry.versions import VersionRange, VersionSyntaxError, is_commit

if TYPE_CHECKING:
    from collections.abc import Iterator


def check(context: Context) -> Iterator[Finding]:
    """Each `seen` of each row that its table writes."""
    for flat in context.archs.values():
        for row in flat.rows:
            package = row.node.map("package")
            if row.own is None or package is None or len(package.entries) != 1:
                continue
            ((provider, written),) = package.plain.items()
            known = context.releases(provider)
            for node in items(row.node.get("seen")):
                if not isinstance(node.plain, str):
                    continue
                if known is not None and node.plain not in known and not is_commit(node.plain):
                    yield unknown(row.id, node, f"release of {provider}", node.plain, known)
                    continue
                try:
                    inside = node.plain in VersionRange.parse(written)
                except (VersionSyntaxError, TypeError):
                    continue
                if not inside:
                    yield Finding("seen", row.id, node, f"{node.plain} lies outside the row's range {written}")
