"""The cache that one attention layer asks for: a sliding-window layer chooses its own block."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnroute.engines.blocks import largest_within
from attnroute.engines.facts import World, spec_size_facts
from attnroute.engines.rules import EngineError
from attnroute.engines.spec import CacheSpec, attention_spec, packed

if TYPE_CHECKING:
    from attnroute.engines.data import Backend, Engine


def layer_spec(
    engine: Engine,
    world: World,
    backend: Backend,
    *,
    kv: str,
    dtype: str,
    heads: int,
    head: int,
    block: int,
    head_v: int | None = None,
    window: int | None = None,
    shared_page: int | None = None,
    attn_type: str = "decoder",
) -> CacheSpec | None:
    """The spec of a full or sliding-window layer before its backend packs it, None for one that keeps no cache.

    `block` is the primary block in tokens. A window layer takes the largest kernel block whose page fits the primary
    one, or `shared_page` bytes where KV dtypes are mixed; its page is then padded to that. Raises EngineError where the
    engine asserts.
    """
    if attn_type in ("encoder", "encoder_only"):
        return None
    if attn_type != "decoder":
        raise EngineError("", "AssertionError")
    if window is None:
        return attention_spec(engine, "full", block=block, heads=heads, head=head, head_v=head_v, kv=kv, dtype=dtype)
    if backend.data["is_mla"]:
        raise EngineError("MLA is not supported for sliding window", "AssertionError")
    one = attention_spec(
        engine, "window", block=1, heads=heads, head=head, head_v=head_v, kv=kv, dtype=dtype, window=window
    )
    one = packed(engine, backend, one)
    per_token = one.unpadded
    budget = shared_page or per_token * block
    own = largest_within(backend, spec_size_facts(engine, world, one), per_token, budget, block)
    return attention_spec(
        engine,
        "window",
        block=own,
        heads=heads,
        head=head,
        head_v=head_v,
        kv=kv,
        dtype=dtype,
        window=window,
        padded=shared_page,
    )
