"""A plan as an engine makes it: the engine's own answer for the groups, checked against the tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from attnroute.dispatch.packages import Packages, name_packages
from attnroute.dispatch.route import decide
from attnroute.errors import UnservedError, UsageError

from .assemble import shape_of
from .blocks import StateNeed, waste
from .engine_record import column, detail_of, kv_of, mamba_of
from .options import options_for
from .pages import Spans, fits, state_blocks
from .phases import Setting, phases_of, request_of
from .record import PHASES, Notes, PhaseKernel, Plan, PlanGroup
from .search import need_of
from .words import words_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from attnroute.dispatch.group import KVGroup
    from attnroute.engines.result import EngineGroup, EngineOptions, EngineResult, KernelUse
    from attnroute.models.model import StateSpec
    from attnroute.registry.registry import Registry

    from .options import Option


def engine_packages(registry: Registry, engine: str, packages: Mapping[str, str] | Packages | None) -> Packages:
    """The engine at the version its data describes and the packages it pins; those that were named replace them."""
    pins = registry.engine_pins(engine)
    if isinstance(packages, Packages):
        return packages
    if not packages:
        return Packages(tuple(sorted(pins.items())), f"pinned by {engine}")
    return name_packages(registry, {**pins, **packages}, f"named over what {engine} pins")


def plan_engine(
    groups: Sequence[KVGroup],
    engine: str,
    setting: Setting,
    options: EngineOptions,
    state: Sequence[StateSpec],
    *,
    compare: str | None,
    asked: Mapping[str, Any],
) -> Plan:
    """The engine's decisions as a plan. `compare` of `model-wide` adds what the engine does as shipped.

    Raises UnservedError in the engine's words if it would not start, UsageError for an engine without algorithms or
    another word in `compare`.
    """
    if compare not in (None, "model-wide"):
        raise UsageError(f"compare {compare!r}: only model-wide is known", code="unknown-compare")
    result = ask(groups, engine, setting, options, state)
    if result.errors:
        message = f"{_title(result)} would not start: {'; '.join(result.errors)}"
        raise UnservedError(message, code="engine-refuses")
    shipped = None
    if compare is not None:
        shipped = ask(groups, engine, setting, replace(options, head_size="as-shipped"), state)
    by_name = {g.name: g for g in groups}
    answers = {g.name: g for g in result.groups}
    made = tuple(_group(g, answers[g.name], setting) for g in groups)
    unsound = [(by_name[g.name], *doubt) for g in result.groups for doubt in _doubtful(by_name[g.name], g, setting)]
    page_sizes = {g.page_bytes for g in made if g.page_bytes}
    return Plan(
        arch=setting.decode.arch,
        engine=engine,
        packages=dict(setting.decode.packages.versions),
        block_size=result.block_size,
        manager_block=result.scheduler_block_size,
        page_bytes=page_sizes.pop() if len(page_sizes) == 1 else None,
        layout=_layout(setting.registry, result),
        graph_level=result.graph_level,
        groups=made,
        mamba=mamba_of(result),
        kv=kv_of(groups, result, options),
        cost={"waste": _waste(groups, made, result, setting, options, state)},
        options=dict(asked) | {"packages_origin": setting.decode.packages.origin},
        engine_detail=detail_of(result),
        compare=None if shipped is None else column(shipped),
        _explain=partial(_notes, result, setting, unsound),
    )


def ask(
    groups: Sequence[KVGroup], engine: str, setting: Setting, options: EngineOptions, state: Sequence[StateSpec]
) -> EngineResult:
    """The engine's own answer; UsageError if attnroute has no algorithms for it."""
    registry = setting.registry
    registry.engine(engine)  # a near miss for an unknown name
    if engine != "vllm":
        message = f"engine {engine!r} has data but no algorithms here; known: generic vllm"
        raise UsageError(message, code="unknown-engine")
    from attnroute.engines.vllm import plan_groups

    return plan_groups(
        [g for g in groups if g.role != "draft"],
        setting.decode.arch,
        draft=[g for g in groups if g.role == "draft"],
        state=state,
        options=options,
        registry=registry,
    )


def _waste(
    groups: Sequence[KVGroup],
    made: Sequence[PlanGroup],
    result: EngineResult,
    setting: Setting,
    options: EngineOptions,
    state: Sequence[StateSpec],
) -> float:
    """What the engine's blocks waste, counted as for attnroute's own: states that it holds beyond those a request needs
    are not counted on either side.
    """
    spans = Spans(options.max_in_flight_tokens or 0, options.dcp, options.encoder_tokens or None)
    kept = [(g, m) for g, m in zip(groups, made, strict=True) if m.block_size and m.page_bytes]
    needs = [need_of(g, max(1, len(g.layers)), setting, spans)(m.block_size or 1) for g, m in kept]
    count = state_blocks(options.num_speculative_tokens, options.prefix_caching)
    states = [StateNeed(s.bytes, len(s.layers), count) for s in state]
    page = result.state.page_bytes if result.state is not None else 0
    return waste(needs, states, [m.page_bytes or 0 for _, m in kept], [m.block_size or 1 for _, m in kept], page)


