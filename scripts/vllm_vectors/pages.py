"""Page sizes: bytes of one block of one layer, and the state a Mamba-like layer keeps."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable
from typing import Any

from . import specs, world
from .record import Piece

KINDS = ("full", "full", "window", "chunked", "mla", "window_mla", "cross", "rswa", "sink", "encoder_only", "ring")
CALCULATOR = "model_executor.layers.mamba.mamba_utils:MambaStateShapeCalculator"


def page_run(i: dict[str, Any]) -> Any:
    spec = specs.make(i["spec"])
    config = world.config()
    attention = i["spec"].get("kind", "full") != "mamba"
    return {
        "page_bytes": spec.page_size_bytes,
        "unpadded_bytes": spec.unpadded_page_size_bytes if attention else spec.real_page_size_bytes,
        "state_bytes": spec.state_content_size_bytes,
        "head_slots": spec.num_heads,
        "states": spec.num_states,
        "max_request_bytes": spec.max_memory_usage_bytes(config),
        "request_blocks": spec.max_num_blocks_per_req(config, i["max_model_len"]),
        "quant_mode": spec.kv_quant_mode.name if attention else None,
    }


def page_draw(rng: random.Random) -> dict[str, Any]:
    spec = specs.draw_mamba(rng) if rng.random() < 0.15 else specs.draw_attention(rng, KINDS)
    if rng.random() < 0.12:
        spec["padded"] = rng.choice([1 << rng.randrange(8, 24), rng.randrange(1, 4_000_000)])
    i: dict[str, Any] = {"spec": spec}
    i["max_model_len"] = rng.choice([1, 100, 4096, 16384, 131072, 262144, rng.randrange(1, 300000)])
    i["in_flight_tokens"] = rng.choice([1, 2048, 4096, 8192, 16384, 32768])
    if rng.random() < 0.2:
        i["dcp"] = rng.choice([2, 4])
        spec["dcp_sharded"] = rng.random() < 0.6 and spec.get("kind") not in ("window", "window_mla")
        if spec.get("kind") == "mamba":
            del spec["dcp_sharded"]
    if spec.get("cache_mode") == "align" and rng.random() < 0.9:
        i["mamba_cache_mode"] = "align"
    if spec.get("kind") == "cross":
        i["max_encoder_tokens"] = rng.choice([0, 1500, 6404])
    return i


def page_edges() -> Iterable[dict[str, Any]]:
    for kv, head, block in itertools.product(specs.KV_DTYPES[:15], [64, 128, 256], [16, 832]):
        backend = specs.kernel_backend(kv, random.Random(0))
        yield {"spec": specs.lean({"kv": kv, "head": head, "block": block, "backend": backend})}
        yield {
            "spec": specs.lean(
                {"kv": kv, "head": head, "block": block, "kind": "window", "window": 2048, "backend": backend}
            )
        }
    for kv, head in itertools.product(["auto", "fp8", "fp8_ds_mla", "nvfp4_ds_mla"], [512, 576]):
        yield {"spec": specs.lean({"kind": "mla", "heads": 1, "head": head, "kv": kv, "block": 64})}
    for kv in ("octave_k3v4", "octave_k3v3", "octave_k3v3_compact", "ultraquant_4bit", "fp8_inc"):
        yield {"spec": {"kv": kv, "head": 128}}
    for kv in ("auto", "fp8", "int8_per_token_head"):
        yield {"spec": {"kv": kv, "head": 128, "backend": "TURBOQUANT"}}
    yield {"spec": {"kind": "mla", "heads": 1, "head": 512, "tokens_per_state": 4, "block": 256}}
    yield {"spec": {"kv": "nvfp4", "head": 256, "head_v": 128, "backend": "FLASHINFER"}}
    gdn = {"kind": "mamba", "shapes": [[10, 10240], [48, 128, 128]], "state_dtypes": ["bf16", "fp32"], "spec_blocks": 7}
    yield {"spec": gdn}
    yield {"spec": {**gdn, "padded": 3407872}}
    yield {"spec": {**gdn, "padded": 3350527}}
    yield {"spec": {**gdn, "cache_mode": "align"}, "mamba_cache_mode": "align"}
    yield {"spec": {"heads": 1, "head": 2, "dtype": "fp32", "padded": 384}}
    yield {"spec": {"kind": "window", "window": 2048, "dcp_sharded": True}, "dcp": 2}


KV = "v1.kv_cache_interface"
PAGES = Piece(
    name="page_sizes",
    about="bytes of a page, of a request and blocks of a request for one layer's spec",
    functions=(
        f"{KV}:AttentionSpec.page_size_bytes",
        f"{KV}:AttentionSpec.unpadded_page_size_bytes",
        f"{KV}:AttentionSpec.state_content_size_bytes",
        f"{KV}:AttentionSpec.num_heads",
        f"{KV}:AttentionSpec.max_num_blocks_per_req",
        f"{KV}:KVCacheSpec.get_num_kernel_states",
        f"{KV}:get_kv_quant_mode",
        f"{KV}:_apply_alignment_padding",
        f"{KV}:FullAttentionSpec.max_memory_usage_bytes",
        f"{KV}:SlidingWindowSpec.max_admission_blocks_per_request",
        f"{KV}:SlidingWindowSpec.max_memory_usage_bytes",
        f"{KV}:ChunkedLocalAttentionSpec.max_admission_blocks_per_request",
        f"{KV}:CrossAttentionSpec.max_memory_usage_bytes",
        f"{KV}:EncoderOnlyAttentionSpec.max_memory_usage_bytes",
        f"{KV}:CircularBufferSpec.max_memory_usage_bytes",
        f"{KV}:MambaSpec.page_size_bytes",
        f"{KV}:MambaSpec.max_memory_usage_bytes",
        f"{KV}:MambaSpec.max_num_blocks_per_req",
        "v1.attention.backends.flashinfer:FlashInferBackend.customize_spec",
        "v1.attention.backends.triton_attn:TritonAttentionBackend.customize_spec",
        "v1.attention.backends.turboquant_attn:TurboQuantAttentionBackend.customize_spec",
    ),
    run=page_run,
    draw=page_draw,
    edges=page_edges,
    defaults={"spec": {}, "in_flight_tokens": 8192, "mamba_cache_mode": "none", "max_encoder_tokens": 0},
    count=8000,
    unreached={f"{KV}:get_kv_quant_mode": "KV dtypes that a plugin registers"},
)

SHAPES: dict[str, dict[str, list[Any]]] = {
    "gated_delta_net_state_shape": {
        "num_k_heads": [1, 4, 8, 16, 32],
        "num_v_heads": [8, 16, 24, 32, 48, 64],
        "head_k_dim": [64, 128, 256],
        "head_v_dim": [64, 128, 256],
        "conv_kernel_size": [2, 3, 4],
        "num_spec": [0, 1, 3, 7, 15],
    },
    "mamba2_state_shape": {
        "intermediate_size": [2048, 4096, 5120, 8192],
        "n_groups": [1, 2, 4, 8],
        "num_heads": [8, 24, 32, 64, 128],
        "head_dim": [64, 80, 128],
        "state_size": [16, 64, 128, 256],
        "conv_kernel": [3, 4],
        "num_spec": [0, 1, 3, 7],
    },
    "mamba1_state_shape": {"intermediate_size": [2048, 4096, 8192], "state_size": [16, 64, 128], "conv_kernel": [3, 4]},
    "short_conv_state_shape": {"intermediate_size": [1024, 2048, 4096], "conv_kernel": [3, 4], "num_spec": [0, 1, 7]},
    "linear_attention_state_shape": {"num_heads": [8, 32, 64], "head_dim": [64, 96, 128]},
    "kda_state_shape": {
        "num_heads": [8, 16, 32, 64],
        "head_dim": [64, 128],
        "num_k_heads": [None, 8, 16],
        "head_k_dim": [None, 64, 128],
        "conv_kernel_size": [3, 4],
        "num_spec": [0, 1, 3, 7],
    },
}


def shape_run(i: dict[str, Any]) -> Any:
    function = getattr(world.get(CALCULATOR), i["function"])
    tp = {"tp_size" if "linear" in i["function"] else "tp_world_size": i["tp"]}
    return {"shapes": [list(s) for s in function(**tp, **i["arguments"])]}


def shape_draw(rng: random.Random) -> dict[str, Any]:
    function = rng.choices(list(SHAPES), [8, 8, 2, 2, 1, 4])[0]
    return {
        "function": function,
        "arguments": {k: rng.choice(v) for k, v in SHAPES[function].items()},
        "tp": rng.choice([1, 1, 2, 4, 8]),
    }


STATES = Piece(
    name="mamba_state_shapes",
    about="shapes of the state that a Mamba-like layer keeps for one request on one tensor-parallel rank",
    functions=tuple(f"{CALCULATOR}.{f}" for f in (*SHAPES, "extra_groups_for_head_shards")),
    run=shape_run,
    draw=shape_draw,
    defaults={"function": "gated_delta_net_state_shape", "arguments": {}, "tp": 1},
)
PIECES = (PAGES, STATES)
