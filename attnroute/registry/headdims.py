"""Sets of head-dim pairs (qk, v).

A single number or range means v == qk; `192x128` is one pair, `8..128/8x8..128/8` a free mix of both sides.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from .sets import ANY, IntSet, SetSyntaxError, Span, _hashable, parse_span


def _within(a: Span, b: Span) -> bool:
    return IntSet((a,)).is_subset(IntSet((b,)))


@dataclass(frozen=True, slots=True)
class PairSpan:
    """Pairs whose qk lies in one span and whose v equals it (v None) or lies in another."""

    qk: Span
    v: Span | None = None

    def __contains__(self, pair: tuple[int, int]) -> bool:
        return pair[0] in self.qk and (pair[1] == pair[0] if self.v is None else pair[1] in self.v)

    def __str__(self) -> str:
        return str(self.qk) if self.v is None else f"{self.qk}x{self.v}"

    def words(self) -> str:
        return self.qk.words() if self.v is None else f"{self.qk.words()} x {self.v.words()}"

    def inside(self, other: PairSpan) -> bool:
        """Whether every pair of this span is one of `other`."""
        v = self.qk if self.v is None else self.v
        if other.v is None:  # pairs of equals: a mix of both sides is inside only as a single pair
            return _within(self.qk, other.qk) and (self.v is None or self.qk.lo == self.qk.hi == v.lo == v.hi)
        return _within(self.qk, other.qk) and _within(v, other.v)

    def members(self, limit: int) -> Iterator[tuple[int, int]]:
        for qk in IntSet((self.qk,)).values(limit):
            if self.v is None:
                yield qk, qk
            else:
                yield from ((qk, v) for v in IntSet((self.v,)).values(limit))


@dataclass(frozen=True, slots=True)
class HeadDims:
    """A union of pair spans, less `minus`; `any` contains every pair."""

    items: tuple[PairSpan, ...]
    minus: tuple[PairSpan, ...] = ()
    is_any: bool = False

    @staticmethod
    def parse(value: object) -> HeadDims:
        """From the YAML spelling: `128`, `16..256/16`, `192x128`, a list of them, or `any`."""
        return _parse_pairs(_hashable(value))

    def __contains__(self, pair: tuple[int, int]) -> bool:
        inside = self.is_any or any(pair in item for item in self.items)
        return inside and not any(pair in item for item in self.minus)

    def __bool__(self) -> bool:
        if self.is_any or not self.minus:
            return self.is_any or bool(self.items)
        # Tables stay below a few thousand pairs; the walk ends at the first one left.
        return any(pair in self for item in self.items for pair in item.members(1024))

    def __str__(self) -> str:
        if self.is_any:
            text = "any"
        else:
            inner = ", ".join(map(str, self.items))
            text = inner if len(self.items) == 1 else f"[{inner}]"
        return text + (f" except {' '.join(map(str, self.minus))}" if self.minus else "")

    def words(self) -> str:
        text = "any" if self.is_any else " ".join(item.words() for item in self.items) or "none"
        return text + (f" except {' '.join(item.words() for item in self.minus)}" if self.minus else "")

    def to_yaml(self) -> object:
        if self.minus:
            return str(self)
        if self.is_any:
            return "any"
        parts = [i.qk.lo if i.v is None and i.qk.lo == i.qk.hi else str(i) for i in self.items]
        return parts[0] if len(parts) == 1 else parts

    def members(self, limit: int = 1024) -> Iterator[tuple[int, int]]:
        """Pairs with both sides up to `limit`, in the order written, duplicates included once."""
        seen: set[tuple[int, int]] = set()
        items = (PairSpan(Span(1, None)),) if self.is_any else self.items
        for item in items:
            for pair in item.members(limit):
                if pair not in seen and pair in self:
                    seen.add(pair)
                    yield pair

    def is_subset(self, other: HeadDims) -> bool:
        """Whether `other` is known to hold every pair; False where only a walk over all pairs could tell."""
        if self.minus or other.minus or self.is_any or other.is_any:
            return other.is_any and not other.minus
        return all(any(item.inside(span) for span in other.items) for item in self.items)

    def subtract(self, other: HeadDims) -> HeadDims:
        if other.is_any:
            return HeadDims(())
        cut = tuple(item for item in other.items if item not in self.minus)
        kept = tuple(item for item in self.items if item not in cut)
        return HeadDims(kept, self.minus + cut, self.is_any)


@lru_cache(maxsize=4096)
def _parse_pairs(value: object) -> HeadDims:
    if value == "any":
        return HeadDims((), (), True)
    items = value if isinstance(value, tuple) else (value,)
    if not items:
        raise SetSyntaxError("the list is empty; leave the key out if nothing is known, or write any")
    spans: list[PairSpan] = []
    for item in items:
        if not isinstance(item, (int, str)) or isinstance(item, bool):
            raise SetSyntaxError(f"{item!r} is no head dim; write 128, 16..256/16, 192x128 or 8..128/8x8..128/8")
        qk, cross, v = str(item).partition("x")
        span = PairSpan(parse_span(qk), parse_span(v) if cross else None)
        if span in spans:
            raise SetSyntaxError(f"{item!r} stands twice in the list")
        if span.qk.lo < 1 or (span.v is not None and span.v.lo < 1):
            raise SetSyntaxError(f"{item!r}: a head dim is 1 or more")
        spans.append(span)
    return HeadDims(tuple(spans))


__all__ = ["ANY", "HeadDims", "PairSpan"]
