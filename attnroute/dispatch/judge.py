"""What becomes of each candidate, from the masks of a request.

A candidate (kernel from a provider) is accepted if one of its rows holds the request, no exclusion of that row does and
no trap of the kernel does. Everything here is pure: the same table and request give the same verdicts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from attnroute.registry.dims import GRAPH_LEVELS, STRENGTHS
from attnroute.registry.headdims import HeadDims
from attnroute.registry.sets import IntSet
from attnroute.registry.table import ArchTable, Candidate, Row, bits, model_pairs, names
from attnroute.registry.versions import parse_version, public

from .masks import Evaluation
from .request import Request


@dataclass(slots=True)
class Verdict:
    """What became of one candidate; read-only, since plain ones are shared.

    `status` is accepted, rejected, undeclared, known-wrong or not-considered; `row` the index of the row that accepts
    (or would, if what is unknown held); `box` the exclusion or trap that decided; `step` the name of the step that did
    (`version` and `package` included; None for a plain rejection, whose step `failing_step` finds when asked); `pages`
    the page sizes left; `unverified` marks a version above the last one seen.
    """

    status: str
    row: int | None = None
    pages: IntSet | None = None
    q_dtype: str | None = None
    box: int | None = None
    step: str | None = None
    unverified: bool = False
    version: str | None = None

    @property
    def accepted(self) -> bool:
        return self.status == "accepted"


_ABSENT = Verdict("not-considered", step="package")
_NO_ROWS = Verdict("rejected", step="arch")


def judge(ev: Evaluation, candidate: Candidate, version: str | None) -> Verdict:
    """The verdict for a candidate of an installed version; None means that the package is not considered."""
    if version is None:
        return _ABSENT
    if not candidate.rows and not candidate.traps:
        return _NO_ROWS
    window = ev.table.memo.get((candidate.kernel, candidate.provider, version))
    if window is None:
        window = _window(ev.table, candidate, version)
    installed, looked_at, below, above, masks, plain = window
    if not candidate.rows & ev.loose and not ev.met & candidate.traps and (looked_at or below is not None):
        return plain  # by rows and traps of any version alike
    base = _judge_at(ev, candidate, installed, masks)
    if base.step == "trap":  # its version range is stated, so it needs no version looked at nearby
        return base
    if looked_at or not masks[0] or (below is not None and above is None):
        return _check_row_seen(ev, base, installed)
    if below is not None and above is not None:
        sides = [_judge_at(ev, candidate, v, ev.table.version_masks(candidate.provider, v)) for v in (below, above)]
        if all(_same(side, base) for side in sides):
            return base
    return _undeclared_version(ev, base, installed)


def _window(
    table: ArchTable, candidate: Candidate, version: str
) -> tuple[str, bool, str | None, str | None, tuple[int, int], Verdict]:
    """(public version, looked at, nearest below and above that were, masks of rows and boxes, a plain refusal)."""
    installed = public(version)
    below, above = table.seen_around(candidate, installed)
    rows, boxes = table.version_masks(candidate.provider, installed)
    found = (
        installed,
        installed in candidate.seen,
        below,
        above,
        (rows & candidate.rows, boxes),
        Verdict("rejected", version=installed),
    )
    table.memo[candidate.kernel, candidate.provider, version] = found
    return found


def _same(a: Verdict, b: Verdict) -> bool:
    return a.status == b.status and a.pages == b.pages and a.q_dtype == b.q_dtype


def _undeclared_version(ev: Evaluation, base: Verdict, version: str) -> Verdict:
    if base.accepted and ev.request.allow_unknown:
        return Verdict("accepted", base.row, base.pages, base.q_dtype, None, None, True, version)
    return Verdict(
        "undeclared", base.row if base.accepted else None, base.pages, base.q_dtype, None, "version", False, version
    )


def _check_row_seen(ev: Evaluation, base: Verdict, version: str) -> Verdict:
    """A row that was never looked at near this version is not proof for it, whatever else was looked at."""
    if not base.accepted or base.row is None:
        return base
    side = _row_side(ev.table.rows[base.row], version)
    if side == "seen":
        return base
    if side == "below" or ev.request.strict_versions:
        return _undeclared_version(ev, base, version)
    return Verdict("accepted", base.row, base.pages, base.q_dtype, None, None, True, version)


def _row_side(row: Row, version: str) -> str:
    """`seen`: looked at, or between two that were; `below` the first one; `above` the last one."""
    if version in row.seen or version.startswith("git+"):
        return "seen" if version in row.seen else "below"
    parsed = parse_version(version)
    releases = [parse_version(v) for v in row.seen if not v.startswith("git+")]
    if not releases or parsed < min(releases):
        return "below"
    return "above" if parsed > max(releases) else "seen"


def _judge_at(ev: Evaluation, candidate: Candidate, version: str, masks: tuple[int, int]) -> Verdict:
    """The verdict as the rows, exclusions and traps of exactly this version have it."""
    table, request = ev.table, ev.request
    rows_in, boxes_in = masks
    met = ev.met & boxes_in
    traps = met & candidate.traps
    if traps:
        return _by_box(table, list(bits(traps)), "trap", version)
    mine = candidate.rows & rows_in
    if not mine & ev.loose:
        return Verdict("rejected", version=version)
    best = _best(ev, candidate, mine & ev.strict, met, boxes_in, version)
    if best.status == "accepted" or (best.box is not None and not request.allow_unknown):
        return best
    loose = _best(ev, candidate, mine & ev.loose, met, boxes_in, version)
    if loose.row is not None:
        if request.allow_unknown:
            return loose
        return Verdict(
            "undeclared", loose.row, loose.pages, loose.q_dtype, None, _unknown_step(ev, mine), False, version
        )
    return best if best.box is not None else loose


def _outcome_status(outcome: str) -> str:
    return {"raises": "rejected", "unknown": "undeclared"}.get(outcome, "known-wrong")


def failing_step(ev: Evaluation, candidate: Candidate, version: str) -> str:
    """The step that a plain rejection is due to: the first at which none of the version's rows passes.

    Without rows of that version, the first at which no row of any version does; if some would, the version itself.
    """
    rows_in, _ = ev.table.version_masks(candidate.provider, version)
    alive = candidate.rows & rows_in or candidate.rows
    for step, may, _ in ev.steps:
        alive &= may
        if not alive:
            return step
    return "version"


def _unknown_step(ev: Evaluation, alive: int) -> str:
    """The first step at which only rows remain that do not say."""
    alive &= ev.loose
    for step, _, declares in ev.steps:
        alive &= declares
        if not alive:
            return step
    return ""


def alive_before(ev: Evaluation, candidate: Candidate, version: str, step: str) -> list[Row]:
    """The rows that reach a step: what they say there is what a refusal calls declared."""
    rows_in, _ = ev.table.version_masks(candidate.provider, version)
    alive = candidate.rows & rows_in or candidate.rows
    for name, may, _ in ev.steps:
        if name == step:
            break
        alive &= may
    return [ev.table.rows[i] for i in bits(alive)]


def _best(ev: Evaluation, candidate: Candidate, rows: int, met: int, boxes_in: int, version: str) -> Verdict:
    """The row to answer with, of those that hold the request; or the hole that leaves none.

    Rows looked at near this version come first, then stronger evidence, then those that read the model's own dtype,
    then the name, so that the order in the file never matters.
    """
    table, request = ev.table, ev.request
    found: tuple[tuple[int, int, bool, str], int, IntSet | None] | None = None
    blocked: list[int] = []
    for i in bits(rows):
        row = table.rows[i]
        holes = [b for b in bits(met & table.holes.get(i, 0)) if not _waived(ev, b)]
        pages: IntSet | None = None
        if not holes and ev.cut:
            pages, holes = _narrow(ev, candidate, i, row, boxes_in)
        if holes:
            blocked += holes
            continue
        near = 0 if version in row.seen or _row_side(row, version) == "seen" else 1
        rank = (near, STRENGTHS.index(row.strength), _casts(row, request), row.name)
        if found is None or rank < found[0]:
            found = (rank, i, pages)
    if found is not None:
        _, i, pages = found
        row = table.rows[i]
        if request.page is not None:
            pages = IntSet.parse(request.page)
        elif pages is None:
            pages = row.page
        q_dtype = table.used_q_dtype(row, request.dtype, request.kv_dtype, request.cannot)
        return Verdict("accepted", i, pages, q_dtype, None, None, False, version)
    if blocked:
        return _by_box(table, blocked, "exclusion", version)
    return Verdict("rejected", version=version)


def _casts(row: Row, request: Request) -> bool:
    """Whether the query must be cast for this row."""
    if request.kv_dtype is None:
        return False
    return all(kv not in row.dims["dtypes"].get(q, ()) for q, kv in model_pairs(request.dtype, request.kv_dtype))


def _by_box(table: ArchTable, boxes: list[int], step: str, version: str) -> Verdict:
    """The verdict of the boxes met: what goes wrong unseen before what raises before what nobody knows.

    Ties are settled by name and words, so that the order in the file never matters.
    """
    first = {"raises": 1, "unknown": 2}

    def rank(i: int) -> tuple[int, str, str]:
        box = table.boxes[i]
        return first.get(box.outcome, 0), box.id.partition("#")[0], box.why

    worst = min(boxes, key=rank)
    return Verdict(_outcome_status(table.boxes[worst].outcome), box=worst, step=step, version=version)


def _waived(ev: Evaluation, box: int) -> bool:
    """An exclusion of unknown outcome does not hold against someone who takes the unknown; a trap always does."""
    found = ev.table.boxes[box]
    return ev.request.allow_unknown and found.outcome == "unknown" and found.row is not None


def _narrow(
    ev: Evaluation, candidate: Candidate, index: int, row: Row, boxes_in: int
) -> tuple[IntSet | None, list[int]]:
    """(pages left, boxes at fault): takes the excluded values out of what the request left free.

    The boxes that together leave nothing of a dimension are at fault.
    """
    mine = (ev.table.holes.get(index, 0) | candidate.traps) & boxes_in
    cuts: dict[str, list[int]] = {}
    for box, dim in ev.cut:
        if mine >> box & 1 and not _waived(ev, box):
            cuts.setdefault(dim, []).append(box)
    pages: IntSet | None = None
    faults: list[int] = []
    for dim, boxes in cuts.items():
        rest = _rest(row, dim, [ev.table.boxes[b].where[dim] for b in boxes])
        if isinstance(rest, IntSet) and dim == "page":
            pages = rest
        if not rest:
            faults += boxes
    return pages, faults


def _rest(row: Row, dim: str, excluded: list[Any]) -> IntSet | HeadDims | bool:
    """What a row's set keeps without the excluded values; for names and levels, whether it keeps any."""
    stated = row.dims.get(dim, "any")
    if dim == "cuda_graph" and stated != "any":
        stated = list(GRAPH_LEVELS[: GRAPH_LEVELS.index(stated) + 1])
    if dim in ("layout", "storage", "phase", "kind", "cuda_graph"):
        gone = {name for value in excluded for name in names(value)}
        return stated == "any" or not gone.issuperset(names(stated))
    if dim == "head_dim":
        pairs = HeadDims.parse(stated)
        for value in excluded:
            pairs = pairs.subtract(HeadDims.parse(value))
        return pairs
    whole = IntSet.parse(stated)
    for value in excluded:
        whole = whole.subtract(IntSet.parse(value))
    return whole
