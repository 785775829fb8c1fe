"""Golden vectors' inputs as attnroute's engine room takes them, and the answer of each function in the vectors' words."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import replace
from math import lcm
from pathlib import Path
from types import ModuleType
from typing import Any

from attnroute.engines import align, blocks, selection
from attnroute.engines.capacity import check_partition, count_blocks, retained
from attnroute.engines.data import Backend, Engine
from attnroute.engines.facts import World, mode_of, spec_size_facts, unconfigured, without_model, world_facts
from attnroute.engines.flashinfer import group_facts, group_graph, group_kernels
from attnroute.engines.groups import Layers, group_kind, make_groups, unify
from attnroute.engines.layout import common_layouts, declared_layouts, resolve_layout
from attnroute.engines.packing import approximate_gcd
from attnroute.engines.rules import EngineError, Facts
from attnroute.engines.spec import (
    CacheSpec,
    Limits,
    attention_spec,
    packed,
    request_pages,
    table_width,
)

ELEMENT = {"fp16": 2, "bf16": 2, "fp32": 4, "u8": 1, "int8": 1, "fp8": 1}
ASKED = [1, 8, 16, 32, 48, 64, 96, 128, 256, 400, 512, 832, 896, 1024, 1056, 1648]
Replay = Callable[..., Any]


def load_module() -> ModuleType:
    """tests/vectors/load.py."""
    path = Path(__file__).parent.parent / "vectors" / "load.py"
    spec = importlib.util.spec_from_file_location("vectors_load", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def world(i: dict[str, Any]) -> World:
    """The machine and model of an input."""
    w = World(
        cc=None if i["cc"] is None else tuple(map(int, i["cc"].split("."))),  # type: ignore[arg-type]
        fa_built=tuple(i["fa_built"]) if i.get("fa_package", True) else (),
        **{k: i[k] for k in ("cubins", "flashinfer", "flashinfer_mla_sparse_sm90", "flashinfer_mla_sparse_sm120", "tokenspeed", "fa4_cute",
                             "flashmla_built", "batch_invariant", "cache_dtype", "use_trtllm", "skip_layers", "dcp", "pcp", "mla_nope",
                             "mla_rope", "mla_v", "mla_lora", "index_topk", "model_q_heads", "model_kv_heads", "diffusion")},
        model_head=i["model_head_size"],
        model_softcap=bool(i["softcap"]),
        model_mm_prefix=i["mm_prefix"],
        rswa=i["rswa"] is not None,
        fa_asked=i["fa_version"],
        kv_connector=i.get("kv_connector", False),
    )  # fmt: skip
    if not i["config"]:
        return unconfigured(w)
    return w if i["model"] else without_model(w)


def backend_of(engine: Engine, b: dict[str, Any]) -> Backend:
    if "sizes" in b:
        return engine.made(b["name"], {"block_sizes": [{"sizes": b["sizes"]}], "exact": b.get("exact", False)})
    return engine.backend(b["name"])


def spec_of(engine: Engine, d: dict[str, Any], *, block: int | None = None) -> CacheSpec:
    """A `spec` of the vectors, packed by its backend."""
    kind = d.get("kind", "full")
    block = d.get("block", 16) if block is None else block
    if kind == "mamba":
        tensors = tuple((tuple(s), ELEMENT[t]) for s, t in zip(d["shapes"], d["state_dtypes"], strict=True))
        return CacheSpec(
            "mamba", block, tensors=tensors, padded=d.get("padded"), cache_mode=d.get("cache_mode", "none"),
            spec_blocks=d.get("spec_blocks", 0), checkpoint_blocks=d.get("checkpoint_blocks", 0), replicated=d.get("replicated", False),
            dcp_sharded=False,
        )  # fmt: skip
    rswa = kind == "rswa"
    stride = d.get("stride")
    tokens = int(stride.partition("..")[0]) if isinstance(stride, str) else None
    spec = attention_spec(
        engine, kind, block=block, heads=d.get("heads", 8), head=d.get("head", 128), head_v=d.get("head_v"), kv=d.get("kv", "auto"),
        dtype=d.get("dtype", "bf16"), window=None if rswa else d.get("window"), rswa_window=d.get("window") if rswa else None,
        extra_retained=d.get("extra_retained", 0), chunk=d.get("chunk"), padded=d.get("padded"), alignment=d.get("alignment"),
        tokens_per_state=d.get("tokens_per_state", 1), dcp_sharded=d.get("dcp_sharded", True), sink_len=d.get("sink_len"),
        stride_tokens=tokens, stride_bytes=stride if isinstance(stride, int) else None,
    )  # fmt: skip
    return packed(engine, engine.backend(d["backend"]), spec) if d.get("backend") else spec


def size_facts(engine: Engine, i: dict[str, Any], spec: CacheSpec | None = None) -> Facts:
    return spec_size_facts(engine, world(i), spec)


def fa_version(engine: Engine, i: dict[str, Any]) -> Any:
    w = world(i)
    f = world_facts(
        engine, w, head=i["head"], head_v=i["head_v"], kv=i["kv_asked"], alibi=i["alibi"], sinks=i["sinks"], softcap=i["layer_softcap"],
        kv_block=i["kv_block"], hd256_aware=i["hd256_aware"],
    )  # fmt: skip
    version = f["fa_version"]
    return {
        "version": version,
        "fp8_kv": f["fa_fp8"],
        "sinks": f["fa_default"] in (3, 4),
        "mla": f["fa_mla"],
        "supported": [v for v in (2, 3, 4) if f[f"fa{v}"]],
    }


def kernel_block_sizes(engine: Engine, i: dict[str, Any]) -> Any:
    if i["backend"] == "COMPOSITE":
        pair = [engine.made(f"B{n}", {"block_sizes": [{"sizes": s}]}) for n, s in enumerate(i["sizes"])]
        f = size_facts(engine, i)
        return {"sizes": shown(blocks.intersect(*(blocks.declared_sizes(b, f) for b in pair)))}
    backend = backend_of(engine, {"name": i["backend"], **({"sizes": i["sizes"]} if i["backend"] == "MADE_UP" else {})})
    model = size_facts(engine, i)
    spec = None if i["spec"] is None else spec_of(engine, i["spec"])
    if i["backend"] == "FLASH_ATTN_DIFFKV":
        model = model.but({"head_v": i["diffkv_v"]})
    asked = model if spec is None else size_facts(engine, i, spec)
    return {
        "sizes": shown(blocks.declared_sizes(backend, asked)),
        "preferred": blocks.preferred(backend, model, i["default_block"]),
        "accepts": [b for b in ASKED if blocks.accepts(backend, model, b)],
        "accepts_unset": blocks.accepts(backend, model, None),
    }


def shown(sizes: Any) -> list[Any]:
    return [s.base if s.exact else str(s) for s in sizes]


def preferred_block(engine: Engine, i: dict[str, Any]) -> Any:
    f = size_facts(engine, i)
    return {"block": blocks.preferred_for_all([(backend_of(engine, b), f) for b in i["backends"]], i["default_block"])}


def common_block(engine: Engine, i: dict[str, Any]) -> Any:
    return {"block": blocks.common_block(i["block"], _asked(engine, i, i["backends"]))}


def _asked(engine: Engine, i: dict[str, Any], backends: list[dict[str, Any]]) -> list[blocks.Asked]:
    return [
        (backend_of(engine, b), size_facts(engine, i, None if b.get("spec") is None else spec_of(engine, b["spec"])))
        for b in backends
    ]


def group_kernel_blocks(engine: Engine, i: dict[str, Any]) -> Any:
    found = []
    for g in i["groups"]:
        if g["spec"] == "raw":
            found.append(g["block"])
            continue
        if g["spec"] == "unknown":
            raise EngineError("unknown kv cache spec", "NotImplementedError")
        spec = spec_of(engine, g["spec"], block=g["block"])
        if spec.kind == "encoder_only":
            continue
        if spec.is_state or g.get("packed"):
            found.append(g["block"])
            continue
        f = size_facts(engine, i, spec)
        found.append(blocks.common_block(g["block"], [(backend_of(engine, b), f) for b in g.get("backends", [])]))
    return {"blocks": found}


def page_sizes(engine: Engine, i: dict[str, Any]) -> Any:
    spec = spec_of(engine, i["spec"])
    limits = Limits(i["max_model_len"], i["in_flight_tokens"], i["dcp"], i["mamba_cache_mode"], i["max_encoder_tokens"])
    return {
        "page_bytes": spec.page,
        "unpadded_bytes": spec.unpadded,
        "state_bytes": spec.state_bytes,
        "head_slots": spec.head_slots,
        "states": spec.states,
        "max_request_bytes": request_pages(engine, spec, limits) * spec.page,
        "request_blocks": table_width(engine, spec, limits, i["max_model_len"]),
        "quant_mode": None if spec.is_state else spec.mode,
    }


def _cache(engine: Engine, i: dict[str, Any]) -> align.ModelCache:
    f = size_facts(engine, i)
    states = [spec_of(engine, {"kind": "mamba", "block": -1, **s}).state_bytes for s in i["states"]]
    known = [a for a in i["checkpoint_alignments"] if a is not None]
    return align.ModelCache(
        asked=tuple((backend_of(engine, b), f) for b in i["backends"]), kv=i["cache_dtype"], dtype=i["model_dtype"], head=i["model_head_size"],
        kv_heads=i["model_kv_heads"], mla=i["use_mla"], skip_layers=i["skip_layers"], hybrid=i["hybrid"], state_bytes=max(states, default=0),
        cache_mode=i["mamba_cache_mode"], checkpoint=lcm(*known) if len(known) == len(i["checkpoint_alignments"]) else 1,
        user_block=i["user_block_size"],
    )  # fmt: skip


def _state(i: dict[str, Any]) -> align.BlockState:
    return align.BlockState(i["block_size"], None, i["mamba_page_size_padded"], i["skip_page_size_padded"])


def _aligned(s: align.BlockState) -> dict[str, Any]:
    return {
        "block_size": s.block_size,
        "mamba_block_size": s.mamba_block_size,
        "mamba_page_size_padded": s.mamba_page_padded,
        "skip_page_size_padded": s.skip_page_padded,
    }


def hybrid_alignment(engine: Engine, i: dict[str, Any]) -> Any:
    cache = _cache(engine, i)
    return {**_aligned(align.align_hybrid(engine, cache, _state(i))), "mamba_page_bytes": cache.state_bytes}


def mixed_kv_alignment(engine: Engine, i: dict[str, Any]) -> Any:
    return _aligned(_state(i) if not i["model"] else align.align_mixed(engine, _cache(engine, i), _state(i)))


def block_size_for_model(engine: Engine, i: dict[str, Any]) -> Any:
    return _aligned(_state(i) if not i["model"] else align.block_size_for_model(engine, _cache(engine, i), _state(i)))


def layer_facts(engine: Engine, i: dict[str, Any]) -> Facts:
    return world_facts(
        engine, world(i), head=i["head"], kv=i["kv"], dtype=i["dtype"], block=i["block_size"] if i["user_block_size"] else None,
        mla=i["use_mla"], sparse=i["sparse"], sinks=i["sinks"], per_head_scales=i["per_head_scales"], attn_type=i["attn_type"],
        window=i["sliding"], mm_prefix=i["mm_prefix"], non_causal=i["non_causal"], adaptive=i["adaptive"] and not i["drafter_head"],
        heads=i["heads"], fa4_cute_error="ModuleNotFoundError('import of vllm.vllm_flash_attn.cute.interface halted; None in sys.modules')",
    )  # fmt: skip


def own_sizes(engine: Engine, i: dict[str, Any]) -> Facts:
    """The facts for block sizes as the layer's own cache would say them."""
    kind = "mla" if i["use_mla"] else "full"
    spec = attention_spec(engine, kind, block=1, heads=1, head=i["head"], kv=i["kv"] or "auto", dtype=i["dtype"])
    return spec_size_facts(engine, world(i), spec)


