"""Which backend a layer gets: the order tried and the one chosen."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable
from typing import Any

from . import blocks, draws, world
from .record import Piece
from .validation import ATTN_TYPES, LAYER, SELECTABLE, capability, draw_layer, plainer


def priority_run(i: dict[str, Any]) -> Any:
    order = world.get("platforms.cuda:_get_backend_priorities")(
        use_mla=i["use_mla"],
        device_capability=capability(),
        num_heads=i["heads"],
        kv_cache_dtype=i["kv"],
        use_non_causal=i["non_causal"],
        head_size=i["head"],
        use_mm_prefix=i["mm_prefix"],
    )
    return {"order": [b.name for b in order]}


def priority_draw(rng: random.Random) -> dict[str, Any]:
    return {
        "cc": draws.cc(rng),
        "use_mla": rng.random() < 0.6,
        "heads": rng.choice([None, 1, 8, 16, 17, 24, 32, 64, 128]),
        "kv": rng.choice([None, *draws.KV]),
        "non_causal": rng.random() < 0.3,
        "head": rng.choice([None, 576, 512, 128, 256]),
        "mm_prefix": rng.random() < 0.3,
    }


PRIORITY = Piece(
    name="backend_priority",
    about="the order in which backends are tried",
    functions=("platforms.cuda:_get_backend_priorities",),
    run=priority_run,
    draw=priority_draw,
    defaults={"use_mla": False, "heads": None, "kv": "auto", "head": 128},
)


def select_run(i: dict[str, Any]) -> Any:
    names = world.get("v1.attention.backends.registry:AttentionBackendEnum")
    attention = world.config().attention_config
    attention.backend = names[i["request"]] if i["request"] else None
    attention.backend_per_kind = {kind: names[name] for kind, name in i["request_per_kind"].items()}
    reasons: dict[str, list[str]] = {}
    platform = world.get("platforms:current_platform")
    real = type(platform).get_valid_backends

    def listen(**keywords: Any) -> Any:
        valid, invalid = real(**keywords)
        reasons.update({b.name: why for b, (_, why) in invalid.items()})
        return valid, invalid

    type(platform).get_valid_backends = listen
    try:
        chosen = world.get("v1.attention.selector:get_attn_backend")(
            head_size=i["head"],
            dtype=world.dtype(i["dtype"]),
            kv_cache_dtype=i["kv"],
            use_mla=i["use_mla"],
            has_sink=i["sinks"],
            use_sparse=i["sparse"],
            use_mm_prefix=i["mm_prefix"],
            use_per_head_quant_scales=i["per_head_scales"],
            attn_type=i["attn_type"],
            num_heads=i["heads"],
            has_sliding_window=i["sliding"],
        )
    except ValueError as error:
        # The full text repeats the configuration; what it starts with and the reasons say all.
        head = str(error).partition(" with AttentionSelectorConfig")[0]
        return {"error": "ValueError", "text": head, "reasons": reasons}
    finally:
        type(platform).get_valid_backends = real
    excluded = [
        w.partition("backend(s) ")[2].partition(". Using")[0].split(", ") for w in world.warned if "precluded" in w
    ]
    return {
        "backend": chosen.get_name(),
        "reasons": reasons,
        "precluded_by_block_size": excluded[0] if excluded else [],
    }


def select_draw(rng: random.Random) -> dict[str, Any]:
    i = plainer(rng, draw_layer(rng, rng.random() < 0.3))
    kind = ("sliding_window" if i.get("sliding") else "full_attention") if not i["use_mla"] else "mla_attention"
    if rng.random() < 0.15:
        i["request"] = rng.choice(blocks.MLA if i["use_mla"] else SELECTABLE[:7])
    if rng.random() < 0.08:
        i["request_per_kind"] = {rng.choice([kind, "sliding_window", "full_attention"]): rng.choice(SELECTABLE[:5])}
    return i


def select_edges() -> Iterable[dict[str, Any]]:
    for cc, head, kv in itertools.product(
        draws.CCS, [64, 80, 128, 256, 512, 576], ["auto", "fp8", "fp8_e5m2", "nvfp4"]
    ):
        for more in (
            {},
            {"non_causal": True},
            {"sinks": True},
            {"user_block_size": True, "block_size": 64},
            {"mm_prefix": True},
        ):
            yield {"cc": cc, "head": head, "model_head_size": head, "kv": kv, **more}
    dims = {"mla_nope": 128, "mla_rope": 64, "mla_v": 128, "mla_lora": 512, "use_mla": True, "head": 576}
    for cc, kv, heads in itertools.product(draws.CCS, ["auto", "fp8", "fp8_ds_mla"], [16, 128]):
        yield {"cc": cc, "kv": kv, "heads": heads, "model_q_heads": heads, **dims}
        yield {"cc": cc, "kv": kv, "heads": heads, "model_q_heads": heads, **dims, "sparse": True, "index_topk": 2048}
    # The drafter of the founding problem: head 128, not causal, behind a head-256 target, block size 64 given.
    yield {
        "cc": "10.0",
        "head": 128,
        "model_head_size": 256,
        "model_q_heads": 24,
        "model_kv_heads": 4,
        "non_causal": True,
        "user_block_size": True,
        "block_size": 64,
    }
    for attn_type in ATTN_TYPES:
        yield {
            "attn_type": attn_type,
            "request_per_kind": {"encoder_only_attention": "FLEX_ATTENTION", "cross_attention": "TRITON_ATTN"},
        }
    for mla, sliding in itertools.product([False, True], repeat=2):
        yield {
            **(dims if mla else {}),
            "sliding": sliding,
            "request_per_kind": {"sliding_window_mla": "TRITON_MLA", "mla_attention": "FLASHMLA"},
        }
    for backend in SELECTABLE:
        yield {
            "cc": "9.0",
            "request": backend,
            "head": 256,
            "mla_nope": 128,
            "mla_rope": 64,
            "mla_v": 128,
            "mla_lora": 512,
        }
    yield {"adaptive": True, "drafter_head": True, "cc": "10.0"}
    yield {"adaptive": True, "cc": "9.0"}


SELECT = Piece(
    name="backend_selection",
    about="get_attn_backend: the backend of a layer, the reasons against the ones before it",
    functions=(
        "v1.attention.selector:get_attn_backend",
        "v1.attention.selector:get_attn_spec_kind",
        "platforms.cuda:CudaPlatformBase.get_attn_backend_cls",
        "platforms.cuda:CudaPlatformBase.get_valid_backends",
    ),
    run=select_run,
    draw=select_draw,
    edges=select_edges,
    defaults={**LAYER, "request": None, "request_per_kind": {}},
    count=8000,
    unreached={"platforms.cuda:CudaPlatformBase.get_attn_backend_cls": "backends whose import fails"},
)
PIECES = (PRIORITY, SELECT)
