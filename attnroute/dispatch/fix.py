"""What the asker could change so that a refused candidate is accepted: each change is tried before it is offered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import combinations
from typing import Any

from attnroute.registry.table import Candidate, Row
from attnroute.registry.versions import is_commit, parse_version

from .decision import Fix
from .judge import Verdict, judge
from .masks import evaluate
from .packages import Packages
from .request import Request
from .why import Context


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
        request = replace(request, dcp=change["dcp"])
    if "allow_unknown" in change:
        request = replace(request, allow_unknown=change["allow_unknown"])
    if "strict_versions" in change:
        request = replace(request, strict_versions=change["strict_versions"])
    if "min_evidence" in change:
        request = replace(request, min_evidence=change["min_evidence"])
    if "cannot" in change:
        request = replace(request, cannot=tuple(change["cannot"]))
    if "environment" in change:
        request = replace(
            request, environment=tuple(sorted((dict(request.environment) | change["environment"]).items()))
        )
    if "package" in change:
        packages = Packages(
            tuple(sorted((dict(packages.versions) | change["package"]).items())), packages.origin, packages.complete
        )
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
    if is_commit(installed) or is_commit(version) or parse_version(version) < parse_version(installed):
        return ""
    return " or later"
