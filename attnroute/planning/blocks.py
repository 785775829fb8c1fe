"""One page size in bytes for all layers, and the block of each group in tokens, with the least waste."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: How many larger pages are tried beyond the smallest that fits, for each group.
_MORE = 3


@dataclass(frozen=True, slots=True)
class Need:
    """What one group asks of the blocks: bytes per token and layer, layers, the unit its block is a multiple of, and
    for each context of the workload the tokens held and a function from block to blocks.
    """

    bytes_per_token: int
    layers: int
    unit: int
    held: tuple[int, ...]
    blocks: tuple[Callable[[int], int], ...]


@dataclass(frozen=True, slots=True)
class StateNeed:
    """Recurrent state: bytes of one layer's state, layers, states that a request holds."""

    bytes: int
    layers: int
    count: int


@dataclass(frozen=True, slots=True)
class Blocks:
    """`page_bytes` is one layer's block in all groups; `sizes` the blocks in tokens, in the order of the needs.

    `waste` is what the function of that name says of them.
    """

    page_bytes: int
    sizes: tuple[int, ...]
    waste: float


def choose_blocks(needs: Sequence[Need], states: Sequence[StateNeed], *, smallest: bool = False) -> Blocks | None:
    """The page with the least waste, then the smallest. With `smallest` (a block size was asked for) the first page
    that holds everything is taken. None if there is no attention layer that caches.
    """
    if not needs:
        return None
    least = max([max(n.bytes_per_token * n.unit for n in needs), *(s.bytes for s in states)])
    best: Blocks | None = None
    for page in _candidates(needs, least, 0 if smallest else _MORE):
        sizes = _sizes(needs, page)
        if sizes is None:
            continue
        found = Blocks(page, sizes, waste(needs, states, [page] * len(needs), sizes, page))
        if smallest:
            return found
        if best is None or found.waste < best.waste - 1e-12:
            best = found
    return best


def _candidates(needs: Sequence[Need], least: int, more: int) -> list[int]:
    """Page sizes in bytes worth trying, ascending: multiples of some group's smallest block that hold everything."""
    common = 1
    for need in needs:
        common = common * need.unit // gcd(common, need.unit)
    widest = max(n.bytes_per_token for n in needs)
    steps = {n.bytes_per_token * n.unit for n in needs} | {widest * common}
    return sorted({step * (-(-least // step) + k) for step in steps for k in range(more + 1)})


def _sizes(needs: Sequence[Need], page: int) -> tuple[int, ...] | None:
    """The largest blocks that fit the page and divide into each other, or None."""
    order = sorted(range(len(needs)), key=lambda i: (page // needs[i].bytes_per_token, i))
    sizes = [0] * len(needs)
    before = 1
    for i in order:
        step = before * needs[i].unit // gcd(before, needs[i].unit)
        before = sizes[i] = page // needs[i].bytes_per_token // step * step
        if not before:
            return None
    return tuple(sizes)


def waste(
    needs: Sequence[Need], states: Sequence[StateNeed], pages: Sequence[int], sizes: Sequence[int], state_page: int
) -> float:
    """Mean over the workload's contexts of bytes held but not used, relative to those used.

    `pages` and `sizes` are each group's block in bytes (of one layer) and in tokens, `state_page` what a layer's state
    takes. Unused are padding of pages and states, and half a block at the end of each request and layer.
    """
    state_used = sum(s.bytes * s.layers * s.count for s in states)
    state_waste = sum((state_page - s.bytes) * s.layers * s.count for s in states)
    total = 0.0
    points = len(needs[0].held) if needs else 0
    for point in range(points):
        used, lost = float(state_used), float(state_waste)
        for need, page, size in zip(needs, pages, sizes, strict=True):
            padding = page - size * need.bytes_per_token
            used += need.layers * need.held[point] * need.bytes_per_token
            lost += need.layers * (need.blocks[point](size) * padding + (size - 1) / 2 * need.bytes_per_token)
        total += lost / used if used else 0.0
    return total / points if points else 0.0
