"""What FlashInfer's metadata builder decides for one KV cache group: decode kernel, query dtypes, CUDA-graph level."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

from . import draws, specs, world
from .record import Piece

MODULE = "v1.attention.backends.flashinfer"
BUILDER = f"{MODULE}:FlashInferMetadataBuilder"
DTYPE_NAMES = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "float32": "fp32",
    "float8_e4m3fn": "fp8_e4m3",
    "float8_e5m2": "fp8_e5m2",
    "uint8": "u8",
}


def _name(dtype: Any) -> str:
    text = str(dtype).removeprefix("torch.")
    return DTYPE_NAMES.get(text, text)


def _patch(i: dict[str, Any]) -> Any:
    """Replaces what reads layers and process groups by the input's words; returns the module."""
    module = world.get(MODULE)
    module.get_dcp_world_size_and_rank = lambda sharded: (i["dcp"] if sharded else 1, 0)
    module.get_num_attention_heads_from_layers = lambda *_a: i["q_heads"]
    module.get_per_layer_parameters = lambda *_a: None
    module.infer_global_hyperparameters = lambda _p: SimpleNamespace(
        sm_scale=1.0, window_left=i["window_left"], logits_soft_cap=i["layer_softcap"], has_sinks=i["sinks"]
    )
    return module


def _wrapper(module: Any, builder: Any) -> str:
    """The `backend` that the native decode wrapper would be made with."""
    asked: list[str] = []

    def made(*_args: Any, **keywords: Any) -> Any:
        asked.append(keywords["backend"])
        return SimpleNamespace()

    real = module.BatchDecodeWithPagedKVCacheWrapper
    module.BatchDecodeWithPagedKVCacheWrapper = made
    builder._workspace_buffer = object()
    try:
        builder._get_decode_wrapper(1)
    finally:
        module.BatchDecodeWithPagedKVCacheWrapper = real
    return asked[0]


def builder_run(i: dict[str, Any]) -> Any:
    module = _patch(i)
    spec = specs.make(i["spec"])
    if i["full_graphs"]:
        # Buffers only: no decision of the builder rests on it.
        compilation = world.config().compilation_config
        compilation.cudagraph_mode.decode_mode = lambda: module.CUDAGraphMode.FULL
        compilation.max_cudagraph_capture_size = i["capture_size"]
    builder = world.get(BUILDER)(spec, ["layer.0"], world.config(), "cpu")
    kernel = builder.flashinfer_trtllm_api_decode_kernel
    return {
        "decode_kernel": kernel.value if kernel is not None else None,
        "native_wrapper": _wrapper(module, builder),
        "q_prefill": _name(builder.q_data_type_prefill),
        "q_decode": _name(builder.q_data_type_decode),
        "kv_dtype": builder.kv_cache_dtype
        if isinstance(builder.kv_cache_dtype, str)
        else _name(builder.kv_cache_dtype),
        "reorder_threshold": builder.reorder_batch_threshold,
        "varlen_decode": bool(builder.use_trtllm_gen_varlen_decode),
        "trtllm_dcp_prefill": bool(builder.use_trtllm_dcp_prefill),
        "head_dim_warning": any("does not support head_dim" in w for w in world.warned),
    }


def _draw_group(rng: random.Random) -> dict[str, Any]:
    i: dict[str, Any] = {**draws.machine(rng), **draws.model(rng)}
    for key in (
        "model",
        "fa_built",
        "fa_version",
        "mm_prefix",
        "rswa",
        "diffusion",
        "softcap",
        "pcp",
        "tokenspeed",
        "fa4_cute",
        "flashmla_built",
        "flashinfer_mla_sparse_sm90",
        "flashinfer_mla_sparse_sm120",
    ):
        i.pop(key, None)
    i["cache_dtype"] = rng.choice(["auto", "auto", "fp8", "fp8_e4m3", "fp8_e5m2", "nvfp4", "nvfp4_4over6"])
    i["model_dtype"] = rng.choice(["bf16", "bf16", "fp16"])
    return i


