"""One request against one architecture's table, as bit masks: per step the rows that may serve, and the boxes met."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from attnroute.registry.dims import DIMENSIONS, FEATURE_NAMES
from attnroute.registry.table import ArchTable, Row, bits
from attnroute.registry.versions import VersionRange

from .request import Request

#: Names of the steps in the order of explanation. `kv` and `q` are the two sides of `dtypes`.
ORDER: tuple[str, ...] = tuple(
    step
    for d in DIMENSIONS
    for step in (
        FEATURE_NAMES
        if d.name == "features"
        else ("kv",)
        if d.name == "dtypes"
        else ("q", "page")
        if d.name == "page"
        else (d.name,)
    )
)
_FEATURE_STEPS = frozenset(("lse", *FEATURE_NAMES))


@dataclass(slots=True)
class Evaluation:
    """The masks of one request: per step (name, rows that may serve, rows that declare it), and boxes that are met."""

    table: ArchTable
    request: Request
    steps: list[tuple[str, int, int]]
    loose: int
    strict: int
    met: int
    cut: tuple[tuple[int, str], ...]  # boxes met but for one free dimension, which they narrow


def _program(table: ArchTable) -> list[tuple[str, int, Any, Any]]:
    """The steps of ORDER with the indices that each needs: (name, kind, of rows, of boxes)."""
    program: list[tuple[str, int, Any, Any]] = []
    for step in ORDER:
        if step in _FEATURE_STEPS:
            index = table.features[step]
            boxes = table.box_features.get(step)
            idle = not index.required or step in table.supplied
            program.append((step, _FEATURE_IDLE if idle and boxes is None else _FEATURE, index, boxes))
        elif step == "kv":
            program.append((step, _KV, None, None))
        elif step == "q":
            program.append((step, _Q, None, None))
        else:
            kind = _TOPK if step == "topk" else _DIM
            program.append((step, kind, table.row_dims[step], table.box_dims[step]))
    return program


_DIM, _FEATURE, _FEATURE_IDLE, _KV, _Q, _TOPK = range(6)


def evaluate(table: ArchTable, request: Request) -> Evaluation:  # noqa: C901 - one loop, inlined for its speed
    """All masks of a request; some ten microseconds once its values have been asked before."""
    loose = strict = (1 << len(table.rows)) - 1
    met, free_boxes = (1 << len(table.boxes)) - 1, 0
    free_dims: list[str] = []
    asked = request.asked
    steps: list[tuple[str, int, int]] = []
    known, served, held = table.dtype_masks(request.dtype, request.kv_dtype, request.cannot)
    met &= held
    program = table.memo.get("program")
    if program is None:
        program = table.memo["program"] = _program(table)
    for step, kind, rows, boxes in program:
        if kind == _DIM:
            value = getattr(request, step)
            if value is None:
                if boxes.stated:
                    free_boxes |= boxes.stated
                    free_dims.append(step)
                continue
            may, declares = rows.memo.get(value) or rows.masks(value)
            met &= (boxes.memo.get(value) or boxes.masks(value))[1]
        elif kind == _FEATURE_IDLE:
            if step not in asked:
                continue
            may, declares = rows.masks(asked[step])
        elif kind == _FEATURE:
            if step in asked:
                may, declares = rows.masks(asked[step])
            else:
                may = declares = -1 if step in table.supplied else ~rows.required
            if boxes is not None:
                met &= boxes[0 if step in asked else 1]
        elif kind == _KV:
            may = declares = known
        elif kind == _Q:
            may = declares = served
        elif request.topk is None:
            may = declares = ~rows.stated
            met &= boxes.silent
        else:
            may, declares = rows.masks(request.topk)
            met &= boxes.masks(request.topk)[1]
        steps.append((step, may, declares))
        loose &= may
        strict &= declares
    if request.min_evidence is not None:
        mask = table.strength_mask(request.min_evidence)
        steps.append(("evidence", mask, mask))
        loose, strict = loose & mask, strict & mask
    if request.environment or request.cannot:
        for step, mask in (("env", _env_mask(table, request)), ("call", _call_mask(table, request, asked))):
            steps.append((step, mask, mask))
            loose, strict = loose & mask, strict & mask
    cut: tuple[tuple[int, str], ...] = ()
    near = met & free_boxes
    if near:
        narrowed = []
        for i in bits(near):
            dims = [d for d in free_dims if table.box_dims[d].stated >> i & 1]
            if len(dims) == 1:  # a box that needs two free dimensions at once leaves each of them whole
                narrowed.append((i, dims[0]))
        cut = tuple(narrowed)
    return Evaluation(table, request, steps, loose, strict, met & ~free_boxes, cut)


def _env_mask(table: ArchTable, request: Request) -> int:
    """Rows whose needs the stated environment does not contradict; what it does not mention is assumed."""
    stated = dict(request.environment)
    return sum(1 << i for i, row in enumerate(table.rows) if all(env_ok(n, k, stated) for k, n in row.env.items()))


def env_ok(need: Any, key: str, stated: Mapping[str, Any]) -> bool:
    """Whether a stated environment leaves room for one need of a row (`cuda` is a version range, the rest true)."""
    have = stated.get(key)
    if have is None:
        return True
    return str(have) in VersionRange.parse(need) if key == "cuda" else bool(have) or not need


def _call_mask(table: ArchTable, request: Request, asked: Mapping[str, Any]) -> int:
    return sum(
        1 << i
        for i, row in enumerate(table.rows)
        if not set(request.cannot) & set(calls_of(table, row, asked, None, None))
    )


def calls_of(
    table: ArchTable, row: Row, asked: Mapping[str, Any], model: str | None, q_dtype: str | None
) -> tuple[str, ...]:
    """The obligations of a call to `row` for this request: its own, a cast of q, and features it requires."""
    key = (row.id, row.provider, tuple(asked), model, q_dtype)
    found: tuple[str, ...] | None = table.memo.get(key)
    if found is None:
        found = table.memo[key] = _calls_of(table, row, asked, model, q_dtype)
    return found


def _calls_of(
    table: ArchTable, row: Row, asked: Mapping[str, Any], model: str | None, q_dtype: str | None
) -> tuple[str, ...]:
    calls = [c for c in row.calls if c not in table.call_when or any(f in asked for f in table.call_when[c])]
    if model is not None and q_dtype is not None and q_dtype != model:
        calls += [call for call, source, to in table.casts if (source, to) == (model, q_dtype)]
    calls += [call for f, call in table.supplied.items() if row.features.get(f) == "required" and f not in asked]
    return tuple(dict.fromkeys(calls))
