"""Requests inside a hole of a row or a trap of a kernel, from the `where` that describes it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from attnroute.probe.asks import KV_DTYPES, MODEL_DTYPES, SOFTCAP, TWO_SIDED, WINDOW, askable, base_ask, lens_for, paged
from attnroute.probe.sampling import HEAD_LIMIT
from attnroute.registry.headdims import HeadDims
from attnroute.registry.sets import IntSet
from attnroute.registry.table import ArchTable, Box, Row, names

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from attnroute.probe.case import Ask


def box_asks(table: ArchTable, box: Box, packages: Mapping[str, str]) -> Iterator[tuple[Row, Ask]]:
    """Requests inside a hole or trap: a typical one of each row it can belong to, moved to the box's ends."""
    rows: Iterable[Row] = (
        [table.rows[box.row]]
        if box.row is not None
        else [r for r in table.rows if (r.kernel, r.provider) == (box.kernel, box.provider)]
    )
    for row in rows:
        version = packages.get(row.provider)
        if version is None or version not in row.versions or not askable(row):
            continue
        for last in (False, True):
            ask = _moved(base_ask(row), box.where, last=last)
            if ask is not None:
                yield row, ask


def _ends(declared: IntSet, *, last: bool) -> int:
    members = [v for v in declared.values(1024) if v > 0]
    return members[-1 if last and not declared.is_any and declared.spans[-1].hi is not None else 0]


def _moved(ask: Ask, where: Mapping[str, Any], *, last: bool) -> Ask | None:
    """The request moved into the box, or None where the box speaks of what a case cannot ask."""
    for name, value in where.items():
        if name == "phase":
            ask = replace(ask, phase=ask.phase if ask.phase in names(value) or value == "any" else names(value)[0])
        elif name == "head_dim":
            pairs = list(HeadDims.parse(value).members(HEAD_LIMIT))
            ask = replace(ask, head_dim=pairs[-1 if last else 0][0], head_dim_v=pairs[-1 if last else 0][1])
        elif name == "page":
            ask = paged(ask, _ends(IntSet.parse(value), last=last))
        elif name == "group_ratio":
            ask = replace(ask, q_heads=_ends(IntSet.parse(value), last=last) * ask.kv_heads)
        elif name == "q_heads":
            ask = _with_heads(ask, IntSet.parse(value), last=last)
        elif name == "q_len":
            q_len = min(_ends(IntSet.parse(value), last=last), 64)
            ask = replace(ask, q_len=q_len, lens=lens_for(ask.page_size, q_len))
        elif name == "layout":
            ask = replace(ask, layout=names(value)[0])
        elif name == "dtypes":
            q = next((q for q in (ask.q_dtype, *value) if q in value), ask.q_dtype)
            kv = next((d for d in names(value[q]) if d in KV_DTYPES), None)
            if kv is None:
                return None
            ask = replace(ask, dtype=q if q in MODEL_DTYPES else "bf16", q_dtype=q, kv_dtype=kv)
        elif name == "features":
            moved = _with_features(ask, value)
            if moved is None:
                return None
            ask = moved
        elif name not in ("storage", "kind", "cuda_graph"):
            return None
    if ask.phase == "decode" and ask.q_len != 1:
        ask = replace(ask, phase="verify")
    return ask


def _with_heads(ask: Ask, declared: IntSet, *, last: bool) -> Ask:
    """The request with a number of query heads inside the set that its ratio divides, where there is one."""
    inside = [v for v in declared.values(1024) if v and v % ask.ratio == 0]
    if not inside:
        return ask
    heads = inside[-1 if last and inside[-1] <= 128 else 0]
    return replace(ask, q_heads=heads, kv_heads=heads // ask.ratio)


def _with_features(ask: Ask, wanted: Mapping[str, Any]) -> Ask | None:
    changes: dict[str, Any] = {}
    for name, value in wanted.items():
        if name == "window":
            changes["window"] = WINDOW if value else None
        elif name == "softcap":
            changes["softcap"] = SOFTCAP if value else None
        elif name == "sinks":
            changes["sinks"] = (ask.sinks or "fp32") if value else None
        elif name == "lse":
            changes["lse"] = bool(value)
        elif name == "noncausal":
            changes["causal"] = not value
        elif value:
            return None
    moved = replace(ask, **changes)
    return replace(moved, window=TWO_SIDED) if moved.window is not None and not moved.causal else moved
