"""The labelled lines below a plan's table: what is shared, state, memory, graphs, start-up, how the choice was made."""

from __future__ import annotations

import ast
import operator
from typing import TYPE_CHECKING, Any

from attnroute.planning.capacity import gib

if TYPE_CHECKING:
    from collections.abc import Iterator

    from attnroute.planning.record import PhaseKernel, Plan, PlanGroup
    from attnroute.registry.registry import Registry


def facts(registry: Registry, plan: Plan) -> list[tuple[str, str]]:
    """(label, text) pairs in the order in which they are printed."""
    found = [("SHARED", _shared(plan))]
    if plan.mamba is not None:
        found.append(("STATE", _state(plan)))
    if plan.kv is not None and plan.kv["tokens"] is not None:
        found.append(("MEMORY", _memory(plan)))
    found.append(("GRAPHS", _graphs(plan)))
    start = _start(registry, plan)
    found += [("START", start)] if start else []
    found += [("CHOICE", text) for text in [_choice(plan)] if text]
    return [*found, ("SPEED", _speed(registry, plan))]


def uses(plan: Plan) -> Iterator[tuple[PlanGroup, str, PhaseKernel]]:
    """Every kernel of the plan with its group and phase."""
    for group in plan.groups:
        for phase, use in group.phases.items():
            if use is not None:
                yield group, phase, use


def _shared(plan: Plan) -> str:
    parts = [f"layout {plan.layout}"] if plan.layout else []
    pages = {g.page_bytes for g in plan.groups if g.page_bytes}
    blocks = sorted({g.block_size for g in plan.groups if g.block_size})
    if len(pages) == 1:
        where = " in all groups" if len(plan.groups) > 1 else ""
        tokens = f" of {' or '.join(map(str, blocks))} tokens" if len(blocks) > 1 else ""
        parts.append(f"block {pages.pop():,} B a layer{where}{tokens}")
    padded = [f"{g.name} {g.padding_percent:.2f} %" for g in plan.groups if g.padding_percent]
    parts += [f"padding {', '.join(padded)}"] if padded else []
    dtypes: dict[str, list[str]] = {}
    for _, phase, use in uses(plan):
        if use.q_dtype and use.q_dtype not in dtypes.setdefault(phase, []):
            dtypes[phase].append(use.q_dtype)
    if len(dtypes) > 1 and len({tuple(v) for v in dtypes.values()}) == 1 and all(len(v) == 1 for v in dtypes.values()):
        word = "both" if len(dtypes) == 2 else "all"
        parts.append(f"query {next(iter(dtypes.values()))[0]} in {word} phases")
    else:
        parts += [f"query {' or '.join(v)} in {phase}" for phase, v in dtypes.items()]
    return "; ".join(parts)


def _state(plan: Plan) -> str:
    m = plan.mamba
    assert m is not None
    text = f"{m['state_bytes']:,} B a layer in a page of {m['page_bytes']:,} B: padding {m['padding_percent']:.2f} %"
    return text + (f"; {m['layers']} layers, {m['states_per_request']} states a request" if "layers" in m else "")


def _memory(plan: Plan) -> str:
    kv = plan.kv
    assert kv is not None
    return (
        f"{gib(kv['memory_bytes'])} hold {kv['tokens']:,} tokens: {kv['max_concurrency']:.2f} requests of"
        f" {kv['max_model_len']:,}"
    )


_LEVELS = {
    "none": "no full CUDA graphs",
    "uniform1": "decode, 1 token per request",
    "uniform": "decode, the same number of tokens per request",
    "always": "every batch",
}


def _graphs(plan: Plan) -> str:
    notes = plan.notes.graphs
    if not notes:
        return _LEVELS[plan.graph_level]
    k = plan.options.get("num_speculative_tokens")
    if k:
        reached = plan.graph_level in ("uniform", "always")
        how = "full graphs in all layers" if reached else "piecewise"
        parts = [f"verify steps of {1 + k} tokens per request: {how}"]
    else:
        parts = [_LEVELS[plan.graph_level]]
    parts += [_limit(limit, plan) for limit in notes["limited_by"]]
    drafts = notes.get("with_drafts")
    if drafts is not None:
        if drafts["limited_by"]:
            parts += [f"with drafts: {_limit(limit, plan)}" for limit in drafts["limited_by"]]
        else:
            kernels = sorted({v for v in drafts["verify"].values() if v})
            parts.append(f"with drafts: full graphs too, verified by {' and '.join(kernels)}" if kernels else "")
    one = notes.get("one_kernel")
    for limit in one["limited_by"] if one else ():
        keeps = f"; {limit['keeps']} there would keep them" if limit["keeps"] else ""
        parts.append(
            f"an engine that decodes and verifies with one kernel loses the full graphs of verify steps in all"
            f" {_layers(plan)} layers to {limit['kernel']} in {limit['group']}{keeps}"
        )
    # Names of groups and kernels stay as they are written elsewhere.
    said = [part for part in parts if part]
    return ". ".join(p[0].upper() + p[1:] if i and p.startswith(("with ", "an ")) else p for i, p in enumerate(said))


def _layers(plan: Plan) -> int:
    return sum(len(g.layers) for g in plan.groups if g.role == "target")


