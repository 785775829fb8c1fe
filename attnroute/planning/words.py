"""Explanations of a plan, worked out when somebody reads them: refusals, warnings, graph levels, the runner-up."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from attnroute.dispatch.preference import default_rank
from attnroute.dispatch.route import decide
from attnroute.registry.dims import DIMENSIONS

from .alternatives import graph_notes, runner_up
from .conflict import nearest_blocks
from .pages import fits
from .phases import request_of
from .record import Notes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from attnroute.dispatch.answer import CandidateAnswer
    from attnroute.dispatch.group import KVGroup

    from .joint import GroupClass, Joint, PhaseNeed
    from .options import Option
    from .phases import Setting
    from .search import Search

#: Refusals that say nothing about the group: they hold for every shape.
_PLAIN = ("arch", "kind", "phase", "not-considered", "package-missing", "package-version")
_NOUNS = {d.code: d.noun for d in reversed(DIMENSIONS) if d.code}


def notes_for(search: Search, classes: Sequence[GroupClass], joint: Joint) -> Notes:
    """Everything a plan says besides its decisions."""
    setting = search.setting
    why_not: dict[str, tuple[dict[str, Any], ...]] = {}
    warnings: list[str] = list(dict.fromkeys(setting.fallbacks))
    fallbacks: dict[str, list[str]] = {}
    used = {
        (need.phase, option.kernel)
        for item, options in zip(classes, joint.chosen, strict=True)
        for need, option in zip(item.phases, options, strict=True)
        if option is not None
    }
    for member, item, options in zip(search.members, classes, joint.chosen, strict=True):
        refused: list[dict[str, Any]] = []
        fallback: str | None = None
        for need, option in zip(item.phases, options, strict=True):
            answers = _answers(member.group, need, setting)
            entries = [e for a in answers for e in _entries(a, need.phase)]
            if option is None and not need.options and not entries:
                entries = [_nothing(need.phase)]
            refused += entries
            dropped = _dropped(item, need, option, search, joint)
            refused += dropped
            if fallback is None:
                fallback = _gave_way(dropped)
            if option is None:
                arch = search.setting.side(need.phase).arch
                warnings.append(_unserved(member.title, need, answers, options, item, arch))
            elif fallback is None:
                fallback = _fallback(need, option, answers, used, setting)
        if fallback is not None:
            fallbacks.setdefault(fallback, []).append(member.title)
        for name in member.names:
            why_not[name] = tuple(refused)
    warnings += [f"{' '.join(titles)} {text}" for text, titles in fallbacks.items()]
    warnings += _unverified(classes, joint, setting)
    return Notes(why_not, tuple(warnings), runner_up(search, classes, joint), graph_notes(search, classes, joint))


def _unverified(classes: Sequence[GroupClass], joint: Joint, setting: Setting) -> list[str]:
    """Packages newer than any that was looked at, on which a chosen kernel rests."""
    found = {
        (o.provider, setting.side(n.phase).packages.get(o.provider))
        for item, options in zip(classes, joint.chosen, strict=True)
        for n, o in zip(item.phases, options, strict=True)
        if o is not None and o.unverified
    }
    words = "is newer than the last one looked at [unverified-version]"
    return [f"{name} {version} {words}" for name, version in sorted(found, key=str)]


def _answers(group: KVGroup, need: PhaseNeed, setting: Setting) -> tuple[CandidateAnswer, ...]:
    side = setting.side(need.phase)
    request = request_of(group, need.phase, setting)
    table = setting.registry.table(side.arch)
    # Kernels without any row here are left out before anybody asks why: that reads the other architectures' tables.
    known = {(c.kernel, c.provider) for c in table.candidates if c.rows or c.traps}
    found = decide(setting.registry, request, side.packages, group=group.name).candidates
    return tuple(a for a in found if (a.kernel, a.provider) in known)


def _entries(answer: CandidateAnswer, phase: str) -> list[dict[str, Any]]:
    """The reasons of a refused candidate, unless they hold for any shape."""
    if answer.accepted:
        return []
    return [
        {
            "phase": phase,
            "kernel": answer.kernel,
            "provider": answer.provider,
            "status": answer.status,
            "code": reason.code,
            "message": words_of(reason.code, reason.message),
            "fix": [fix.message for fix in answer.fix],
        }
        for reason in answer.why
        if reason.code not in _PLAIN
    ]


def _nothing(phase: str) -> dict[str, Any]:
    """The entry of a phase for which the tables of the architecture have no kernel of this kind at all."""
    return {
        "phase": phase, "kernel": None, "provider": None, "status": "rejected", "code": "arch",
        "message": "nothing serves it on this architecture with these packages", "fix": [],
    }  # fmt: skip


def words_of(code: str, message: str) -> str:
    """`asked 512, declared ...` with the name of what was asked: `head dim 512, declared ...`."""
    noun = _NOUNS.get(code)
    return f"{noun} {message.removeprefix('asked ')}" if noun and message.startswith("asked ") else message


def _dropped(
    item: GroupClass, need: PhaseNeed, option: Option | None, search: Search, joint: Joint
) -> list[dict[str, Any]]:
    """Accepted kernels that stand before the chosen one and gave way: to the block that was asked for, to the layout
    or the CUDA graphs of the whole model, or to a cheaper choice for all groups.
    """
    found = []
    verifiers = [o.name for p in item.phases if p.phase == "verify" for o in p.options]
    for other in need.options:
        if option is None or other.place >= option.place:
            break
        code, cause = "joint-choice", "it would have cost the whole model more"
        if search.asked_block is not None and need.paged and not fits(other.pages, search.asked_block):
            near = nearest_blocks(replace(need, options=(other,)), search.asked_block, search.granule)
            code = "page-size"
            asked = search.asked_block
            cause = f"block {asked} (asked) is no multiple of its page {other.pages.words()}, nearest {near}"
        elif other.layouts is not None and joint.layout not in other.layouts:
            code, cause = "layout", f"it reads layout {' '.join(other.layouts)}, the model's is {joint.layout}"
        elif search.setting.one_kernel and need.phase == "decode" and verifiers and other.name not in verifiers:
            code, cause = "cuda-graph", "it verifies no drafts, which would take the full graphs of verify steps"
        elif need.needs_level and _level(other) < _level(option):
            level = other.graph_level or "unknown"
            code = "cuda-graph"
            cause = f"its CUDA-graph level is {level}, {need.phase} steps need {need.needs_level}"
        found.append(
            {"phase": need.phase, "kernel": other.kernel, "provider": other.provider, "status": "accepted",
             "code": code, "message": f"accepted, but {cause}", "fix": []}
        )  # fmt: skip
    return found


def _gave_way(dropped: Sequence[dict[str, Any]]) -> str | None:
    """One sentence for the first kernel that would have been chosen but for something that was asked of the model."""
    first = next((d for d in dropped if d["code"] != "joint-choice"), None)
    if first is None:
        return None
    where = "" if first["phase"] == "decode" else f" for {first['phase']}"
    return f"cannot use {first['kernel']}{where}: {first['message'].removeprefix('accepted, but ')} [{first['code']}]"


def _level(option: Option) -> int:
    from attnroute.registry.dims import GRAPH_LEVELS

    return GRAPH_LEVELS.index(option.graph_level or "none")


def _unserved(
    names: str,
    need: PhaseNeed,
    answers: Sequence[CandidateAnswer],
    options: Sequence[Option | None],
    item: GroupClass,
    arch: str,
) -> str:
    """Nothing serves a phase on its machine: what the best placed kernel lacks."""
    if need.phase == "verify":
        prefill = next((o for p, o in zip(item.phases, options, strict=True) if p.phase == "prefill" and o), None)
        how = f"as prefill ({prefill.kernel})" if prefill is not None else "by nothing"
        return f"{names}: drafts are verified {how}, without full CUDA graphs [cuda-graph]"
    reasons = [e for a in answers for e in _entries(a, need.phase)]
    if not reasons:
        for answer in answers:  # a version or a package that would change the answer is told before the architecture
            for reason in answer.why:
                if reason.code in ("package-version", "package-missing"):
                    tail = f"; {answer.fix[0].message}" if answer.fix else ""
                    what = f"{answer.kernel}: {reason.message}{tail} [{reason.code}]"
                    return f"{names}: nothing serves {need.phase} on {arch}; {what}"
        return f"{names}: nothing serves {need.phase} on {arch} with these packages [arch]"
    first = reasons[0]
    fix = next((e["fix"][0] for e in reasons if e["fix"]), None)
    tail = f"; {fix}" if fix else ""
    return (
        f"{names}: nothing serves {need.phase} on {arch}; {first['kernel']}: {first['message']}{tail} [{first['code']}]"
    )


def _fallback(
    need: PhaseNeed,
    option: Option,
    answers: Sequence[CandidateAnswer],
    used: set[tuple[str, str]],
    setting: Setting,
) -> str | None:
    """One sentence for a group that cannot use a kernel which another group uses, or which decodes before the chosen
    one in the default order.
    """
    table = setting.registry.table(setting.side(need.phase).arch)
    place = default_rank(table, need.phase, option.kernel)
    for answer in sorted(answers, key=lambda a: default_rank(table, need.phase, a.kernel)):
        elsewhere = (need.phase, answer.kernel) in used
        if answer.accepted or answer.kernel == option.kernel or default_rank(table, need.phase, answer.kernel) > place:
            continue
        reasons = _entries(answer, need.phase)
        if not reasons or not (elsewhere or need.phase == "decode"):
            continue
        first = reasons[0]
        where = "" if need.phase == "decode" else f" for {need.phase}"
        fix = f"; {first['fix'][0]}" if first["fix"] else ""
        return f"cannot use {answer.kernel}{where}: {first['message']}{fix} [{first['code']}]"
    return None
