"""A machine and a model as vLLM sees them, from KV-cache groups and options; KV dtype names; hooks of single models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from attnroute.engines.facts import World, kv_row, world_facts
from attnroute.engines.result import EngineOptions
from attnroute.errors import UsageError

if TYPE_CHECKING:
    from attnroute.dispatch.group import KVGroup
    from attnroute.engines.data import Engine

MLA_KINDS = ("mla", "mla_sparse")


def capability(compute_capability: str) -> tuple[int, int]:
    """(10, 0) for `10.0`."""
    major, _, minor = compute_capability.partition(".")
    return int(major), int(minor or 0)


def kv_name(engine: Engine, group: KVGroup, cache_dtype: str = "auto") -> str:
    """The engine's name for a group's KV dtype: `auto` for the model's own, --kv-cache-dtype where that is meant."""
    if group.kv == group.dtype:
        return "auto"
    trait = next((t for t in group.traits if t.endswith("_scales")), None)

    def means(name: str) -> bool:
        row = engine.kv_dtypes[name]
        return row["dtype"] == group.kv and row.get("trait") == trait and "mla_bytes" not in row

    if cache_dtype in engine.kv_dtypes and means(cache_dtype):
        return cache_dtype
    found = [name for name in engine.kv_dtypes if means(name)]
    if not found:
        raise UsageError(
            f"group {group.name}: {engine.data['name']} {engine.version} has no KV-cache dtype for {group.kv}"
            f"{f' with {trait}' if trait else ''}",
            code="kv-dtype",
        )
    exact = [name for name in found if name == group.kv]
    return exact[0] if exact else found[0]


def cache_dtype(engine: Engine, target: Sequence[KVGroup], options: EngineOptions) -> str:
    """--kv-cache-dtype: as given, or what the first quantised group of the target means."""
    if options.kv_cache_dtype != "auto":
        kv_row(engine, options.kv_cache_dtype)
        return options.kv_cache_dtype
    names = [kv_name(engine, g) for g in target]
    return next((n for n in names if engine.kv_dtypes[n]["mode"] != "NONE"), "auto")


def head_size(group: KVGroup) -> int:
    """Head size in vLLM's sense: of MLA the cached latent and rope together."""
    if group.kind in MLA_KINDS:
        return (group.latent or 0) + (group.rope or 0)
    return group.head_dim


def make_world(
    engine: Engine,
    cc: tuple[int, int],
    target: Sequence[KVGroup],
    options: EngineOptions,
    everything: Sequence[KVGroup],
) -> tuple[World, tuple[str, ...]]:
    """The world, with what the model's own configuration class changed (in words)."""
    if not target:
        raise UsageError("no target group: a model without attention has nothing to plan", code="no-group")
    first = target[0]
    dtype = cache_dtype(engine, target, options)
    skip = bool(options.skip_layers) or (
        engine.kv_dtypes[dtype]["mode"] != "NONE" and any(kv_name(engine, g, dtype) == "auto" for g in target)
    )
    mla = first if first.kind in MLA_KINDS else None
    world = World(
        cc=cc,
        fa_built=options.fa_built,
        cubins=options.cubins,
        batch_invariant=options.batch_invariant,
        model_head=options.model_head or head_size(first),
        model_q_heads=first.num_q_heads,
        model_kv_heads=first.num_kv_heads,
        model_softcap=any(g.softcap is not None for g in target),
        model_mm_prefix=any("mm_prefix" in g.traits for g in target),
        diffusion=any("diffusion" in g.traits for g in target),
        rswa=any("rswa" in g.traits for g in target),
        cache_dtype=dtype,
        fa_asked=options.flash_attn_version,
        use_trtllm=options.use_trtllm_attention,
        no_q_quant=options.disable_q_quantization,
        skip_layers=skip,
        dcp=options.dcp,
        pcp=options.pcp,
        mla_nope=mla.nope if mla else None,
        mla_rope=mla.rope if mla else None,
        mla_v=(options.mla_v or mla.nope) if mla else None,
        mla_lora=mla.latent if mla else None,
        index_topk=mla.topk if mla else None,
        kv_connector=options.kv_connector,
        model_type=options.model_type,
        head_sizes=len({g.head_dim for g in target}),
        max_head=max(g.head_dim for g in everything if g.role == "target" or g in target),
        backend_asked=options.backend,
    )
    answer = engine.tables["hooks"].answer(world_facts(engine, world))
    if isinstance(answer.value, str):
        name, _, value = answer.value.partition("=")
        if name == "flash_attn_version":
            world = replace(world, fa_asked=int(value))
        else:
            world = replace(world, backend_asked=value)
    return world, answer.why