def validate_configuration(engine: Engine, i: dict[str, Any], per_layer: bool = False) -> Any:
    sizes = own_sizes(engine, i) if per_layer else size_facts(engine, i)
    found = selection.reasons_against(engine.backend(i["backend"]), layer_facts(engine, i), sizes)
    return {"reasons": list(found)}


def backend_priority(engine: Engine, i: dict[str, Any]) -> Any:
    f = world_facts(
        engine,
        world(i),
        head=i["head"],
        kv=i["kv"],
        mla=i["use_mla"],
        heads=i["heads"],
        non_causal=i["non_causal"],
        mm_prefix=i["mm_prefix"],
    )
    return {"order": list(selection.priority(engine, f))}


def backend_selection(engine: Engine, i: dict[str, Any], per_layer: bool = False) -> Any:
    sizes = own_sizes(engine, i) if per_layer else size_facts(engine, i)
    request = selection.requested(
        i["request"], i["request_per_kind"], mla=i["use_mla"], window=i["sliding"], attn_type=i["attn_type"]
    )
    try:
        found = selection.select(engine, layer_facts(engine, i), sizes, request)
    except selection.NoBackendError as error:
        return {
            "error": "ValueError",
            "text": "No valid attention backend found for cuda",
            "reasons": {k: list(v) for k, v in error.reasons.items()},
        }
    except EngineError as error:
        return {"error": error.kind, "text": str(error), "reasons": {}}
    return {
        "backend": found.backend.label,
        "reasons": {k: list(v) for k, v in found.reasons.items()},
        "precluded_by_block_size": list(found.precluded),
    }


