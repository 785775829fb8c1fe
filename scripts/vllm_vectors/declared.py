"""Kernel block sizes that each backend declares."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable
from typing import Any

from . import draws, specs, world
from .blocks import ASKED, BASE, FLASH, INDEXERS, MLA, PLAIN, draw_sizes, made_up
from .record import Piece


def declared_run(i: dict[str, Any]) -> Any:
    if i["backend"] == "COMPOSITE":
        pair = [made_up(tuple(sizes), False, f"B{n}") for n, sizes in enumerate(i["sizes"])]
        return {
            "sizes": specs.sizes_out(world.get("v1.attention.backends.composite:_intersect_kernel_block_sizes")(*pair))
        }
    cls = (
        made_up(tuple(i["sizes"]), False, "MADE_UP") if i["backend"] == "MADE_UP" else specs.backend_class(i["backend"])
    )
    if i["backend"] == "FLASH_ATTN_DIFFKV":
        cls.set_head_size_v(i["diffkv_v"])
    spec = specs.make(i["spec"]) if i["spec"] is not None else None
    return {
        "sizes": specs.sizes_out(cls.get_supported_kernel_block_sizes(spec)),
        "preferred": cls.get_preferred_block_size(i["default_block"]),
        "accepts": [b for b in ASKED if cls.supports_block_size(b)],
        "accepts_unset": cls.supports_block_size(None),
    }


def declared_draw(rng: random.Random) -> dict[str, Any]:
    if rng.random() < 0.06:
        return {"backend": "COMPOSITE", "sizes": [draw_sizes(rng), draw_sizes(rng)]}
    if rng.random() < 0.06:
        return {"backend": "MADE_UP", "sizes": draw_sizes(rng), "default_block": rng.choice([16, 32, 64, 100, 128])}
    name = rng.choice(PLAIN[:2] * 5 + PLAIN + MLA + INDEXERS)
    i: dict[str, Any] = {**draws.machine(rng), **draws.model(rng), "backend": name}
    i["default_block"] = rng.choice([16, 16, 16, 32, 64, 128, 192, 256])
    if name in PLAIN and rng.random() < 0.55:
        i["spec"] = specs.draw_attention(rng, ("full", "full", "window", "chunked"))
        i["spec"].pop("backend", None)
        if rng.random() < 0.4:
            i["spec"] |= {"head": rng.choice([256, 512]), "kv": rng.choice(["auto", "fp8"])}
    elif name in MLA + INDEXERS and rng.random() < 0.5:
        i["spec"] = specs.draw_attention(rng, ("mla",))
    elif rng.random() < 0.05:
        i["spec"] = specs.draw_mamba(rng)
    if name == "FLASH_ATTN_DIFFKV":
        i["diffkv_v"] = rng.choice([64, 128, 256])
    if rng.random() < 0.04:
        i["config"] = False
    if rng.random() < 0.3:
        i |= {"model_head_size": rng.choice([256, 512]), "cc": rng.choice(["9.0", "10.0", "11.0"])}
    return (
        i
        if i.get("config", True) or not name.startswith(("FLASHINFER", "TRITON_FLASHINFER"))
        else {**i, "config": True}
    )


def declared_edges() -> Iterable[dict[str, Any]]:
    for name, cc, head in itertools.product(PLAIN, ["8.0", "9.0", "10.0", "11.0", "12.0"], [64, 128, 256, 512]):
        for kv in ("auto", "fp8"):
            yield {"backend": name, "cc": cc, "model_head_size": head, "cache_dtype": kv}
            yield {"backend": name, "cc": cc, "model_head_size": 128, "spec": specs.lean({"head": head, "kv": kv})}
            yield {"backend": name, "cc": cc, "model_head_size": head, "cache_dtype": kv, "spec": {"head": 64}}
    for name, cc in itertools.product(MLA + INDEXERS, ["9.0", "10.0", "12.0"]):
        for kv in ("auto", "fp8_ds_mla"):
            yield {"backend": name, "cc": cc, "spec": {"kind": "mla", "heads": 1, "head": 576, "kv": kv}}
    mamba = {"kind": "mamba", "shapes": [[3, 4096]], "state_dtypes": ["bf16"]}
    for cc in ("9.0", "10.0"):
        yield {"backend": "FLASH_ATTN", "cc": cc, "spec": mamba}
        yield {"backend": "FLASH_ATTN", "cc": cc, "config": False}
        yield {"backend": "FLASH_ATTN", "cc": cc, "model": False}
        yield {"backend": "FLASHINFER", "cc": cc, "model": False}
    yield {"platform": "xpu", "backend": "FLASH_ATTN"}
    yield {"platform": "rocm", "backend": "DEEPSEEK_V32_INDEXER"}


DECLARED = Piece(
    name="kernel_block_sizes",
    about="kernel block sizes a backend declares (model-wide or for a spec), its preferred size, blocks it accepts",
    functions=(
        f"{FLASH}.get_supported_kernel_block_sizes",
        f"{FLASH}._get_sm90_fa4_fp8_kv_block_size",
        f"{FLASH}._get_fa4_hd256_block_size",
        f"{FLASH}.get_preferred_block_size",
        "v1.attention.backends.flashinfer:FlashInferBackend.get_supported_kernel_block_sizes",
        "v1.attention.backends.mla.flashmla_sparse:FlashMLASparseBackend.get_supported_kernel_block_sizes",
        "v1.attention.backends.composite:_intersect_kernel_block_sizes",
        f"{BASE}.supports_block_size",
        f"{BASE}.get_preferred_block_size",
        "utils.flashinfer:can_use_trtllm_attention",
    ),
    run=declared_run,
    draw=declared_draw,
    edges=declared_edges,
    defaults={"backend": "FLASH_ATTN", "sizes": None, "spec": None, "default_block": 16, "diffkv_v": 128},
    count=8000,
)


PIECES = (DECLARED,)