def _spec_for(rng: random.Random, i: dict[str, Any]) -> dict[str, Any]:
    d: dict[str, Any] = {
        "heads": i["model_kv_heads"],
        "block": rng.choice([16, 32, 64, 64, 64, 64, 128, 256 if rng.random() < 0.5 else 1024]),
    }
    d["head"] = rng.choice([64, 128, 128, 256, 256, 512, rng.randrange(8, 544, 8)])
    d["kv"] = i["cache_dtype"] if rng.random() < 0.85 else "auto"
    d["dtype"] = i["model_dtype"] if rng.random() < 0.97 else "fp32"
    if rng.random() < 0.15:
        d["heads"] = rng.choice([1, 2, 4, 8])
    if rng.random() < 0.1:
        d["dcp_sharded"] = False
    if rng.random() < 0.25:
        d |= {"kind": "window", "window": 1024}
    if d["kv"].startswith("nvfp4"):
        d["backend"] = "FLASHINFER"
    return specs.lean(d)


def builder_draw(rng: random.Random) -> dict[str, Any]:
    i = _draw_group(rng)
    i["spec"] = _spec_for(rng, i)
    i["q_heads"] = rng.choice([None, None, i["model_q_heads"], 24, 64])
    chances: list[tuple[float, str, list[Any]]] = [
        (0.12, "sinks", [True]),
        (0.12, "no_q_quant", [True]),
        (0.15, "window_left", [1023]),
        (0.1, "layer_softcap", [30.0]),
        (0.4, "spec_tokens", [1, 3, 7]),
        (0.1, "adaptive", [True]),
    ]
    for chance, key, values in chances:
        if rng.random() < chance:
            i[key] = rng.choice(values)
    return i


def builder_edges() -> Iterable[dict[str, Any]]:
    for cc, head, kv in itertools.product(
        draws.CCS[1:], [64, 80, 128, 256, 272, 512], ["auto", "fp8", "fp8_e5m2", "nvfp4"]
    ):
        spec = specs.lean({"head": head, "kv": kv, "block": 64, "backend": "FLASHINFER" if kv == "nvfp4" else None})
        yield {"cc": cc, "spec": spec, "cache_dtype": kv}
        yield {"cc": cc, "spec": spec, "cache_dtype": kv, "dcp": 2}
        yield {"cc": cc, "spec": spec, "cache_dtype": kv, "use_trtllm": False}
        yield {"cc": cc, "spec": spec, "cache_dtype": kv, "spec_tokens": 3}
    for cc in ("9.0", "10.0"):
        yield {"cc": cc, "spec": {"block": 128}}
        yield {"cc": cc, "spec": {"block": 64}, "sinks": True}
        yield {"cc": cc, "spec": {"block": 64}, "batch_invariant": True}
        yield {"cc": cc, "spec": {"block": 64}, "adaptive": True, "spec_tokens": 3}
        yield {"cc": cc, "spec": {"block": 64, "dtype": "fp16"}}
        yield {"cc": cc, "spec": {"block": 64, "kv": "int8_per_token_head"}, "cache_dtype": "int8_per_token_head"}
        for capture in (None, 512):
            yield {"cc": cc, "spec": {"block": 64}, "full_graphs": True, "capture_size": capture, "spec_tokens": 3}


DECIDE = Piece(
    name="flashinfer_group",
    about="FlashInferMetadataBuilder.__init__: decode kernel, native wrapper, query dtypes of one KV cache group",
    functions=(
        f"{BUILDER}.get_q_data_type",
        f"{BUILDER}._get_flashinfer_trtllm_api_decode_kernel",
        f"{BUILDER}._uses_trtllm_gen_varlen_decode",
        f"{BUILDER}.__init__",
        f"{MODULE}:_is_xqa_head_dim_supported",
        f"{MODULE}:_use_fa2_native_decode",
        f"{MODULE}:_nvfp4_kv_on_fa2",
        f"{MODULE}:FlashInferBackend.get_dtype_for_flashinfer",
        "v1.attention.backend:AttentionMetadataBuilder._init_reorder_batch_threshold",
        "utils.flashinfer:can_use_trtllm_attention",
    ),
    run=builder_run,
    draw=builder_draw,
    edges=builder_edges,
    defaults={
        "spec": {},
        "q_heads": None,
        "sinks": False,
        "no_q_quant": False,
        "window_left": -1,
        "layer_softcap": None,
        "spec_tokens": 0,
        "adaptive": False,
        "max_model_len": 1024,
        "full_graphs": False,
        "capture_size": None,
    },
    count=7000,
)


