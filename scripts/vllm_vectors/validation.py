"""The checks of each backend against a layer."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable
from typing import Any

from . import blocks, draws, world
from .record import Piece

SELECTABLE = [b for b in blocks.PLAIN if b != "FLASH_ATTN_DIFFKV"] + blocks.MLA
LAYER: dict[str, Any] = {
    "head": 128,
    "dtype": "bf16",
    "kv": "auto",
    "block_size": 16,
    "user_block_size": False,
    "use_mla": False,
    "sparse": False,
    "sinks": False,
    "per_head_scales": False,
    "attn_type": "decoder",
    "sliding": False,
    "heads": None,
    "kv_connector": False,
    "adaptive": False,
    "drafter_head": False,
}
ATTN_TYPES = ["decoder", "encoder", "encoder_only", "encoder_decoder"]


def selector_config(i: dict[str, Any]) -> Any:
    return world.get("v1.attention.selector:AttentionSelectorConfig")(
        head_size=i["head"],
        dtype=world.dtype(i["dtype"]),
        kv_cache_dtype=i["kv"],
        block_size=i["block_size"] if i["user_block_size"] else None,
        use_mla=i["use_mla"],
        has_sink=i["sinks"],
        use_sparse=i["sparse"],
        use_mm_prefix=i["mm_prefix"],
        use_per_head_quant_scales=i["per_head_scales"],
        attn_type=i["attn_type"],
        has_sliding_window=i["sliding"],
        use_non_causal=i["non_causal"],
        use_batch_invariant=i["batch_invariant"],
        use_kv_connector=i["kv_connector"],
        use_pcp=i["pcp"] > 1,
        use_adaptive_verification=i["adaptive"] and not i["drafter_head"],
        use_dcp=i["dcp"] > 1,
        use_rswa=i["rswa"] is not None,
    )


def capability() -> Any:
    return world.get("platforms:current_platform").get_device_capability()


def validate_run(i: dict[str, Any]) -> Any:
    cls = world.get("v1.attention.backends.registry:AttentionBackendEnum")[i["backend"]].get_class()
    return {"reasons": cls.validate_configuration(device_capability=capability(), **selector_config(i)._asdict())}


def draw_layer(rng: random.Random, use_mla: bool) -> dict[str, Any]:
    """A layer in a model on a machine."""
    i: dict[str, Any] = {**draws.machine(rng), **draws.model(rng)}
    i.pop("model", None)
    if use_mla or rng.random() < 0.05:
        i |= draws.mla(rng)
    i["use_mla"] = use_mla
    i["sparse"] = use_mla and rng.random() < 0.55
    i["head"] = (
        rng.choice([576, 576, 512, 320, draws.head(rng)])
        if use_mla
        else rng.choice([draws.head(rng), 64, 128, 256, 512])
    )
    i["dtype"] = rng.choice(["bf16", "bf16", "bf16", "fp16", "fp32"])
    i["kv"] = (
        rng.choice([*draws.KV, "auto", "auto", None]) if rng.random() < 0.6 else rng.choice(["auto", "fp8", "fp8_e4m3"])
    )
    if rng.random() < 0.6:
        i["model_head_size"] = i["head"]
    i["heads"] = rng.choice([None, 8, 16, 17, 32, 64, 128])
    if use_mla:
        i["model_q_heads"] = i["heads"] or 24
    if rng.random() < 0.35:
        i |= {"user_block_size": True, "block_size": blocks.draw_block(rng)}
    for key, chance in (
        ("sinks", 0.12),
        ("per_head_scales", 0.06),
        ("sliding", 0.2),
        ("kv_connector", 0.08),
        ("adaptive", 0.08),
    ):
        if rng.random() < chance:
            i[key] = True
    if i.get("adaptive") and rng.random() < 0.3:
        i["drafter_head"] = True
    if rng.random() < 0.06:
        i["attn_type"] = rng.choice(ATTN_TYPES)
    return i


def validate_draw(rng: random.Random) -> dict[str, Any]:
    backend = rng.choice(SELECTABLE + SELECTABLE[:4] * 3)
    mla = (backend in blocks.MLA) != (rng.random() < 0.04)
    i = {"backend": backend, **draw_layer(rng, mla)}
    if backend in blocks.MLA:
        i = {**draws.mla(rng), **i}
        if rng.random() < 0.8:
            i["sparse"] = "SPARSE" in backend
    return plainer(rng, i)


def plainer(rng: random.Random, i: dict[str, Any]) -> dict[str, Any]:
    """Half of the time without rare features, so that single reasons show and many layers find a backend."""
    if rng.random() < 0.5:
        for key in (
            "non_causal",
            "dcp",
            "pcp",
            "rswa",
            "mm_prefix",
            "batch_invariant",
            "sinks",
            "adaptive",
            "drafter_head",
        ):
            i.pop(key, None)
        if rng.random() < 0.6:
            i |= {"dtype": "bf16", "kv": rng.choice(["auto", "auto", "fp8"])}
    return i


def validate_edges() -> Iterable[dict[str, Any]]:
    turns: list[dict[str, Any]] = [
        {},
        {"sinks": True},
        {"mm_prefix": True},
        {"non_causal": True},
        {"rswa": 512},
        {"dcp": 2},
        {"pcp": 2},
        {"batch_invariant": True},
        {"kv_connector": True},
        {"adaptive": True},
        {"per_head_scales": True},
        {"sliding": True},
        {"dtype": "fp32"},
        {"kv": None},
        {"kv": "fp8"},
        {"kv": "fp8_e5m2"},
        {"kv": "nvfp4"},
        {"kv": "turboquant_k8v4"},
        {"user_block_size": True, "block_size": 64},
        {"user_block_size": True, "block_size": 100},
        {"attn_type": "encoder_only"},
        {"dcp": 2, "pcp": 2},
        {"non_causal": True, "dcp": 2},
        {"cubins": False},
        {"fa_built": [2]},
        {"use_trtllm": False},
        {"kv": "fp8_ds_mla"},
        {"kv": "nvfp4_ds_mla"},
        {"sparse": "other"},
    ]
    dims = {"mla_nope": 128, "mla_rope": 64, "mla_v": 128, "mla_lora": 512}
    for backend, cc in itertools.product(SELECTABLE, ["8.0", "9.0", "10.0", "11.0", "12.0"]):
        mla = backend in blocks.MLA
        base: dict[str, Any] = {
            "backend": backend,
            "cc": cc,
            "use_mla": mla,
            "sparse": "SPARSE" in backend,
            "head": 576 if mla else 256,
        }
        if mla:
            base |= {**dims, "model_q_heads": 16} | ({"index_topk": 2048} if "SPARSE" in backend else {})
        for turn in turns:
            turn = {**turn, "sparse": not base["sparse"]} if turn.get("sparse") == "other" else turn
            yield {**base, "model_head_size": base["head"], **turn}
    for head, backend in itertools.product([64, 80, 100, 128, 256, 264, 320, 512, 576], blocks.PLAIN[:4]):
        for cc in ("8.9", "9.0", "10.0", "11.0", "12.0"):
            yield {"backend": backend, "cc": cc, "head": head, "model_head_size": head}
    sparse: dict[str, Any] = {
        "use_mla": True,
        "sparse": True,
        "head": 576,
        "model_q_heads": 16,
        **dims,
        "index_topk": 2048,
    }
    for backend in blocks.MLA:
        for cc in ("9.0", "10.0", "12.0"):
            same = {**sparse, "backend": backend, "cc": cc, "sparse": "SPARSE" in backend}
            for turn in (
                {"index_topk": None},
                {"index_topk": 1000},
                {"index_topk": 1024},
                {"mla_nope": 96},
                {"mla_lora": 256},
                {"mla_rope": 32},
                {"head": 512},
                {"head": 512, "mla_rope": 0, "mla_nope": 256},
                {"mla_rope": 0, "mla_nope": 128},
                {"model_q_heads": 24},
                {"model_q_heads": 128},
                {"model_q_heads": 64, "dcp": 2},
                {"model_q_heads": 8, "dcp": 2},
                {"tokenspeed": False},
                {"fa4_cute": False},
                {"flashinfer": False},
                {"flashmla_built": False},
                {"flashinfer_mla_sparse_sm90": False},
                {"flashinfer_mla_sparse_sm120": False},
                {"dtype": "fp16"},
                {"model": False},
                {"mla_v": 256},
                {"fa_built": []},
            ):
                yield {**same, **turn}
        yield {**sparse, "backend": backend, "cc": "9.0", "head": 512, "model": False}
    yield {**sparse, "backend": "FLASH_ATTN_MLA_SPARSE_FA4", "cc": "10.0", "config": False}
    for more in ({}, {"config": False}, {"model": False}, {"dcp": 2}, {"cubins": False}):
        yield (
            {"backend": "FLASHINFER", "cc": "10.0", "adaptive": True, **more}
            if "config" not in more
            else {"backend": "FLEX_ATTENTION", **more}
        )
    yield {"backend": "FLASHINFER", "cc": "10.0", "adaptive": True, "model": False}
    yield {"backend": "FLASH_ATTN", "cc": "9.0", "head": 512, "platform": "xpu"}
    yield {"backend": "TRITON_FLASH_ATTN", "cc": "9.0", "head": 512, "platform": "xpu"}


MLADIR = "v1.attention.backends.mla"
VALIDATE = Piece(
    name="validate_configuration",
    about="validate_configuration of each backend: the reasons against a layer, in vLLM's order and words",
    functions=(
        "v1.attention.backend:AttentionBackend.validate_configuration",
        "v1.attention.backends.flash_attn:FlashAttentionBackend.supports_head_size",
        "v1.attention.backends.flash_attn:FlashAttentionBackend.supports_kv_cache_dtype",
        "v1.attention.backends.flash_attn:FlashAttentionBackend.supports_combination",
        "v1.attention.backends.flashinfer:FlashInferBackend.supports_kv_cache_dtype",
        "v1.attention.backends.flashinfer:FlashInferBackend.supports_combination",
        "v1.attention.backends.flashinfer:FlashInferBackend.supports_sink",
        "v1.attention.backends.flashinfer:FlashInferBackend.supports_device_cpu_query_lens_mismatch",
        "v1.attention.backends.triton_attn:TritonAttentionBackend.supports_block_size",
        "v1.attention.backends.turboquant_attn:TurboQuantAttentionBackend.supports_kv_cache_dtype",
        "v1.attention.backends.triton_flash_attn:_FABackend.supports_combination",
        f"{MLADIR}.flashinfer_mla:FlashInferMLABackend.supports_combination",
        f"{MLADIR}.tokenspeed_mla:TokenspeedMLABackend.supports_combination",
        f"{MLADIR}.flashattn_mla:FlashAttnMLABackend.supports_combination",
        f"{MLADIR}.flashmla:FlashMLABackend.supports_combination",
        f"{MLADIR}.flashinfer_mla_sparse:FlashInferMLASparseTRTLLMBackend.supports_combination",
        f"{MLADIR}.flashinfer_mla_sparse:FlashInferMLASparseSM120Backend.supports_combination",
        f"{MLADIR}.flashinfer_mla_sparse_sm90:FlashInferMLASparseSM90Backend.supports_combination",
        f"{MLADIR}.flashmla_sparse:FlashMLASparseBackend.supports_combination",
        f"{MLADIR}.flashattn_mla_sparse:FlashAttnMLASparseBackend.supports_combination",
        f"{MLADIR}.flashattn_mla_sparse:FlashAttnMLASparseFA4Backend.supports_combination",
        "v1.attention.ops.flashmla:is_flashmla_dense_supported",
        "utils.flashinfer:supports_trtllm_attention",
    ),
    run=validate_run,
    draw=validate_draw,
    edges=validate_edges,
    defaults={"backend": "FLASH_ATTN", **LAYER},
    count=12000,
)


PIECES = (VALIDATE,)
