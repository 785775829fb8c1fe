"""Flat descriptions of KV cache specs, made into vLLM's own spec objects and back.

The keys of a description and their defaults are `DEFAULTS`; `tests/vectors/README.md` explains them.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from . import world

DEFAULTS: dict[str, Any] = {
    "kind": "full",
    "block": 16,
    "heads": 8,
    "head": 128,
    "head_v": None,
    "dtype": "bf16",
    "kv": "auto",
    "backend": None,
    "window": None,
    "extra_retained": 0,
    "chunk": None,
    "padded": None,
    "alignment": None,
    "tokens_per_state": 1,
    "dcp_sharded": True,
    "shapes": None,
    "state_dtypes": None,
    "cache_mode": "none",
    "spec_blocks": 0,
    "checkpoint_blocks": 0,
    "replicated": False,
    "sink_len": None,
    "stride": None,
    "draft": False,
}
KV_DTYPES = (
    "auto float16 bfloat16 fp8 fp8_e4m3 fp8_e5m2 nvfp4 nvfp4_4over6 int8_per_token_head fp8_per_token_head "
    "int4_per_token_head turboquant_k8v4 turboquant_4bit_nc turboquant_k3v4_nc turboquant_3bit_nc fp8_ds_mla "
    "nvfp4_ds_mla fp8_inc"
).split()
KINDS = {
    "full": "FullAttentionSpec",
    "window": "SlidingWindowSpec",
    "chunked": "ChunkedLocalAttentionSpec",
    "mla": "MLAAttentionSpec",
    "window_mla": "SlidingWindowMLASpec",
    "mamba": "MambaSpec",
    "cross": "CrossAttentionSpec",
    "encoder_only": "EncoderOnlyAttentionSpec",
    "rswa": "RSWASpec",
    "sink": "SinkFullAttentionSpec",
    "ring": "CircularBufferSpec",
    "hidden": "HiddenStateCacheSpec",
}
PACKED_BY = {"nvfp4": "FLASHINFER", "nvfp4_4over6": "FLASHINFER"}


def backend_class(name: str) -> Any:
    """vLLM's class of that backend name (an `AttentionBackendEnum` member, or an indexer's own name)."""
    own = {
        "DEEPSEEK_V32_INDEXER": "DeepseekV32IndexerBackend",
        "DEEPSEEK_V4_INDEXER": "DeepseekV4IndexerBackend",
        "DEEPSEEK_V41_INDEXER": "DeepseekV41IndexerBackend",
    }
    if name in own:
        return world.get(f"v1.attention.backends.mla.indexer:{own[name]}")
    return world.get("v1.attention.backends.registry:AttentionBackendEnum")[name].get_class()


def storage_dtype(kv: str, model: str) -> Any:
    """The dtype a cache of that KV dtype is stored in."""
    return world.dtype(model) if kv == "auto" else world.get("utils.torch_utils:STR_DTYPE_TO_TORCH_DTYPE")[kv]


def make(description: Mapping[str, Any]) -> Any:
    """vLLM's spec object; `backend`, if given, customises it as the attention layer would."""
    d = {**DEFAULTS, **description}
    cls = world.get(f"v1.kv_cache_interface:{KINDS[d['kind']]}")
    if d["kind"] == "mamba":
        return cls(
            block_size=d["block"],
            shapes=tuple(map(tuple, d["shapes"])),
            dtypes=tuple(world.dtype(t) for t in d["state_dtypes"]),
            page_size_padded=d["padded"],
            mamba_cache_mode=d["cache_mode"],
            num_speculative_blocks=d["spec_blocks"],
            num_prefill_checkpoint_blocks=d["checkpoint_blocks"],
            tp_replicated=d["replicated"],
            is_draft=d["draft"],
        )
    fields: dict[str, Any] = {
        "block_size": d["block"],
        "num_kv_heads": d["heads"],
        "head_size": d["head"],
        "dtype": storage_dtype(d["kv"], d["dtype"]),
        "kv_quant_mode": world.get("v1.kv_cache_interface:get_kv_quant_mode")(d["kv"]),
        "page_size_padded": d["padded"],
        "tokens_per_state": d["tokens_per_state"],
        "dcp_sharded": d["dcp_sharded"],
        "block_stride_alignment": sizes_in([d["stride"]])[0] if d["stride"] is not None else None,
        "is_draft": d["draft"],
    }
    if d["kind"] in ("mla", "window_mla", "hidden"):
        fields["cache_dtype_str"] = d["kv"]
        fields["alignment"] = d["alignment"]
        fields["state_content_bytes"] = {"fp8_ds_mla": 656, "nvfp4_ds_mla": 352}.get(d["kv"])
    else:
        fields["head_size_v"] = d["head_v"]
    if d["kind"] in ("window", "window_mla"):
        fields["sliding_window"] = d["window"]
        fields["extra_retained_tokens"] = d["extra_retained"]
    if d["kind"] == "chunked":
        fields["attention_chunk_size"] = d["chunk"]
    if d["kind"] in ("full", "sink") and d["window"] is not None:
        fields["sliding_window"] = d["window"]
    if d["kind"] in ("full", "sink") and d["chunk"] is not None:
        fields["attention_chunk_size"] = d["chunk"]
    if d["kind"] == "rswa":
        fields["rswa_window"] = d["window"]
    if d["kind"] == "sink":
        fields["sink_len"] = d["sink_len"]
    spec = cls(**fields)
    return backend_class(d["backend"]).customize_spec(spec) if d["backend"] else spec


