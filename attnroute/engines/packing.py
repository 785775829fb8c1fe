"""Groups for block-outermost layouts, where pages of different sizes lie side by side in one block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attnroute.engines.merge import WINDOW, uniform_type
from attnroute.engines.rules import EngineError
from attnroute.engines.spec import CacheSpec, cdiv

if TYPE_CHECKING:
    from attnroute.engines.groups import Layers


class _Bucket:
    """Layers of one uniform type, by page size."""

    def __init__(self, spec: CacheSpec) -> None:
        self.specs = [spec]
        self.layers: list[int] = []
        self.pages: dict[int, list[int]] = {}

    @property
    def repeats(self) -> int:
        """Layers of the page size that most have."""
        return max(len(names) for names in self.pages.values())

    @property
    def balanced(self) -> bool:
        """Whether every page size has as many layers (a repeating pattern)."""
        return len({len(names) for names in self.pages.values()}) == 1

    def widest(self, groups: int) -> int:
        """Bytes of the largest of `groups` groups."""
        return sum(cdiv(len(names), groups) * page for page, names in self.pages.items())


def packed_groups(layers: Layers) -> list[list[int]] | None:
    """Positions of each group's layers; None if all pages are equal, which needs no packing."""
    used = layers.used()
    if len({layers.specs[k].page for k in used}) <= 1:
        return None
    buckets: list[_Bucket] = []
    home: dict[int, _Bucket] = {}
    for n, k in enumerate(layers.order):
        if k not in home:
            home[k] = _find(buckets, layers.specs[k])
        bucket = home[k]
        bucket.layers.append(n)
        bucket.pages.setdefault(layers.specs[k].page, []).append(n)
    floor = max((b.repeats for b in buckets if b.balanced and len(b.pages) > 1), default=0)
    repeats = approximate_gcd([b.repeats for b in buckets if b.balanced], floor) if floor else None

    def number(bucket: _Bucket) -> int:
        return cdiv(bucket.repeats, repeats) if bucket.balanced and repeats is not None else 1

    def is_state(bucket: _Bucket) -> bool:
        kind = bucket.specs[0].kind
        return kind in ("mamba", "ring") or (repeats is None and kind in WINDOW)

    anchor = max((b.widest(len(b.layers) if is_state(b) else number(b)) for b in buckets), default=0)
    found: list[list[int]] = []
    for bucket in buckets:
        groups = number(bucket)
        if anchor and is_state(bucket):
            state = bucket.specs[0].page
            if not state:
                raise EngineError("a state of 0 bytes", "ZeroDivisionError")
            per_block = max(anchor // state, 1)
            groups = max(groups, cdiv(len(bucket.layers), per_block))
        if groups == 1:
            found.append(bucket.layers)
            continue
        pattern = list(zip(*bucket.pages.values(), strict=False))
        found += [[n for repeat in pattern[i::groups] for n in repeat] for i in range(groups)]
    return found


def _find(buckets: list[_Bucket], spec: CacheSpec) -> _Bucket:
    for bucket in buckets:
        if uniform_type([*bucket.specs, spec]):
            bucket.specs.append(spec)
            return bucket
    buckets.append(_Bucket(spec))
    return buckets[-1]


def approximate_gcd(values: Sequence[int], least: int) -> int:
    """The chunk of at least `least` that pads the values upward least in sum; of equals the largest.

    Raises EngineError for no values and for values below one.
    """
    if not values:
        raise EngineError("values must be non-empty")
    if min(values) <= 0:
        raise EngineError(f"values must be positive, got: {list(values)!r}")
    least = max(1, least)
    most = max(values)
    if least > most:
        return least
    return min(range(least, most + 1), key=lambda d: (sum(-v % d for v in values), -d))
