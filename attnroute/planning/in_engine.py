"""What to type into an engine so that it does what a plan says, and what it does by default."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from attnroute.dispatch.group import KVGroup
    from attnroute.engines.result import EngineOptions, EngineResult
    from attnroute.models.model import StateSpec
    from attnroute.registry.registry import Registry

    from .record import Plan

    Ask = Callable[[EngineOptions], EngineResult]

#: The trait of groups whose image tokens see each other, which few backends can.
_IMAGES = "mm_prefix"
_COMPARED = ("decode", "verify", "draft", "prefill")


def in_engine(
    registry: Registry,
    plan: Plan,
    groups: Sequence[KVGroup],
    state: Sequence[StateSpec],
    options: EngineOptions,
    engine: str = "vllm",
) -> dict[str, Any]:
    """How the engine would serve the plan's groups: `default`, `flags` (and `environment`) that come nearest to the
    plan, and `differs`: what they still leave otherwise than the plan, a line each.

    `options` are what the operator states anyway (KV dtype, lengths, drafts). For a plan of the engine itself the flags
    are those of the engine as shipped.
    """
    from attnroute.engines.vllm import plan_groups
    from attnroute.engines.vllm_flags import flags_for

    def ask(asked: EngineOptions, text: bool = False) -> EngineResult:
        served = [_without_images(g) for g in groups] if text else groups
        return plan_groups(
            [g for g in served if g.role != "draft"], plan.arch, draft=[g for g in served if g.role == "draft"],
            state=state, options=asked, registry=registry,
        )  # fmt: skip

    pins = registry.engine_pins(engine)
    found: dict[str, Any] = {"engine": engine, "version": registry.engine(engine)["version"]}
    found["pins"] = {name: version for name, version in pins.items() if plan.packages.get(name, version) != version}
    unasked = ask(replace(options, head_size="as-shipped"))
    found["default"] = default_words(unasked)
    if plan.engine == engine:
        flags = flags_for(ask(options), ask)
        return found | {
            "flags": list(flags.type_this), "environment": list(flags.environment), "differs": list(flags.unreachable),
        }  # fmt: skip
    best: tuple[int, EngineOptions, bool, list[str]] | None = None
    images = any(_IMAGES in g.traits for g in groups)
    for candidate, text in product(_candidates(registry, engine, plan, options), (False, True) if images else (False,)):
        missing = differences(plan, ask(candidate, text))
        if best is None or len(missing) < best[0]:
            best = len(missing), candidate, text, missing
        if not missing:
            break
    assert best is not None
    flags = flags_for(replace(unasked, options=best[1]))
    typed = [*flags.type_this, *(["--language-model-only"] if best[2] else [])]
    return found | {"flags": typed, "environment": list(flags.environment), "differs": best[3]}


def _without_images(group: KVGroup) -> KVGroup:
    return replace(group, traits=tuple(t for t in group.traits if t != _IMAGES)) if _IMAGES in group.traits else group


def _candidates(registry: Registry, engine: str, plan: Plan, options: EngineOptions) -> Iterator[EngineOptions]:
    """Options worth trying, those that say least first: nothing, then each backend that has one of the plan's kernels,
    with and without the switch for NVIDIA's kernels.
    """
    shipped = replace(options, head_size="as-shipped", block_size=options.block_size)
    yield shipped
    used = {u.kernel for g in plan.groups for u in g.phases.values() if u is not None}
    backends: Mapping[str, Any] = registry.engine(engine)["backends"]
    for name, data in backends.items():
        text = json.dumps(data.get("kernels", {}))
        if any(f'"{kernel}' in text for kernel in used):
            yield replace(shipped, backend=name)
            yield replace(shipped, backend=name, use_trtllm_attention=True)
            yield replace(shipped, backend=name, use_trtllm_attention=False)


def differences(plan: Plan, found: EngineResult) -> list[str]:
    """Kernels that an engine would run otherwise than the plan says, a line each, and its block if it is another."""
    if found.errors:
        return [f"{found.engine} does not start: {e}" for e in found.errors] + [""] * len(plan.groups) * len(_COMPARED)
    theirs = {g.name: g for g in found.groups}
    lines: dict[str, list[str]] = {}
    for group in plan.groups:
        its = theirs[group.name]
        for phase in _COMPARED:
            use, other = group.phases.get(phase), its.phases.get(phase)
            if use is None or other is None or (use.kernel, use.provider) == (other.kernel, other.provider):
                continue
            mine, its_own = use.kernel, other.kernel or other.name
            if mine == its_own:
                mine, its_own = f"{mine}@{use.provider}", f"{its_own}@{other.provider}"
            lines.setdefault(f"{group.name} runs {its_own}, not {mine}", []).append(phase)
    found_lines = [f"{text}, in {' and '.join(phases)}" for text, phases in lines.items()]
    if plan.block_size is not None and found.block_size != plan.block_size:
        found_lines.append(f"block of {found.block_size} tokens, not {plan.block_size}")
    return found_lines


def default_words(result: EngineResult) -> list[str]:
    """What an engine does, a line for each backend and one for each warning."""
    if result.errors:
        return [f"does not start: {e}" for e in result.errors]
    names: dict[str, list[str]] = {}
    for group in result.groups:
        kernels = dict.fromkeys(
            use.kernel or use.name for p, use in group.phases.items() if use is not None and p in ("decode", "draft")
        )
        label = f"{group.backend or 'no backend'} ({' '.join(kernels)})" if kernels else str(group.backend)
        names.setdefault(label, []).append(group.name)
    if len(names) == 1:
        lines = [f"{next(iter(names))} on all layers"]
    else:
        lines = [f"{label} on {' '.join(groups)}" for label, groups in names.items()]
    return [*lines, *result.warnings]
