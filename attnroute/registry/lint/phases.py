"""Values that contradict each other inside one row, and exclusions whose reason code nobody can guess."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnroute.registry.flatten import default_code, where_box
from attnroute.registry.lint.context import MALFORMED, Context, Finding
from attnroute.registry.sets import IntSet

if TYPE_CHECKING:
    from collections.abc import Iterator

    from attnroute.registry.positions import Map


def check(context: Context) -> Iterator[Finding]:
    """Decode takes one token; a raise needs a code."""
    for arch, views in context.views.items():
        for view in views:
            phases, q_len = view.box.sets.get("phase"), view.box.sets.get("q_len")
            only_decode = isinstance(phases, frozenset) and phases == {"decode"}
            if view.row.own is not None and only_decode and isinstance(q_len, IntSet) and 1 not in q_len:
                node = view.row.node.entries.get("q_len", view.name)
                yield Finding("q-len", view.row.id, node, "decode is one query token, which this q_len leaves out")
        for trap in context.archs[arch].traps:
            yield from _code(trap.id, trap.node) if trap.own else ()
    for subject, _, item in context.written_rows():
        for hole in item.maps("exclusions"):
            yield from _code(subject, hole)


def _code(subject: str, item: Map) -> Iterator[Finding]:
    if item.plain.get("outcome") != "raises" or "code" in item.entries:
        return
    try:
        found = default_code(where_box(item.plain["where"]))
    except MALFORMED:
        return
    if found is None:
        text = "several dimensions are constrained: say which one the refusal is about"
        yield Finding("code", subject, item.entries["where"], text, "add code: CODE from reasons.yaml")
