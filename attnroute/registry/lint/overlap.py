"""Two rows of one kernel and provider that hold a common point and say different things about it."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

from attnroute.registry.lint.context import Context, Finding, View

if TYPE_CHECKING:
    from collections.abc import Iterator

    from attnroute.registry.boxes import Box

RULE = "overlap"


def check(context: Context) -> Iterator[Finding]:
    """All pairs of rows of one kernel and provider, unless both are only mirrored."""
    for views in context.views.values():
        groups: dict[tuple[str, str], list[View]] = {}
        for view in views:
            groups.setdefault((view.row.kernel, view.provider), []).append(view)
        for group in groups.values():
            for a, b in combinations(group, 2):
                if (a.row.own is not None or b.row.own is not None) and a.versions.overlaps(b.versions):
                    yield from _pair(a, b)


def _pair(a: View, b: View) -> Iterator[Finding]:
    common = a.box.meet(b.box)
    if common is None or apart(a, b):
        return
    faults = list(differences(a, b))
    if not faults or any(excluded(common, view) for view in (a, b)):
        return
    at, other = (b, a) if b.row.own is not None else (a, b)
    both = f"row {at.row.name!r} and row {other.row.name!r} (line {other.name.line})"
    text = f"{both} overlap at {_words(common)} and disagree: "
    yield Finding(RULE, at.row.id, at.name, text + "; ".join(faults), "narrow one of them, or make them say the same")


def apart(a: View, b: View) -> bool:
    """Whether a feature that one requires and the other refuses keeps their requests apart."""
    pairs = ((a.features.get(name), b.features.get(name)) for name in {*a.features} & {*b.features})
    return any(x in ("required", False) and y in ("required", False) and x != y for x, y in pairs)


def differences(a: View, b: View) -> Iterator[str]:
    """What both state and state differently: features, CUDA-graph level, calls."""
    for name in sorted({*a.features} & {*b.features}):
        x, y = a.features[name], b.features[name]
        if "unknown" in (x, y) or {str(x), str(y)} <= {"required", "True"}:
            continue
        if x != y:
            yield f"{name} {_said(x)} here, {_said(y)} there"
    levels = [view.row.node.plain.get("cuda_graph") for view in (a, b)]
    if None not in levels and "unknown" not in levels and levels[0] != levels[1]:
        yield f"cuda_graph {levels[0]} and {levels[1]}"
    calls = [set(view.row.node.plain.get("call", ())) for view in (a, b)]
    if calls[0] != calls[1]:
        yield f"call differs by {' '.join(sorted(calls[0] ^ calls[1]))}"


def excluded(common: Box, view: View) -> bool:
    """Whether a hole of the row, for all its versions, covers the common part."""
    return any(not h.features and h.versions is None and common.inside(h.box) for h in view.holes)


def _said(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value).lower()


def _words(box: Box) -> str:
    """The dimensions that narrow the common part most, for the message."""
    shown = []
    for name in ("phase", "storage", "head_dim", "latent", "q_len", "page", "group_ratio"):
        value = box.sets.get(name)
        if value is not None:
            shown.append(f"{name} {' '.join(sorted(map(str, value))) if isinstance(value, frozenset) else value}")
    return ", ".join(shown) or "every point"
