"""Random machines and models: the values that decisions turn on come up often, anything else now and then."""

from __future__ import annotations

import random
from typing import Any

CCS = ["7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "10.3", "11.0", "12.0", "12.1"]
HEADS = [32, 64, 80, 96, 128, 160, 192, 256, 264, 320, 384, 512, 576]
KV = [
    "auto",
    "auto",
    "float16",
    "bfloat16",
    "fp8",
    "fp8_e4m3",
    "fp8_e5m2",
    "nvfp4",
    "nvfp4_4over6",
    "int8_per_token_head",
    "fp8_per_token_head",
    "int4_per_token_head",
    "turboquant_k8v4",
    "turboquant_3bit_nc",
    "fp8_ds_mla",
    "nvfp4_ds_mla",
    "fp8_inc",
]


def cc(rng: random.Random) -> str:
    """A compute capability; now and then one that no table names."""
    return rng.choice(CCS) if rng.random() < 0.95 else f"{rng.choice([7, 8, 9, 10, 11, 12, 13])}.{rng.randrange(4)}"


def head(rng: random.Random) -> int:
    """A head size."""
    return rng.choice(HEADS) if rng.random() < 0.85 else rng.randrange(1, 640)


def machine(rng: random.Random) -> dict[str, Any]:
    """Architecture and what is installed."""
    i: dict[str, Any] = {"cc": cc(rng)}
    if rng.random() < 0.12:
        i["fa_built"] = rng.choice([[], [2], [3], [4], [2, 3], [2, 4]])
    if rng.random() < 0.15:
        i["cubins"] = False
    if rng.random() < 0.12:
        i["batch_invariant"] = True
    for key in (
        "flashinfer_mla_sparse_sm90",
        "flashinfer_mla_sparse_sm120",
        "tokenspeed",
        "fa4_cute",
        "flashmla_built",
    ):
        if rng.random() < 0.04:
            i[key] = False
    return i


def model(rng: random.Random) -> dict[str, Any]:
    """The model-wide configuration."""
    kv_heads = rng.choice([1, 2, 4, 8, 8, 16, 32])
    i: dict[str, Any] = {
        "model_head_size": head(rng),
        "model_kv_heads": kv_heads,
        "model_q_heads": kv_heads * rng.choice([1, 1, 2, 4, 6, 8, 16]) + (rng.random() < 0.05),
        "cache_dtype": rng.choice(KV[:8]),
    }
    chances: list[tuple[float, str, list[Any]]] = [
        (0.15, "fa_version", [2, 3, 4]),
        (0.2, "use_trtllm", [True, False]),
        (0.08, "softcap", [30.0, 50.0, 0.0]),
        (0.08, "mm_prefix", [True]),
        (0.05, "rswa", [512, 1024]),
        (0.05, "diffusion", [True]),
        (0.12, "non_causal", [True]),
        (0.12, "dcp", [2, 4]),
        (0.05, "pcp", [2]),
        (0.03, "model", [False]),
        (0.2, "model_dtype", ["fp16", "fp32"]),
    ]
    for chance, key, values in chances:
        if rng.random() < chance:
            i[key] = rng.choice(values)
    return i


def mla(rng: random.Random) -> dict[str, Any]:
    """The latent dimensions of the model's configuration, and its sparse index."""
    nope, rope, v, lora = rng.choice(
        [
            (128, 64, 128, 512),
            (192, 64, 256, 512),
            (256, 0, 256, 512),
            (64, 64, 128, 512),
            (64, 32, 128, 256),
            (96, 64, 128, 512),
            (256, 0, 256, 256),
        ]
    )
    i: dict[str, Any] = {"mla_nope": nope, "mla_rope": rope, "mla_v": v, "mla_lora": lora}
    if rng.random() < 0.75:
        i["index_topk"] = rng.choice([2048, 2048, 1024, 512, 1000])
    return i