def layer_block(engine: Engine, i: dict[str, Any]) -> Any:
    from attnroute.engines.layer import layer_spec

    backend = backend_of(engine, i["backend"])
    f = world(i)
    spec = layer_spec(
        engine, f, backend, attn_type=i["attn_type"], kv=i["kv"], dtype=i["model_dtype"], heads=i["heads"], head=i["head"], head_v=i["head_v"],
        window=i["window"], block=i["block_size"], shared_page=i["skip_page_size_padded"],
    )  # fmt: skip
    if spec is None:
        return {"kind": None}
    natural = packed(engine, backend, spec)
    return {"kind": spec.kind, "block": spec.block, "padded": spec.padded, "unpadded_bytes": natural.unpadded}


REPLAYS: dict[str, Replay] = {
    "fa_version": fa_version,
    "kernel_block_sizes": kernel_block_sizes,
    "preferred_block": preferred_block,
    "common_block": common_block,
    "group_kernel_blocks": group_kernel_blocks,
    "page_sizes": page_sizes,
    "hybrid_alignment": hybrid_alignment,
    "mixed_kv_alignment": mixed_kv_alignment,
    "block_size_for_model": block_size_for_model,
    "layer_block": layer_block,
    "validate_configuration": validate_configuration,
    "backend_priority": backend_priority,
    "backend_selection": backend_selection,
}


