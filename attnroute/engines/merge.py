"""When vLLM regards the caches of several layers as one: merging specs, and uniform types."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from attnroute.engines.rules import EngineError
from attnroute.engines.spec import CacheSpec

FULL = frozenset({"full", "sink", "rswa", "mla", "hidden"})
"""Kinds that allocate a slot for every token (subclasses of vLLM's FullAttentionSpec)."""
MLA = frozenset({"mla", "hidden"})
WINDOW = frozenset({"window", "window_mla"})
_COMPARED = (
    "block",
    "dcp_sharded",
    "stride_tokens",
    "stride_bytes",
    "heads",
    "head",
    "stored",
    "head_v",
    "mode",
    "padded",
    "slots",
    "content",
    "tokens_per_state",
)


def _refuse(text: str = "") -> EngineError:
    return EngineError(text, "AssertionError")


def _check_same(specs: Sequence[CacheSpec], merged: CacheSpec) -> CacheSpec:
    if any(getattr(spec, name) != getattr(merged, name) for spec in specs for name in _COMPARED):
        raise _refuse("All attention layers in the same KV cache group must have the same attention spec.")
    return merged


def _one(values: set[int]) -> int | None:
    if len(values) > 1:
        raise EngineError("All attention layers in the same KV cache group must have the same window size.")
    return values.pop() if values else None


def merge(specs: Sequence[CacheSpec]) -> CacheSpec:
    """One spec for all, as the first one's kind merges. Raises EngineError where vLLM raises."""
    kind = specs[0].kind
    if kind in ("full", "sink"):
        return _merge_full(specs)
    if kind == "rswa":
        if any(s.kind != "rswa" for s in specs):
            raise _refuse("All attention layers in the same KV cache group must be RSWASpec.")
        if len({s.rswa_window for s in specs}) > 1:
            raise _refuse(f"All R-SWA layers must share the same rswa_window, got { {s.rswa_window for s in specs} }")
        return _merge_full(specs)
    if kind in MLA:
        if any(s.kind not in MLA for s in specs):
            raise _refuse("All attention layers in the same KV cache group must be MLAAttentionSpec.")
        if any(
            len({getattr(s, n) for s in specs}) > 1
            for n in ("cache_dtype", "tokens_per_state", "stride_tokens", "stride_bytes")
        ):
            raise _refuse()
        return _check_same(specs, replace(specs[0], alignment=None, head_v=0, window=None, chunk=None))
    if kind == "window_mla":
        if any(s.kind != "window_mla" for s in specs):
            raise _refuse("All attention layers in the same KV cache group must be SlidingWindowMLASpec.")
        same = (
            "dcp_sharded",
            "cache_dtype",
            "tokens_per_state",
            "window",
            "extra_retained",
            "stride_tokens",
            "stride_bytes",
        )
        if any(len({getattr(s, n) for s in specs}) > 1 for n in same):
            raise _refuse()
        return replace(specs[0], alignment=None, head_v=0, mode="NONE")
    if any(s != specs[0] for s in specs[1:]):
        raise _refuse("All layers in the same KV cache group must be the same.")
    return specs[0]


def _merge_full(specs: Sequence[CacheSpec]) -> CacheSpec:
    if any(s.kind not in FULL for s in specs):
        raise _refuse("All attention layers in the same KV cache group must be FullAttentionSpec.")
    if any(s.kind in MLA for s in specs):
        raise _refuse("MLAAttentionSpec should be merged in MLAAttentionSpec.merge")
    window = _one({s.window for s in specs if s.window is not None})
    chunk = _one({s.chunk for s in specs if s.chunk is not None})
    merged = replace(specs[0], window=window, chunk=chunk, non_causal=any(s.non_causal for s in specs))
    _check_same(specs, merged)
    if window is not None and chunk is not None:
        raise _refuse("Model with both sliding window layers and chunked local attention layers is not supported.")
    return merged


def merges(specs: Sequence[CacheSpec], kinds: tuple[str, ...] = ("AssertionError",)) -> bool:
    """Whether the specs merge; an exception of another kind than these is raised on."""
    try:
        merge(specs)
    except EngineError as refusal:
        if refusal.kind not in kinds:
            raise
        return False
    return True


def uniform_type(specs: Sequence[CacheSpec]) -> bool:
    """Whether all layers always need the same number of slots, though their pages may differ."""
    if len({s.block for s in specs}) > 1 or len({s.dcp_sharded for s in specs}) > 1:
        return False
    first = specs[0]
    if first.kind in FULL:
        return all(s.kind in FULL for s in specs)
    if first.kind == "window":
        return all(s.kind in WINDOW and s.window == first.window for s in specs)
    if first.kind == "window_mla":
        return all(s.kind == "window_mla" and s.window == first.window for s in specs)
    if first.kind == "chunked":
        return all(s.kind == "chunked" and s.chunk == first.chunk for s in specs)
    if first.kind == "mamba":
        same = ("spec_blocks", "checkpoint_blocks", "page", "replicated")
        return all(s.kind == "mamba" and all(getattr(s, n) == getattr(first, n) for n in same) for s in specs)
    return all(s.kind == first.kind for s in specs)
