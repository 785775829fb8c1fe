"""Answers about groups, memory, layouts and FlashInfer's kernels, in the words of the golden vectors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from attnroute.engines.capacity import check_partition, count_blocks, retained
from attnroute.engines.data import Engine
from attnroute.engines.facts import world_facts
from attnroute.engines.flashinfer import group_facts, group_graph, group_kernels
from attnroute.engines.groups import Layers, group_kind, make_groups, unify
from attnroute.engines.layout import common_layouts, declared_layouts, resolve_layout
from attnroute.engines.packing import approximate_gcd
from attnroute.engines.rules import EngineError, Facts
from attnroute.engines.spec import CacheSpec, Limits
from tests.engines.inputs import size_facts, spec_of, world

DTYPE = {"auto": None, "fp8": "fp8_e4m3", "fp8_e4m3": "fp8_e4m3", "fp8_e5m2": "fp8_e5m2"}
LEVELS = {"uniform1": "UNIFORM_SINGLE_TOKEN_DECODE", "uniform": "UNIFORM_BATCH"}


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
        engine,
        groups,
        stages,
        i["memory"],
        i["layout"],
        limits,
        block_size=i["block_size"],
        num_blocks=i["num_gpu_blocks_override"],
        auto_fit=i["auto_fit"],
        hashing=i["prefix_caching"],
        connector=i["kv_connector"],
        prefix_match_unit=i["prefix_match_unit"],
    )
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


def flashinfer_trtllm(engine: Engine, i: dict[str, Any]) -> Any:
    f = world_facts(
        engine,
        world(i),
        q_heads=i["model_q_heads"],
        kv_heads=i["model_kv_heads"],
        kv=i["cache_dtype"],
        sinks=i["sinks"],
        q_prefill="fp8" if i["q_dtype"] == "fp8" else "model",
        is_prefill=i["prefill"],
        tokens=i["tokens"],
        spec_tokens=int(i["spec"]),
    )
    return {"trtllm": engine.tables["flashinfer_prefill"].answer(f).value}