def sizes_out(sizes: Any) -> list[int | str]:
    """Declared kernel block sizes: an exact size is a number, `MultipleOf(n)` is `n../n`."""
    return [s if isinstance(s, int) else f"{s.base}../{s.base}" for s in sizes]


def sizes_in(sizes: list[int | str]) -> list[Any]:
    """The inverse of `sizes_out`."""
    multiple = world.get("v1.attention.backend:MultipleOf")
    return [s if isinstance(s, int) else multiple(int(s.partition("..")[0])) for s in sizes]


def lean(description: dict[str, Any]) -> dict[str, Any]:
    """Without the keys that hold their default."""
    return {k: v for k, v in description.items() if DEFAULTS[k] != v}


def kernel_backend(kv: str, rng: random.Random) -> str:
    """A backend whose kernels read that KV dtype, so that its packing applies."""
    if kv.startswith("nvfp4") and kv != "nvfp4_ds_mla":
        return "FLASHINFER"
    if kv.endswith("per_token_head"):
        return "TRITON_ATTN"
    if kv.startswith("turboquant"):
        return "TURBOQUANT"
    return rng.choice(["FLASH_ATTN", "FLASHINFER", "TRITON_ATTN"])


def draw_attention(rng: random.Random, kinds: tuple[str, ...] = ("full",), packed: bool = True) -> dict[str, Any]:
    """A random attention spec of one of these kinds."""
    kind = rng.choice(kinds)
    d: dict[str, Any] = {"kind": kind, "block": rng.choice([1, 8, 16, 32, 48, 64, 128, 256, 400, 832, 896, 1024, 1056])}
    d["dtype"] = rng.choice(["bf16", "bf16", "fp16", "fp32"])
    if kind in ("mla", "window_mla"):
        d["heads"] = 1
        d["head"] = rng.choice([576, 512, 320, 128, 64, rng.randrange(64, 640, 16)])
        d["kv"] = rng.choice(["auto", "auto", "fp8", "fp8_e4m3", "fp8_ds_mla", "nvfp4_ds_mla", "bfloat16"])
        d["tokens_per_state"] = rng.choice([1, 1, 1, 4])
        if rng.random() < 0.25:
            d["alignment"] = rng.choice([64, 128, 512, 576, 1152])
    else:
        d["heads"] = rng.choice([1, 2, 3, 4, 5, 8, 10, 16, 32])
        d["head"] = rng.choice([64, 80, 96, 128, 192, 256, 512, rng.randrange(16, 528, 16)])
        d["kv"] = rng.choice(KV_DTYPES[:15] if packed else KV_DTYPES[:6])
        if rng.random() < 0.15:
            d["head_v"] = rng.choice([64, 128, 256])
        if packed and rng.random() < 0.8:
            d["backend"] = kernel_backend(d["kv"], rng)
    if kind in ("window", "window_mla", "rswa"):
        d["window"] = rng.choice([1, 128, 512, 1024, 2048, 4096, rng.randrange(1, 9000)])
        if kind != "rswa" and rng.random() < 0.2:
            d["extra_retained"] = rng.randrange(0, 9)
    if kind == "chunked":
        d["chunk"] = rng.choice([128, 2048, 8192, rng.randrange(1, 9000)])
    if kind == "sink":
        d["sink_len"] = rng.choice([None, 4, 128])
    if kind in ("full", "sink") and rng.random() < 0.15:
        d[rng.choice(["window", "chunk"])] = rng.choice([512, 2048])
    return lean(d)


def draw_mamba(rng: random.Random) -> dict[str, Any]:
    """A random state-space spec: gated delta net, Mamba-2 or a short convolution."""
    shape = rng.choice(["gdn", "mamba2", "conv"])
    heads = rng.choice([8, 12, 24, 32, 48, 64, 128])
    dim = rng.choice([64, 80, 128, 256])
    conv = rng.choice([2560, 4096, 5120, 6144, 8192, 10240]) // rng.choice([1, 2, 4])
    spec_tokens = rng.choice([0, 0, 1, 3, 7, 15])
    conv_shape = [3 + spec_tokens, conv]
    d: dict[str, Any] = {"kind": "mamba", "spec_blocks": spec_tokens, "cache_mode": rng.choice(["none", "align"])}
    d["block"] = rng.choice([16, 832, 16384])
    state = rng.choice(["bf16", "fp32"])
    if shape == "conv":
        d |= {"shapes": [conv_shape], "state_dtypes": ["bf16"]}
    else:
        d |= {
            "shapes": [conv_shape, [heads, dim, dim if shape == "gdn" else rng.choice([16, 64, 128, 256])]],
            "state_dtypes": ["bf16", state],
        }
    if d["cache_mode"] == "align" and rng.random() < 0.3:
        d["checkpoint_blocks"] = 1
    if rng.random() < 0.05:
        d["replicated"] = True
    return lean(d)