def _limit(limit: dict[str, Any], plan: Plan) -> str:
    if limit["kernel"] is None:
        return f"{limit['group']} has no kernel for {limit['phase']}: full graphs lost in all {_layers(plan)} layers"
    return (
        f"{limit['kernel']} in {limit['group']} takes the full graphs of {limit['phase']} from all {_layers(plan)}"
        f" layers (its level is {limit['level']})"
    )


def _choice(plan: Plan) -> str:
    """What decided, and the next best choice."""
    other = plan.notes.runner_up
    if plan.engine != "generic":
        return f"{plan.engine}'s own rules; wasted cache {plan.cost['waste']:.1%}"
    if other is None:
        return "no kernel had a rival"
    cost = other["costs_more"]
    how = "measured time" if other["measured"] else "weights of the default order"
    new, old = other["kernel"], other["instead_of"]
    if new == old:
        new, old = f"{new}@{other['provider']}", f"{old}@{other['instead_of_provider']}"
    conceded = plan.cost["time"] - plan.cost["time_if_each_alone"]
    if not plan.served:  # a phase without a kernel counts as time, which is nobody's concession
        conceded = 0.0
    first = (
        f"every {'group' if plan.served else 'phase that is served'} has the first kernel of its order"
        f"{_by_default(plan)}"
        if conceded <= 1e-9
        else f"{conceded:.1%} given up against each group's own first kernels, so that all fit together"
    )
    return (
        f"{first}; wasted cache {plan.cost['waste']:.1%}. Next best: {new} instead of {old}"
        f" for {other['phase']} of {other['group']} ({cost:+.1%} by {how})"
    )


def _by_default(plan: Plan) -> str:
    return "" if plan.cost["measured"] else f" (the default one of {plan.arch})"


def _speed(registry: Registry, plan: Plan) -> str:
    """What a measurement decided, phase by phase: a kernel may be measured in one and not in another."""
    measured: dict[str, list[str]] = {}
    rest: dict[str, list[str]] = {}
    for _, phase, use in uses(plan):
        words = measured if use.measured is not None else rest
        words.setdefault(use.kernel, []).append(phase)
    if not measured:
        archs = [plan.arch] if plan.prefill_arch is None else [plan.prefill_arch, plan.arch]
        some = any(registry.table(arch).preference for arch in archs)
        where = " and ".join(archs) + (" for these groups and kernels" if some else "")
        return f"nothing measured on {where}: order is the default, not a claim"
    return f"measured: {_by_phase(measured)}" + (f"; by the default order: {_by_phase(rest)}" if rest else "")


def _by_phase(kernels: dict[str, list[str]]) -> str:
    return ", ".join(f"{name} in {' and '.join(dict.fromkeys(kernels[name]))}" for name in sorted(kernels))


def _start(registry: Registry, plan: Plan) -> str:
    """What has to be compiled and allocated before the first token, and what that needs of the machine."""
    kernels = registry.catalogue["kernels"]
    modules: set[tuple[Any, ...]] = set()
    needs: set[str] = set()
    workspaces: dict[tuple[str, str | None], int] = {}
    for group, phase, use in uses(plan):
        entry = kernels.get(use.kernel)
        if entry is None:
            continue
        if entry.get("compiles"):
            modules.add((use.kernel, use.provider, *(_compiled(group, phase, use, f, plan) for f in entry["compiles"])))
        size = _arithmetic(str(entry.get("workspace_bytes") or ""))
        if size:
            workspaces[use.kernel, use.provider] = size
        arch = plan.prefill_arch if phase == "prefill" and plan.prefill_arch else plan.arch
        for row in registry.table(arch).rows:
            if row.id == use.row and row.provider == use.provider:
                needs |= {key for key, need in row.env.items() if need}
    parts = [f"{len(modules)} module{'s' if len(modules) != 1 else ''} to compile"] if modules else []
    machine = [key for key in ("nvcc", "cubins", "driver_jit", "cuda") if key in needs]
    parts += [f"needs {' '.join(machine)}"] if machine else []
    if parts:
        parts.append("needs network" if "network" in needs or "cubins" in needs else "no network")
    total = sum(workspaces.values())
    parts += [f"workspace {gib(total)}"] if total else []
    return ", ".join(parts)


def _compiled(group: PlanGroup, phase: str, use: PhaseKernel, field: str, plan: Plan) -> Any:
    shape = group.shape
    values = {
        "q_dtype": use.q_dtype,
        "kv_dtype": shape["kv_dtype"],
        "page": use.page_size,
        "head_dim": (group.head_dim, group.head_dim_v),
        "group_ratio": shape["num_q_heads"] // shape["num_kv_heads"],
        "window": shape["sliding_window"] is not None,
        "q_len": plan.options.get("num_speculative_tokens") if phase in ("verify", "draft") else 0,
    }
    return values.get(field)


_OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}


def _arithmetic(text: str) -> int | None:
    """The value of a formula of whole numbers, None if it depends on anything else."""

    def value(node: ast.AST) -> int | None:
        if isinstance(node, ast.Expression):
            return value(node.body)
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return node.value
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            left, right = value(node.left), value(node.right)
            return None if left is None or right is None else int(_OPERATORS[type(node.op)](left, right))
        return None

    try:
        return value(ast.parse(text, mode="eval"))
    except SyntaxError:
        return None