def graph_run(i: dict[str, Any]) -> Any:
    made = {f"layer.{n}": specs.make(s) for n, s in enumerate(i["group"])}
    spec = next(iter(made.values())) if len(made) == 1 and not i["uniform"] else None
    if spec is None:
        wrap = world.get("v1.kv_cache_interface:UniformTypeKVCacheSpecs")
        spec = wrap(block_size=i["group"][0].get("block", 16) if i["group"] else 16, kv_cache_specs=made)
    builder = world.get(BUILDER)
    return {
        "level": builder.get_cudagraph_support(world.config(), spec).name,
        "varlen_max_query": builder.get_varlen_cudagraph_max_query_len(world.config(), spec),
    }


def graph_draw(rng: random.Random) -> dict[str, Any]:
    i = _draw_group(rng)
    i["group"] = [_spec_for(rng, i) for _ in range(rng.choices([1, 2, 3], [70, 20, 10])[0])]
    if len(i["group"]) == 1 and rng.random() < 0.05:
        i["group"] = [specs.draw_mamba(rng)]
    i["uniform"] = len(i["group"]) > 1
    if rng.random() < 0.4:
        i["spec_tokens"] = rng.choice([1, 3, 7])
    if rng.random() < 0.2:
        i["adaptive"] = True
    return i


def graph_edges() -> Iterable[dict[str, Any]]:
    for cc, head, kv, non_causal in itertools.product(draws.CCS, [64, 128, 256, 512], ["auto", "nvfp4"], [False, True]):
        spec = specs.lean({"head": head, "kv": kv, "backend": "FLASHINFER" if kv == "nvfp4" else None})
        yield {"cc": cc, "group": [spec], "cache_dtype": kv, "non_causal": non_causal}
        yield {"cc": cc, "group": [spec, {"head": 512}], "uniform": True, "cache_dtype": kv, "non_causal": non_causal}
        yield {"cc": cc, "group": [spec], "cache_dtype": kv, "adaptive": True, "spec_tokens": 3}
    for cc in ("8.0", "10.0"):
        yield {"cc": cc, "group": [], "uniform": True}


GRAPH = Piece(
    name="flashinfer_graph",
    about="FlashInferMetadataBuilder.get_cudagraph_support of one KV cache group",
    functions=(f"{BUILDER}.get_cudagraph_support", f"{BUILDER}.get_varlen_cudagraph_max_query_len"),
    run=graph_run,
    draw=graph_draw,
    edges=graph_edges,
    defaults={"group": [], "uniform": False, "spec_tokens": 0, "adaptive": False},
)


def prefill_run(i: dict[str, Any]) -> Any:
    use = world.get("utils.flashinfer:use_trtllm_attention")
    q = world.get("platforms:current_platform").fp8_dtype() if i["q_dtype"] == "fp8" else world.dtype(i["q_dtype"])
    return {
        "trtllm": use(
            num_qo_heads=i["model_q_heads"],
            num_kv_heads=i["model_kv_heads"],
            num_tokens=i["tokens"],
            max_seq_len=i["max_model_len"],
            dcp_world_size=i["dcp"],
            kv_cache_dtype=i["cache_dtype"],
            q_dtype=q,
            is_prefill=i["prefill"],
            force_use_trtllm=i["use_trtllm"],
            has_sinks=i["sinks"],
            has_spec=i["spec"],
        )
    }


def prefill_draw(rng: random.Random) -> dict[str, Any]:
    i = _draw_group(rng)
    i.pop("model_head_size")
    i.pop("non_causal", None)
    return i | {
        "prefill": rng.random() < 0.6,
        "sinks": rng.random() < 0.15,
        "spec": rng.random() < 0.2,
        "tokens": rng.choice([1, 128, 256, 257, 8192]),
        "q_dtype": rng.choice(["bf16", "bf16", "fp16", "fp8"]),
    }


PREFILL = Piece(
    name="flashinfer_trtllm",
    about="use_trtllm_attention: whether a prefill (or a decode) takes the TRTLLM path",
    functions=("utils.flashinfer:use_trtllm_attention", "utils.flashinfer:supports_trtllm_attention"),
    run=prefill_run,
    draw=prefill_draw,
    defaults={"prefill": True, "sinks": False, "spec": False, "tokens": 1, "q_dtype": "bf16"},
)
PIECES = (DECIDE, GRAPH, PREFILL)
