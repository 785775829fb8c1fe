"""The block that one layer takes for itself."""

from __future__ import annotations

import random
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

from . import alignment, blocks, draws, specs, world
from .record import Piece

LAYER = "model_executor.layers.attention.attention"


def layer_run(i: dict[str, Any]) -> Any:
    cls = blocks.backend(i["backend"])
    layer = SimpleNamespace(
        attn_type=i["attn_type"],
        kv_cache_dtype=i["kv"],
        kv_cache_torch_dtype=specs.storage_dtype(i["kv"], i["model_dtype"]),
        sliding_window=i["window"],
        attn_backend=cls,
        num_kv_heads=i["heads"],
        head_size=i["head"],
        head_size_v=i["head_v"] or i["head"],
    )
    spec = world.get(f"{LAYER}:Attention").get_kv_cache_spec(layer, world.config())
    if spec is None:
        return {"kind": None}
    natural = cls.customize_spec(spec)
    return {
        "kind": "window" if type(spec).__name__ == "SlidingWindowSpec" else "full",
        "block": spec.block_size,
        "padded": spec.page_size_padded,
        "unpadded_bytes": natural.unpadded_page_size_bytes,
    }


def layer_draw(rng: random.Random) -> dict[str, Any]:
    kv, name = alignment.kv_for(rng)
    i: dict[str, Any] = {
        "cc": draws.cc(rng),
        "backend": {"name": name} if rng.random() < 0.5 else blocks.draw_backends(rng, 1)[0],
        "kv": kv,
        "heads": rng.choice([1, 2, 4, 8, 16]),
        "head": rng.choice([64, 96, 128, 192, 256, 512]),
        "window": rng.choice([128, 1024, 2048]) if rng.random() < 0.95 else None,
        "block_size": blocks.draw_block(rng),
        "model_head_size": rng.choice([128, 256, 512]),
        "cache_dtype": rng.choice(["auto", "fp8", "nvfp4"]),
    }
    if rng.random() < 0.4:
        i["skip_page_size_padded"] = rng.choice(
            [73728, 1511424, 65536, 1 << rng.randrange(10, 23), rng.randrange(1, 4_000_000)]
        )
    if rng.random() < 0.05:
        i["head_v"] = rng.choice([64, 128])
    if rng.random() < 0.03:
        i["attn_type"] = rng.choice(["encoder_only", "encoder"])
    return i


def layer_edges() -> Iterable[dict[str, Any]]:
    large: list[int | str] = [16, 32, 64, 128, 256, 512, 1024]
    for sizes in (["16../16"], [16, 32, 64], large, [128], [], ["64../64"], [64], [16, "128../128"]):
        for block in (16, 64, 832, 896, 1056):
            for padded in (None, 65536, 1511424, 73728, 16):
                yield {
                    "backend": {"name": "B0", "sizes": sizes},
                    "block_size": block,
                    "window": 2048,
                    "heads": 8,
                    "head": 128,
                    "skip_page_size_padded": padded,
                }
    for attn_type in ("decoder", "encoder_only", "encoder", "encoder_decoder"):
        for window in (None, 2048):
            yield {"attn_type": attn_type, "window": window}
    for mla in ("FLASHINFER_MLA",):
        yield {"backend": {"name": mla}, "window": 2048}


OWN = Piece(
    name="layer_block",
    about="Attention.get_kv_cache_spec: the block a layer takes for itself (a sliding-window layer chooses its own)",
    functions=(f"{LAYER}:_largest_kernel_block_within", f"{LAYER}:Attention.get_kv_cache_spec"),
    run=layer_run,
    draw=layer_draw,
    edges=layer_edges,
    defaults={
        "backend": {"name": "FLASH_ATTN"},
        "attn_type": "decoder",
        "kv": "auto",
        "heads": 8,
        "head": 128,
        "head_v": None,
        "window": None,
        "block_size": 16,
        "skip_page_size_padded": None,
    },
    count=6000,
)
PIECES = (OWN,)
