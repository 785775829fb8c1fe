"""Golden vectors' inputs as attnroute's engine room takes them."""

from __future__ import annotations

from typing import Any

from attnroute.engines.data import Backend, Engine
from attnroute.engines.facts import World, mode_of, spec_size_facts, unconfigured, without_model, world_facts
from attnroute.engines.rules import Facts
from attnroute.engines.spec import CacheSpec, attention_spec, packed

ELEMENT = {"fp16": 2, "bf16": 2, "fp32": 4, "u8": 1, "int8": 1, "fp8": 1}
CUTE_ERROR = "ModuleNotFoundError('import of vllm.vllm_flash_attn.cute.interface halted; None in sys.modules')"


def world(i: dict[str, Any]) -> World:
    """The machine and model of an input."""
    w = World(
        cc=None if i["cc"] is None else tuple(map(int, i["cc"].split("."))),  # type: ignore[arg-type]
        fa_built=tuple(i["fa_built"]) if i.get("fa_package", True) else (),
        **{
            k: i[k]
            for k in (
                "cubins",
                "flashinfer",
                "flashinfer_mla_sparse_sm90",
                "flashinfer_mla_sparse_sm120",
                "tokenspeed",
                "fa4_cute",
                "flashmla_built",
                "batch_invariant",
                "cache_dtype",
                "use_trtllm",
                "skip_layers",
                "dcp",
                "pcp",
                "mla_nope",
                "mla_rope",
                "mla_v",
                "mla_lora",
                "index_topk",
                "model_q_heads",
                "model_kv_heads",
                "diffusion",
            )
        },
        model_head=i["model_head_size"],
        model_softcap=bool(i["softcap"]),
        model_mm_prefix=i["mm_prefix"],
        rswa=i["rswa"] is not None,
        fa_asked=i["fa_version"],
        kv_connector=i.get("kv_connector", False),
    )
    if not i["config"]:
        return unconfigured(w)
    return w if i["model"] else without_model(w)


def backend_of(engine: Engine, b: dict[str, Any]) -> Backend:
    if "sizes" in b:
        return engine.made(b["name"], {"block_sizes": [{"sizes": b["sizes"]}], "exact": b.get("exact", False)})
    return engine.backend(b["name"])


def spec_of(engine: Engine, d: dict[str, Any], *, block: int | None = None) -> CacheSpec:
    """A `spec` of the vectors, packed by its backend."""
    kind = d.get("kind", "full")
    block = d.get("block", 16) if block is None else block
    if kind == "mamba":
        tensors = tuple((tuple(s), ELEMENT[t]) for s, t in zip(d["shapes"], d["state_dtypes"], strict=True))
        return CacheSpec(
            "mamba",
            block,
            tensors=tensors,
            padded=d.get("padded"),
            cache_mode=d.get("cache_mode", "none"),
            spec_blocks=d.get("spec_blocks", 0),
            checkpoint_blocks=d.get("checkpoint_blocks", 0),
            replicated=d.get("replicated", False),
            dcp_sharded=False,
        )
    rswa = kind == "rswa"
    stride = d.get("stride")
    tokens = int(stride.partition("..")[0]) if isinstance(stride, str) else None
    spec = attention_spec(
        engine,
        kind,
        block=block,
        heads=d.get("heads", 8),
        head=d.get("head", 128),
        head_v=d.get("head_v"),
        kv=d.get("kv", "auto"),
        dtype=d.get("dtype", "bf16"),
        window=None if rswa else d.get("window"),
        rswa_window=d.get("window") if rswa else None,
        extra_retained=d.get("extra_retained", 0),
        chunk=d.get("chunk"),
        padded=d.get("padded"),
        alignment=d.get("alignment"),
        tokens_per_state=d.get("tokens_per_state", 1),
        dcp_sharded=d.get("dcp_sharded", True),
        sink_len=d.get("sink_len"),
        stride_tokens=tokens,
        stride_bytes=stride if isinstance(stride, int) else None,
    )
    return packed(engine, engine.backend(d["backend"]), spec) if d.get("backend") else spec


def size_facts(engine: Engine, i: dict[str, Any], spec: CacheSpec | None = None) -> Facts:
    return spec_size_facts(engine, world(i), spec)


def layer_facts(engine: Engine, i: dict[str, Any]) -> Facts:
    return world_facts(
        engine,
        world(i),
        head=i["head"],
        kv=i["kv"],
        dtype=i["dtype"],
        block=i["block_size"] if i["user_block_size"] else None,
        mla=i["use_mla"],
        sparse=i["sparse"],
        sinks=i["sinks"],
        per_head_scales=i["per_head_scales"],
        attn_type=i["attn_type"],
        window=i["sliding"],
        mm_prefix=i["mm_prefix"],
        non_causal=i["non_causal"],
        adaptive=i["adaptive"] and not i["drafter_head"],
        heads=i["heads"],
        fa4_cute_error=CUTE_ERROR,
    )


def own_sizes(engine: Engine, i: dict[str, Any]) -> Facts:
    """The facts for block sizes as the layer's own cache would say them."""
    kind = "mla" if i["use_mla"] else "full"
    spec = attention_spec(engine, kind, block=1, heads=1, head=i["head"], kv=i["kv"] or "auto", dtype=i["dtype"])
    return spec_size_facts(engine, world(i), spec)


def mode(engine: Engine, kv: str | None) -> str:
    """Quantisation mode of a KV dtype."""
    return mode_of(engine, kv)