def _title(result: EngineResult) -> str:
    return f"{result.engine} {result.version}"


def _layout(registry: Registry, result: EngineResult) -> str | None:
    """NHD or HND where the engine's layout is one of them, else the engine's own name."""
    aliases = registry.engine(result.engine).get("layouts", {}).get("aliases", {})
    return next((name for name, own in aliases.items() if own == result.layout), result.layout)


def _match(group: KVGroup, phase: str, use: KernelUse, setting: Setting) -> Option | None:
    """The tables' option for the kernel that the engine uses, if they accept it with its page."""
    side = setting.side(phase)
    table = setting.registry.table(side.arch)
    options = options_for(table, side.packages, request_of(group, phase, setting), setting.workload, setting.slack)
    for option in options:
        same = (option.kernel, option.provider) == (use.kernel, use.provider)
        if same and (use.page is None or fits(option.pages, use.page)):
            return option
    return None


def _group(group: KVGroup, found: EngineGroup, setting: Setting) -> PlanGroup:
    phases: dict[str, PhaseKernel | None] = dict.fromkeys(PHASES)
    needed = tuple(p for p in phases_of(group, setting.speculative) if p in found.phases)
    for phase in needed:
        use = found.phases[phase]
        if use is None:
            continue
        option = _match(group, phase, use, setting)
        phases[phase] = PhaseKernel(
            kernel=use.kernel or use.name,
            provider=use.provider,
            page_size=use.page,
            q_dtype=use.q_dtype,
            row=option.row if option else None,
            graph_level=option.graph_level if option else None,
            calls=option.calls if option else (),
            proof=option.strength if option else None,
            measured=None if option is None or option.time is None else round(option.time, 4),
            name=use.name,
            listed=use.kernel is not None,
        )
    return PlanGroup(
        name=group.name,
        role=group.role,
        layers=group.layers,
        head_dim=group.head_dim,
        head_dim_v=group.v_dim,
        block_size=found.block or None,
        page_bytes=found.page_bytes or None,
        padding_percent=found.padding_percent,
        phases=phases,
        needed=needed,
        shape=shape_of(group),
        blocks_per_request=found.blocks_per_request,
        backend=found.backend,
    )


def _doubtful(group: KVGroup, found: EngineGroup, setting: Setting) -> list[tuple[str, KernelUse]]:
    """Phases whose kernel the tables know and do not accept."""
    return [
        (phase, use)
        for phase in phases_of(group, setting.speculative)
        if (use := found.phases.get(phase)) is not None
        and use.kernel is not None
        and _match(group, phase, use, setting) is None
    ]


def _notes(result: EngineResult, setting: Setting, unsound: Sequence[tuple[KVGroup, str, KernelUse]]) -> Notes:
    why_not: dict[str, tuple[dict[str, Any], ...]] = {
        g.name: tuple(
            {"phase": None, "kernel": backend, "provider": None, "status": "rejected", "code": "engine-rule",
             "message": "; ".join(why), "fix": []}
            for backend, why in g.rejected.items()
        )
        for g in result.groups
    }  # fmt: skip
    warnings = [f"{_title(result)}: {text}" for text in result.warnings]
    said: dict[str, list[str]] = {}
    for g in result.groups:
        for note in g.notes:
            said.setdefault(note, []).append(g.name)
    warnings += [f"{' '.join(names)}: {note}" for note, names in said.items()]
    doubts: dict[tuple[str, str], dict[str, list[str]]] = {}
    for group, phase, use in unsound:
        doubt = (str(use.kernel), _why_unsound(setting, group, phase, use))
        doubts.setdefault(doubt, {}).setdefault(phase, []).append(group.name)
    for (kernel, cause), phases in doubts.items():
        names = " ".join(dict.fromkeys(name for listed in phases.values() for name in listed))
        words = f"{names}: {_title(result)} runs {kernel} for {' '.join(phases)}, not accepted: {cause}"
        warnings.append(f"{words} [engine-unsound]")
    return Notes(why_not, tuple(dict.fromkeys(warnings)))


def _why_unsound(setting: Setting, group: KVGroup, phase: str, use: KernelUse) -> str:
    """Why the tables do not accept a kernel that the engine runs."""
    request = replace(request_of(group, phase, setting), page=use.page)
    found = decide(setting.registry, request, setting.side(phase).packages, group=group.name)
    answer = found.candidate(str(use.kernel), use.provider)
    why = answer.why[0] if answer is not None and answer.why else None
    return f"{words_of(why.code, why.message)} ({why.code})" if why else "its tables do not have it"
