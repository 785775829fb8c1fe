"""Why no joint choice exists, in words: the groups, what each would take, and what to change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnroute.errors import UnservedError
from attnroute.registry.dims import LAYOUTS

from .pages import fits, units

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .joint import GroupClass, PhaseNeed
    from .search import Search


def explain_conflict(search: Search, classes: Sequence[GroupClass]) -> UnservedError:
    """The error for groups that no layout and block suits: a block that was asked for first, then the layout."""
    asked = search.asked_block
    needs = [(m.title, p) for m, c in zip(search.members, classes, strict=True) for p in c.phases]
    needs = [(title, p) for title, p in needs if p.paged and p.options and not p.optional]
    if asked is not None:
        parts = [
            f"{title} in {p.phase} ({_kernels(p)}) would take {nearest_blocks(p, asked, search.granule)}"
            for title, p in needs
            if not any(fits(o.pages, asked) for o in p.options)
        ]
        if parts:
            words = f"block size {asked} does not suit every group: {'; '.join(parts)}"
            return UnservedError(words, code="no-common-block")
    wanted = LAYOUTS if search.layout is None else (search.layout,)
    common = set(wanted)
    parts = []
    for title, p in needs:
        have = {n for o in p.options for n in (LAYOUTS if o.layouts is None else o.layouts)}
        common &= have
        if not set(wanted) <= have:
            shown = " ".join(n for n in LAYOUTS if n in have)
            parts.append(f"{title} in {p.phase} on {search.setting.side(p.phase).arch} takes {shown} ({_kernels(p)})")
    if parts and not common:
        return UnservedError(f"no KV layout suits every group: {'; '.join(parts)}", code="no-common-layout")
    return UnservedError(
        "no layout and block size suit every group together: "
        + "; ".join(f"{title} in {p.phase} takes {_takes(p)}" for title, p in needs),
        code="no-common-block",
    )


def _kernels(phase: PhaseNeed) -> str:
    return " ".join(dict.fromkeys(o.kernel for o in phase.options))


def _takes(phase: PhaseNeed) -> str:
    """`xqa page 16 32 64 128 NHD HND, native_tc page any NHD HND`."""
    return ", ".join(f"{o.kernel} page {o.pages.words()} {' '.join(o.layouts or LAYOUTS)}" for o in phase.options)


def nearest_blocks(phase: PhaseNeed, asked: int, granule: int) -> str:
    """`32 or 48`: the nearest blocks below and above the asked one that a kernel of the phase can be read in."""
    found: set[int] = set()
    for option in phase.options:
        for unit in units([option.pages], 1 if asked % granule else granule):
            below = asked // unit * unit
            found.update(block for block in (below, below + unit) if block)
    below_all = max((b for b in found if b < asked), default=None)
    above_all = min((b for b in found if b > asked), default=None)
    return " or ".join(str(b) for b in (below_all, above_all) if b is not None)
