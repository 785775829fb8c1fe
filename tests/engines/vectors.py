"""Replaying the golden vectors of vLLM 0.33.0: attnroute's answers, and when two answers agree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attnroute.engines.data import Engine
from attnroute.engines.rules import EngineError
from tests.engines import replay_blocks, replay_memory

_BLOCKS = """fa_version kernel_block_sizes preferred_block common_block group_kernel_blocks page_sizes hybrid_alignment
mixed_kv_alignment block_size_for_model layer_block validate_configuration backend_priority backend_selection"""
_MEMORY = "page_unification grouping capacity kv_layout flashinfer_group flashinfer_graph flashinfer_trtllm"
REPLAYS: dict[str, Callable[..., Any]] = {name: getattr(replay_blocks, name) for name in _BLOCKS.split()}
REPLAYS |= {name: getattr(replay_memory, name) for name in _MEMORY.split()}
WORDLESS = ("AssertionError", "ZeroDivisionError", "TypeError")
PARTIAL = {"flashinfer_group": ("varlen_decode", "trtllm_dcp_prefill"), "flashinfer_graph": ("varlen_max_query",)}


def answer(engine: Engine, name: str, i: dict[str, Any], **how: bool) -> Any:
    """attnroute's answer to one input, with an exception as the vectors write it."""
    try:
        return REPLAYS[name](engine, i, **how)
    except EngineError as error:
        return {"error": error.kind, "text": str(error)}


def same(name: str, given: Any, expected: Any) -> bool:
    """Whether two answers agree. Of what vLLM asserts or cannot represent, the kind of exception is compared, not the
    words; keys of which attnroute says nothing (named in PARTIAL) are left out.
    """
    kind = expected.get("error")
    wordless = kind in WORDLESS or expected.get("text", "").startswith("unknown kv cache spec")
    if kind and wordless and "reasons" not in expected and isinstance(given, dict) and given.get("error") == kind:
        return True
    for key in PARTIAL.get(name, ()):
        expected = {k: v for k, v in expected.items() if k != key}
    return bool(given == expected)
