"""One block size for all layers: hybrid models, mixed KV dtypes."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

from . import blocks, specs, world
from .record import Piece

PLATFORM = "platforms.interface:Platform"
DEFAULTS: dict[str, Any] = {
    "backends": [],
    "block_size": 16,
    "user_block_size": False,
    "hybrid": True,
    "use_mla": False,
    "states": [],
    "checkpoint_alignments": [],
    "mamba_cache_mode": "none",
    "mamba_page_size_padded": None,
    "skip_page_size_padded": None,
}


def _model_class(states: list[dict[str, Any]]) -> Any:
    shapes = [tuple(map(tuple, s["shapes"])) for s in states]
    dtypes = [tuple(world.dtype(t) for t in s["state_dtypes"]) for s in states]
    if len(states) == 1:
        return SimpleNamespace(
            get_mamba_state_shape_from_config=lambda _config: shapes[0],
            get_mamba_state_dtype_from_config=lambda _config: dtypes[0],
        )
    made = [specs.make({"kind": "mamba", "block": -1, **s}) for s in states]
    return SimpleNamespace(get_mamba_specs_from_config=lambda _config: made)


def _prepare(i: dict[str, Any]) -> tuple[Any, list[Any]]:
    config = world.config()
    classes = [blocks.backend(b) for b in i["backends"]]
    for n, cls in enumerate(classes):
        config.layers[f"attention.{n}"] = SimpleNamespace(get_attn_backend=lambda cls=cls: cls)
    ssm = SimpleNamespace(is_ssm=lambda: True)
    for n, alignment in enumerate(i["checkpoint_alignments"]):
        config.layers[f"mamba.{n}"] = SimpleNamespace(
            get_attn_backend=lambda: ssm, get_prefill_checkpoint_alignment=lambda alignment=alignment: alignment
        )
    if config.model_config is not None:
        config.model_config.model_class = _model_class(i["states"])
    return config, classes


def _result(config: Any) -> dict[str, Any]:
    cache = config.cache_config
    return {
        k: getattr(cache, k)
        for k in ("block_size", "mamba_block_size", "mamba_page_size_padded", "skip_page_size_padded")
    }


def hybrid_run(i: dict[str, Any]) -> Any:
    config, classes = _prepare(i)
    world.get(PLATFORM)._align_hybrid_block_size(config, classes[0])
    states = [specs.make({"kind": "mamba", "block": -1, **s}).page_size_bytes for s in i["states"]]
    return {**_result(config), "mamba_page_bytes": max(states)}


def mixed_run(i: dict[str, Any]) -> Any:
    config, classes = _prepare(i)
    world.get(PLATFORM)._align_heterogeneous_kv_block_size(config, classes[0])
    return _result(config)


def whole_run(i: dict[str, Any]) -> Any:
    config, _classes = _prepare(i)
    world.get(PLATFORM).update_block_size_for_backend(config)
    return _result(config)


def draw_states(rng: random.Random) -> list[dict[str, Any]]:
    found = []
    for _ in range(rng.choices([1, 2, 3], [85, 10, 5])[0]):
        spec = specs.draw_mamba(rng)
        found.append({"shapes": spec["shapes"], "state_dtypes": spec["state_dtypes"]})
    return found


def kv_for(rng: random.Random) -> tuple[str, str]:
    """A KV dtype and a backend that packs it."""
    kv = rng.choice(
        [
            "auto",
            "auto",
            "auto",
            "bfloat16",
            "fp8",
            "fp8_e4m3",
            "nvfp4",
            "int8_per_token_head",
            "fp8_per_token_head",
            "int4_per_token_head",
            "turboquant_k8v4",
            "turboquant_4bit_nc",
            "turboquant_k3v4_nc",
        ]
    )
    return kv, specs.kernel_backend(kv, rng)


def draw_common(rng: random.Random) -> dict[str, Any]:
    """Model, KV dtype, backends."""
    kv, first = kv_for(rng)
    heads = rng.choice([1, 2, 4, 8, 8, 16])
    i: dict[str, Any] = {
        "cc": rng.choice(["8.0", "9.0", "10.0", "10.0", "11.0", "12.0"]),
        "model_head_size": rng.choice([64, 128, 128, 256, 256, 512, 96]),
        "model_kv_heads": heads,
        "model_q_heads": heads * rng.choice([1, 4, 6, 8]),
        "cache_dtype": kv,
        "block_size": rng.choice([16, 16, 32, 64, 128, 256, rng.choice([48, 100, 400])]),
        "states": draw_states(rng),
    }
    if rng.random() < 0.1:
        i["model_dtype"] = rng.choice(["fp16", "fp32"])
    if rng.random() < 0.5:
        names = dict.fromkeys([first, *rng.sample(["FLASH_ATTN", "FLASHINFER", "TRITON_ATTN"], rng.randrange(0, 3))])
        i["backends"] = [{"name": n} for n in names]
    else:
        i["backends"] = [b if b["sizes"] else {**b, "sizes": ["16../16"]} for b in blocks.draw_backends(rng, 3)]
    if rng.random() < 0.4:
        i["mamba_cache_mode"] = "align"
        i["checkpoint_alignments"] = rng.choice([[], [64], [64, 64], [None], [64, None], [16, 24], [256]])
    if kv == "auto" and rng.random() < 0.15:
        i |= {"use_mla": True, "model_head_size": rng.choice([576, 512]), "model_kv_heads": 1}
        i["backends"] = [{"name": n} for n in rng.sample(blocks.MLA[:6], rng.randrange(1, 3))]
    if rng.random() < 0.1:
        i["mamba_page_size_padded"] = rng.choice([3407872, 3670016, 2 * 1024 * 1024])
    return i


def hybrid_draw(rng: random.Random) -> dict[str, Any]:
    i = draw_common(rng)
    if i["cache_dtype"].startswith("turboquant") and rng.random() < 0.5:
        i["skip_layers"] = True
    return i


QWEN = {"shapes": [[10, 10240], [48, 128, 128]], "state_dtypes": ["bf16", "fp32"]}
QWEN_MODEL = {"cc": "10.0", "model_head_size": 256, "model_kv_heads": 4, "model_q_heads": 24, "states": [QWEN]}


def hybrid_edges() -> Iterable[dict[str, Any]]:
    small: list[int | str] = [16, 32, 64]
    for block, kv in itertools.product([16, 32, 64, 128, 256], ["auto", "fp8", "nvfp4", "int8_per_token_head"]):
        backend = "FLASHINFER" if kv != "int8_per_token_head" else "TRITON_ATTN"
        for others in (
            [],
            [{"name": "FLASH_ATTN"}],
            [{"name": "B1", "sizes": ["16../16"]}],
            [{"name": "B1", "sizes": [128]}],
        ):
            yield {**QWEN_MODEL, "block_size": block, "cache_dtype": kv, "backends": [{"name": backend}, *others]}
            yield {
                **QWEN_MODEL,
                "block_size": block,
                "cache_dtype": kv,
                "backends": [{"name": backend}, *others],
                "mamba_cache_mode": "align",
                "checkpoint_alignments": [64],
            }
    bf16 = {"shapes": [[18, 10240], [48, 128, 128]], "state_dtypes": ["bf16", "bf16"]}
    yield {**QWEN_MODEL, "states": [bf16], "backends": [{"name": "B0", "sizes": small}]}
    # A state whose bytes are exactly a whole number of aligned blocks: no padding.
    yield {
        **QWEN_MODEL,
        "states": [{"shapes": [[832, 2048]], "state_dtypes": ["bf16"]}],
        "backends": [{"name": "B0", "sizes": small}],
    }
    yield {
        **QWEN_MODEL,
        "states": [{"shapes": [[832, 2048]], "state_dtypes": ["bf16"]}],
        "backends": [{"name": "B0", "sizes": small}],
        "mamba_page_size_padded": 3407872,
    }
    yield {
        **QWEN_MODEL,
        "states": [{"shapes": [[0, 16]], "state_dtypes": ["bf16"]}],
        "backends": [{"name": "B0", "sizes": small}],
    }
    yield {**QWEN_MODEL, "backends": [{"name": "FLASHINFER"}], "mamba_page_size_padded": 3407872}
    for skip in (False, True):
        yield {
            **QWEN_MODEL,
            "cache_dtype": "turboquant_k8v4",
            "backends": [{"name": "TURBOQUANT"}],
            "skip_layers": skip,
        }
        yield {
            **QWEN_MODEL,
            "cache_dtype": "ultraquant_4bit",
            "backends": [{"name": "B0", "sizes": small}],
            "skip_layers": skip,
        }
    yield {
        **QWEN_MODEL,
        "use_mla": True,
        "model_head_size": 576,
        "model_kv_heads": 1,
        "backends": [{"name": "FLASHINFER_MLA"}],
    }


HYBRID = Piece(
    name="hybrid_alignment",
    about="_align_hybrid_block_size: the attention block that covers a Mamba page, and the padded Mamba page",
    functions=(
        f"{PLATFORM}._align_hybrid_block_size",
        "model_executor.layers.mamba.abstract:get_mamba_prefill_checkpoint_alignment",
    ),
    run=hybrid_run,
    draw=hybrid_draw,
    edges=hybrid_edges,
    defaults=DEFAULTS,
)


def mixed_draw(rng: random.Random) -> dict[str, Any]:
    i = draw_common(rng)
    i["skip_layers"] = rng.random() < 0.93
    i["states"] = []
    i.pop("use_mla", None)
    if rng.random() < 0.02:
        i["model"] = False
    return i


def mixed_edges() -> Iterable[dict[str, Any]]:
    for kv, block, head in itertools.product(
        ["auto", "fp8", "nvfp4", "int8_per_token_head"], [16, 64, 832], [128, 256]
    ):
        backend = specs.kernel_backend(kv, random.Random(0))
        for padded in (None, 3407872):
            yield {
                "cc": "10.0",
                "model_head_size": head,
                "model_kv_heads": 4,
                "cache_dtype": kv,
                "block_size": block,
                "skip_layers": True,
                "mamba_page_size_padded": padded,
                "backends": [{"name": backend}],
            }
    yield {"model": False, "backends": [{"name": "FLASHINFER"}]}
    yield {"skip_layers": False, "backends": [{"name": "FLASHINFER"}]}
    yield {"skip_layers": True, "cache_dtype": "float32", "model_dtype": "bf16", "backends": [{"name": "FLASHINFER"}]}


MIXED = Piece(
    name="mixed_kv_alignment",
    about="_align_heterogeneous_kv_block_size: layers left unquantised beside a quantised primary",
    functions=(f"{PLATFORM}._align_heterogeneous_kv_block_size",),
    run=mixed_run,
    draw=mixed_draw,
    edges=mixed_edges,
    defaults=DEFAULTS,
    unreached={f"{PLATFORM}._align_heterogeneous_kv_block_size": "without skip layers it returned before"},
)


def whole_draw(rng: random.Random) -> dict[str, Any]:
    i = draw_common(rng)
    i["hybrid"] = rng.random() < 0.65
    i["skip_layers"] = rng.random() < 0.25
    if rng.random() < 0.35:
        i["user_block_size"] = True
    else:
        i["block_size"] = 16
    i.pop("mamba_page_size_padded", None)
    if rng.random() < 0.02:
        i["backends"] = []
    if rng.random() < 0.02:
        i["model"] = False
    return i


def whole_edges() -> Iterable[dict[str, Any]]:
    target = {"name": "FLASHINFER"}
    for draft in (
        [],
        [{"name": "FLASH_ATTN"}],
        [{"name": "B1", "sizes": ["16../16"]}],
        [{"name": "B1", "sizes": [128]}],
    ):
        for kv in ("auto", "fp8", "nvfp4"):
            yield {**QWEN_MODEL, "cache_dtype": kv, "backends": [target, *draft]}
            for user in (16, 64, 128, 256):
                yield {
                    **QWEN_MODEL,
                    "cache_dtype": kv,
                    "backends": [target, *draft],
                    "user_block_size": True,
                    "block_size": user,
                }
            yield {**QWEN_MODEL, "cache_dtype": kv, "backends": [target, *draft], "skip_layers": True}
    yield {**QWEN_MODEL, "backends": []}
    yield {**QWEN_MODEL, "model": False, "backends": [target]}
    yield {
        **QWEN_MODEL,
        "backends": [{"name": "B0", "sizes": [16], "exact": True}, {"name": "B1", "sizes": ["16../16"]}],
    }


WHOLE = Piece(
    name="block_size_for_model",
    about="update_block_size_for_backend: all three phases and the check after them",
    functions=(
        f"{PLATFORM}.update_block_size_for_backend",
        f"{PLATFORM}._find_non_ssm_backends",
        f"{PLATFORM}._check_aligned_block_size",
    ),
    run=whole_run,
    draw=whole_draw,
    edges=whole_edges,
    defaults=DEFAULTS,
    count=6000,
)


PIECES = (HYBRID, MIXED, WHOLE)
