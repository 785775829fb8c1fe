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
    """One class of groups: layers, bytes per token and layer, and blocks of a request as a function of its context."""

    layers: int
    bytes_per_token: int
    blocks: Callable[[int], int]


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


def pages_per_request(held: Sequence[Held], states: Sequence[StateNeed], context: int) -> int:
    """Pages (one layer's block each) that a request of `context` tokens takes in all layers."""
    return sum(h.layers * h.blocks(context) for h in held) + sum(s.layers * s.count for s in states)


def kv_json(
    held: Sequence[Held], states: Sequence[StateNeed], page_bytes: int | None, memory: int | None, longest: int | None
) -> dict[str, Any] | None:
    """Capacity of `memory` bytes on one rank for requests of `longest` tokens.

    All layers draw on one pool of equal pages, so that no layer is padded to the count of another group. `tokens` is
    floor(concurrency x longest). Without memory or longest only `bytes_per_token`. Raises UnservedError naming the
    longest context that fits if not even one request does.
    """
    if page_bytes is None:
        return None
    found: dict[str, Any] = {
        "bytes_per_token": sum(h.layers * h.bytes_per_token for h in held),
        "tokens": None,
        "max_concurrency": None,
        "max_model_len": longest,
        "memory_bytes": memory,
        "pages": None,
        "pages_per_request": None if longest is None else pages_per_request(held, states, longest),
    }
    if memory is None or longest is None:
        return found
    pages = memory // page_bytes
    each = pages_per_request(held, states, longest)
    if pages < each:
        raise too_small(held, states, page_bytes, memory, longest)
    concurrency = pages / each if each else 0.0
    return found | {"tokens": pages * longest // each if each else 0, "max_concurrency": concurrency, "pages": pages}


def too_small(
    held: Sequence[Held], states: Sequence[StateNeed], page_bytes: int, memory: int, longest: int
) -> UnservedError:
    """The error for a memory that holds no request of the longest context."""
    pages = memory // page_bytes
    fits = longest_context(held, states, pages, longest)
    need = pages_per_request(held, states, longest) * page_bytes
    words = f"the longest context that fits is {fits} tokens (--max-model-len {fits})" if fits else "no context fits"
    return UnservedError(
        f"KV memory {gib(memory)} is too small: one request of {longest} tokens takes {gib(need)}; {words}",
        code="memory",
    )


def longest_context(held: Sequence[Held], states: Sequence[StateNeed], pages: int, most: int) -> int:
    """The longest context of at most `most` tokens of which one request fits into `pages`; 0 if none does."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if pages_per_request(held, states, middle) <= pages:
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
