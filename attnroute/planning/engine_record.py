"""Parts of an engine's answer as plain values for a plan's JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .pages import bytes_per_token

if TYPE_CHECKING:
    from collections.abc import Sequence

    from attnroute.dispatch.group import KVGroup
    from attnroute.engines.result import EngineOptions, EngineResult


def mamba_of(result: EngineResult) -> dict[str, Any] | None:
    """The contract's `mamba` of an engine's answer."""
    state = result.state
    if state is None:
        return None
    return {
        "state_bytes": state.state_bytes,
        "page_bytes": state.page_bytes,
        "padding_percent": state.padding_percent,
        "block_size": state.block,
        "states_per_request": state.blocks_per_request,
    }


def kv_of(groups: Sequence[KVGroup], result: EngineResult, options: EngineOptions) -> dict[str, Any]:
    """The contract's `kv` of an engine's answer; what needs memory and a longest context is None without them."""
    each = sum(max(1, len(g.layers)) * bytes_per_token(g) for g in groups)
    found: dict[str, Any] = {"bytes_per_token": each, "tokens": None, "max_concurrency": None}
    found |= {"max_model_len": options.max_model_len, "memory_bytes": options.kv_memory}
    if result.capacity is None:
        return found
    capacity = result.capacity
    return found | {
        "max_model_len": capacity.max_model_len,
        "tokens": capacity.tokens,
        "max_concurrency": capacity.concurrency,
        "blocks": capacity.num_blocks,
        "blocks_per_request": capacity.blocks_per_request,
        "bytes_per_block": capacity.bytes_per_block,
    }


def detail_of(result: EngineResult) -> dict[str, Any]:
    """What an engine decides beyond the contract."""
    return {
        "version": result.version,
        "head_size": result.head_size,
        "layout": result.layout,
        "scheduler_block_size": result.scheduler_block_size,
        "mamba_cache_mode": result.mamba_cache_mode,
        "reorder_threshold": result.reorder_threshold,
        "groups_made": [
            {"kind": m.kind, "layers": len(m.layers), "block_size": m.block, "page_bytes": m.page_bytes}
            for m in result.groups_made
        ],
    }


def column(result: EngineResult) -> dict[str, Any]:
    """What a comparison shows of another answer."""
    return {
        "head_size": result.head_size,
        "block_size": result.block_size,
        "graph_level": result.graph_level,
        "mamba": mamba_of(result),
        "tokens": None if result.capacity is None else result.capacity.tokens,
        "max_concurrency": None if result.capacity is None else result.capacity.concurrency,
        "errors": list(result.errors),
        "warnings": list(result.warnings),
        "groups": [
            {
                "name": g.name,
                "backend": g.backend,
                "block_size": g.block,
                "page_size": g.kernel_page,
                "page_bytes": g.page_bytes,
                "padding_percent": g.padding_percent,
                "graph_level": g.graph_level,
                "phases": {p: None if use is None else use.kernel or use.name for p, use in g.phases.items()},
                "rejected": {name: list(why) for name, why in g.rejected.items()},
                "notes": list(g.notes),
            }
            for g in result.groups
        ],
    }
