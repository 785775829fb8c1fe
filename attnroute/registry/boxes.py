"""Boxes as lint rules compare them: for each dimension a set, with what a row means by leaving one out filled in.

A value is None (any), an IntSet, a HeadDims, or a frozenset of names or of (query dtype, KV dtype) pairs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from attnroute.registry.dims import BY_NAME, MLA_KINDS, SET_KEYS
from attnroute.registry.headdims import HeadDims, PairSpan
from attnroute.registry.sets import IntSet, Span

if TYPE_CHECKING:
    from collections.abc import Mapping

Value = IntSet | HeadDims | frozenset[Any] | None
_NONE: frozenset[Any] = frozenset({"none"})
#: Above this many pairs a subset is only looked for span by span.
_FEW = 4096


@dataclass(frozen=True, slots=True)
class Box:
    """Sets by dimension; a dimension that is not in `sets` is unconstrained."""

    sets: Mapping[str, Value]

    def meet(self, other: Box) -> Box | None:
        """The intersection, None if it is empty."""
        found = dict(self.sets)
        for name, theirs in other.sets.items():
            mine = found.get(name)
            both = theirs if mine is None else mine if theirs is None else _meet(mine, theirs)
            if both is not None and not both:
                return None
            found[name] = both
        return Box(found)

    def inside(self, other: Box) -> bool:
        """Whether every point of this box is in the other."""
        return all(_inside(self.sets.get(name), theirs) for name, theirs in other.sets.items())


def row_box(plain: Mapping[str, Any]) -> Box:
    """The box of an expanded row. Raises ValueError or TypeError where a set is not spelt right."""
    found = {name: value(name, plain[name]) for name in SET_KEYS if name in plain and name != "cuda_graph"}
    found.setdefault("kind", frozenset({"gqa"}))
    found.setdefault("q_len", IntSet.of([1]))
    found.setdefault("topk", _NONE)
    return Box(found)


def where_box(plain: Mapping[str, Any]) -> Box:
    """The box of a `where`, features apart."""
    return Box({name: value(name, plain[name]) for name in SET_KEYS if name in plain})


def value(name: str, written: Any) -> Value:
    """One dimension's set as rules compare it."""
    kind = BY_NAME[name].kind
    if written == "any":
        return None
    if kind == "dtypes":
        return frozenset((q, kv) for q, kvs in written.items() for kv in kvs)
    if kind == "pairs":
        return HeadDims.parse(written)
    if kind in ("names", "level"):
        return frozenset([written] if isinstance(written, str) else written)
    return _NONE if written == "none" else IntSet.parse(written)


def serves_mla(plain: Mapping[str, Any]) -> bool:
    """Whether a row is about latent attention, and so has latent, rope and nope in place of head_dim."""
    kinds = plain.get("kind", "gqa")
    return bool(set([kinds] if isinstance(kinds, str) else kinds) & set(MLA_KINDS))


def _meet(a: Value, b: Value) -> Value:
    if isinstance(a, IntSet) and isinstance(b, IntSet):
        return a.intersect(b)
    if isinstance(a, HeadDims) and isinstance(b, HeadDims):
        return HeadDims(tuple({hit for x in a.items for y in b.items for hit in _meet_pairs(x, y)}))
    if isinstance(a, frozenset) and isinstance(b, frozenset):
        return a & b
    return frozenset()  # `topk: none` meets no number


@lru_cache(maxsize=65536)
def _meet_pairs(a: PairSpan, b: PairSpan) -> tuple[PairSpan, ...]:
    if a.v is None and b.v is None:
        return tuple(PairSpan(s) for s in _cut(a.qk, b.qk))
    if a.v is None or b.v is None:
        line, mix = (a, b) if a.v is None else (b, a)
        assert mix.v is not None
        return tuple(PairSpan(s) for first in _cut(line.qk, mix.qk) for s in _cut(first, mix.v))
    return tuple(PairSpan(q, v) for q in _cut(a.qk, b.qk) for v in _cut(a.v, b.v))


def _cut(a: Span, b: Span) -> tuple[Span, ...]:
    return IntSet((a,)).intersect(IntSet((b,))).spans


def _inside(a: Value, b: Value) -> bool:
    if b is None:
        return True
    if a is None:
        return False
    if isinstance(a, IntSet) and isinstance(b, IntSet):
        return a.is_subset(b)
    if isinstance(a, HeadDims) and isinstance(b, HeadDims):
        return all(any(_inside_pair(x, y) for y in b.items) or _listed_inside(x, b) for x in a.items)
    return isinstance(a, frozenset) and isinstance(b, frozenset) and a <= b


def _inside_pair(a: PairSpan, b: PairSpan) -> bool:
    first, second = IntSet((a.qk,)), a.v or a.qk
    if not first.is_subset(IntSet((b.qk,))):
        return False
    if b.v is None:
        return a.v is None or (a.qk.lo == a.qk.hi == a.v.lo == a.v.hi)
    return IntSet((second,)).is_subset(IntSet((b.v,)))


def _listed_inside(a: PairSpan, b: HeadDims) -> bool:
    count = (a.qk.count or _FEW) * ((a.v.count or _FEW) if a.v else 1)
    return count < _FEW and all(pair in b for pair in a.members(1 << 20))
