"""Why no joint choice exists, in words: the groups, what each would take, and what to change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnroute.errors import UnservedError
from attnroute.registry.dims import LAYOUTS

from .pages import fits, units

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .joint import GroupClass, PhaseNeed
    from .phases import Setting


def explain_conflict(
    classes: Sequence[GroupClass],
    names: Sequence[Sequence[str]],
    setting: Setting,
    *,
    asked_block: int | None,
    layout: str | None,
    granule: int,
) -> UnservedError:
    """The error for groups that no layout and block suits: a block that was asked for first, then the layout."""
    if asked_block is not None:
        parts = []
        for item, group in zip(classes, names, strict=True):
            for phase in item.phases:
                if phase.optional or not phase.paged or not phase.options or any(fits(o.pages, asked_block) for o in phase.options):
                    continue
                near = nearest_blocks(phase, asked_block, granule)
                kernels = " ".join(dict.fromkeys(o.kernel for o in phase.options))
                parts.append(f"{' '.join(group)} in {phase.phase} ({kernels}) would take {near}")
        if parts:
            return UnservedError(f"block size {asked_block} suits not every group: {'; '.join(parts)}", code="no-common-block")
    wanted = LAYOUTS if layout is None else (layout,)
    parts = []
    for item, group in zip(classes, names, strict=True):
        for phase in item.phases:
            if phase.optional or not phase.paged or not phase.options:
                continue
            have = {n for o in phase.options for n in (LAYOUTS if o.layouts is None else o.layouts)}
            if not set(wanted) <= have:
                kernels = " ".join(dict.fromkeys(o.kernel for o in phase.options))
                where = setting.side(phase.phase).arch
                shown = " ".join(n for n in LAYOUTS if n in have)
                parts.append(f"{' '.join(group)} in {phase.phase} on {where} takes {shown} ({kernels})")
    if parts:
        return UnservedError(f"no KV layout suits every group: {'; '.join(parts)}", code="no-common-layout")
    return UnservedError("no block size and layout suit every group together", code="no-common-block")


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
