"""Blocks, tokens and concurrency for a memory size."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

from . import families, planning, world
from .planning import LAYOUTS, PLAN, UTILS
from .record import Piece


def capacity_run(i: dict[str, Any]) -> Any:
    config = world.config()
    config.cache_config.block_size = i["block_size"]
    everything = planning.layer_specs(i)
    stages: list[dict[str, Any]] = [{} for _ in i["memory"]]
    for n, (name, spec) in enumerate(everything.items()):
        stages[n * len(stages) // len(everything)][name] = spec
    # Every tensor-parallel rank of a stage is a worker with the same layers.
    workers = [stage for stage in stages for _ in range(i["ranks"])]
    groups = world.get(f"{PLAN}:get_global_kv_cache_groups")(config, workers)
    found = world.get(f"{PLAN}:get_kv_cache_configs")(
        config, workers, [m for m in i["memory"] for _ in range(i["ranks"])], groups
    )
    if not groups:
        builder = world.get("v1.core.kv_cache_config_builder:get_kv_cache_config_builder")(config)
        empty = world.get(f"{PLAN}:get_kv_cache_config_from_groups")(config, [], 0)
        needed = world.get(f"{PLAN}:_max_memory_usage_bytes_from_groups")(builder, config, [])
        return {"num_blocks": empty.num_blocks, "request_bytes": needed, "groups": []}
    one = world.get(f"{UTILS}:generate_scheduler_kv_cache_config")(found)
    if i["host_blocks"] is not None:
        one.kv_cache_groups[-1].host_resident = True
        one.hisparse_host_num_blocks = i["host_blocks"]
    tokens, concurrency = world.get(f"{UTILS}:get_kv_cache_capacity")(config, one)
    scheduler, hashed = world.get(f"{UTILS}:resolve_kv_cache_block_sizes")(one, config)
    return {
        "num_blocks": one.num_blocks,
        "block_bytes": [c.kv_cache_tensors[0].size // c.num_blocks if c.kv_cache_tensors else 0 for c in found],
        "groups": [[len(g.layer_names), g.kv_cache_spec.block_size, g.kv_cache_spec.page_size_bytes] for g in groups],
        "tokens": tokens,
        "concurrency": concurrency,
        "max_model_len": config.model_config.max_model_len,
        "scheduler_block": scheduler,
        "hash_block": hashed,
        "eagle_groups": [n for n, g in enumerate(groups) if g.is_eagle_group],
        "warned": [w for w in world.warned if "could be identified as the draft" in w] != [],
    }


def capacity_draw(rng: random.Random) -> dict[str, Any]:
    i = families.draw_model(rng)
    i["block_size"] = i["specs"][0].get("block", 16)
    i["max_model_len"] = rng.choice([100, 2048, 4096, 16384, 16384, 65536, 131072, 262144, rng.randrange(1, 300000)])
    i["in_flight_tokens"] = rng.choice([512, 2048, 4096, 8192, 16384, 32768])
    amount = rng.choice([1 << rng.randrange(18, 38), rng.randrange(1, 1 << 33), rng.randrange(1 << 30, 1 << 37)])
    i["memory"] = [amount]
    if rng.random() < 0.15 and len(i["order"]) > 3:
        i["memory"] = [amount, rng.choice([amount, amount // 2, amount - 12345])]
    i["layout"] = rng.choice(["LBNHC", "LBHNC", "LBNHC", "BLHNC"])
    chances: list[tuple[float, str, list[Any]]] = [
        (0.08, "num_gpu_blocks_override", [1, 2, 64, 1000, 5000]),
        (0.12, "auto_fit", [True]),
        (0.25, "prefix_caching", [True]),
        (0.08, "no_hybrid_manager", [True]),
        (0.08, "dcp", [2, 4]),
        (0.06, "lookahead_tokens", [1, 2, 3]),
        (0.06, "ranks", [2]),
        (0.1, "eagle", [True]),
        (0.08, "prefix_match_unit", [16, 32, 64, 100]),
        (0.05, "kv_connector", [True]),
    ]
    for chance, key, values in chances:
        if rng.random() < chance:
            i[key] = rng.choice(values)
    if i.get("eagle") and rng.random() < 0.7:
        i["specs"] = [*i["specs"][:-1], {**i["specs"][-1], "draft": True}]
    if any(s.get("cache_mode") == "align" for s in i["specs"]):
        i["mamba_cache_mode"] = "align"
    if any(s.get("kind") == "cross" for s in i["specs"]):
        i["max_encoder_tokens"] = 1500
    return i


def capacity_edges() -> Iterable[dict[str, Any]]:
    gib = 1 << 30
    full = {"kv": "auto", "heads": 32, "dtype": "fp16"}
    page = 16 * 32 * 256 * 2
    for blocks in (1536, 1024, 1025, 1023, 1, 0):
        yield {"specs": [full], "order": [0] * 32, "memory": [page * 32 * blocks]}
    yield {"specs": [full], "order": [0] * 32, "memory": [8 * gib], "max_model_len": 16385}
    for amount in (0, -1, 1, 1000, page * 32):
        for auto in (False, True):
            yield {"specs": [full], "order": [0] * 32, "memory": [amount], "auto_fit": auto}
    gdn = {"kind": "mamba", "shapes": [[10, 10240], [48, 128, 128]], "state_dtypes": ["bf16", "fp32"], "spec_blocks": 7}
    for block in (832, 896):
        target = {"heads": 4, "head": 256, "block": block}
        state = {**gdn, "block": 16384, "padded": block * 4096}
        for draft in ({"heads": 8, "block": block}, {"heads": 8, "block": block, "kind": "window", "window": 2048}):
            for aligned in (False, True):
                mamba = {**state, "cache_mode": "align", "block": block} if aligned else state
                yield {
                    "specs": [target, mamba, draft],
                    "order": [1, 1, 1, 0] * 16 + [2] * 5,
                    "memory": [113279762432],
                    "in_flight_tokens": 4096,
                    "prefix_caching": aligned,
                    "mamba_cache_mode": "align" if aligned else "none",
                    "block_size": block,
                }
    yield {"specs": [full], "order": [], "memory": [gib]}
    yield {"specs": [full], "order": [], "memory": [gib], "auto_fit": True}
    yield {
        "specs": [full, {"kind": "window", "window": 64}],
        "order": [0, 1],
        "memory": [gib, gib // 3],
        "auto_fit": True,
    }
    yield {
        "specs": [{"block": 32}, {"kind": "window", "window": 64}],
        "order": [0, 1],
        "memory": [gib],
        "prefix_caching": True,
    }
    two: dict[str, Any] = {
        "specs": [full, {"heads": 32, "dtype": "fp16", "kind": "window", "window": 64}],
        "order": [0, 1],
        "memory": [gib],
    }
    for unit in (8, 16, 32, 48):
        for more in ({}, {"prefix_caching": True}, {"kv_connector": True}):
            yield {"specs": [full], "order": [0], "memory": [gib], "prefix_match_unit": unit, **more}
            yield {**two, "prefix_match_unit": unit, **more}
    shared = {"kind": "mla", "heads": 1, "head": 512, "tokens_per_state": 4, "block": 64}
    for unit in (None, 2, 16):
        yield {
            "specs": [shared, {"kind": "window_mla", "heads": 1, "head": 512, "window": 128, "block": 16}],
            "order": [0, 1],
            "memory": [gib],
            "prefix_caching": True,
            "prefix_match_unit": unit,
            "mamba_cache_mode": "align",
        }
        yield {
            "specs": [
                {**shared, "tokens_per_state": 48, "block": 96},
                {
                    "kind": "mamba",
                    "shapes": [[1, 64]],
                    "state_dtypes": ["bf16"],
                    "block": 32,
                    "cache_mode": "align",
                    "padded": 2048,
                },
            ],
            "order": [0, 1],
            "memory": [gib],
            "prefix_caching": True,
            "prefix_match_unit": unit,
            "mamba_cache_mode": "align",
        }
    for blocks in (1, 64, 100000):
        yield {**two, "host_blocks": blocks}
        yield {**two, "host_blocks": blocks, "max_model_len": 100}
    for draft in (False, True):
        yield {**two, "eagle": True, "specs": [two["specs"][0], {**two["specs"][1], "draft": draft}], "ranks": 2}
        yield {
            "specs": [{**gdn, "padded": 3407872}, {"heads": 4, "head": 256, "block": 832, "draft": draft}],
            "order": [0, 1],
            "eagle": True,
            "memory": [gib],
        }
    for stride in (1, 4096, 100000, "64../64", "256../256"):
        for layout in ("LBNHC", "BLHNC", "LHBNC"):
            yield {
                "specs": [{**full, "stride": stride, "block": 256}],
                "order": [0, 0],
                "memory": [gib],
                "layout": layout,
            }
            yield {
                "specs": [{**full, "stride": stride}, two["specs"][1]],
                "order": [0, 1],
                "memory": [gib],
                "layout": layout,
            }
    for layout in LAYOUTS:
        yield {"specs": [full, {"heads": 8}], "order": [0, 1], "memory": [gib], "layout": layout}
        yield {
            "specs": [full, {"heads": 8, "kind": "window", "window": 64}],
            "order": [0, 1],
            "memory": [gib],
            "layout": layout,
        }


CAPACITY = Piece(
    name="capacity",
    about="blocks, tokens and concurrency for a memory size; too little memory says the longest context that fits",
    functions=(
        f"{PLAN}:get_global_kv_cache_groups",
        f"{PLAN}:get_kv_cache_configs",
        f"{PLAN}:_check_enough_kv_cache_memory",
        f"{PLAN}:_estimate_max_model_len_from_groups",
        f"{PLAN}:_max_memory_usage_bytes_from_groups",
        f"{PLAN}:_auto_fit_max_model_len",
        f"{PLAN}:_project_kv_cache_groups_to_worker",
        f"{PLAN}:_get_kv_cache_bytes_per_block",
        f"{PLAN}:get_kv_cache_config_from_groups",
        f"{PLAN}:validate_kv_cache_layout",
        f"{PLAN}:may_override_num_blocks",
        f"{UTILS}:get_max_concurrency_for_kv_cache_config",
        f"{UTILS}:get_kv_cache_capacity",
        f"{UTILS}:resolve_kv_cache_block_sizes",
        f"{UTILS}:resolve_dcp_kv_block_size",
        "v1.kv_cache_interface:UniformTypeKVCacheSpecs.max_memory_usage_pages",
        "v1.kv_cache_interface:KVCacheSpec.get_block_stride_alignment",
        f"{PLAN}:_warn_if_unannotated_eagle_mamba",
    ),
    run=capacity_run,
    draw=capacity_draw,
    edges=capacity_edges,
    defaults={
        "specs": [],
        "order": [],
        "memory": [],
        "block_size": 16,
        "in_flight_tokens": 8192,
        "layout": "LBNHC",
        "num_gpu_blocks_override": None,
        "auto_fit": False,
        "prefix_caching": False,
        "no_hybrid_manager": False,
        "mamba_cache_mode": "none",
        "max_encoder_tokens": 0,
        "lookahead_tokens": 0,
        "ranks": 1,
        "eagle": False,
        "prefix_match_unit": None,
        "kv_connector": False,
        "host_blocks": None,
    },
    unreached={
        f"{PLAN}:_estimate_max_model_len_from_groups": "HiSparse, which the vectors leave out",
        f"{PLAN}:_auto_fit_max_model_len": "HiSparse; and a worker without groups, which projection never makes",
        f"{PLAN}:get_kv_cache_config_from_groups": "HiSparse",
    },
)
PIECES = (CAPACITY,)
