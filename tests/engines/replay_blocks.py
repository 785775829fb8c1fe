"""Answers about versions, backends and blocks, in the words of the golden vectors."""

from __future__ import annotations

from math import lcm
from typing import Any

from attnroute.engines import align, blocks, selection
from attnroute.engines.data import Engine
from attnroute.engines.facts import world_facts
from attnroute.engines.layer import layer_spec
from attnroute.engines.rules import EngineError
from attnroute.engines.spec import Limits, packed, request_pages, table_width
from tests.engines.inputs import backend_of, layer_facts, own_sizes, size_facts, spec_of, world

ASKED = [1, 8, 16, 32, 48, 64, 96, 128, 256, 400, 512, 832, 896, 1024, 1056, 1648]


def fa_version(engine: Engine, i: dict[str, Any]) -> Any:
    w = world(i)
    f = world_facts(
        engine,
        w,
        head=i["head"],
        head_v=i["head_v"],
        kv=i["kv_asked"],
        alibi=i["alibi"],
        sinks=i["sinks"],
        softcap=i["layer_softcap"],
        kv_block=i["kv_block"],
        hd256_aware=i["hd256_aware"],
    )
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
        asked=tuple((backend_of(engine, b), f) for b in i["backends"]),
        kv=i["cache_dtype"],
        dtype=i["model_dtype"],
        head=i["model_head_size"],
        kv_heads=i["model_kv_heads"],
        mla=i["use_mla"],
        skip_layers=i["skip_layers"],
        hybrid=i["hybrid"],
        state_bytes=max(states, default=0),
        cache_mode=i["mamba_cache_mode"],
        checkpoint=lcm(*known) if len(known) == len(i["checkpoint_alignments"]) else 1,
        user_block=i["user_block_size"],
    )


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
    backend = backend_of(engine, i["backend"])
    f = world(i)
    spec = layer_spec(
        engine,
        f,
        backend,
        attn_type=i["attn_type"],
        kv=i["kv"],
        dtype=i["model_dtype"],
        heads=i["heads"],
        head=i["head"],
        head_v=i["head_v"],
        window=i["window"],
        block=i["block_size"],
        shared_page=i["skip_page_size_padded"],
    )
    if spec is None:
        return {"kind": None}
    natural = packed(engine, backend, spec)
    return {"kind": spec.kind, "block": spec.block, "padded": spec.padded, "unpadded_bytes": natural.unpadded}
