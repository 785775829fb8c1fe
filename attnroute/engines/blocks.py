"""Block sizes: what a backend declares, what it accepts, the size all prefer, the kernel block of a manager block."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from attnroute.engines.data import Backend, Size
from attnroute.engines.rules import EngineError, Facts

Asked = tuple[Backend, Facts]
"""A backend and the facts of the question: the model's, or those of one layer's cache."""


def declared_sizes(backend: Backend, facts: Facts) -> tuple[Size, ...]:
    """Kernel block sizes that a backend declares, in its order."""
    return _sizes_and_preference(backend, facts)[0]


def _sizes_and_preference(backend: Backend, facts: Facts) -> tuple[tuple[Size, ...], bool]:
    for rule in backend.sizes:
        if not rule.when(facts):
            continue
        if rule.intersect:
            first, second = (declared_sizes(child, facts) for child in backend.children)
            return intersect(first, second), False
        if rule.if_both:
            return tuple(s for s in rule.sizes if all(accepts(c, facts, s.base) for c in backend.children)), False
        return rule.sizes, rule.at_least
    return (), False


def intersect(first: Sequence[Size], second: Sequence[Size]) -> tuple[Size, ...]:
    """Sizes that two backends share, in the order of the pairs; two multiples meet in their least common multiple."""
    found: dict[Size, None] = {}
    for a, b in itertools.product(first, second):
        if not a.exact and not b.exact:
            found[Size(math.lcm(a.base, b.base), False)] = None
        elif a.exact and b.takes(a.base):
            found[a] = None
        elif b.exact and a.takes(b.base):
            found[b] = None
    return tuple(found)


def accepts(backend: Backend, facts: Facts, block: int | None) -> bool:
    """Whether a manager block may be of this size: it may be a multiple even of an exact size, being split later."""
    if block is None:
        return True
    sizes = declared_sizes(backend, facts)
    if backend.children and not sizes:
        return False
    if backend.exact:
        return any(s.exact and s.base == block for s in sizes)
    return not sizes or any(block % s.base == 0 for s in sizes)


def preferred(backend: Backend, facts: Facts, default: int) -> int:
    """The block size that one backend prefers."""
    sizes, at_least = _sizes_and_preference(backend, facts)
    if at_least:
        return max(default, sizes[0].base)
    if not sizes or accepts(backend, facts, default):
        return default
    return min(s.base for s in sizes)


def preferred_for_all(asked: Sequence[Asked], default: int) -> int:
    """The smallest block size that all backends accept. Raises EngineError if they share none."""
    if len(asked) == 1:
        return preferred(*asked[0], default)
    if all(accepts(b, f, default) for b, f in asked):
        return default
    declared = [declared_sizes(b, f) for b, f in asked]
    bases = [[s.base for s in sizes] or [1] for sizes in declared]
    for candidate in sorted({math.lcm(*pick) for pick in itertools.product(*bases)}):
        if all(accepts(b, f, candidate) for b, f in asked):
            return candidate
    parts = "; ".join(f"{b.label}: {list(sizes)}" for (b, _), sizes in zip(asked, declared, strict=True))
    raise EngineError(f"The attention backends share no supported KV cache block size ({parts}).")


def common_block(block: int, asked: Sequence[Asked]) -> int:
    """The kernel block of a manager block of `block` tokens: itself, or the largest exact size that divides it and all
    take. Raises EngineError if there is none.
    """
    declared = [declared_sizes(b, f) for b, f in asked]
    if all(any(s.takes(block) for s in sizes) for sizes in declared):
        return block
    candidates = {s.base for sizes in declared for s in sizes if s.exact and block % s.base == 0}
    for candidate in sorted(candidates, reverse=True):
        if all(any(s.takes(candidate) for s in sizes) for sizes in declared):
            return candidate
    parts = "; ".join(f"{b.label}: {list(sizes)}" for (b, _), sizes in zip(asked, declared, strict=True))
    raise EngineError(f"No common block size for {block} ({parts}).")


def smallest(sizes: Sequence[Size]) -> int:
    """The smallest declared size. Raises EngineError for a backend that declares none, as the engine does."""
    if not sizes:
        raise EngineError("min() iterable argument is empty")
    return min(s.base for s in sizes)


def largest_within(backend: Backend, facts: Facts, per_token: int, budget: int, fallback: int) -> int:
    """The largest kernel block whose page fits `budget` bytes, the smallest if none does, `fallback` without declared
    sizes.
    """
    most = budget // per_token
    sizes = declared_sizes(backend, facts)
    candidates = [s.base if s.exact else max(s.base, most // s.base * s.base) for s in sizes]
    if not candidates:
        return fallback
    fitting = [c for c in candidates if c * per_token <= budget]
    return max(fitting) if fitting else min(candidates)
