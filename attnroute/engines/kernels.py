"""The kernels behind a group's backend, phase by phase, as attnroute's ids."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from attnroute.engines import flashinfer
from attnroute.engines.data import Backend, Engine, first_use
from attnroute.engines.facts import World, world_facts
from attnroute.engines.result import PHASES, KernelUse
from attnroute.engines.spec import CacheSpec

if TYPE_CHECKING:
    from attnroute.dispatch.group import KVGroup
    from attnroute.engines.rules import Facts


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """Kernels of a group, FlashAttention's version if that is what serves it, graph level, decode threshold, notes."""

    phases: Mapping[str, KernelUse | None]
    fa_version: int | None
    graph: str
    threshold: int | None
    notes: tuple[str, ...]


def _threshold(backend: Backend, facts: Facts, spec_tokens: int, dcp: int) -> int | None:
    least: int | None = backend.data.get("threshold")
    if least is None:
        return None
    if first_use(backend.data.get("spec", []), facts, otherwise=False):
        least = max(least, 1 + spec_tokens)
    return 1 if dcp > 1 and not backend.data.get("varlen_dcp", False) else least


def _use(name: str | None, label: str, page: int | None, q_dtype: str | None) -> KernelUse:
    kernel, _, provider = (name or "").partition("@")
    return KernelUse(kernel or None, provider or None, label, page, q_dtype)


def plan_kernels(
    engine: Engine,
    world: World,
    backend: Backend,
    group: KVGroup,
    spec: CacheSpec,
    kv: str,
    page: int,
    *,
    spec_tokens: int,
) -> GroupPlan:
    """Kernels of a group that `backend` serves with kernel blocks of `page` tokens. Raises EngineError."""
    if backend.children:
        return _composite(engine, world, backend, group, spec, kv, page, spec_tokens)
    kernels: Mapping[str, Any] = backend.data.get("kernels", {})
    if kernels.get("q_dtype"):
        return _flashinfer(engine, world, backend, group, replace(spec, block=page), kv, page, spec_tokens)
    facts = world_facts(
        engine,
        world,
        head=spec.head or group.head_dim,
        head_v=None,
        kv=kv,
        sinks=bool(group.sinks),
        softcap=group.softcap is not None,
        alibi="alibi" in group.traits,
        window=group.sliding_window is not None,
        attn_type=group.attn_type,
        hd256_aware=True,
        non_causal=not group.causal,
    )
    version: int | None = None
    notes: tuple[str, ...] = ()
    key = "null"
    if "resolve" in kernels:
        answer = engine.tables[kernels["resolve"]].answer(facts)
        version, notes, key = answer.value, answer.why, str(answer.value)
    name = kernels.get("by", {}).get(key)
    fp8_query = kernels.get("quantised_query", False) and spec.mode == "FP8_PER_TENSOR"
    q_dtype = "fp8_e4m3" if fp8_query else group.dtype
    label = f"{backend.label}{'' if version is None else f' v{version}'}"
    use = _use(name, label, page, q_dtype)
    wanted = PHASES if not kernels.get("decode_only") else ("decode", "verify", "draft")
    phases = {phase: use if phase in wanted else None for phase in _phases_of(group)}
    if spec.kind == "mla" and group.kind == "mla":
        # Dense MLA decodes on the latent, but its prompts run as plain attention on another kernel.
        prompt = engine.tables["mla_prefill"].answer(facts).value
        phases["prefill"] = None if prompt is None else _use(None, f"MLA prefill {prompt}", None, group.dtype)
    graph = first_use(backend.data.get("graph", []), facts, otherwise="none")
    return GroupPlan(phases, version, graph, _threshold(backend, facts, spec_tokens, world.dcp), notes)


def _composite(
    engine: Engine,
    world: World,
    backend: Backend,
    group: KVGroup,
    spec: CacheSpec,
    kv: str,
    page: int,
    spec_tokens: int,
) -> GroupPlan:
    """Causal steps run on the second child, image masks on the first; both bound graphs and thresholds."""
    general, causal = (
        plan_kernels(engine, world, child, group, spec, kv, page, spec_tokens=spec_tokens) for child in backend.children
    )
    order: list[str] = engine.data["graph_levels"]
    own = first_use(backend.data.get("graph", []), world_facts(engine, world), otherwise="none")
    thresholds = [t for t in (general.threshold, causal.threshold) if t is not None]
    note = f"image masks run on {backend.children[0].label}"
    return GroupPlan(
        causal.phases,
        causal.fa_version,
        min(own, general.graph, causal.graph, key=order.index),
        min(thresholds, default=None),
        (*causal.notes, note),
    )


def _phases_of(group: KVGroup) -> tuple[str, ...]:
    return ("draft", "prefill") if group.role == "draft" else ("prefill", "decode", "verify")


def _flashinfer(
    engine: Engine,
    world: World,
    backend: Backend,
    group: KVGroup,
    spec: CacheSpec,
    kv: str,
    page: int,
    spec_tokens: int,
) -> GroupPlan:
    facts = flashinfer.group_facts(
        engine, world, spec, q_heads=group.num_q_heads, sinks=bool(group.sinks), non_causal=not group.causal, kv=kv
    )
    found = flashinfer.group_kernels(engine, world, facts, spec_tokens=spec_tokens)
    kernels = backend.data["kernels"]
    fp8 = "fp8_e5m2" if kv == "fp8_e5m2" else "fp8_e4m3"
    q = {
        True: group.dtype if found.q_prefill == "model" else fp8,
        False: group.dtype if found.q_decode == "model" else fp8,
    }
    rest = facts.but({"trtllm_prefill_used": found.trtllm_prefill, "q_prefill": found.q_prefill})
    ids = {
        "prefill": first_use(kernels["prefill"], rest),
        "native": first_use(kernels["prefill"], rest.but({"trtllm_prefill_used": False})),
        "decode": kernels["by"][str(found.decode) if found.decode else "null"],
    }
    label = found.decode or "flashinfer-native"
    decode = _use(ids["decode"], label, page, q[False])
    prefill = _use(ids["prefill"], "trtllm-gen" if found.trtllm_prefill else "flashinfer-native", page, q[True])
    native = _use(ids["native"], "flashinfer-native", page, q[True])
    # One more token than a decode: does it still count as one?
    verify = decode if flashinfer.group_kernels(engine, world, facts, spec_tokens=1).threshold > 1 else prefill
    draft = decode if group.causal or found.decode in kernels["non_causal_decode"] else native
    every = {"prefill": prefill if group.causal else native, "decode": decode, "verify": verify, "draft": draft}
    phases: dict[str, KernelUse | None] = {phase: every[phase] for phase in _phases_of(group)}
    notes = found.notes
    if draft is native and group.role == "draft":
        notes = (*notes, "non-causal draft steps run in FlashInfer's prefill wrapper, which no CUDA graph can replay")
    return GroupPlan(phases, None, flashinfer.group_graph(engine, facts), found.threshold, notes)