def answer(engine: Engine, name: str, i: dict[str, Any], **how: bool) -> Any:
    """attnroute's answer to one input, with an exception as the vectors write it."""
    try:
        return REPLAYS[name](engine, i, **how)
    except EngineError as error:
        return {"error": error.kind, "text": str(error)}


def same(name: str, given: Any, expected: Any) -> bool:
    """Whether two answers agree. Of what vLLM asserts or cannot represent, the kind of exception is compared, not the words;
    keys of which attnroute says nothing (named in PARTIAL) are left out.
    """
    if "error" in expected and isinstance(given, dict) and given.get("error") == expected["error"]:
        if (
            expected["error"] in WORDLESS or expected["text"].startswith("unknown kv cache spec")
        ) and "reasons" not in expected:
            return True
    for key in PARTIAL.get(name, ()):
        expected = {k: v for k, v in expected.items() if k != key}
    return bool(given == expected)


WORDLESS = ("AssertionError", "ZeroDivisionError", "TypeError")
PARTIAL = {"flashinfer_group": ("varlen_decode", "trtllm_dcp_prefill"), "flashinfer_graph": ("varlen_max_query",)}


def mode(engine: Engine, kv: str | None) -> str:
    """Quantisation mode of a KV dtype."""
    return mode_of(engine, kv)


