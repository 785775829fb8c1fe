"""Kernel block sizes: the size all backends prefer, the common size, the size of each group."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable
from functools import cache
from types import SimpleNamespace
from typing import Any

from . import draws, specs, world
from .record import Piece

PLAIN = (
    "FLASH_ATTN FLASHINFER TRITON_ATTN FLEX_ATTENTION TURBOQUANT TRITON_FLASHINFER TRITON_FLASH_ATTN FLASH_ATTN_DIFFKV"
).split()
MLA = (
    "FLASHINFER_MLA TOKENSPEED_MLA CUTLASS_MLA FLASH_ATTN_MLA FLASHMLA TRITON_MLA "
    "FLASHINFER_MLA_SPARSE FLASHMLA_SPARSE FLASH_ATTN_MLA_SPARSE FLASH_ATTN_MLA_SPARSE_FA4 FLASHINFER_MLA_SPARSE_SM120 "
    "FLASHINFER_MLA_SPARSE_SM90"
).split()
INDEXERS = ["DEEPSEEK_V32_INDEXER", "DEEPSEEK_V4_INDEXER", "DEEPSEEK_V41_INDEXER"]
ASKED = [1, 8, 16, 32, 48, 64, 96, 128, 256, 400, 512, 832, 896, 1024, 1056, 1648]


@cache
def made_up(declared: tuple[int | str, ...], exact: bool, name: str) -> Any:
    """A class of vLLM's base with these sizes; `exact` accepts a block only if it is one of them (as CPU_MLA does)."""
    base = world.get("v1.attention.backend:AttentionBackend")
    body: dict[str, Any] = {
        "get_supported_kernel_block_sizes": staticmethod(lambda kv_cache_spec=None: specs.sizes_in(list(declared))),
        "get_name": staticmethod(lambda: name),
        "get_impl_cls": staticmethod(lambda: None),
        "get_builder_cls": staticmethod(lambda: None),
    }
    if exact:
        numbers = [s for s in declared if isinstance(s, int)]
        body["supports_block_size"] = classmethod(lambda cls, size: size is None or size in numbers)
    return type(name, (base,), body)


def backend(b: dict[str, Any]) -> Any:
    """The class that a `backends` entry stands for."""
    if "sizes" in b:
        return made_up(tuple(b["sizes"]), b.get("exact", False), b["name"])
    return specs.backend_class(b["name"])


FLASH = "v1.attention.backends.flash_attn:FlashAttentionBackend"
BASE = "v1.attention.backend:AttentionBackend"


def draw_sizes(rng: random.Random) -> list[int | str]:
    """Declared sizes like those of real backends, or odd ones."""
    real: list[list[int | str]] = [
        ["16../16"],
        ["64../64"],
        ["32../32"],
        [16, 32, 64],
        [16, 32, 64, 128, 256, 512, 1024],
        [64],
        [128],
        [32, 64],
        [256],
        [16, 32, 64, 128],
        ["1../1"],
    ]
    if rng.random() < 0.6:
        return rng.choice(real)
    pool: list[int | str] = [
        rng.choice([1, 2, 3, 5, 8, 12, 16, 24, 32, 48, 64, 80, 96, 128, 144, 192, 256]) for _ in range(rng.randrange(4))
    ]
    return [f"{s}../{s}" if rng.random() < 0.35 else s for s in pool]


