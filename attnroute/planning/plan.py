"""`plan`: one choice for all KV-cache groups and phases of a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attnroute.dispatch.packages import resolve_packages
from attnroute.errors import UsageError

from .assemble import assemble
from .blocks import StateNeed
from .conflict import explain_conflict
from .engine_plan import engine_packages, plan_engine
from .joint import Weights
from .pages import GRANULE, Spans, state_blocks
from .phases import Setting, Side, parse_directions
from .record import Notes, PhaseKernel, Plan, PlanGroup
from .search import Search, members_of
from .workload import Workload

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from attnroute.dispatch.group import KVGroup
    from attnroute.dispatch.packages import Packages
    from attnroute.models.model import StateSpec
    from attnroute.registry.registry import Registry

__all__ = ["Notes", "PhaseKernel", "Plan", "PlanGroup", "Workload", "plan"]


#: Steps whose new tokens a cache must hold at once: an asynchronous scheduler prepares one while another runs.
STEPS_IN_FLIGHT = 2


def plan(
    groups: Sequence[KVGroup],
    arch: str,
    packages: Mapping[str, str] | Packages | None = None,
    *,
    engine: str = "generic",
    workload: Workload | None = None,
    block_size: int | None = None,
    state: Sequence[StateSpec] = (),
    draft: Sequence[KVGroup] = (),
    num_speculative_tokens: int = 0,
    max_model_len: int | None = None,
    max_source_len: int | None = None,
    max_num_batched_tokens: int = 2048,
    kv_memory: int | None = None,
    prefix_caching: bool = True,
    dcp: int = 1,
    tp: int = 1,
    layout: str | None = None,
    one_kernel: bool = False,
    prefill_arch: str | None = None,
    decode_arch: str | None = None,
    prefill_packages: Mapping[str, str] | Packages | None = None,
    slack: float = 0.05,
    waste_weight: float = 1.0,
    min_evidence: str | None = None,
    allow_unknown: bool = False,
    strict_versions: bool = False,
    environment: Mapping[str, Any] | None = None,
    cannot: Sequence[str] = (),
    force: Sequence[str] | str | None = None,
    prefer: Sequence[str] | str | None = None,
    engine_options: Mapping[str, Any] | None = None,
    compare: str | None = None,
    registry: Registry | None = None,
) -> Plan:
    """Kernels, pages and blocks for all groups and phases of a model on `arch`.

    `groups` are per rank, after tensor parallelism (`tp` is only said again in the plan); groups of role `draft` may
    stand among them or in `draft`. `state` is the recurrent state of linear layers. `block_size`, `max_model_len`,
    `max_source_len` and `max_num_batched_tokens` (of one step; the default is vLLM's for a server on a GPU whose memory
    is not known) count tokens, `kv_memory` bytes on one rank. `prefill_arch` and
    `decode_arch` plan two machines with one cache format; `arch` stands for the one not named. `one_kernel` makes a
    group decode and verify with the same kernel. `slack` is the part by which a measured kernel may be slower than the
    best and still be chosen; `waste_weight` is what a wasted byte counts for: 1.0 sets one per cent of the cache
    against one per cent of attention time. `force` and `prefer` take `[GROUP:][PHASE=]KERNEL[@PACKAGE]`.

    A phase that nothing serves is None in the plan, which is then not `served`. Raises UnservedError if the groups
    cannot share one layout and block, if the memory holds no request, or for a forced kernel that cannot serve;
    UsageError for names and values that do not exist.
    """
    if registry is None:
        from attnroute.registry.registry import default_registry

        registry = default_registry()
    everything = (*groups, *draft)
    in_flight = STEPS_IN_FLIGHT * max_num_batched_tokens
    _check(everything, block_size, num_speculative_tokens, kv_memory, max_model_len, dcp)
    arch = registry.arch_id(decode_arch or arch)
    names = [group.name for group in everything]
    directions = parse_directions(force, "force", names), parse_directions(prefer, "prefer", names)
    if engine != "generic" and (any(directions) or one_kernel or prefill_arch is not None):
        words = "force, prefer, one_kernel and prefill_arch belong to attnroute's own policy"
        raise UsageError(f"{words}; engine {engine} follows its own rules", code="engine-rules")
    if engine == "generic":
        decode_side = Side(arch, resolve_packages(registry, arch, packages))
    else:
        registry.engine(engine)  # an unknown name ends here
        decode_side = Side(arch, engine_packages(registry, engine, packages))
    prefill_side = decode_side
    if prefill_arch is not None and registry.arch_id(prefill_arch) != arch:
        other = registry.arch_id(prefill_arch)
        prefill_side = Side(other, resolve_packages(registry, other, prefill_packages or packages))
    setting = Setting(
        registry, decode_side, prefill_side, workload or Workload(), num_speculative_tokens, dcp, slack, min_evidence,
        allow_unknown, strict_versions, tuple(sorted((environment or {}).items())), tuple(cannot),
        *directions, one_kernel,
    )  # fmt: skip
    if not num_speculative_tokens and any(g.role == "draft" for g in everything):
        setting.fallbacks.append("a drafter without num_speculative_tokens: its step is planned for one token")
    asked = {
        "block_size": block_size, "num_speculative_tokens": num_speculative_tokens, "max_model_len": max_model_len,
        "kv_memory": kv_memory, "prefix_caching": prefix_caching, "dcp": dcp, "tp": tp,
        "max_num_batched_tokens": max_num_batched_tokens, "one_kernel": one_kernel, "slack": slack,
        "waste_weight": waste_weight,
    }  # fmt: skip
    if engine != "generic":
        from attnroute.engines.result import EngineOptions

        options = EngineOptions(**{
            "block_size": block_size, "max_model_len": max_model_len, "max_in_flight_tokens": in_flight,
            "kv_memory": kv_memory, "prefix_caching": prefix_caching, "num_speculative_tokens": num_speculative_tokens,
            "tp": tp, "dcp": dcp, "layout": layout, "encoder_tokens": max_source_len or 0, **(engine_options or {}),
        })  # fmt: skip
        return plan_engine(everything, engine, setting, options, state, compare=compare, asked=asked)
    if compare is not None:
        raise UsageError("a comparison is one of an engine's answers: name it with engine", code="unknown-compare")
    kept = state_blocks(num_speculative_tokens, prefix_caching)
    states = tuple(StateNeed(s.bytes, len(s.layers), kept) for s in state)
    search = Search(
        members_of(everything), setting, Spans(in_flight, dcp, max_source_len), states,
        Weights(waste_weight, setting.workload.graph_weight), GRANULE, block_size, layout,
    )  # fmt: skip
    classes = search.classes()
    joint = search.solve(classes)
    if joint is None:
        raise explain_conflict(search, classes)
    return assemble(everything, search, classes, joint, asked)


def _check(
    groups: Sequence[KVGroup], block: int | None, speculative: int, memory: int | None, longest: int | None, dcp: int
) -> None:
    if not groups:
        raise UsageError("no KV-cache groups were given", code="no-groups")
    seen: set[str] = set()
    for group in groups:
        if group.name in seen:
            raise UsageError(f"two groups are called {group.name!r}; names must differ", code="bad-field")
        seen.add(group.name)
    numbers = (
        ("block_size", block, 1), ("num_speculative_tokens", speculative, 0), ("kv_memory", memory, 1),
        ("max_model_len", longest, 1), ("dcp", dcp, 1),
    )  # fmt: skip
    for name, value, least in numbers:
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
            raise UsageError(f"{name} is {value!r}; it must be a whole number of {least} or more", code="bad-field")