def _layers(engine: Engine, i: dict[str, Any]) -> Layers:
    return Layers(tuple(spec_of(engine, s) for s in i["specs"]), tuple(i["order"]))


def page_unification(engine: Engine, i: dict[str, Any]) -> Any:
    found = unify(_layers(engine, i))
    return {"layers": [[found.specs[k].block, found.specs[k].page, found.specs[k].padded] for k in found.order]}


def grouping(engine: Engine, i: dict[str, Any]) -> Any:
    if i.get("gcd"):
        return {"gcd": approximate_gcd(i["gcd"]["values"], i["gcd"]["lower"] or 1)}
    found = make_groups(engine, _layers(engine, i), i["layout"], hybrid_manager=not i["no_hybrid_manager"])
    shown_groups = []
    for g in found:
        out: dict[str, Any] = {
            "layers": list(g.layers),
            "block": g.block,
            "page_bytes": g.page_bytes,
            "kind": group_kind(engine, g),
        }
        if g.uniform:
            pages = [s.page for s in g.specs]
            out["layer_pages"] = pages if len(set(pages)) > 1 else pages[:1]
        elif g.first.padded is not None:
            out["padded"] = True
        shown_groups.append(out)
    return {"groups": shown_groups}


REPLAYS.update(page_unification=page_unification, grouping=grouping)


