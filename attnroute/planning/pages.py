"""Bytes and blocks of the KV cache: what one token of one layer takes, and how many blocks a request holds."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import gcd
from typing import TYPE_CHECKING

from attnroute.models.dtypes import PER_TOKEN_HEAD, dtype_bytes
from attnroute.registry.dims import MLA_KINDS
from attnroute.registry.sets import IntSet

if TYPE_CHECKING:
    from collections.abc import Iterable

    from attnroute.dispatch.group import KVGroup

#: Blocks are multiples of this many tokens unless another block size is asked for: what a kernel that takes any page
#: is given. Smaller blocks lengthen every block table and save less than one granule of each request.
GRANULE = 16
#: Elements of an NVFP4 cache that share one 8-bit scale.
_NVFP4_BLOCK = 16
#: Bytes of the two float32 scales (K and V) that a cache with scales per token and head keeps beside the elements.
_PER_TOKEN_SCALES = 8
_LARGEST_UNIT = 4096


def bytes_per_token(group: KVGroup) -> int:
    """Bytes that one token takes in ONE layer of the group on one rank, scales included.

    NVFP4: half a byte an element and one byte of scale for 16 of them. int8 and fp8 with scales per token and head: two
    float32 more for each head. MLA: one latent and its rotary part for all heads.
    """
    scales = _PER_TOKEN_SCALES if PER_TOKEN_HEAD in group.traits else 0
    if group.kind in MLA_KINDS and group.latent is not None and group.rope is not None:
        heads, elements = 1, group.latent + group.rope
    else:
        heads, elements = group.num_kv_heads, group.head_dim + group.v_dim
    if group.kv == "nvfp4":
        return heads * (elements // 2 + -(-elements // _NVFP4_BLOCK) + scales)
    return heads * (elements * dtype_bytes(group.kv) + scales)


@dataclass(frozen=True, slots=True)
class Spans:
    """How much of a request its layers hold at a time.

    `in_flight` is the number of tokens that the steps in flight may add, `dcp` the ranks that share a
    full-attention context, `source_len` the tokens of an encoder's input, None if the model has none.
    """

    in_flight: int = 4096
    dcp: int = 1
    source_len: int | None = None

    def tokens(self, group: KVGroup, context: int) -> int:
        """Most tokens of a request of `context` tokens that one rank holds for a layer of the group."""
        if group.attn_type == "encoder_only":
            return 0
        if group.attn_type == "encoder_decoder":
            return context if self.source_len is None else self.source_len
        if group.sliding_window is not None:
            return min(group.sliding_window - 1 + self.in_flight, context)
        if group.chunk is not None:
            return min(group.chunk + self.in_flight, context)
        return -(-context // self.dcp)

    def blocks(self, group: KVGroup, block: int, context: int) -> int:
        """Blocks of `block` tokens that such a request needs at most. A window rarely starts on a block, so it takes
        one more, unless the whole context fits without.
        """
        held = self.tokens(group, context)
        count = -(-held // block)
        if group.sliding_window is not None and group.attn_type == "decoder":
            return min(count + 1, -(-context // block))
        return count


def state_blocks(speculative: int, prefix_caching: bool) -> int:
    """States that a request holds in each linear layer: the running one, one for each draft token that may be taken
    back, and with prefix caching the one being kept.
    """
    return 1 + speculative + (1 if prefix_caching else 0)


def units(sets: Iterable[IntSet], granule: int) -> tuple[int, ...]:
    """Block sizes of which every fitting block is a multiple: for each set, one of its pages must divide the block.

    Least common multiples of one smallest page of each set and of the granule, those that are multiples of another left
    out; ascending.
    """
    return _units(frozenset(sets), granule)


@lru_cache(maxsize=4096)
def _units(sets: frozenset[IntSet], granule: int) -> tuple[int, ...]:
    found = {granule}
    for pages in sets:
        found = {unit * page // gcd(unit, page) for unit in found for page in _smallest(pages)}
    return tuple(sorted(u for u in found if not any(u != other and u % other == 0 for other in found)))


@lru_cache(maxsize=1024)
def _smallest(pages: IntSet) -> tuple[int, ...]:
    """The pages that are no multiple of another page of the set."""
    if pages.is_any:
        return (1,)
    kept: list[int] = []
    for page in pages.values(max(_LARGEST_UNIT, pages.smallest())):
        if page and not any(page % small == 0 for small in kept):
            kept.append(page)
    return tuple(kept)


@lru_cache(maxsize=4096)
def coarser(pages: IntSet, than: IntSet) -> bool:
    """Whether every block that suits `pages` suits `than` as well."""
    return all(any(page % fine == 0 for fine in _smallest(than)) for page in _smallest(pages))


def fits(pages: IntSet, block: int) -> bool:
    """Whether a block can be read in pages of the set: one of them divides it."""
    return pages.is_any or largest_page(pages, block) is not None


@lru_cache(maxsize=4096)
def largest_page(pages: IntSet, block: int) -> int | None:
    """The largest page of the set that divides the block: the block itself where the kernel takes it."""
    if block in pages:
        return block
    return max((p for p in pages.values(block) if p and block % p == 0), default=None)


def kernel_pages(sets: Iterable[IntSet | None], block: int) -> tuple[int | None, ...]:
    """The page of each phase's kernel in a block: one for all phases if they share one, so that one block table serves
    them, else the largest of each. None stays None (a kernel that reads no pages).
    """
    return _kernel_pages(tuple(sets), block)


@lru_cache(maxsize=4096)
def _kernel_pages(wanted: tuple[IntSet | None, ...], block: int) -> tuple[int | None, ...]:
    paged = [pages for pages in wanted if pages is not None]
    common = next((p for p in _divisors(block) if all(p in pages for pages in paged)), None) if paged else None
    return tuple(None if pages is None else common or largest_page(pages, block) for pages in wanted)


def _divisors(block: int) -> list[int]:
    """Divisors of a block, descending."""
    small = [d for d in range(1, int(block**0.5) + 1) if block % d == 0]
    return sorted({*small, *(block // d for d in small)}, reverse=True)
