"""The kernels that may serve one phase of one group: the dispatcher's verdicts without any words, remembered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from attnroute.dispatch.judge import judge
from attnroute.dispatch.masks import Evaluation, calls_of, evaluate
from attnroute.dispatch.preference import measured_bands, relative_times
from attnroute.dispatch.route import rank
from attnroute.registry.sets import IntSet
from attnroute.registry.table import bits

if TYPE_CHECKING:
    from attnroute.dispatch.judge import Verdict
    from attnroute.dispatch.packages import Packages
    from attnroute.dispatch.request import Request
    from attnroute.registry.table import ArchTable

    from .workload import Workload

#: Page sizes tried for a row that accepts any multiple, where several rows of a kernel accept different pages.
_LARGEST_PAGE = 1024
_MOST_REMEMBERED = 4096


@dataclass(frozen=True, slots=True)
class Option:
    """One accepted kernel for one phase.

    `pages` are the page sizes (tokens) of `row`; a kernel whose rows take different pages has an option for each row.
    `place` counts from 0 in the dispatcher's order. `weight` is the relative time where it is measured (1.0 is the
    best), else a stand-in that only keeps the order, see `weigh`.
    """

    kernel: str
    provider: str
    row: str
    pages: IntSet
    q_dtype: str | None
    layouts: tuple[str, ...] | None
    graph_level: str | None
    strength: str
    calls: tuple[str, ...]
    place: int
    time: float | None
    weight: float
    unverified: bool

    @property
    def name(self) -> str:
        return f"{self.kernel}@{self.provider}"


def options_for(
    table: ArchTable, packages: Packages, request: Request, workload: Workload, slack: float
) -> tuple[Option, ...]:
    """Accepted kernels, best first; remembered per table, packages, request and workload."""
    memo = table.memo
    key = ("options", packages, request, workload, slack)
    found: tuple[Option, ...] | None = memo.get(key)
    if found is None:
        if len(memo) > _MOST_REMEMBERED:
            memo.clear()
        found = memo[key] = _options(table, packages, request, workload, slack)
    return found


def _options(
    table: ArchTable, packages: Packages, request: Request, workload: Workload, slack: float
) -> tuple[Option, ...]:
    ev = evaluate(table, request)
    verdicts = [judge(ev, c, packages.get(c.provider)) for c in table.candidates]
    accepted = [c for c, v in zip(table.candidates, verdicts, strict=True) if v.accepted]
    times = _times(table, packages, request, workload, accepted)
    ranked = rank(table, request, verdicts, times)
    found: list[Option] = []
    for place, i in enumerate(ranked):
        candidate = table.candidates[i]
        time = times.get((candidate.kernel, candidate.provider))
        weight = weigh(time, place, times, slack)
        rows = (verdicts[i], *_other_rows(ev, packages, i, verdicts[i]))
        found += [_option(ev, i, verdict, place, time, weight) for verdict in rows]
    return tuple(found)


def weigh(time: float | None, place: int, times: Mapping[Any, float], slack: float) -> float:
    """What a kernel counts for. Measured: its relative time. Unmeasured: the worst measured time (1.0 if there is
    none) and one slack more for each place in the default order.

    The stand-in claims nothing about speed: it makes each step down the default order cost as much as the slack, so
    that waste decides between neighbours only when it is larger than the slack.
    """
    if time is not None:
        return time
    return max(times.values(), default=1.0) + slack * (place - len(times) + (1 if times else 0))


def _times(
    table: ArchTable, packages: Packages, request: Request, workload: Workload, candidates: list[Any]
) -> dict[tuple[str, str], float]:
    """Mean relative time over the points of the workload, of the kernels measured at all of them."""
    bands = measured_bands(table, request)  # a workload's points differ in what bands leave free
    if not bands:
        return {}
    versions = {(c.kernel, c.provider): packages.get(c.provider) or "" for c in candidates}
    sums: dict[tuple[str, str], list[float]] = {}
    for batch, context in workload.points:
        point = replace(request, batch_size=batch, context_len=context)
        for key, time in relative_times(bands, point, versions).items():
            sums.setdefault(key, []).append(time)
    return {key: sum(t) / len(t) for key, t in sums.items() if len(t) == len(workload.points) and key in versions}


def _other_rows(ev: Evaluation, packages: Packages, index: int, best: Verdict) -> list[Verdict]:
    """Verdicts of the candidate's other rows, for pages that the best one does not take.

    Rows that hold the request with the page left free are asked again page by page, because exclusions may depend on
    the page; nearly always there is one row, or all take the same pages, and nothing is asked.
    """
    table, pages = ev.table, best.pages
    if pages is None or pages.is_any or ev.request.page is not None:
        return []
    candidate = table.candidates[index]
    version = packages.get(candidate.provider)
    rows_in, _ = table.version_masks(candidate.provider, best.version or "")
    others = [table.rows[i].page for i in bits(candidate.rows & rows_in & ev.loose) if i != best.row]
    sizes: set[int] = set()
    for other in others:
        if other == pages:
            continue
        if other.is_any:
            sizes.update(16 << n for n in range(7))
        else:
            sizes.update(v for v in other.values(_LARGEST_PAGE) if v)
    found: dict[int, tuple[Verdict, list[int]]] = {}
    for size in sorted(sizes):
        if size in pages:
            continue
        verdict = judge(evaluate(table, replace(ev.request, page=size)), candidate, version)
        if verdict.accepted and verdict.row is not None:
            found.setdefault(verdict.row, (verdict, []))[1].append(size)
    for verdict, taken in found.values():
        verdict.pages = IntSet.of(taken)
    return [verdict for verdict, _ in found.values()]


def _option(ev: Evaluation, index: int, verdict: Verdict, place: int, time: float | None, weight: float) -> Option:
    table, request = ev.table, ev.request
    candidate = table.candidates[index]
    assert verdict.row is not None
    assert verdict.pages is not None
    row = table.rows[verdict.row]
    return Option(
        kernel=candidate.kernel,
        provider=candidate.provider,
        row=row.id,
        pages=verdict.pages,
        q_dtype=verdict.q_dtype,
        layouts=row.layouts,
        graph_level=row.graph_level,
        strength=row.strength,
        calls=calls_of(table, row, dict(request.features), request.dtype, verdict.q_dtype),
        place=place,
        time=time,
        weight=weight,
        unverified=verdict.unverified,
    )
