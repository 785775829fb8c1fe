"""Versions between two ranges of a kernel and provider that no row covers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnroute.registry.lint.context import Context, Finding, View
from attnroute.registry.versions import parse_version

if TYPE_CHECKING:
    from collections.abc import Iterator


def check(context: Context) -> Iterator[Finding]:
    """Ranges sorted by their lower end; where one starts after all before it have ended, there is a gap."""
    for views in context.views.values():
        groups: dict[tuple[str, str], list[View]] = {}
        for view in views:
            if view.versions.commit is None:
                groups.setdefault((view.row.kernel, view.provider), []).append(view)
        for (kernel, provider), group in groups.items():
            group.sort(key=lambda v: (v.versions.lo is not None, parse_version(v.versions.lo) if v.versions.lo else 0))
            reach: str | None = group[0].versions.hi
            for view in group[1:]:
                lo, hi = view.versions.lo, view.versions.hi
                if reach is None:
                    break
                if lo is not None and parse_version(lo) > parse_version(reach):
                    package = view.row.node.map("package")
                    if package is not None and view.row.own is not None:
                        text = f"no row of {kernel} covers {provider} {reach}..{lo}"
                        yield Finding("version-gap", view.row.id, package.entries[provider], text)
                reach = None if hi is None else max(reach, hi, key=parse_version)
