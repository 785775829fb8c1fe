"""Finite and unbounded sets of the values that a dimension takes, in the compact spelling of the tables.

Integers: `64`, `[64, 128]`, `16..256/16` (inclusive, step), `16..` (no upper end), `16../16` (multiples), `any`.
Head dims are pairs (qk, v): the spellings above mean v == qk; `192x128` is one pair and `8..128/8x8..128/8` a free mix.
All sets are immutable, hashable and print as they are written in the YAML.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import gcd

_RANGE = re.compile(r"(\d+)(?:\.\.(\d*)(?:/(\d+))?)?\Z")


class SetSyntaxError(ValueError):
    """A set is not written the way the tables write sets; the text says which spelling is allowed."""


@dataclass(frozen=True, slots=True)
class Span:
    """The integers lo, lo+step, ... up to hi inclusive; hi None means no upper end."""

    lo: int
    hi: int | None
    step: int = 1

    def __contains__(self, value: int) -> bool:
        return value >= self.lo and (self.hi is None or value <= self.hi) and (value - self.lo) % self.step == 0

    def __str__(self) -> str:
        if self.lo == self.hi:
            return str(self.lo)
        return f"{self.lo}..{'' if self.hi is None else self.hi}{'' if self.step == 1 else f'/{self.step}'}"

    def words(self) -> str:
        """As a person would read it: `16..256 step 16`, `multiples of 16`."""
        if self.hi is None and self.step > 1 and self.lo == self.step:
            return f"multiples of {self.step}"
        if self.hi is None:
            return f"{self.lo} or more" + (f" step {self.step}" if self.step > 1 else "")
        return str(self).replace("/", " step ")

    @property
    def count(self) -> int | None:
        return None if self.hi is None else (self.hi - self.lo) // self.step + 1


def parse_span(text: str | int) -> Span:
    """One span; raises SetSyntaxError naming the fault (reversed ends, zero step, a step that never reaches hi)."""
    found = _RANGE.match(str(text).strip()) if not isinstance(text, bool) else None
    if not found:
        raise SetSyntaxError(f"{text!r} is no number or range; write 64, 16..256/16, 16.. or 16../16")
    lo_text, hi_text, step_text = found.groups()
    lo, step = int(lo_text), int(step_text or 1)
    hi = lo if hi_text is None else (int(hi_text) if hi_text else None)
    if step < 1:
        raise SetSyntaxError(f"{text!r}: the step must be 1 or more")
    if hi is not None and hi < lo:
        raise SetSyntaxError(f"{text!r}: the range is reversed; write {hi}..{lo}{'/' + step_text if step_text else ''}")
    if hi is not None and (hi - lo) % step:
        raise SetSyntaxError(
            f"{text!r}: steps of {step} from {lo} never reach {hi}; the last is {hi - (hi - lo) % step}"
        )
    return _span(lo, hi, step)


def _span(lo: int, hi: int | None, step: int) -> Span:
    """A span in its one normal form: a single member has step 1, so that equal sets compare equal."""
    return Span(lo, hi, 1 if hi == lo else step)


def _span_subset(a: Span, b: Span) -> bool:
    if a.lo not in b or (b.hi is not None and (a.hi is None or a.hi not in b)):
        return False
    return a.lo == a.hi or a.step % b.step == 0


def _span_intersect(a: Span, b: Span) -> Span | None:
    step = a.step // gcd(a.step, b.step) * b.step
    hi = b.hi if a.hi is None else a.hi if b.hi is None else min(a.hi, b.hi)
    start, fine, coarse = (a.lo, a, b) if a.step >= b.step else (b.lo, b, a)
    value = start if start >= coarse.lo else start + -(-(coarse.lo - start) // fine.step) * fine.step
    for _ in range(coarse.step):
        if hi is not None and value > hi:
            return None
        if value in coarse:
            if hi is None:
                return Span(value, None, step)
            return _span(value, hi - (hi - value) % step, step)
        value += fine.step
    return None


@dataclass(frozen=True, slots=True)
class IntSet:
    """A union of spans; `any` contains every integer from 0 up."""

    spans: tuple[Span, ...]
    is_any: bool = False

    @staticmethod
    def parse(value: object) -> IntSet:
        """From the YAML spelling: a number, a string, a list of them, or `any`."""
        return _parse_ints(_hashable(value))

    @staticmethod
    def of(values: Iterable[int]) -> IntSet:
        """The set of exactly these integers."""
        return IntSet(tuple(Span(v, v) for v in sorted(set(values))))

    def __contains__(self, value: int) -> bool:
        return self.is_any or any(value in span for span in self.spans)

    def __bool__(self) -> bool:
        return self.is_any or bool(self.spans)

    def __str__(self) -> str:
        if self.is_any:
            return "any"
        inner = ", ".join(map(str, self.spans))
        return inner if len(self.spans) == 1 else f"[{inner}]"

    def words(self) -> str:
        """For people: `16..256 step 16`, `16 32 64`."""
        return "any" if self.is_any else " ".join(span.words() for span in self.spans) or "none"

    def to_yaml(self) -> object:
        """The value as a YAML author would write it: int, str or list of them."""
        if self.is_any:
            return "any"
        parts = [s.lo if s.lo == s.hi else str(s) for s in self.spans]
        return parts[0] if len(parts) == 1 else parts

    def values(self, limit: int = 1 << 16) -> Iterator[int]:
        """Members up to `limit` inclusive, ascending, each once."""
        if self.is_any:
            yield from range(limit + 1)
            return
        seen: set[int] = set()
        for span in self.spans:
            stop = limit if span.hi is None else min(span.hi, limit)
            seen.update(range(span.lo, stop + 1, span.step))
        yield from sorted(seen)

    def smallest(self) -> int:
        """The least member (1 for `any`, which names no size of its own)."""
        return 1 if self.is_any else min(span.lo for span in self.spans)

    def is_subset(self, other: IntSet) -> bool:
        if other.is_any:
            return True
        if self.is_any:
            return False
        return all(any(_span_subset(s, o) for o in other.spans) or _listed_subset(s, other) for s in self.spans)

    def intersect(self, other: IntSet) -> IntSet:
        if self.is_any or other.is_any:
            return other if self.is_any else self
        if self == other:
            return self
        met = {hit for a in self.spans for b in other.spans if (hit := _span_intersect(a, b))}
        kept = [s for s in met if not any(s != o and _span_subset(s, o) for o in met)]
        return IntSet(tuple(sorted(kept, key=lambda s: (s.lo, s.step))))

    def subtract(self, other: IntSet) -> IntSet:
        """Members not in `other`; an unbounded rest is cut exactly where it stays a union of spans."""
        if other.is_any:
            return EMPTY
        base = self.spans if not self.is_any else (Span(1, None),)
        left = list(base)
        for cut in other.spans:
            left = [piece for span in left for piece in _span_subtract(span, cut)]
        return self if tuple(left) == base else _tidy(left)


def _listed_subset(span: Span, other: IntSet) -> bool:
    return span.hi is not None and all(v in other for v in range(span.lo, span.hi + 1, span.step))


def _span_subtract(a: Span, b: Span) -> list[Span]:
    hit = _span_intersect(a, b)
    if hit is None:
        return [a]
    pieces: list[Span] = []
    if hit.lo > a.lo:
        pieces.append(Span(a.lo, hit.lo - a.step, a.step))
    if hit.lo != hit.hi:
        # a coarser comb taken out of `a` leaves the other residues, each a span of its own
        for k in range(1, hit.step // a.step):
            last = None if hit.hi is None else hit.hi - hit.step + k * a.step
            pieces.append(_span(hit.lo + k * a.step, last, hit.step))
    if hit.hi is not None and (a.hi is None or hit.hi < a.hi):
        pieces.append(_span(hit.hi + a.step, a.hi, a.step))
    return pieces


def _tidy(spans: list[Span]) -> IntSet:
    """Single members joined into a list, in order; equal spans once."""
    return IntSet(tuple(sorted(set(spans), key=lambda s: (s.lo, s.step))))


EMPTY = IntSet(())
ANY = IntSet((), True)


def _hashable(value: object) -> object:
    return tuple(_hashable(v) for v in value) if isinstance(value, (list, tuple)) else value


@lru_cache(maxsize=4096)
def _parse_ints(value: object) -> IntSet:
    if value == "any":
        return ANY
    items = value if isinstance(value, tuple) else (value,)
    if not items:
        raise SetSyntaxError("the list is empty; leave the key out if nothing is known, or write any")
    spans: list[Span] = []
    for item in items:
        if not isinstance(item, (int, str)) or isinstance(item, bool):
            raise SetSyntaxError(f"{item!r} is no number or range; write 64, 16..256/16, 16.. or 16../16")
        span = parse_span(item)
        if span in spans:
            raise SetSyntaxError(f"{item!r} stands twice in the list")
        spans.append(span)
    return IntSet(tuple(spans))
