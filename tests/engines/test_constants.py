"""Twenty constants of the engine's data, each changed alone: the golden vectors notice every one."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from attnroute.engines.data import Engine
from attnroute.registry.registry import default_registry
from tests.engines import vectors
from tests.vectors import load

# (what, where it stands, the wrong value, the vectors that notice)
CHANGES: list[tuple[str, tuple[str | int, ...], Any, str]] = [
    ("FA4's head-256 page", ("backends", "FLASH_ATTN", "block_sizes", 1, "sizes"), [64], "kernel_block_sizes"),
    ("FA4's FP8 page on SM90", ("backends", "FLASH_ATTN", "block_sizes", 0, "sizes"), [128], "kernel_block_sizes"),
    ("FlashAttention's multiple", ("backends", "FLASH_ATTN", "block_sizes", 2, "sizes"), ["32../32"], "common_block"),
    (
        "FlashInfer's largest page",
        ("backends", "FLASHINFER", "block_sizes", 0, "sizes"),
        [16, 32, 64, 128],
        "common_block",
    ),
    (
        "FlashInfer's small pages",
        ("backends", "FLASHINFER", "block_sizes", 1, "sizes"),
        [16, 32, 64, 128],
        "group_kernel_blocks",
    ),
    ("CUTLASS MLA's page", ("backends", "CUTLASS_MLA", "block_sizes", 0, "sizes"), [64], "preferred_block"),
    (
        "FlashAttention's largest head",
        ("backends", "FLASH_ATTN", "head", "any", 0, "head"),
        "8..192/8",
        "validate_configuration",
    ),
    ("FlashInfer's head sizes", ("backends", "FLASHINFER", "head"), [64, 128, 256], "backend_selection"),
    ("FlashInfer's newest GPU", ("backends", "FLASHINFER", "compute", "cc"), "80..120", "validate_configuration"),
    ("FA3's head limit", ("resolve", "flash_attention", "steps", 4, "rules", 0, "when", "head"), "513..", "fa_version"),
    ("FA4's TMEM limit", ("resolve", "flash_attention", "steps", 7, "rules", 0, "when", "head"), "193..", "fa_version"),
    ("default version on SM100", ("resolve", "flash_attention", "steps", 0, "rules", 1, "use"), 2, "fa_version"),
    (
        "head size of FP8 KV on SM90",
        ("resolve", "flash_attention_fp8", "steps", 0, "rules", 2, "when", "head"),
        [None, 256],
        "fa_version",
    ),
    ("XQA's head sizes", ("derived", "xqa_head", "when", "head"), "16..512/16", "flashinfer_group"),
    ("XQA's head sizes in graphs", ("derived", "xqa_head", "when", "head"), "32..256/16", "flashinfer_graph"),
    (
        "FlashInfer's page without trtllm-gen",
        ("resolve", "flashinfer_decode", "steps", 1, "rules", 0, "when", "page"),
        "129..",
        "flashinfer_group",
    ),
    (
        "order on SM100",
        ("priority", 1, "order"),
        ["FLASH_ATTN", "FLASHINFER", "TRITON_ATTN", "FLEX_ATTENTION", "TURBOQUANT"],
        "backend_priority",
    ),
    ("heads that prefer FA4 sparse MLA", ("priority", 4, "then", 1, "when", "heads"), "0..8", "backend_priority"),
    ("NVFP4's block of one scale", ("packs", "flashinfer-nvfp4", "parts", 1, "over"), 32, "page_sizes"),
    ("bytes of per-token-head scales", ("packs", "triton-per-token-head", "plus"), 4, "page_sizes"),
    ("bytes of an fp8_ds_mla entry", ("kv_dtypes", "fp8_ds_mla", "mla_bytes"), 576, "page_sizes"),
    ("hybrid MLA alignment", ("constants", "mla_hybrid_alignment", "value"), 64, "hybrid_alignment"),
    ("default block", ("constants", "default_block", "value"), 32, "block_size_for_model"),
    ("state blocks with prefix caching", ("constants", "state_blocks_align", "value"), 1, "capacity"),
    ("a window's extra block", ("constants", "window_extra_blocks", "value"), 0, "capacity"),
    ("padding that one group bears", ("constants", "padding_tolerance", "value"), 1.1, "grouping"),
    ("FlashInfer's layouts on SM100", ("backends", "FLASHINFER", "layouts", 0, "use"), ["BLHNC", "LBHNC"], "kv_layout"),
]


def changed(data: Any, path: tuple[str | int, ...], value: Any) -> Any:
    """A copy of the data with one value changed."""
    copied = copy.deepcopy(data)
    inside = copied
    for key in path[:-1]:
        inside = inside[key]
    assert inside[path[-1]] != value
    inside[path[-1]] = value
    return copied


def test_at_least_twenty() -> None:
    assert len({path for _, path, _, _ in CHANGES}) >= 20


@pytest.mark.parametrize(("what", "path", "value", "name"), CHANGES, ids=[c[0] for c in CHANGES])
def test_the_vectors_notice(what: str, path: tuple[str | int, ...], value: Any, name: str) -> None:
    wrong = Engine(changed(default_registry().engine("vllm"), path, value))
    right = Engine(default_registry().engine("vllm"))
    for given, expected in load.load(name):
        if not vectors.same(name, vectors.answer(wrong, name, given), expected) and vectors.same(
            name, vectors.answer(right, name, given), expected
        ):
            return
    pytest.fail(f"{what}: no vector of {name} differs")
