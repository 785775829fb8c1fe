"""How many tokens and requests a stated memory holds, once blocks are chosen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnroute.errors import UnservedError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .blocks import Blocks, StateNeed


@dataclass(frozen=True, slots=True)
class Held:
    """One class of groups: layers, bytes per token and layer, bytes of one layer's block, and blocks of a request as a
    function of its context.
    """

    layers: int
    bytes_per_token: int
    page_bytes: int
    blocks: Callable[[int], int]


@dataclass(frozen=True, slots=True)
class Pool:
    """What memory is cut into: pages of `page_bytes`, and how many of them a request of some tokens takes.

    A page is one layer's block. Where groups share one block table, it is a block of all layers together.
    """

    page_bytes: int
    bytes_per_token: int
    pages: Callable[[int], int]


def pool_of(held: Sequence[Held], states: Sequence[StateNeed], blocks: Blocks) -> Pool:
    """The pool of chosen blocks. All layers draw on it, so that no layer is padded to the count of another group."""
    each = sum(h.layers * h.bytes_per_token for h in held)
    if blocks.one_table:
        return Pool(sum(h.layers * h.page_bytes for h in held), each, held[0].blocks)
    fixed = sum(s.layers * s.count for s in states)
    return Pool(blocks.page_bytes, each, lambda context: fixed + sum(h.layers * h.blocks(context) for h in held))


def mamba_json(states: Sequence[StateNeed], blocks: Blocks | None) -> dict[str, Any] | None:
    """The recurrent state of the layer with the largest one; bytes of one layer and request. Without attention layers
    its page is the state itself.
    """
    if not states:
        return None
    largest = max(states, key=lambda s: s.bytes)
    page = blocks.page_bytes if blocks is not None else largest.bytes
    return {
        "state_bytes": largest.bytes,
        "page_bytes": page,
        "padding_percent": 100.0 * (page - largest.bytes) / largest.bytes,
        "layers": sum(s.layers for s in states),
        "states_per_request": largest.count,
    }


def kv_json(pool: Pool, memory: int | None, longest: int | None) -> dict[str, Any]:
    """Capacity of `memory` bytes on one rank for requests of `longest` tokens.

    `tokens` is floor(concurrency x longest). Without memory or longest only what does not depend on them. Raises
    UnservedError naming the longest context that fits if not even one request does.
    """
    found: dict[str, Any] = {
        "bytes_per_token": pool.bytes_per_token,
        "tokens": None,
        "max_concurrency": None,
        "max_model_len": longest,
        "memory_bytes": memory,
        "page_bytes": pool.page_bytes,
        "pages": None if memory is None else memory // pool.page_bytes,
        "pages_per_request": None if longest is None else pool.pages(longest),
    }
    if memory is None or longest is None:
        return found
    pages, each = memory // pool.page_bytes, pool.pages(longest)
    if pages < each:
        raise too_small(pool, memory, longest)
    return found | {"tokens": pages * longest // each, "max_concurrency": pages / each}


def too_small(pool: Pool, memory: int, longest: int) -> UnservedError:
    """The error for a memory that holds no request of the longest context."""
    fits = longest_context(pool, memory // pool.page_bytes, longest)
    need = pool.pages(longest) * pool.page_bytes
    words = f"the longest context that fits is {fits} tokens (--max-model-len {fits})" if fits else "no context fits"
    return UnservedError(
        f"KV memory {gib(memory)} is too small: one request of {longest} tokens takes {gib(need)}; {words}",
        code="memory",
    )


def longest_context(pool: Pool, pages: int, most: int) -> int:
    """The longest context of at most `most` tokens of which one request fits into `pages`; 0 if none does."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if pool.pages(middle) <= pages:
            low = middle
        else:
            high = middle - 1
    return low


def gib(size: int) -> str:
    """`105.5 GiB`; smaller sizes in MiB, KiB or B."""
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if size >= 1024**power:
            return f"{size / 1024**power:.4g} {unit}"
    return f"{size} B"
