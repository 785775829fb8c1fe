"""Explanations of a plan, worked out when somebody reads them: refusals, warnings, graph levels, the runner-up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attnroute.dispatch.preference import default_rank
from attnroute.dispatch.route import decide
from attnroute.registry.dims import DIMENSIONS

from .phases import request_of
from .record import Notes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from attnroute.dispatch.decision import CandidateAnswer
    from attnroute.dispatch.group import KVGroup

    from .blocks import StateNeed
    from .joint import GroupClass, Joint, PhaseNeed
    from .options import Option
    from .phases import Setting

#: Refusals that say nothing about the group: they hold for every shape.
_PLAIN = ("arch", "kind", "phase", "not-considered", "package-missing", "package-version")
_NOUNS = {d.code: d.noun for d in reversed(DIMENSIONS) if d.code}


def notes_for(
    members: Sequence[tuple[KVGroup, tuple[str, ...], int]],
    classes: Sequence[GroupClass],
    states: Sequence[StateNeed],
    joint: Joint,
    setting: Setting,
) -> Notes:
    """Everything a plan says besides its decisions."""
    why_not: dict[str, tuple[dict[str, Any], ...]] = {}
    warnings: list[str] = list(dict.fromkeys(setting.fallbacks))
    used = {
        (need.phase, option.kernel)
        for item, options in zip(classes, joint.chosen, strict=True)
        for need, option in zip(item.phases, options, strict=True)
        if option is not None
    }
    for (group, names, _), item, options in zip(members, classes, joint.chosen, strict=True):
        refused: list[dict[str, Any]] = []
        fallback: str | None = None
        for need, option in zip(item.phases, options, strict=True):
            answers = _answers(group, need, setting)
            refused += [e for a in answers for e in _entries(a, need.phase) if not a.accepted]
            refused += _dropped(need, option)
            if option is None:
                warnings.append(_unserved(" ".join(names), need, answers, options, item))
            elif fallback is None:
                fallback = _fallback(" ".join(names), need, option, answers, used, setting)
        if fallback is not None:
            warnings.append(fallback)
        for name in names:
            why_not[name] = tuple(refused)
    return Notes(why_not, tuple(warnings))


def _answers(group: KVGroup, need: PhaseNeed, setting: Setting) -> tuple[CandidateAnswer, ...]:
    side = setting.side(need.phase)
    request = request_of(group, need.phase, setting)
    return decide(setting.registry, request, side.packages, group=group.name).candidates


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


def words_of(code: str, message: str) -> str:
    """`asked 512, declared ...` with the name of what was asked: `head dim 512, declared ...`."""
    noun = _NOUNS.get(code)
    return f"{noun} {message.removeprefix('asked ')}" if noun and message.startswith("asked ") else message


def _dropped(need: PhaseNeed, option: Option | None) -> list[dict[str, Any]]:
    """Accepted kernels that stand before the chosen one and gave way to the other groups."""
    found = []
    for other in need.options:
        if option is None or other.place >= option.place:
            break
        cause = "it would have cost the whole model more"
        if need.needs_level and _level(other) < _level(option):
            cause = f"its CUDA-graph level is {other.graph_level or 'unknown'}, {need.phase} steps need {need.needs_level}"
        found.append(
            {"phase": need.phase, "kernel": other.kernel, "provider": other.provider, "status": "accepted",
             "code": "joint-choice", "message": f"accepted, but {cause}", "fix": []}
        )  # fmt: skip
    return found


def _level(option: Option) -> int:
    from attnroute.registry.dims import GRAPH_LEVELS

    return GRAPH_LEVELS.index(option.graph_level or "none")


def _unserved(
    names: str, need: PhaseNeed, answers: Sequence[CandidateAnswer], options: Sequence[Option | None], item: GroupClass
) -> str:
    """Nothing serves a phase: what the best placed kernel lacks."""
    if need.phase == "verify":
        prefill = next((o for p, o in zip(item.phases, options, strict=True) if p.phase == "prefill" and o), None)
        how = f"as prefill ({prefill.kernel})" if prefill is not None else "by nothing"
        return f"{names}: drafts are verified {how}, without full CUDA graphs [cuda-graph]"
    reasons = [e for a in answers for e in _entries(a, need.phase)]
    if not reasons:
        return f"{names}: nothing serves {need.phase} on this architecture with these packages [arch]"
    first = reasons[0]
    fix = next((e["fix"][0] for e in reasons if e["fix"]), None)
    tail = f"; {first['kernel'] if not fix else ''} {fix}" if fix else ""
    return f"{names}: nothing serves {need.phase}; {first['kernel']}: {first['message']}{tail} [{first['code']}]"


def _fallback(
    names: str,
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
        return f"{names} cannot use {answer.kernel}{where}: {first['message']}{fix} [{first['code']}]"
    return None
