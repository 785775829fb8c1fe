"""The block of each group, in tokens and in bytes of one layer, with the least waste."""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

#: How many larger pages are tried beyond the smallest that fits, for each group.
_MORE = 3


@dataclass(frozen=True, slots=True)
class Need:
    """What one group asks of the blocks: bytes per token and layer, layers, the unit its block is a multiple of, and
    for each context of the workload the tokens held and a function from block to blocks. Groups of equal `span` (kind,
    window, chunk) hold the same tokens of every request.
    """

    bytes_per_token: int
    layers: int
    unit: int
    span: Hashable
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
    """`pages` are the bytes of one layer's block and `sizes` its tokens, both in the order of the needs. `waste` is
    what the function of that name says of them.

    Mostly all pages are equal, so that one pool serves every layer. If all groups hold the same tokens of a request
    (`one_table`), they share one block table instead, with blocks of equal tokens and pages of their own size.
    """

    pages: tuple[int, ...]
    sizes: tuple[int, ...]
    waste: float
    one_table: bool = False

    @property
    def manager_block(self) -> int:
        """The tokens that are whole blocks in every group: in these an engine shares prefixes. Where nesting the blocks
        costs nothing, the largest block.
        """
        return lcm(*self.sizes)

    @property
    def page_bytes(self) -> int:
        """Bytes of the largest page: that of all layers, unless they share one table."""
        return max(self.pages)


def choose_blocks(needs: Sequence[Need], states: Sequence[StateNeed], *, smallest: bool = False) -> Blocks | None:
    """The blocks with the least waste, then the smallest. With `smallest` (a block size was asked for) the first ones
    that hold everything are taken. None if there is no attention layer that caches.
    """
    if not needs:
        return None
    best: Blocks | None = None
    if len(needs) > 1 and not states and len({n.span for n in needs}) == 1:
        best = _one_table(needs)
        if smallest:
            return best
    least = max([max(n.bytes_per_token * n.unit for n in needs), *(s.bytes for s in states)])
    for page in _candidates(needs, least, 0 if smallest else _MORE):
        pages = (page,) * len(needs)
        for sizes in dict.fromkeys((_sizes(needs, page, nested=True), _sizes(needs, page, nested=False))):
            if sizes is None:
                continue
            found = Blocks(pages, sizes, waste(needs, states, pages, sizes, page))
            if smallest:
                return found
            if best is None or found.waste < best.waste - 1e-12:
                best = found
    return best


def _one_table(needs: Sequence[Need]) -> Blocks:
    """Blocks of equal tokens for groups that hold the same tokens of every request."""
    size = lcm(*(n.unit for n in needs))
    pages = tuple(n.bytes_per_token * size for n in needs)
    sizes = (size,) * len(needs)
    return Blocks(pages, sizes, waste(needs, (), pages, sizes, 0), len(set(pages)) > 1)


def _candidates(needs: Sequence[Need], least: int, more: int) -> list[int]:
    """Page sizes in bytes worth trying, ascending: multiples of some group's smallest block that hold everything."""
    common = lcm(*(n.unit for n in needs))
    widest = max(n.bytes_per_token for n in needs)
    steps = {n.bytes_per_token * n.unit for n in needs} | {widest * common}
    return sorted({step * (-(-least // step) + k) for step in steps for k in range(more + 1)})


def _sizes(needs: Sequence[Need], page: int, *, nested: bool) -> tuple[int, ...] | None:
    """The largest blocks that fit the page, `nested` those that divide into each other; None if a group has none."""
    order = sorted(range(len(needs)), key=lambda i: (page // needs[i].bytes_per_token, i))
    sizes = [0] * len(needs)
    before = 1
    for i in order:
        step = lcm(before, needs[i].unit) if nested else needs[i].unit
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
