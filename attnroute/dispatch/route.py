"""`route`: one KV-cache group, one phase, one decision with every candidate explained."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache, wraps
from typing import TYPE_CHECKING, Any, ParamSpec

from attnroute.errors import UnservedError, UsageError, unknown_name
from attnroute.registry.table import ArchTable, Candidate

from .answer import CandidateAnswer
from .decision import STATUS_ORDER, Decision, answers_for
from .group import KVGroup
from .judge import Verdict, judge
from .masks import Evaluation, evaluate
from .packages import Packages, resolve_packages
from .preference import default_rank, describe, measured_bands, relative_times
from .request import Request, request_for
from .why import Context

if TYPE_CHECKING:
    from attnroute.registry.registry import Registry

_warned: set[tuple[str, str, str]] = set()
Names = str | tuple[str, ...] | list[str] | None
P = ParamSpec("P")


def _remembered(ask: Callable[P, Decision]) -> Callable[P, Decision]:
    """Answers a repeated question from memory. Arguments must be hashable; mappings and lists are frozen on the way."""
    cached: Callable[..., Decision] = lru_cache(maxsize=2048)(ask)

    @wraps(ask)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> Decision:
        try:
            if len(args) == 3 and type(args[2]) is dict:  # packages, the usual mapping, without the detour below
                return cached(args[0], args[1], tuple(sorted(args[2].items())), **kwargs)
            return cached(*args, **kwargs)
        except TypeError:  # a dict or list among the arguments, or a call that does not fit the signature
            return cached(*map(_frozen, args), **{k: _frozen(v) for k, v in kwargs.items()})

    return wrapper


def _frozen(value: Any) -> Any:
    if isinstance(value, Mapping):
        return tuple(sorted(value.items()))
    return tuple(value) if isinstance(value, list) else value


@_remembered
def route(
    group: KVGroup,
    arch: str,
    packages: Mapping[str, str] | Packages | tuple[tuple[str, str], ...] | None = None,
    *,
    phase: str = "decode",
    q_len: int | None = 1,
    page_size: int | None = None,
    batch_size: int | None = None,
    context_len: int | None = None,
    dcp: int = 1,
    lse: bool = False,
    min_evidence: str | None = None,
    allow_unknown: bool = False,
    strict_versions: bool = False,
    environment: Mapping[str, Any] | tuple[tuple[str, Any], ...] | None = None,
    force: str | None = None,
    prefer: Names = None,
    storage: str | None = None,
    layout: str | None = None,
    cuda_graph: str | None = None,
    cannot: tuple[str, ...] = (),
    engine: str | None = None,
    registry: Registry | None = None,
) -> Decision:
    """The kernel for one group in one phase on `arch`, and the reasons for and against every candidate.

    `q_len` counts query tokens a request; `page_size` and `context_len` tokens; `batch_size` requests. `packages` maps
    distributions to versions; with None, `resolve_packages` says which are meant. `force` and `prefer` take `kernel` or
    `kernel@distribution`. `environment` states what is known of the machine (nvcc, cubins, network, driver_jit, cuda).
    `cannot` names call obligations (calls.yaml) that the caller cannot meet.

    Never raises for a request that nothing serves: `Decision.kernel` is then None. Raises UnservedError if `force`
    names a kernel that cannot serve, UsageError for names and values that do not exist.
    """
    if registry is None:
        from attnroute.registry.registry import default_registry

        registry = default_registry()
    request = request_for(
        group, registry.arch_id(arch), phase=phase, q_len=q_len, page_size=page_size, storage=storage,
        batch_size=batch_size,
        context_len=context_len, dcp=dcp, lse=lse, layout=layout, cuda_graph=cuda_graph, min_evidence=min_evidence,
        allow_unknown=allow_unknown, strict_versions=strict_versions, environment=dict(environment or ()),
        cannot=tuple(cannot),
    )  # fmt: skip
    named = dict(packages) if isinstance(packages, tuple) else packages
    resolved = resolve_packages(registry, request.arch, named, engine=engine)
    return decide(registry, request, resolved, force=force, prefer=prefer, group=group.name)


def decide(
    registry: Registry,
    request: Request,
    packages: Packages,
    *,
    force: str | None = None,
    prefer: Names = None,
    group: str = "",
) -> Decision:
    """The decision for a checked request, which may leave dimensions free (then it is a projection over them)."""
    table = registry.table(request.arch)
    ev = evaluate(table, request)
    verdicts = [judge(ev, c, packages.get(c.provider)) for c in table.candidates]
    times = measured_times(table, request, packages, verdicts)
    ranked = rank(table, request, verdicts, times)
    wanted = [prefer] if isinstance(prefer, str) else list(prefer or ())
    for name in [*wanted, *([force] if force else [])]:
        _check_kernel(registry, name)
    chosen = ranked[0] if ranked else None
    if force is not None:
        chosen = next((i for i in ranked if _named(table.candidates[i], force)), None)
    else:
        for name in wanted:
            hit = next((i for i in ranked if _named(table.candidates[i], name)), None)
            if hit is not None:
                chosen = hit
                break
    ctx = Context(registry, ev, packages)
    answers = [_answer(ctx, i, verdict, i == chosen, times) for i, verdict in enumerate(verdicts)]
    if force is not None and chosen is None:
        raise UnservedError(_force_words(answers, force), code="force-unserved")
    notes = _prefer_notes(answers, chosen, wanted, group) if wanted else []
    notes += _warnings(ev, verdicts, chosen)
    return _decision(ctx, answers, ranked, chosen, tuple(notes))


def rank(
    table: ArchTable, request: Request, verdicts: list[Verdict], times: Mapping[tuple[str, str], float]
) -> list[int]:
    """Indices of accepted candidates, best first: by measured relative time, then default order, then catalogue."""

    def key(i: int) -> tuple[int, float, int, int]:
        candidate = table.candidates[i]
        time = times.get((candidate.kernel, candidate.provider))
        return (0 if time is not None else 1, time or 0.0, default_rank(table, request.phase, candidate.kernel), i)

    return sorted((i for i, v in enumerate(verdicts) if v.accepted), key=key)


def measured_times(
    table: ArchTable, request: Request, packages: Packages, verdicts: list[Verdict]
) -> dict[tuple[str, str], float]:
    """Relative times of the accepted candidates that a band measured, by (kernel, provider)."""
    bands = measured_bands(table, request)
    if not bands:
        return {}
    accepted = [c for c, v in zip(table.candidates, verdicts, strict=True) if v.accepted]
    versions = {(c.kernel, c.provider): packages.get(c.provider) or "" for c in accepted}
    return relative_times(bands, request, versions)


def _decision(
    ctx: Context, answers: list[CandidateAnswer], ranked: list[int], chosen: int | None, notes: tuple[str, ...]
) -> Decision:
    table, request = ctx.ev.table, ctx.ev.request
    place = {i: n for n, i in enumerate(ranked)}
    order = sorted(range(len(answers)), key=lambda i: (STATUS_ORDER[answers[i].status], place.get(i, 0), i))
    best = None if chosen is None else answers[chosen]
    ranked_answers = tuple(answers[i] for i in order)
    return Decision(
        table.arch, request.phase, ranked_answers, notes, best, request, ctx.packages, ctx.registry.evidence
    )


def _answer(
    ctx: Context, index: int, verdict: Verdict, chosen: bool, times: Mapping[tuple[str, str], float]
) -> CandidateAnswer:
    candidate = ctx.ev.table.candidates[index]
    preference = None
    if verdict.status == "accepted":
        preference = describe(ctx.ev.table, times.get((candidate.kernel, candidate.provider)), bool(times))
    return CandidateAnswer("chosen" if chosen else verdict.status, preference, ctx, candidate, verdict)


def _named(candidate: Candidate, name: str) -> bool:
    kernel, _, provider = name.partition("@")
    return candidate.kernel == kernel and provider in ("", candidate.provider)


def _check_kernel(registry: Registry, name: str) -> None:
    kernel, at, provider = name.partition("@")
    kernels = registry.catalogue["kernels"]
    if kernel not in kernels:
        raise UsageError(unknown_name("kernel", kernel, kernels), code="unknown-kernel")
    if at and provider not in kernels[kernel]["providers"]:
        raise UsageError(
            unknown_name(f"provider of {kernel}", provider, kernels[kernel]["providers"]), code="unknown-package"
        )


def _answers_named(answers: list[CandidateAnswer], name: str) -> list[CandidateAnswer]:
    """The answers that `kernel` or `kernel@distribution` names, best placed first."""
    kernel, _, provider = name.partition("@")
    return answers_for(answers, kernel, provider or None)


def _force_words(answers: list[CandidateAnswer], name: str) -> str:
    """The refusal of a forced kernel: the reason of its best placed candidate, and a fix if there is one."""
    hits = _answers_named(answers, name)
    if not hits:
        return f"forced kernel {name} cannot serve this request"
    reasons = "; ".join(f"{w.message} [{w.code}]" for w in hits[0].why)
    fix = f"; {hits[0].fix[0].message}" if hits[0].fix else ""
    return f"forced kernel {name} cannot serve this request: {reasons}{fix}"


def _prefer_notes(answers: list[CandidateAnswer], chosen: int | None, wanted: list[str], group: str) -> list[str]:
    """One line for each preferred kernel that was passed over, logged once per group and cause."""
    notes = []
    for name in wanted:
        hits = _answers_named(answers, name)
        if not hits or (chosen is not None and answers[chosen] in hits):
            break
        cause = "; ".join(f"{w.message} [{w.code}]" for w in hits[0].why)
        note = f"preferred {name} cannot serve{' ' + group if group else ''}: {cause}"
        notes.append(note)
        if (group, name, cause) not in _warned:
            _warned.add((group, name, cause))
            import logging  # here, because most processes never need it

            logging.getLogger("attnroute").warning("%s", note)
    return notes


def _warnings(ev: Evaluation, verdicts: list[Verdict], chosen: int | None) -> list[str]:
    """What the answer rests on without proof: a version or a feature nobody looked at, an environment nobody stated."""
    if chosen is None:
        return []
    table, request = ev.table, ev.request
    verdict, candidate, notes = verdicts[chosen], table.candidates[chosen], []
    row = None if verdict.row is None else table.rows[verdict.row]
    if verdict.unverified:
        below, above = table.seen_around(candidate, verdict.version or "")
        words = f"newer than the last one looked at, {below}" if above is None else "not a version that was looked at"
        notes.append(f"{candidate.provider} {verdict.version} is {words} [unverified-version]")
    if verdict.row is not None and request.allow_unknown:
        silent = [step for step, _, declares in ev.steps if not declares >> verdict.row & 1]
        if silent:
            notes.append(f"accepted although no source was checked for: {' '.join(silent)} [undeclared]")
    stated = dict(request.environment)
    assumed = [key for key in (row.env if row else {}) if key not in stated and row is not None and row.env[key]]
    if assumed:
        notes.append(f"assumed of the machine: {' '.join(sorted(assumed))} [env]")
    return notes
