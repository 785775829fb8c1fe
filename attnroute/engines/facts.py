"""The facts that vLLM's rules test, from a machine, a model and one layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from attnroute.engines.rules import Facts
from attnroute.errors import UsageError, unknown_name

if TYPE_CHECKING:
    from attnroute.engines.data import Engine
    from attnroute.engines.spec import CacheSpec


@dataclass(frozen=True, slots=True)
class World:
    """A machine and a model configuration. `cc` is a compute capability such as (10, 0), None where it is not known.

    `model_head` and the head counts are those of the whole model (heads on one rank); `cache_dtype` is vLLM's name.
    `mla` and `index_topk` come from the model's text configuration, None where it has no such field.
    """

    cc: tuple[int, int] | None
    fa_built: tuple[int, ...] = (2, 3, 4)
    cubins: bool = True
    flashinfer: bool = True
    flashinfer_mla_sparse_sm90: bool = True
    flashinfer_mla_sparse_sm120: bool = True
    tokenspeed: bool = True
    fa4_cute: bool = True
    flashmla_built: bool = True
    batch_invariant: bool = False
    model: bool = True
    model_head: int | None = 128
    model_head_v: int | None = None
    model_q_heads: int = 32
    model_kv_heads: int = 8
    model_softcap: bool = False
    model_mm_prefix: bool = False
    diffusion: bool = False
    rswa: bool = False
    cache_dtype: str = "auto"
    fa_asked: int | None = None
    use_trtllm: bool | None = None
    no_q_quant: bool = False
    skip_layers: bool = False
    dcp: int = 1
    pcp: int = 1
    mla_nope: int | None = None
    mla_rope: int | None = None
    mla_v: int | None = None
    mla_lora: int | None = None
    index_topk: int | None = None
    kv_connector: bool = False
    model_type: str | None = None
    head_sizes: int = 1
    max_head: int | None = None
    backend_asked: str | None = None


_PLAIN = tuple(f.name for f in fields(World) if f.name not in ("cc", "fa_built"))

_LAYER: Mapping[str, Any] = {
    "head": None,
    "head_v": None,
    "v_differs": False,
    "kv": None,
    "kv_quantized": False,
    "kv_mode": "NONE",
    "dtype": "bf16",
    "fp8_cache": False,
    "block": None,
    "kv_block": None,
    "mla": False,
    "sparse": False,
    "sinks": False,
    "alibi": False,
    "softcap": False,
    "per_head_scales": False,
    "attn_type": "decoder",
    "window": False,
    "mm_prefix": False,
    "non_causal": False,
    "adaptive": False,
    "heads": None,
    "hd256_aware": False,
    "q_heads": None,
    "kv_heads": None,
    "page": None,
    "version": None,
    "spec_given": False,
    "is_prefill": False,
    "spec_tokens": 0,
    "q_prefill": "model",
    "decode_kernel": None,
    "tokens": None,
}


def kv_row(engine: Engine, kv: str) -> Mapping[str, Any]:
    """What the data says of a name of --kv-cache-dtype; UsageError for one that the engine does not have."""
    if kv not in engine.kv_dtypes:
        raise UsageError(unknown_name("KV-cache dtype", kv, engine.kv_dtypes), code="kv-dtype")
    return engine.kv_dtypes[kv]


def mode_of(engine: Engine, kv: str | None) -> str:
    """Quantization mode of a KV dtype, NONE for none."""
    return "NONE" if kv is None else str(kv_row(engine, kv)["mode"])


def world_facts(engine: Engine, world: World, **layer: Any) -> Facts:
    """Facts of a world, with what a layer or caller adds (names as in the data's `facts`)."""
    given: dict[str, Any] = {**_LAYER, **{name: getattr(world, name) for name in _PLAIN}}
    major, minor = world.cc or (None, None)
    given["cc"] = None if major is None or minor is None else 10 * major + minor
    given["major"], given["minor"] = major, minor
    for version in (2, 3, 4):
        given[f"fa{version}_built"] = version in world.fa_built
    mode = mode_of(engine, world.cache_dtype)
    given["cache_quantized"] = mode != "NONE"
    given["cache_fp8"] = world.cache_dtype.startswith("fp8")
    given["use_dcp"], given["use_pcp"] = world.dcp > 1, world.pcp > 1
    given["gathered_q_heads"] = world.model_q_heads * world.dcp
    given["index_topk_tiles"] = world.index_topk is not None and world.index_topk % 128 == 0
    given["fa4_cute_error"] = "ImportError"
    given.update(layer)
    if "kv" in layer:
        given["kv_mode"] = mode_of(engine, layer["kv"])
        given["kv_quantized"] = given["kv_mode"] != "NONE"
    head, head_v = given["head"], given["head_v"]
    given["v_differs"] = head is not None and head_v is not None and head != head_v
    return Facts(engine, given)


def model_size_facts(engine: Engine, world: World) -> Facts:
    """The facts from which block sizes are declared without a layer's spec: the model's own head size and dtype."""
    return world_facts(
        engine,
        world,
        head=world.model_head if world.model else None,
        head_v=world.model_head_v,
        fp8_cache=world.model and world.cache_dtype in ("fp8", "fp8_e4m3"),
    )


def spec_size_facts(engine: Engine, world: World, spec: CacheSpec | None) -> Facts:
    """The facts from which block sizes are declared for one layer's cache; without a spec the model's own.

    A state's spec (no attention) has no head size, so no rule about heads holds.
    """
    if spec is None:
        return model_size_facts(engine, world)
    if spec.kind == "mamba":
        return world_facts(engine, world, spec_given=True)
    facts = world_facts(
        engine, world, head=spec.head, head_v=spec.head_v, spec_given=True, fp8_cache=spec.mode == "FP8_PER_TENSOR"
    )
    facts.given["kv_mode"] = facts["kv_mode"] = spec.mode  # type: ignore[index]
    return facts


def unconfigured(world: World) -> World:
    """The same machine without any configuration: nothing of model or options is known."""
    return World(
        world.cc,
        world.fa_built,
        world.cubins,
        world.flashinfer,
        world.flashinfer_mla_sparse_sm90,
        world.flashinfer_mla_sparse_sm120,
        world.tokenspeed,
        world.fa4_cute,
        world.flashmla_built,
        world.batch_invariant,
        model=False,
        model_head=None,
    )


def without_model(world: World) -> World:
    """The same options with no model known."""
    return replace(
        world, model=False, model_head=None, model_softcap=False, model_mm_prefix=False, diffusion=False, rswa=False
    )