def draw_backends(rng: random.Random, most: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for n in range(rng.randrange(1, most + 1)):
        b: dict[str, Any] = {"name": f"B{n}", "sizes": draw_sizes(rng)}
        if rng.random() < 0.08:
            b["exact"] = True
        found.append(b)
    return found


def draw_block_for(rng: random.Random, backends: list[dict[str, Any]]) -> int:
    """A manager block: mostly one that one of these backends can divide."""
    sizes = [size for b in backends for size in b.get("sizes", [])]
    if not sizes or rng.random() < 0.3:
        return draw_block(rng)
    size = rng.choice(sizes)
    return (size if isinstance(size, int) else int(size.partition("..")[0])) * rng.choice([1, 2, 3, 6, 12, 13, 26, 52])


def draw_block(rng: random.Random) -> int:
    """A manager block size."""
    return rng.choice([*ASKED, 528, 784, 1664, 2048, 192, 16 * rng.randrange(1, 200), rng.randrange(1, 3000)])


def preferred_run(i: dict[str, Any]) -> Any:
    interface = world.get("platforms.interface:Platform")
    classes = [backend(b) for b in i["backends"]]
    return {"block": interface._preferred_block_size_for_backends(classes, i["default_block"], world.config())}


def preferred_draw(rng: random.Random) -> dict[str, Any]:
    if rng.random() < 0.6:
        return {"backends": draw_backends(rng, 4), "default_block": rng.choice([16, 16, 16, 32, 64, 100])}
    names = (
        rng.sample(PLAIN[:4] * 2 + PLAIN[4:7], rng.randrange(1, 4))
        if rng.random() < 0.6
        else rng.sample(MLA + INDEXERS, rng.randrange(1, 4))
    )
    i: dict[str, Any] = {
        **draws.machine(rng),
        **draws.model(rng),
        "backends": [{"name": n} for n in dict.fromkeys(names)],
        "model": True,
    }
    if rng.random() < 0.4:
        i |= {"model_head_size": rng.choice([256, 512]), "cc": rng.choice(["9.0", "10.0", "11.0"])}
    return i


def preferred_edges() -> Iterable[dict[str, Any]]:
    def those(*sizes: list[int | str], **more: Any) -> dict[str, Any]:
        return {"backends": [{"name": f"B{n}", "sizes": s} for n, s in enumerate(sizes)], **more}

    yield those([])
    yield those([], [64])
    yield those(["16../16"])
    yield those([64])
    yield those([64], [128])
    yield those([16, 32, 64, 128, 256, 512, 1024], [128])
    yield {"backends": [{"name": "B0", "sizes": [16], "exact": True}, {"name": "B1", "sizes": [64]}]}
    for cc, head in itertools.product(["9.0", "10.0", "11.0"], [128, 256, 512]):
        yield {"cc": cc, "model_head_size": head, "backends": [{"name": "FLASHINFER"}, {"name": "FLASH_ATTN"}]}
        yield {"cc": cc, "model_head_size": head, "backends": [{"name": "FLASH_ATTN"}]}
    for mla in MLA:
        yield {"cc": "10.0", "backends": [{"name": mla}, {"name": "DEEPSEEK_V32_INDEXER"}]}


PREFERRED = Piece(
    name="preferred_block",
    about="the default block size over all backends of a model (phase 1 of update_block_size_for_backend)",
    functions=(
        "platforms.interface:Platform._preferred_block_size_for_backends",
        f"{BASE}.get_preferred_block_size",
    ),
    run=preferred_run,
    draw=preferred_draw,
    edges=preferred_edges,
    defaults={"backends": [], "default_block": 16},
    count=6000,
)


def common_run(i: dict[str, Any]) -> Any:
    classes = [backend(b) for b in i["backends"]]
    given = [b.get("spec") for b in i["backends"]]
    per_backend = (
        [specs.make(s) if s is not None else None for s in given] if any(s is not None for s in given) else None
    )
    return {"block": world.get("v1.worker.utils:select_common_block_size")(i["block"], classes, per_backend)}


def common_draw(rng: random.Random) -> dict[str, Any]:
    if rng.random() < 0.7:
        backends = draw_backends(rng, 3)
        return {"block": draw_block_for(rng, backends), "backends": backends}
    i: dict[str, Any] = {"cc": draws.cc(rng), "model_head_size": draws.head(rng), "block": draw_block(rng)}
    names = (
        rng.sample([*PLAIN[:4], "TURBOQUANT"], rng.randrange(1, 3))
        if rng.random() < 0.7
        else rng.sample(MLA + INDEXERS, rng.randrange(1, 3))
    )
    i["backends"] = [{"name": n} for n in names]
    for b in i["backends"]:
        if rng.random() < 0.7:
            b["spec"] = specs.lean({"head": rng.choice([64, 128, 256, 512]), "kv": rng.choice(["auto", "fp8"])})
            if b["name"] in MLA + INDEXERS:
                b["spec"] = specs.lean(
                    {"kind": "mla", "heads": 1, "head": 576, "kv": rng.choice(["auto", "fp8_ds_mla"])}
                )
    return i


def common_edges() -> Iterable[dict[str, Any]]:
    small: list[int | str] = [16, 32, 64]
    large: list[int | str] = [16, 32, 64, 128, 256, 512, 1024]
    for block in (832, 896, 784, 528, 1056, 1648, 1664, 16, 64, 48, 256):
        for sizes in (
            [small],
            [large],
            [["16../16"]],
            [[128]],
            [[64], small],
            [large, [128]],
            [[32, 64], [64]],
            [[64], ["16../16"]],
            [[]],
        ):
            yield {"block": block, "backends": [{"name": f"B{n}", "sizes": s} for n, s in enumerate(sizes)]}
        for head in (128, 256):
            yield {
                "cc": "10.0",
                "model_head_size": 256,
                "block": block,
                "backends": [{"name": "FLASH_ATTN", "spec": {"head": head}}],
            }
        yield {"cc": "10.0", "model_head_size": 256, "block": block, "backends": [{"name": "FLASH_ATTN"}]}


COMMON = Piece(
    name="common_block",
    about="select_common_block_size: the kernel block of a manager block for the backends of one group",
    functions=("v1.worker.utils:select_common_block_size", "v1.worker.utils:_block_size_is_supported"),
    run=common_run,
    draw=common_draw,
    edges=common_edges,
    defaults={"backends": [], "block": 16},
    unreached={"v1.worker.utils:_block_size_is_supported": "a size that is neither int nor MultipleOf"},
)


def groups_run(i: dict[str, Any]) -> Any:
    interface = world.get("v1.kv_cache_interface")
    groups, attention, tensors = [], [], []
    for n, g in enumerate(i["groups"]):
        names = [f"g{n}.{k}" for k in range(g.get("layers", 1))]
        spec: Any
        if g["spec"] == "raw":
            spec = interface.HiSparseHotSpec(block_size=g["block"], page_size=4096, blocks_per_request=2)
        elif g["spec"] == "unknown":
            spec = interface.KVCacheSpec(block_size=g["block"])
        else:
            spec = specs.make({**g["spec"], "block": g["block"]})
        group_spec = spec
        if g.get("uniform"):
            group_spec = interface.UniformTypeKVCacheSpecs(
                block_size=g["block"], kv_cache_specs=dict.fromkeys(names, spec)
            )
        groups.append(interface.KVCacheGroupSpec(names, group_spec))
        tensors.append(SimpleNamespace(layers=names, block_stride=2 if g.get("packed") else 1, layer_stride=1))
        attention.append([SimpleNamespace(backend=backend(b), kv_cache_spec=spec) for b in g.get("backends", [])])
    config = SimpleNamespace(kv_cache_groups=groups, kv_cache_tensors=tensors)
    return {"blocks": world.get("v1.worker.utils:prepare_kernel_block_sizes")(config, attention)}


def groups_draw(rng: random.Random) -> dict[str, Any]:
    groups = []
    for _ in range(rng.randrange(1, 5)):
        g: dict[str, Any] = {"block": draw_block(rng), "layers": rng.randrange(1, 4)}
        kind = rng.choices(["attention", "mamba", "encoder_only", "raw", "unknown"], [70, 18, 6, 4, 2])[0]
        if kind == "attention":
            g["spec"] = specs.lean(
                {"kind": rng.choice(["full", "window", "mla"]), "head": rng.choice([64, 128, 256, 512]), "window": 512}
            )
            if g["spec"].get("kind", "full") != "window":
                g["spec"].pop("window")
            if rng.random() < 0.3:
                g["backends"] = [
                    {"name": n} for n in rng.sample(["FLASH_ATTN", "FLASHINFER", "TRITON_ATTN"], rng.randrange(1, 3))
                ]
            else:
                g["backends"] = draw_backends(rng, 2)
            g["block"] = draw_block_for(rng, g["backends"])
            g["packed"] = rng.random() < 0.15
            g["uniform"] = rng.random() < 0.15
        elif kind == "mamba":
            g["spec"] = specs.draw_mamba(rng)
        elif kind == "encoder_only":
            g["spec"] = {"kind": "encoder_only"}
        else:
            g["spec"] = kind
        groups.append({k: v for k, v in g.items() if v is not False})
    return {"cc": rng.choice(draws.CCS), "model_head_size": draws.head(rng), "groups": groups}


GROUPS = Piece(
    name="group_kernel_blocks",
    about="prepare_kernel_block_sizes: the kernel block of every KV cache group (encoder-only groups give no entry)",
    functions=("v1.worker.utils:prepare_kernel_block_sizes",),
    run=groups_run,
    draw=groups_draw,
    defaults={"groups": []},
)
PIECES = (PREFERRED, COMMON, GROUPS)
