"""Words for a verdict: why a candidate was refused, on both sides, and what the asker could change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING, Any

from attnroute.registry.dims import BY_NAME, FEATURE_CODES, FEATURE_WORDS
from attnroute.registry.headdims import HeadDims
from attnroute.registry.sets import IntSet
from attnroute.registry.table import Candidate, Row, names

from .decision import Fix, Why
from .evaluate import Evaluation, Verdict, alive_before, env_ok, evaluate, failing_step, judge
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
        spans = list(dict.fromkeys(str(r.versions) for r in rows))
        words = ", ".join(dict.fromkeys(r.versions.words() for r in rows))
        return Why("package-version", version, spans, _ids(rows), f"asked {candidate.provider} {version}, declared {words}")
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
    message = f"asked {_words(asked, noun)}, declared {_allowed_words(alive, step, allowed)}"
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
    return {"kv": "kv-dtype", "q": "q-dtype", "evidence": "evidence", "env": "env", "call": "call"}.get(step) or BY_NAME[step].code


def _noun(step: str) -> str:
    if step in FEATURE_WORDS:
        return FEATURE_WORDS[step]
    own = {"kv": "KV dtype", "q": "query dtype", "evidence": "evidence", "env": "environment", "call": "call obligation"}
    return own.get(step) or BY_NAME[step].noun


def _asked(request: Request, step: str) -> Any:
    """The asked value of a step, written as in the tables."""
    features = dict(request.features)
    if step in FEATURE_CODES:
        return features.get(step, False)
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
    return found


def _declared(ctx: Context, row: Row, step: str) -> list[Any]:
    table = row.dims["dtypes"]
    if step in FEATURE_CODES:
        value = row.features.get(step, "unknown")
        return list(value) if isinstance(value, (list, tuple)) else [value]
    if step == "kv":
        return [kv for kvs in table.values() for kv in kvs]
    if step == "q":
        kv = ctx.ev.request.kv_dtype
        return [q for q, kvs in table.items() if kv is None or kv in kvs]
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
    return str(asked)


def _allowed_words(rows: list[Row], step: str, allowed: list[Any]) -> str:
    dimension = BY_NAME.get(step)
    if step in FEATURE_CODES:
        if allowed == ["required"]:
            return "required"
        return "not served" if allowed == [False] else ", ".join("no" if a is False else str(a) for a in allowed)
    if dimension is None or not allowed or "none" in allowed or "unknown" in allowed:
        return " ".join(map(str, allowed)) or "nothing"
    if dimension.kind == "pairs":
        return " ".join(HeadDims.parse(a).words() for a in allowed)
    if dimension.kind in ("ints", "dcp"):
        return " ".join(IntSet.parse(a).words() for a in allowed)
    return " ".join(dict.fromkeys(n for a in allowed for n in names(a)))


# --- fixes: what the asker can change -------------------------------------------------------------------------------


def fixes(ctx: Context, candidate: Candidate, verdict: Verdict) -> tuple[Fix, ...]:
    """The smallest changes after which the candidate is accepted, each tried before it is offered; often there is none.

    Only what the asker decides is changed: page, package version, dcp, own strictness, environment. Never the model.
    """
    if verdict.accepted or verdict.step == "arch":
        return ()
    singles = list(_changes(ctx, candidate, verdict))
    good = [change for change in singles if _accepts(ctx, candidate, change)]
    if not good:
        pairs = (a | b for a, b in combinations(singles, 2) if not set(a) & set(b))
        good = [change for change in pairs if _accepts(ctx, candidate, change)]
    kept: list[dict[str, Any]] = []
    for change in good:
        if not any(set(change) == set(other) for other in kept):
            kept.append(change)
    return tuple(Fix(change, _fix_words(ctx, candidate, change)) for change in kept[:2])


def apply_change(request: Request, packages: Packages, change: Mapping[str, Any]) -> tuple[Request, Packages]:
    """The question after a fix: what `fix[].change` means."""
    if "page_size" in change:
        request = replace(request, page=change["page_size"])
    if "dcp" in change:
        keep_lse = request.dcp == 1
        left = tuple(f for f in request.features if keep_lse or f[0] != "lse")
        request = replace(request, dcp=change["dcp"], features=left)
    if "allow_unknown" in change:
        request = replace(request, allow_unknown=change["allow_unknown"])
    if "strict_versions" in change:
        request = replace(request, strict_versions=change["strict_versions"])
    if "min_evidence" in change:
        request = replace(request, min_evidence=change["min_evidence"])
    if "cannot" in change:
        request = replace(request, cannot=tuple(change["cannot"]))
    if "environment" in change:
        request = replace(request, environment=tuple(sorted((dict(request.environment) | change["environment"]).items())))
    if "package" in change:
        packages = Packages(tuple(sorted((dict(packages.versions) | change["package"]).items())), packages.origin, packages.complete)
    return request, packages


def _accepts(ctx: Context, candidate: Candidate, change: Mapping[str, Any]) -> bool:
    request, packages = apply_change(ctx.ev.request, ctx.packages, change)
    version = packages.get(candidate.provider)
    return judge(evaluate(ctx.ev.table, request), candidate, version).accepted


def _changes(ctx: Context, candidate: Candidate, verdict: Verdict) -> Iterator[dict[str, Any]]:
    request, table = ctx.ev.request, ctx.ev.table
    rows = [table.rows[i] for i in range(len(table.rows)) if candidate.rows >> i & 1]
    if request.page is not None:
        for page in _near_pages(rows, request.page):
            yield {"page_size": page}
    installed = ctx.packages.get(candidate.provider)
    for version in _near_versions(candidate, installed):
        yield {"package": {candidate.provider: version}}
    if request.dcp > 1:
        yield {"dcp": 1}
    if verdict.status == "undeclared" and not request.allow_unknown:
        yield {"allow_unknown": True}
    if request.strict_versions:
        yield {"strict_versions": False}
    if request.min_evidence is not None:
        yield {"min_evidence": None}
    if request.cannot:
        yield {"cannot": []}
    for key, value in request.environment:
        if key != "cuda" and not value:
            yield {"environment": {key: True}}


def _near_pages(rows: list[Row], asked: int) -> list[int]:
    """Page sizes declared somewhere, nearest to the asked one first, larger before smaller."""
    found: set[int] = set()
    for row in rows:
        if row.page.is_any:
            continue
        for span in row.page.spans:
            below = span.lo + max(0, asked - span.lo) // span.step * span.step
            for page in (below, below + span.step, span.lo):
                if page in span and page != asked:
                    found.add(page)
    return sorted(found, key=lambda page: (abs(page - asked), -page))[:6]


def _near_versions(candidate: Candidate, installed: str | None) -> list[str]:
    """Versions looked at, the next newer one first, then older ones; all, newest first, if none is installed."""
    if installed is None:
        return [v for v in reversed(candidate.seen) if not v.startswith("git+")]
    from attnroute.registry.versions import is_commit, parse_version

    if is_commit(installed):
        return [v for v in candidate.seen if v != installed]
    here = parse_version(installed)
    releases = [v for v in candidate.seen if not is_commit(v) and parse_version(v) != here]
    newer = [v for v in releases if parse_version(v) > here]
    return newer + [v for v in reversed(releases) if parse_version(v) < here]


def _fix_words(ctx: Context, candidate: Candidate, change: Mapping[str, Any]) -> str:
    parts = []
    for key, value in change.items():
        if key == "package":
            ((name, version),) = value.items()
            parts.append(f"{name} {version}{_or_later(ctx, candidate, version, change)}")
        elif key == "page_size":
            parts.append(f"page {value}")
        elif key == "dcp":
            parts.append("no decode-context parallelism (--dcp 1)")
        elif key == "allow_unknown":
            return "accept anyway: --allow-unknown"
        elif key == "strict_versions":
            parts.append("versions above the last one looked at allowed")
        elif key == "min_evidence":
            parts.append("a lower --min-evidence")
        elif key == "cannot":
            parts.append(f"an engine that can meet {' '.join(ctx.ev.request.cannot)}")
        else:
            parts.append(f"{' '.join(value)} available")
    return f"would be accepted with {' and '.join(parts)}"


def _or_later(ctx: Context, candidate: Candidate, version: str, change: Mapping[str, Any]) -> str:
    """` or later` if every later version that was looked at accepts as well."""
    seen = list(candidate.seen)
    later = seen[seen.index(version) + 1 :] if version in seen else []
    for other in later:
        if not _accepts(ctx, candidate, {**change, "package": {candidate.provider: other}}):
            return ""
    installed = ctx.packages.get(candidate.provider)
    if installed is None:
        return ""
    from attnroute.registry.versions import is_commit, parse_version

    if is_commit(installed) or is_commit(version) or parse_version(version) < parse_version(installed):
        return ""
    return " or later"
