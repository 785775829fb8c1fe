"""Pages made equal and layers grouped: what the engine core plans before it allocates."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

from . import families, specs, world
from .record import Piece

PLAN = "v1.core.kv_cache_planning"
UTILS = "v1.core.kv_cache_utils"
LAYOUTS = ["LBNHC", "LBHNC", "BLNHC", "BLHNC", "BHLNC", "LHBNC"]


def layer_specs(i: dict[str, Any]) -> dict[str, Any]:
    made = [specs.make(s) for s in i["specs"]]
    return {f"layer.{n}": made[kind] for n, kind in enumerate(i["order"])}


def _index(name: str) -> int:
    return int(name.rpartition(".")[2])


def _groups_out(groups: list[Any]) -> list[dict[str, Any]]:
    """Groups as data; a uniform-type group says the page of each of its layers."""
    uniform = world.get("v1.kv_cache_interface:UniformTypeKVCacheSpecs")
    kind_of = world.get("v1.kv_cache_interface:get_kv_cache_spec_kind")
    found = []
    for group in groups:
        spec = group.kv_cache_spec
        out = {
            "layers": [_index(n) for n in group.layer_names],
            "block": spec.block_size,
            "page_bytes": spec.page_size_bytes,
        }
        out["kind"] = kind_of(spec).value
        if isinstance(spec, uniform):
            pages = [s.page_size_bytes for s in spec.kv_cache_specs.values()]
            out["layer_pages"] = pages if len(set(pages)) > 1 else pages[:1]
        elif getattr(spec, "page_size_padded", None) is not None:
            out["padded"] = True
        found.append(out)
    return found


def unify_run(i: dict[str, Any]) -> Any:
    unified = world.get(f"{PLAN}:unify_kv_cache_spec_page_size")(layer_specs(i))
    return {
        "layers": [[s.block_size, s.page_size_bytes, getattr(s, "page_size_padded", None)] for s in unified.values()]
    }


def group_run(i: dict[str, Any]) -> Any:
    if i["gcd"] is not None:
        return {"gcd": world.get(f"{PLAN}:_approximate_gcd")(i["gcd"]["values"], lower_bound=i["gcd"]["lower"])}
    return {"groups": _groups_out(world.get(f"{PLAN}:get_kv_cache_groups")(world.config(), layer_specs(i)))}


def unify_edges() -> Iterable[dict[str, Any]]:
    full: dict[str, Any] = {"head": 128}
    yield {"specs": [full], "order": [0, 0]}
    yield {"specs": [full, {"head": 64}], "order": [0, 1]}
    yield {"specs": [full, {"head": 96}], "order": [0, 1]}
    yield {"specs": [full, {"kind": "mla", "heads": 1, "head": 576}], "order": [0, 1]}
    yield {"specs": [{"block": 64}, {"kind": "mla", "heads": 1, "head": 576, "block": 16}], "order": [0, 1]}
    yield {"specs": [{"block": 64}, {"kind": "mamba", "shapes": [[3, 64]], "state_dtypes": ["bf16"]}], "order": [0, 1]}


UNIFY = Piece(
    name="page_unification",
    about="unify_kv_cache_spec_page_size: blocks scaled or pages padded until all layers have one page size",
    functions=(f"{PLAN}:unify_kv_cache_spec_page_size",),
    run=unify_run,
    draw=families.draw_model,
    edges=unify_edges,
    defaults={"specs": [], "order": []},
)


def group_draw(rng: random.Random) -> dict[str, Any]:
    if rng.random() < 0.03:
        values = [rng.randrange(1, 40) for _ in range(rng.randrange(1, 6))]
        return {"gcd": {"values": values, "lower": rng.choice([None, 1, 4, 20])}}
    i = families.draw_model(rng)
    i["layout"] = rng.choice(["LBNHC", "LBHNC", "LBNHC", "BLHNC", "BLNHC"])
    if rng.random() < 0.15:
        i["no_hybrid_manager"] = True
    return i


def group_edges() -> Iterable[dict[str, Any]]:
    for values, lower in (([], None), ([0, 3], None), ([-1], 2), ([3, 5], 9), ([6, 4], None), ([12, 13], 5)):
        yield {"gcd": {"values": values, "lower": lower}}
    full: dict[str, Any] = {}
    window = {"kind": "window", "window": 1024}
    for layout in ("LBNHC", "BLHNC"):
        for no_hybrid in (False, True):
            more = {"layout": layout, "no_hybrid_manager": no_hybrid}
            yield {"specs": [], "order": [], **more}
            yield {"specs": [full, window], "order": [0] * 3 + [1] * 7, **more}
            yield {"specs": [full, window], "order": [0] * 6 + [1] * 5, **more}
            yield {"specs": [full, window], "order": [0] * 13 + [1] * 12, **more}
            yield {"specs": [full, {**window, "head": 96}], "order": [0, 1, 1, 1], **more}
            yield {
                "specs": [{"kind": "mla", "heads": 1, "head": 576}, {**window, "head": 80}],
                "order": [0, 0, 1],
                **more,
            }
            yield {
                "specs": [{"kind": "mla", "heads": 1, "head": 576, "block": 64}, {**window, "heads": 1, "head": 80}],
                "order": [0, 0, 1],
                **more,
            }
            yield {
                "specs": [
                    {"kind": "mla", "heads": 1, "head": 576},
                    {"kind": "window_mla", "heads": 1, "head": 80, "window": 512},
                ],
                "order": [0, 1],
                **more,
            }
            yield {"specs": [full, {"kind": "chunked", "chunk": 8192}], "order": [1, 1, 1, 0] * 4, **more}
            yield {"specs": [full, window, {"kind": "hidden", "heads": 4, "head": 4096}], "order": [0, 1, 1, 2], **more}
            yield {
                "specs": [
                    {"heads": 1, "head": 64, "block": 1},
                    {**window, "heads": 1, "head": 64, "block": 1},
                    {"kind": "hidden", "heads": 4, "head": 4096},
                ],
                "order": [0, 1, 1, 2],
                **more,
            }
            yield {
                "specs": [
                    {"kind": "mla", "heads": 1, "head": 576, "block": 64},
                    {**window, "heads": 1, "head": 80},
                    {"kind": "hidden", "heads": 1, "head": 512},
                ],
                "order": [0, 0, 1, 2],
                **more,
            }
            yield {
                "specs": [
                    {"kind": "mla", "heads": 1, "head": 576},
                    window,
                    {"kind": "hidden", "heads": 1, "head": 512},
                ],
                "order": [0, 1, 2],
                **more,
            }
            yield {"specs": [window, {"kind": "chunked", "chunk": 64}], "order": [0, 1], **more}
            yield {
                "specs": [{"kind": "mla", "heads": 1, "head": 576}, {"kind": "chunked", "chunk": 64}],
                "order": [0, 1],
                **more,
            }
            yield {"specs": [full, {**window, "padded": 131072}], "order": [0, 1], **more}
            yield {"specs": [{"block": 64}, {**window, "padded": 131072}], "order": [0, 1], **more}
            yield {
                "specs": [
                    {"kind": "mla", "heads": 1, "head": 576},
                    window,
                    {"kind": "hidden", "heads": 1, "head": 512},
                ],
                "order": [0, 0, 1, 1, 2],
                **more,
            }
            yield {"specs": [full, window, {"kind": "ring"}], "order": [0, 1, 2], **more}


GROUP = Piece(
    name="grouping",
    about="get_kv_cache_groups: layers that share a block table, their block and page",
    functions=(
        f"{PLAN}:get_kv_cache_groups",
        f"{PLAN}:_get_kv_cache_groups_uniform_page_size",
        f"{PLAN}:_get_packed_kv_cache_groups",
        f"{PLAN}:_approximate_gcd",
        f"{PLAN}:_promote_local_kv_cache_specs",
        f"{PLAN}:_try_get_full_allocation_fallback_groups",
        f"{PLAN}:_ensure_min_page_size",
        f"{PLAN}:_largest_divisor_at_most",
        f"{PLAN}:is_kv_cache_spec_uniform",
        f"{PLAN}:unify_hybrid_kv_cache_specs",
        f"{PLAN}:create_kv_cache_group_specs",
        "v1.kv_cache_interface:UniformTypeKVCacheSpecs.is_uniform_type",
        "v1.kv_cache_interface:UniformTypeKVCacheSpecs.from_specs",
        "v1.kv_cache_interface:FullAttentionSpec.merge_window_sizes",
    ),
    run=group_run,
    draw=group_draw,
    edges=group_edges,
    defaults={"specs": [], "order": [], "layout": "LBNHC", "no_hybrid_manager": False, "gcd": None},
    count=6000,
    unreached={
        f"{PLAN}:get_kv_cache_groups": "HiSparse, which the vectors leave out",
        f"{PLAN}:_try_get_full_allocation_fallback_groups": "promotion raises first",
        f"{PLAN}:_largest_divisor_at_most": "its loop always ends at 1, which divides everything",
        f"{PLAN}:is_kv_cache_spec_uniform": "a model without KV cache is answered before",
    },
)


PIECES = (UNIFY, GROUP)
