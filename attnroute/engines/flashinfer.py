"""What FlashInfer's backend decides for one KV-cache group: decode kernel, query dtypes, CUDA-graph level."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnroute.engines.facts import World, world_facts
from attnroute.engines.rules import EngineError, Facts
from attnroute.engines.spec import CacheSpec

if TYPE_CHECKING:
    from attnroute.engines.data import Engine


@dataclass(frozen=True, slots=True)
class GroupKernels:
    """The decision for a group. `decode` is xqa, trtllm-gen or None (FlashInfer's own wrapper); query dtypes are
    `model` or `fp8`; `threshold` is the longest query that counts as decode; `notes` say why a kernel was not taken.
    """

    decode: str | None
    wrapper: str
    q_prefill: str
    q_decode: str
    threshold: int
    trtllm_prefill: bool
    notes: tuple[str, ...]


def group_facts(
    engine: Engine,
    world: World,
    spec: CacheSpec,
    *,
    q_heads: int,
    sinks: bool = False,
    non_causal: bool = False,
    kv: str | None = None,
) -> Facts:
    """Facts of one group. A group that stores no quantised cache counts as `auto`, whatever --kv-cache-dtype says."""
    name = "auto" if spec.mode == "NONE" else (world.cache_dtype if kv is None else kv)
    facts = world_facts(
        engine,
        world,
        head=spec.head,
        head_v=spec.head_v,
        kv=name,
        q_heads=q_heads,
        kv_heads=spec.heads,
        page=spec.block,
        sinks=sinks,
        non_causal=non_causal,
        spec_given=True,
    )
    return facts.but(
        {"kv_mode": spec.mode, "kv_quantized": spec.mode != "NONE", "use_dcp": world.dcp > 1 and spec.dcp_sharded}
    )


def group_kernels(engine: Engine, world: World, facts: Facts, *, spec_tokens: int = 0) -> GroupKernels:
    """Kernels of one group (`facts` of `group_facts`). Raises EngineError where the builder raises."""
    tables = engine.tables
    decode = tables["flashinfer_decode"].answer(facts)
    if facts["sinks"] and (facts["nvfp4_fa2"] or not engine.backend("FLASHINFER").properties["sinks"](facts)):
        raise EngineError(
            "FlashInfer backend currently does not support attention sinks, please use trtllm on blackwell or "
            "flash attention on earlier GPUs.",
            "NotImplementedError",
        )
    q = {
        prefill: tables["flashinfer_q_dtype"].answer(facts.but({"is_prefill": prefill})).value
        for prefill in (True, False)
    }
    prefill = tables["flashinfer_prefill"].answer(facts.but({"q_prefill": q[True], "is_prefill": True})).value
    native_fa2 = facts["cc"] is not None and facts["cc"] < 90
    wrapper = "trtllm-gen" if facts["nvfp4"] and not facts["nvfp4_fa2"] else "fa2" if native_fa2 else "auto"
    threshold = 1 + spec_tokens if decode.value is not None or native_fa2 else 1
    if world.dcp > 1:
        threshold = 1
    return GroupKernels(decode.value, wrapper, q[True], q[False], threshold, prefill, decode.why)


def group_graph(engine: Engine, facts: Facts) -> str:
    """CUDA-graph level of one group for one spec (`facts` of `group_facts`): uniform1 or uniform."""
    level: str = engine.tables["flashinfer_graph"].answer(facts).value
    return level