def capacity(engine: Engine, i: dict[str, Any]) -> Any:
    layers = retained(_layers(engine, i), i["lookahead_tokens"])
    groups = make_groups(engine, layers, i["layout"], hybrid_manager=not i["no_hybrid_manager"])
    check_partition(groups, layers)
    if not groups:
        return {"num_blocks": 1, "request_bytes": 0, "groups": []}
    count, number = len(layers.order), len(i["memory"])
    stages = [frozenset(n for n in range(count) if n * number // count == stage) for stage in range(number)]
    limits = Limits(i["max_model_len"], i["in_flight_tokens"], i["dcp"], i["mamba_cache_mode"], i["max_encoder_tokens"])
    found = count_blocks(
        engine, groups, stages, i["memory"], i["layout"], limits, block_size=i["block_size"], num_blocks=i["num_gpu_blocks_override"],
        auto_fit=i["auto_fit"], hashing=i["prefix_caching"], connector=i["kv_connector"], prefix_match_unit=i["prefix_match_unit"],
    )  # fmt: skip
    draft = {n for n, k in enumerate(i["order"]) if i["specs"][k].get("draft")}
    eagle = [n for n, g in enumerate(groups) if i["eagle"] and draft & set(g.layers)]
    states = any(s.is_state for g in groups for s in g.specs)
    return {
        "num_blocks": found.num_blocks,
        "block_bytes": [b for b in found.bytes_per_block for _ in range(i["ranks"])],
        "groups": [[len(g.layers), g.block, g.page_bytes] for g in groups],
        "tokens": found.tokens,
        "concurrency": found.concurrency,
        "max_model_len": found.max_model_len,
        "scheduler_block": found.scheduler_block,
        "hash_block": found.hash_block,
        "eagle_groups": eagle,
        "warned": i["eagle"] and not eagle and states,
    }


def kv_layout(engine: Engine, i: dict[str, Any]) -> Any:
    f = size_facts(engine, i)
    order = engine.data["layouts"]["order"]
    made = []
    for b in i["backends"]:
        if "layouts" in b:
            made.append(None if b["layouts"] is None else tuple(b["layouts"]))
        else:
            made.append(declared_layouts(engine, engine.backend(b["name"]), f))
    lists = [m for m in made if m is not None] or [tuple(engine.data["layouts"]["preference"])]
    candidates = common_layouts(order, lists)
    specs = [spec_of(engine, s) for s in i["specs"]]
    if i["resolved"] is not None:
        return {"supported": list(candidates), "layout": "LBNHC"}  # what the vectors' stub of the configuration says
    chosen = resolve_layout(engine, candidates, specs, requested=i["requested"], connector=i["connector"])
    return {"supported": list(candidates), "layout": chosen}


DTYPE = {"auto": None, "fp8": "fp8_e4m3", "fp8_e4m3": "fp8_e4m3", "fp8_e5m2": "fp8_e5m2"}


def _group_facts(engine: Engine, i: dict[str, Any], spec: CacheSpec, q_heads: int) -> Facts:
    return group_facts(engine, world(i), spec, q_heads=q_heads, sinks=i.get("sinks", False), non_causal=i["non_causal"])


def flashinfer_group(engine: Engine, i: dict[str, Any]) -> Any:
    spec = spec_of(engine, i["spec"])
    w = replace(world(i), no_q_quant=i["no_q_quant"])
    f = _group_facts(engine, i, spec, i["q_heads"] or i["model_q_heads"]).but({"no_q_quant": i["no_q_quant"]})
    stored = i["cache_dtype"] if spec.mode != "NONE" else "auto"
    if spec.mode == "NONE" and i["spec"].get("dtype", "bf16") != i["model_dtype"]:
        raise EngineError("", "AssertionError")
    if stored not in (*DTYPE, "nvfp4", "nvfp4_4over6"):
        raise EngineError(f"Unrecognized dtype: {stored}")
    found = group_kernels(engine, w, f, spec_tokens=i["spec_tokens"])
    fp8 = DTYPE.get(stored) or "fp8_e4m3"
    nvfp4 = stored.startswith("nvfp4")
    kv = ("u8" if f["nvfp4_fa2"] else "nvfp4") if nvfp4 else (DTYPE[stored] or i["model_dtype"])
    return {
        "decode_kernel": found.decode,
        "native_wrapper": found.wrapper,
        "q_prefill": i["model_dtype"] if found.q_prefill == "model" else fp8,
        "q_decode": i["model_dtype"] if found.q_decode == "model" else fp8,
        "kv_dtype": kv,
        "reorder_threshold": found.threshold,
        "head_dim_warning": any("head_dim" in n for n in found.notes),
    }


def flashinfer_graph(engine: Engine, i: dict[str, Any]) -> Any:
    specs = [spec_of(engine, s) for s in i["group"]]
    levels = [group_graph(engine, _group_facts(engine, i, s, i["model_q_heads"])) for s in specs if not s.is_state]
    if not specs:
        # A group without layers: nothing serves it.
        f = world_facts(engine, world(i), non_causal=i["non_causal"])
        return {"level": LEVELS[group_graph(engine, f.but({"cc": 999, "major": 99}) if f["cc"] else f)]}
    if not levels:
        f = world_facts(engine, world(i), head=128, q_heads=8, kv_heads=8, kv="auto", non_causal=i["non_causal"])
        levels = [group_graph(engine, f.but({"can_trtllm_decode": True}))]
    return {"level": LEVELS[min(levels, key=engine.data["graph_levels"].index)]}


LEVELS = {"uniform1": "UNIFORM_SINGLE_TOKEN_DECODE", "uniform": "UNIFORM_BATCH"}


def flashinfer_trtllm(engine: Engine, i: dict[str, Any]) -> Any:
    f = world_facts(
        engine, world(i), q_heads=i["model_q_heads"], kv_heads=i["model_kv_heads"], kv=i["cache_dtype"], sinks=i["sinks"],
        q_prefill="fp8" if i["q_dtype"] == "fp8" else "model", is_prefill=i["prefill"], tokens=i["tokens"], spec_tokens=int(i["spec"]),
    )  # fmt: skip
    return {"trtllm": engine.tables["flashinfer_prefill"].answer(f).value}


REPLAYS.update(
    capacity=capacity,
    kv_layout=kv_layout,
    flashinfer_group=flashinfer_group,
    flashinfer_graph=flashinfer_graph,
    flashinfer_trtllm=flashinfer_trtllm,
)
