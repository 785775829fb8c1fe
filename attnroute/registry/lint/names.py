"""Names: a table is called what its file is called, and rows and traps of a kernel have names of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnroute.registry.lint.context import Context, Finding
from attnroute.registry.positions import Map, Scalar

if TYPE_CHECKING:
    from collections.abc import Iterator

RULE = "name"


def check(context: Context) -> Iterator[Finding]:
    """File stems, then names that stand twice."""
    for arch, flat in context.archs.items():
        yield from _stem(flat.root, "arch", arch)
    for name in context.tables.engine_ids():
        root = context.tables.table(f"engines/{name}.yaml")
        if root is not None:
            yield from _stem(root, "engine", name)
    first: dict[str, Scalar] = {}
    for key, written in (("row", context.written_rows()), ("trap", context.written_traps())):
        for subject, kernel, item in written:
            node = item.get(key)
            if not isinstance(node, Scalar) or not isinstance(node.plain, str):
                continue
            before = first.setdefault(subject, node)
            if before is not node:
                yield Finding(
                    RULE, subject, node, f"{node.plain!r} stands twice for {kernel}; first on line {before.line}"
                )


def _stem(root: Map, key: str, stem: str) -> Iterator[Finding]:
    node = root.get(key)
    if isinstance(node, Scalar) and isinstance(node.plain, str) and node.plain != stem:
        text = f"the file is called {stem}.yaml and says {key}: {node.plain}"
        yield Finding(RULE, stem, node, text, f"write {key}: {stem}, or rename the file")
