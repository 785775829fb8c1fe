"""What else could have been chosen: the runner-up, and what decides the CUDA-graph level of the whole model."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from attnroute.registry.dims import GRAPH_LEVELS

from .joint import model_level

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .joint import GroupClass, Joint
    from .options import Option
    from .search import Search


def runner_up(search: Search, classes: Sequence[GroupClass], joint: Joint) -> dict[str, Any] | None:
    """The cheapest choice that differs in at least one kernel: which, and what it would cost more; None if every kernel
    is the only one.

    The costs are those of the choice: relative times where measured, else steps of the default order.
    """
    best: tuple[float, dict[str, Any]] | None = None
    total = sum(c.layers for c in classes) or 1
    for i, item in enumerate(classes):
        for j, need in enumerate(item.phases):
            taken = joint.chosen[i][j]
            rest = tuple(o for o in need.options if taken is None or o.name != taken.name)
            if taken is None or not rest:
                continue
            phases = (*item.phases[:j], replace(need, options=rest), *item.phases[j + 1 :])
            found = search.solve([*classes[:i], replace(item, phases=phases), *classes[i + 1 :]])
            other = found.chosen[i][j] if found is not None else None
            if found is None or other is None or (best is not None and found.cost >= best[0]):
                continue
            best = (
                found.cost,
                {
                    "group": search.members[i].title,
                    "phase": need.phase,
                    "kernel": other.kernel,
                    "provider": other.provider,
                    "instead_of": taken.kernel,
                    "instead_of_provider": taken.provider,
                    "costs_more": (found.cost - joint.cost) / total,
                    "measured": other.time is not None and taken.time is not None,
                },
            )
    return None if best is None else best[1]


def graph_notes(search: Search, classes: Sequence[GroupClass], joint: Joint) -> dict[str, Any]:
    """The level of the whole model, who limits it, what drafts would make of it, and what one kernel for decoding and
    verifying would.

    `with_drafts` is the level of a server that starts to speculate (None: it does already). `one_kernel` is the level
    if each group verified with the kernel that decodes it, as engines do that build one decode path per group.
    """
    notes: dict[str, Any] = {
        "level": model_level(classes, joint.chosen),
        "limited_by": limited_by(search, classes, joint.chosen),
        "with_drafts": None,
        "one_kernel": None,
    }
    drafting, chosen = classes, joint.chosen
    if not search.setting.speculative:
        drafting = search.classes(search.what_if(speculative=1, force=(), prefer=()))
        found = search.solve(drafting)
        if found is None:
            return notes
        chosen = found.chosen
        notes["with_drafts"] = {
            "level": model_level(drafting, chosen),
            "limited_by": limited_by(search, drafting, chosen),
            "verify": {
                m.title: _kernel(c, o, "verify") for m, c, o in zip(search.members, drafting, chosen, strict=True)
            },
        }
    if any(p.phase == "verify" for c in drafting for p in c.phases):
        notes["one_kernel"] = _one_kernel(search, drafting, chosen)
    return notes


def _kernel(item: GroupClass, options: Sequence[Option | None], phase: str) -> str | None:
    return next((o.kernel for p, o in zip(item.phases, options, strict=True) if p.phase == phase and o), None)


def limited_by(
    search: Search, classes: Sequence[GroupClass], chosen: Sequence[Sequence[Option | None]]
) -> list[dict[str, Any]]:
    """The kernels whose level is below what their step needs: each takes that step's full graphs from all layers."""
    found = []
    for member, item, options in zip(search.members, classes, chosen, strict=True):
        for need, option in zip(item.phases, options, strict=True):
            level = (option.graph_level if option else None) or "none"
            if need.needs_level and GRAPH_LEVELS.index(level) < GRAPH_LEVELS.index(need.needs_level):
                kernel = option.kernel if option else None
                found.append({"group": member.title, "phase": need.phase, "kernel": kernel, "level": level})
    return found


def _one_kernel(
    search: Search, classes: Sequence[GroupClass], chosen: Sequence[Sequence[Option | None]]
) -> dict[str, Any]:
    """The level if the decode kernel of each group also verified, the groups that then limit it, and the kernel each of
    them would have to decode on to keep the level.
    """
    limits = []
    for member, item, options in zip(search.members, classes, chosen, strict=True):
        decode = next((o for p, o in zip(item.phases, options, strict=True) if p.phase == "decode"), None)
        verify = next((p for p in item.phases if p.phase == "verify"), None)
        if decode is None or verify is None or verify.needs_level is None:
            continue
        least = GRAPH_LEVELS.index(verify.needs_level)
        good = [o.name for o in verify.options if GRAPH_LEVELS.index(o.graph_level or "none") >= least]
        if decode.name not in good:
            decoders = next(p.options for p in item.phases if p.phase == "decode")
            other = next((o.kernel for o in decoders if o.name in good), None)
            limits.append({"group": member.title, "kernel": decode.kernel, "level": "uniform1", "keeps": other})
    level = model_level(classes, chosen)
    if limits and GRAPH_LEVELS.index(level) > GRAPH_LEVELS.index("uniform1"):
        level = "uniform1"
    return {"level": level, "limited_by": limits}
