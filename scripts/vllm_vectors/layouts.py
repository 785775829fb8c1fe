"""The physical layout of the KV cache that all backends of a model agree on."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable
from functools import cache
from typing import Any

from . import blocks, draws, families, specs, world
from .planning import LAYOUTS
from .record import Piece

UTILS = "v1.attention.backends.utils"
NAMES = [*blocks.PLAIN[:7], *blocks.MLA[:6], *blocks.INDEXERS]


@cache
def made_up(layouts: tuple[str, ...] | None, name: str) -> Any:
    """A backend class that declares these layouts, most preferred first, or none."""
    enum = world.get("v1.kv_cache_layout:KVCacheLayout")
    declared = None if layouts is None else tuple(enum[n] for n in layouts)
    base = world.get("v1.attention.backend:AttentionBackend")
    return type(name, (base,), {"supported_kv_cache_layouts": classmethod(lambda cls: declared)})


def run(i: dict[str, Any]) -> Any:
    config = world.config()
    config.cache_config.kv_cache_layout = i["resolved"]
    world.get("envs").VLLM_KV_CACHE_LAYOUT = i["requested"]
    world.get(UTILS).get_kv_connector_cache_layout = lambda _config: i["connector"]
    classes = [
        specs.backend_class(b["name"])
        if "layouts" not in b
        else made_up(None if b["layouts"] is None else tuple(b["layouts"]), b["name"])
        for b in i["backends"]
    ]
    supported = [layout.name for layout in world.get(f"{UTILS}:get_supported_kv_cache_layouts")(classes)]
    described = [specs.make(s) for s in i["specs"]]
    chosen = world.get(f"{UTILS}:resolve_kv_cache_layout")(config, [supported], described)
    return {"supported": supported, "layout": chosen.name}


def draw(rng: random.Random) -> dict[str, Any]:
    i: dict[str, Any] = {"cc": rng.choice(draws.CCS)}
    backends: list[dict[str, Any]] = [{"name": n} for n in rng.sample(NAMES, rng.randrange(1, 4))]
    if rng.random() < 0.45:
        backends = []
        for n in range(rng.randrange(1, 4)):
            some = rng.sample(LAYOUTS, rng.randrange(1, 7))
            backends.append({"name": f"B{n}", "layouts": None if rng.random() < 0.25 else some})
    i["backends"] = backends
    if rng.random() < 0.6:
        i["specs"] = families.draw_model(rng)["specs"]
    if rng.random() < 0.15:
        i["requested"] = rng.choice([*LAYOUTS, "NHD", "HND", "XYZ"])
    if rng.random() < 0.15:
        i["connector"] = rng.choice([*LAYOUTS, "HND"])
    return i


def edges() -> Iterable[dict[str, Any]]:
    for name, cc in itertools.product(NAMES, draws.CCS):
        yield {"backends": [{"name": name}], "cc": cc}
        yield {"backends": [{"name": name}, {"name": "FLEX_ATTENTION"}], "cc": cc}
    replicated: list[dict[str, Any]] = [{}, {"head": 64, "dcp_sharded": False}]
    for layouts in (None, ["LHBNC"], ["LBNHC", "LHBNC"], ["LBHNC"], ["BLHNC"]):
        backends = [{"name": "B0", "layouts": layouts}]
        for some in ([{}], [{}, {"head": 64}], replicated):
            yield {"backends": backends, "specs": some}
            yield {"backends": backends, "specs": some, "requested": "HND"}
            yield {"backends": backends, "specs": some, "connector": "LBHNC"}
    yield {"backends": [{"name": "FLASHINFER"}], "resolved": "BLHNC"}


PIECE = Piece(
    name="kv_layout",
    about="get_supported_kv_cache_layouts and resolve_kv_cache_layout: the one layout of the KV cache",
    functions=(
        f"{UTILS}:get_supported_kv_cache_layouts",
        f"{UTILS}:resolve_kv_cache_layout",
        "v1.attention.backends.flashinfer:FlashInferBackend.supported_kv_cache_layouts",
    ),
    run=run,
    draw=draw,
    edges=edges,
    defaults={"backends": [], "specs": [], "requested": None, "connector": None, "resolved": None},
)
PIECES = (PIECE,)
