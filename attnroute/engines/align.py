"""One block size for the whole model: hybrid models, mixed KV dtypes, and the check over all backends."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import lcm
from typing import TYPE_CHECKING

from attnroute.engines import blocks
from attnroute.engines.rules import EngineError
from attnroute.engines.spec import attention_spec, cdiv, packed

if TYPE_CHECKING:
    from attnroute.engines.data import Backend, Engine


@dataclass(frozen=True, slots=True)
class BlockState:
    """The block-size part of the cache configuration, as the phases change it (tokens and bytes)."""

    block_size: int
    mamba_block_size: int | None = None
    mamba_page_padded: int | None = None
    skip_page_padded: int | None = None


@dataclass(frozen=True, slots=True)
class ModelCache:
    """What alignment needs of the model: the cache of one attention layer, the states, and how they are cached.

    `asked` pairs each distinct attention backend, first layer first, with the facts its sizes are declared from.
    `kv` is --kv-cache-dtype, `head` and `kv_heads` describe the whole model. `state_bytes` is the largest state of one
    layer; `checkpoint` the lcm that prefill checkpoints fall on (1: none).
    """

    asked: tuple[blocks.Asked, ...]
    kv: str
    dtype: str
    head: int
    kv_heads: int
    mla: bool = False
    skip_layers: bool = False
    hybrid: bool = False
    state_bytes: int = 0
    cache_mode: str = "none"
    checkpoint: int = 1
    user_block: bool = False


def token_bytes(engine: Engine, backend: Backend, cache: ModelCache, kv: str) -> int:
    """Bytes that one token takes in one attention layer, packed as `backend` does."""
    spec = attention_spec(engine, "full", block=1, heads=cache.kv_heads, head=cache.head, kv=kv, dtype=cache.dtype)
    return packed(engine, backend, spec).page


def _attention_token_bytes(engine: Engine, cache: ModelCache) -> int:
    if cache.mla:
        spec = attention_spec(
            engine, "mla", block=1, heads=cache.kv_heads, head=cache.head, kv=cache.kv, dtype=cache.dtype
        )
        return replace(spec, content=None).page
    packer = next((n for prefix, n in engine.data["own_packing"].items() if cache.kv.startswith(prefix)), None)
    if packer is None:
        return token_bytes(engine, cache.asked[0][0], cache, cache.kv)
    own = token_bytes(engine, engine.backend(packer), cache, cache.kv)
    if not cache.skip_layers:
        return own
    return lcm(own, token_bytes(engine, engine.backend(packer), cache, "auto"))


def align_hybrid(engine: Engine, cache: ModelCache, state: BlockState) -> BlockState:
    """The attention block that covers a Mamba page, and the Mamba page padded to it."""
    if cache.state_bytes == 0:
        return state
    per_token = _attention_token_bytes(engine, cache)
    first = blocks.smallest(blocks.declared_sizes(*cache.asked[0]))
    alignment = max(first, state.block_size)
    declared = [sizes for asked in cache.asked if (sizes := blocks.declared_sizes(*asked))]
    everyone = lcm(*(blocks.smallest(sizes) for sizes in declared))
    if cache.mla:
        alignment = max(alignment, int(engine.constant("mla_hybrid_alignment")))
    if cache.cache_mode == "align":
        alignment = lcm(alignment, cache.checkpoint)
    block = alignment * cdiv(cache.state_bytes, alignment * per_token)
    block = max(state.block_size, everyone * cdiv(block, everyone))
    state = replace(
        state, block_size=block, mamba_block_size=block if cache.cache_mode == "align" else state.mamba_block_size
    )
    page = block * per_token
    return state if page == cache.state_bytes else replace(state, mamba_page_padded=page)


def align_mixed(engine: Engine, cache: ModelCache, state: BlockState) -> BlockState:
    """The block whose quantised page covers the page of layers that stay unquantised (kv_cache_dtype_skip_layers)."""
    backend = cache.asked[0][0]
    primary = token_bytes(engine, backend, cache, cache.kv)
    if not cache.skip_layers:
        return state
    larger = token_bytes(engine, backend, cache, "auto")
    if larger < primary:
        raise EngineError(
            f"padded-spec per-token page ({larger}B) < primary ({primary}B); a higher-precision padded spec must not "
            "be smaller than the quantized primary.",
            "AssertionError",
        )
    if larger == primary:
        return state
    kernel = blocks.smallest(blocks.declared_sizes(*cache.asked[0]))
    alignment = max(kernel, state.block_size)
    needed = max(larger * kernel, state.mamba_page_padded or 0)
    block = max(state.block_size, alignment * cdiv(needed, alignment * primary))
    page = block * primary
    mamba = page if state.mamba_page_padded is not None else None
    return replace(state, block_size=block, skip_page_padded=page, mamba_page_padded=mamba)


def block_size_for_model(engine: Engine, cache: ModelCache, state: BlockState) -> BlockState:
    """All three phases: a size that every backend takes (unless the operator gave one), hybrid and mixed alignment, and
    the check that nobody rejects what came out. Raises EngineError.
    """
    if not cache.asked:
        return state
    if not cache.user_block:
        size = blocks.preferred_for_all(cache.asked, int(engine.constant("default_block")))
        state = replace(state, block_size=size)
    before = state.block_size
    if cache.hybrid:
        state = align_hybrid(engine, cache, state)
    if cache.skip_layers:
        state = align_mixed(engine, cache, state)
    if state.block_size != before:
        rejecting = [b.label for b, facts in cache.asked if not blocks.accepts(b, facts, state.block_size)]
        if rejecting:
            raise EngineError(
                f"Aligned KV cache block size {state.block_size} is not supported by attention backend(s): "
                f"{', '.join(rejecting)}."
            )
    return state
