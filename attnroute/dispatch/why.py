"""Words for a verdict: why a candidate was refused, with what was asked and what is declared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnroute.registry.dims import BY_NAME, FEATURE_CODES, FEATURE_WORDS
from attnroute.registry.headdims import HeadDims
from attnroute.registry.sets import IntSet
from attnroute.registry.table import Candidate, Row, names
from attnroute.registry.versions import VersionRange

from .decision import Why
from .judge import Verdict, alive_before, failing_step, judge
from .masks import Evaluation, env_ok
from .packages import Packages
from .request import Request

if TYPE_CHECKING:
    from attnroute.registry.registry import Registry


@dataclass(frozen=True, slots=True)
class Context:
    """What an explanation may look at: the registry, the evaluated request, the packages."""

    registry: Registry
    ev: Evaluation
    packages: Packages


def why(ctx: Context, candidate: Candidate, verdict: Verdict) -> tuple[Why, ...]:
    """Reasons for a candidate that is not accepted. A trap or exclusion that was hit stands alone."""
    if verdict.accepted:
        return ()
    step = verdict.step or failing_step(ctx.ev, candidate, verdict.version or "")
    if step == "package":
        return (_why_package(ctx, candidate),)
    if step == "arch":
        return (_why_arch(ctx, candidate),)
    if verdict.box is not None:
        return (_why_box(ctx, verdict),)
    if step == "version":
        return (_why_version(ctx, candidate, verdict),)
    return (_why_step(ctx, candidate, verdict, step),)


def _why_package(ctx: Context, candidate: Candidate) -> Why:
    have = [f"{name}=={version}" for name, version in ctx.packages.versions]
    if ctx.packages.complete:
        return Why("package-missing", candidate.provider, have, (), f"{candidate.provider} is not installed")
    message = f"{candidate.provider} is not named; name it with --package {candidate.provider}==VERSION"
    return Why("not-considered", candidate.provider, have, (), message)


def _why_arch(ctx: Context, candidate: Candidate) -> Why:
    asked = ctx.ev.table.arch
    served = ctx.registry.archs_with(candidate.kernel, candidate.provider)
    declared = " ".join(served) or "no architecture"
    return Why("arch", asked, list(served), (), f"asked {asked}, declared {declared}")


def _why_box(ctx: Context, verdict: Verdict) -> Why:
    assert verdict.box is not None
    box = ctx.ev.table.boxes[verdict.box]
    asked = {dim: _asked(ctx.ev.request, dim) for dim in box.where if dim != "features"}
    asked.update({name: True for name, value in box.where.get("features", {}).items() if value})
    if verdict.status == "known-wrong":
        return Why("known-wrong", asked, None, (box.id,), f"{box.outcome}: {box.why}")
    if verdict.status == "undeclared":
        return Why("undeclared", asked, None, (box.id,), f"outcome unknown: {box.why}")
    code = box.code or _only_code(box.where)
    dim = next((d for d in box.where if d in BY_NAME and BY_NAME[d].code == code), None)
    shown = _asked(ctx.ev.request, dim) if dim else asked
    return Why(code, shown, None, (box.id,), f"the package refuses it: {box.why}")


def _only_code(where: Mapping[str, Any]) -> str:
    """The code of the last dimension that a hole constrains, in the order of explanation."""
    stated = [d for d in BY_NAME if d in where and d != "features"]
    features = list(where.get("features", {}))
    if features:
        return FEATURE_CODES[features[-1]]
    return BY_NAME[stated[-1]].code if stated else "known-wrong"


def _why_version(ctx: Context, candidate: Candidate, verdict: Verdict) -> Why:
    version = verdict.version or ""
    rows = [ctx.ev.table.rows[i] for i in range(len(ctx.ev.table.rows)) if candidate.rows >> i & 1]
    if verdict.status == "rejected":
        ranges = list({str(r.versions): r.versions for r in rows}.values())
        ranges = [r for r in ranges if not any(o.covers(r) for o in ranges if o is not r)]
        spans, words = [str(r) for r in ranges], ", ".join(r.words() for r in ranges)
        return Why(
            "package-version", version, spans, _ids(rows), f"asked {candidate.provider} {version}, declared {words}"
        )
    below, above = ctx.ev.table.seen_around(candidate, version)
    around = [f"{v} {judge(ctx.ev, candidate, v).status}" for v in (below, above) if v is not None]
    known = ", ".join(around) or "none"
    message = f"{candidate.provider} {version} was not looked at; nearest looked at: {known}"
    return Why("undeclared", version, list(candidate.seen), _ids(rows), message)


def _why_step(ctx: Context, candidate: Candidate, verdict: Verdict, step: str) -> Why:
    request = ctx.ev.request
    version = verdict.version or ""
    alive = alive_before(ctx.ev, candidate, version, step)
    asked = _asked(request, step)
    allowed = _allowed(ctx, alive, step)
    code = _code(step)
    noun = _noun(step)
    if verdict.status == "undeclared":
        message = f"{noun}{_shown_asked(asked)}: no source checked"
        return Why("undeclared", {step: asked}, allowed or None, _ids(alive), message)
    message = f"asked {_words(asked, noun)}, declared {_allowed_words(step, allowed)}"
    return Why(code, asked, _single(allowed), _ids(alive), message)


def _shown_asked(asked: Any) -> str:
    return "" if asked is True or asked is None else f" {asked}"


def _single(allowed: list[Any]) -> Any:
    return allowed[0] if len(allowed) == 1 else allowed


def _ids(rows: list[Row]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(row.id for row in rows))


def _code(step: str) -> str:
    if step in FEATURE_CODES:
        return FEATURE_CODES[step]
    return {"kv": "kv-dtype", "q": "q-dtype", "evidence": "evidence", "env": "env", "call": "call"}.get(
        step
    ) or BY_NAME[step].code


def _noun(step: str) -> str:
    if step in FEATURE_WORDS:
        return FEATURE_WORDS[step]
    own = {
        "kv": "KV dtype",
        "q": "query dtype",
        "evidence": "evidence",
        "env": "environment",
        "call": "call obligation",
    }
    return own.get(step) or BY_NAME[step].noun


def _asked(request: Request, step: str) -> Any:
    """The asked value of a step, written as in the tables."""
    if step in FEATURE_CODES:
        return request.asked.get(step, False)
    if step in ("kv", "dtypes"):
        return request.kv_dtype
    if step == "q":
        return request.dtype
    if step == "evidence":
        return request.min_evidence
    if step == "env":
        return dict(request.environment)
    if step == "call":
        return list(request.cannot)
    value = getattr(request, step)
    if step == "head_dim" and value is not None:
        return value[0] if value[0] == value[1] else f"{value[0]}x{value[1]}"
    return value


def _allowed(ctx: Context, rows: list[Row], step: str) -> list[Any]:
    """The union of what the rows still alive declare, each part once, written as in the tables."""
    found: list[Any] = []
    for row in rows:
        for part in _declared(ctx, row, step):
            if part not in found:
                found.append(part)
    kept: list[Any] = []
    for n, part in enumerate(found):  # of two that say the same, the later one stays
        if not any(_inside(step, part, other) for other in (*kept, *found[n + 1 :])):
            kept.append(part)
    return kept


def _inside(step: str, part: Any, other: Any) -> bool:
    """Whether one part of a union of numbers says nothing that another one does not."""
    kind = BY_NAME[step].kind if step in BY_NAME else ""
    if {"none", "unknown"} & {str(part), str(other)}:
        return False
    if kind == "pairs":
        return HeadDims.parse(part).is_subset(HeadDims.parse(other))
    return kind in ("ints", "dcp") and IntSet.parse(part).is_subset(IntSet.parse(other))


def _declared(ctx: Context, row: Row, step: str) -> list[Any]:
    table = row.dims["dtypes"]
    if step in FEATURE_CODES:
        value = row.features.get(step, "unknown")
        return list(value) if isinstance(value, (list, tuple)) else [value]
    if step == "kv":
        return [kv for kvs in table.values() for kv in kvs]
    if step == "q":
        kv = ctx.ev.request.kv_dtype
        return [q for q, kvs in table.items() if kv in (None, "auto") or kv in kvs]
    if step == "evidence":
        return [row.strength]
    if step == "env":
        stated = dict(ctx.ev.request.environment)
        return [{key: need} for key, need in row.env.items() if not env_ok(need, key, stated)]
    if step == "call":
        return list(row.calls)
    value = row.dims.get(step)
    if value is None:
        omitted = BY_NAME[step].omitted
        return [] if omitted == "required" else [omitted]
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _words(asked: Any, noun: str) -> str:
    if asked is True:
        return noun
    if asked is False or asked is None:
        return f"no {noun}"
    return _env_words(asked) if isinstance(asked, dict) else str(asked)


def _env_words(stated: Mapping[str, Any]) -> str:
    """`nvcc no`, `cuda 12.9 or later`."""
    yes_no = {True: "yes", False: "no"}
    return ", ".join(
        f"{key} {yes_no[v] if isinstance(v, bool) else VersionRange.parse(v).words() if '..' in str(v) else v}"
        for key, v in stated.items()
    )


def _listed(parts: list[str]) -> str:
    """`16 32 64`; with commas where a part has several words of its own."""
    return (", " if any(" " in part for part in parts) else " ").join(parts)


def _allowed_words(step: str, allowed: list[Any]) -> str:
    dimension = BY_NAME.get(step)
    if step == "env":
        return _env_words({key: need for part in allowed for key, need in part.items()})
    if step in FEATURE_CODES:
        if allowed == ["required"]:
            return "required"
        return "not served" if allowed == [False] else ", ".join("no" if a is False else str(a) for a in allowed)
    if dimension is None or not allowed or "none" in allowed or "unknown" in allowed:
        return " ".join(map(str, allowed)) or "nothing"
    if dimension.kind == "pairs":
        return _listed([HeadDims.parse(a).words() for a in allowed])
    if dimension.kind in ("ints", "dcp"):
        return _listed([IntSet.parse(a).words() for a in allowed])
    return " ".join(dict.fromkeys(n for a in allowed for n in names(a)))
