"""Which FlashAttention version a layer gets."""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Iterable
from typing import Any

from . import draws, world
from .record import Piece

DEFAULTS: dict[str, Any] = {
    "fa_package": True,
    "alibi": False,
    "head": None,
    "head_v": None,
    "sinks": False,
    "layer_softcap": False,
    "kv_block": None,
    "hd256_aware": False,
    "kv_asked": "fp8_e4m3",
}
UTILS = "v1.attention.backends.fa_utils"
INTERFACE = "vllm_flash_attn.flash_attn_interface"


def run(i: dict[str, Any]) -> Any:
    name = f"vllm.{INTERFACE}"
    module = sys.modules[name]
    if not i["fa_package"]:
        sys.modules[name] = None  # type: ignore[assignment]
    keywords = {
        "requires_alibi": i["alibi"],
        "head_size": i["head"],
        "head_size_v": i["head_v"],
        "has_sinks": i["sinks"],
        "requires_softcap": i["layer_softcap"],
        "kv_cache_block_size": i["kv_block"],
        "supports_fa4_hd256": i["hd256_aware"],
    }
    try:
        return {
            "version": world.get(f"{UTILS}:get_flash_attn_version")(**keywords),
            "fp8_kv": world.get(f"{UTILS}:flash_attn_supports_kv_cache_dtype")(i["kv_asked"], **keywords),
            "sinks": world.get(f"{UTILS}:flash_attn_supports_sinks")(),
            "mla": world.get(f"{UTILS}:flash_attn_supports_mla")(),
            "supported": [v for v in (2, 3, 4) if world.get(f"{UTILS}:is_fa_version_supported")(v)],
        }
    finally:
        sys.modules[name] = module


def draw(rng: random.Random) -> dict[str, Any]:
    i = {**draws.machine(rng), **draws.model(rng)}
    for key in (
        "flashinfer_mla_sparse_sm90",
        "flashinfer_mla_sparse_sm120",
        "tokenspeed",
        "fa4_cute",
        "flashmla_built",
        "cubins",
        "use_trtllm",
        "non_causal",
        "pcp",
        "model_kv_heads",
        "model_q_heads",
        "model_head_size",
        "model_dtype",
    ):
        i.pop(key, None)
    i["head"] = rng.choice([None, draws.head(rng), draws.head(rng), draws.head(rng), 256, 256])
    if rng.random() < 0.35:
        i["head_v"] = rng.choice([i["head"], 64, 128, 256])
    for key, chance in (("alibi", 0.1), ("sinks", 0.2), ("layer_softcap", 0.1), ("hd256_aware", 0.7)):
        i[key] = rng.random() < chance
    i["kv_block"] = rng.choice([None, 128, 256, 16, 64, 832, 896, rng.randrange(1, 2049)])
    i["kv_asked"] = rng.choice(["fp8", "fp8_e4m3", "fp8_e5m2"])
    return i


def edges() -> Iterable[dict[str, Any]]:
    for cc, head, head_v in itertools.product(draws.CCS, [64, 128, 192, 256, 384, 512], [None, 64, 128, 256]):
        yield {"cc": cc, "head": head, "head_v": head_v, "hd256_aware": True, "kv_block": 128}
    hd256 = {"cc": "10.0", "head": 256, "hd256_aware": True, "kv_block": 128}
    for more in (
        {"sinks": True},
        {"layer_softcap": True},
        {"softcap": 50.0},
        {"cache_dtype": "fp8"},
        {"kv_block": 192},
        {"kv_block": 64},
        {"mm_prefix": True},
        {"rswa": 512},
        {"dcp": 2},
        {"model": False},
        {"config": False},
        {"hd256_aware": False},
    ):
        yield {**hd256, **more}
        yield {**hd256, "cc": "11.0", "fa_version": 4, **more}
    for version, cc in itertools.product([2, 3, 4, 5], [*draws.CCS, None]):
        yield {"cc": cc, "fa_version": version, "head": 128}
        yield {"cc": cc, "fa_version": version, "head": 128, "alibi": True}
    for cc, built in itertools.product(["9.0", "10.0", "11.0", "8.0"], [[], [2], [3], [4], [2, 3], [2, 4], [3, 4]]):
        yield {"cc": cc, "fa_built": built, "head": 512}
    for cc in ("9.0", "10.0"):
        yield {"cc": cc, "fa_package": False}
        yield {"cc": cc, "diffusion": True, "head": 128}
        yield {"cc": cc, "sinks": True, "head": 192, "head_v": 128}
        yield {"cc": cc, "batch_invariant": True, "head": 128, "fa_version": 4}
    for platform in ("xpu", "rocm"):
        yield {"platform": platform, "head": 128}
        yield {"platform": platform, "head": 512, "kv_asked": "fp8_e5m2"}


PIECE = Piece(
    name="fa_version",
    about="FlashAttention version of a layer, and what follows from it: FP8 KV, sinks, MLA, supported versions",
    functions=(
        f"{UTILS}:get_flash_attn_version",
        f"{UTILS}:uses_fa4_hd256_kernel",
        f"{UTILS}:_fa4_hd256_fallback_reason",
        f"{UTILS}:is_fa_version_supported",
        f"{UTILS}:flash_attn_supports_kv_cache_dtype",
        f"{UTILS}:flash_attn_supports_sinks",
        f"{UTILS}:flash_attn_supports_mla",
        f"{INTERFACE}:is_fa_version_supported",
        f"{INTERFACE}:fa_version_unsupported_reason",
        f"{INTERFACE}:_is_fa2_supported",
        f"{INTERFACE}:_is_fa3_supported",
        f"{INTERFACE}:_is_fa4_supported",
    ),
    run=run,
    draw=draw,
    edges=edges,
    defaults=DEFAULTS,
    count=7000,
    unreached={
        f"{INTERFACE}:fa_version_unsupported_reason": "an unknown version raises in is_fa_version_supported before"
    },
)
PIECES = (PIECE,)
