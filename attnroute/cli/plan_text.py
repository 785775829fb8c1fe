"""A plan for a person, at 80 columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnroute.cli.plan_compare import compare
from attnroute.cli.plan_facts import facts
from attnroute.cli.text import WIDTH, label_block, paint, table, wrap
from attnroute.registry.dims import STRENGTHS

if TYPE_CHECKING:
    from attnroute.models.model import Model
    from attnroute.planning.record import Plan, PlanGroup
    from attnroute.registry.registry import Registry

_LABEL = 9
#: Columns that go first when the table is wider than the terminal.
_DISPENSABLE = ("PROOF", "WINDOW", "Q/KV", "LAYERS")
_RIGHT = ("LAYERS", "HEAD", "Q/KV", "WINDOW", "PAGE", "BLOCK")


def render(registry: Registry, plan: Plan, target: Model, draft: Model | None, *, explain: bool = False) -> list[str]:
    """The whole answer as lines of at most 80 columns."""
    lines = [*wrap(_question(plan, target, draft), 2, 0), *wrap(_origin(registry, plan), 2, 0), ""]
    lines += _groups(registry, plan)
    for warning in plan.warnings:
        lines += ["", *_warning(warning)]
    doubts = [*target.warnings, *(draft.warnings if draft else ())]
    for doubt in doubts:
        lines += ["", *_warning(doubt)]
    lines.append("")
    for label, text in facts(registry, plan):
        lines += label_block(label, text, _LABEL)
    notes = [*target.notes, *(draft.notes if draft else ())]
    if plan.engine == "generic" and any("mm_prefix" in g.traits for g in target.groups):
        notes.append("tokens of one image see each other; kernels for prompts are chosen for text, which they do not")
    lines += label_block("NOTES", "; ".join(dict.fromkeys(notes)), _LABEL) if notes else []
    lines += compare(plan)
    if explain:
        lines += _refusals(plan)
    return lines


def _question(plan: Plan, target: Model, draft: Model | None) -> str:
    where = plan.arch if plan.prefill_arch is None else f"{plan.prefill_arch} (prefill) and {plan.arch} (decode)"
    parts = [f"{target.name} on {where}", f"tp {plan.options['tp']}"]
    parts += [f"dcp {plan.options['dcp']}"] if plan.options["dcp"] > 1 else []
    how = target.kv_dtype_from
    parts.append(f"kv {target.kv_dtype} ({how if how in ('asked', 'model dtype') else f'declared by {how}'})")
    if draft is not None:
        parts.append(f"drafter {draft.name}")
    if plan.options["num_speculative_tokens"]:
        parts.append(f"{plan.options['num_speculative_tokens']} draft tokens")
    if plan.options["block_size"]:
        parts.append(f"block {plan.options['block_size']} (asked)")
    parts.append(f"engine {plan.engine}")
    return ", ".join(parts)


def _origin(registry: Registry, plan: Plan) -> str:
    listed = ", ".join(f"{n} {v}" for n, v in plan.packages.items()) or "no kernel package"
    text = f"{listed} ({plan.options['packages_origin']})"
    if plan.prefill_packages is not None and plan.prefill_packages != plan.packages:
        text += "; prefill: " + ", ".join(f"{n} {v}" for n, v in plan.prefill_packages.items())
    return f"{text}; tables {registry.label}"


def _groups(registry: Registry, plan: Plan) -> list[str]:
    kernels = registry.catalogue["kernels"]
    shared = frozenset(name for name, entry in kernels.items() if len(entry["providers"]) > 1)
    verify = any("verify" in g.needed for g in plan.groups)
    head = ["GROUP", "LAYERS", "HEAD", "Q/KV", "WINDOW", "DECODE", *(["VERIFY"] if verify else []), "PREFILL", "PAGE",
            "BLOCK", "PROOF"]  # fmt: skip
    lines = _fitted([head, *(_row(g, verify, shared) for g in plan.groups)])
    if max(map(len, lines)) > WIDTH:  # then the packages are said below, and the longest names are cut
        plain = [[cell[:18] for cell in _row(g, verify, frozenset())] for g in plan.groups]
        uses = [u for g in plan.groups for u in g.phases.values() if u is not None and u.kernel in shared]
        said = sorted({f"{u.kernel} from {u.provider}" for u in uses})
        lines = [*_fitted([head, *plain]), *(wrap("; ".join(said), 2, 0) if said else [])]
    return [paint(lines[0], "bold"), *lines[1:]]


def _fitted(rows: list[list[str]]) -> list[str]:
    """The table without as many of the dispensable columns as make it fit."""
    lines: list[str] = []
    for name in ("", *_DISPENSABLE):
        if name in rows[0]:
            at = rows[0].index(name)
            rows = [row[:at] + row[at + 1 :] for row in rows]
        lines = table(rows, [i for i, title in enumerate(rows[0]) if title in _RIGHT])
        if max(map(len, lines)) <= WIDTH:
            break
    return lines


def _row(group: PlanGroup, verify: bool, shared: frozenset[str]) -> list[str]:
    """The cells of one group; kernels that several packages ship (`shared`) are named with theirs."""

    def name(phase: str) -> str:
        use = group.phases.get(phase)
        if use is None:
            return "none" if phase in group.needed else "-"
        return f"{use.kernel}@{use.provider}" if use.kernel in shared else use.kernel

    first = "draft" if group.role == "draft" else "decode"
    shape = group.shape
    window = shape.get("sliding_window") or (f"c{shape['chunk']}" if shape.get("chunk") else "-")
    pages = " ".join(map(str, group.page_sizes)) or "-"
    head = str(group.head_dim) if group.head_dim == group.head_dim_v else f"{group.head_dim}x{group.head_dim_v}"
    cells = [group.name, str(len(group.layers)), head, f"{shape['num_q_heads']}/{shape['num_kv_heads']}", str(window)]
    cells += [name(first), *([name("verify")] if verify else []), name("prefill"), pages, str(group.block_size or "-")]
    return [*cells, _proof(group)]


def _proof(group: PlanGroup) -> str:
    """The weakest proof among the group's kernels."""
    found = [use.proof for use in group.phases.values() if use is not None and use.proof is not None]
    return max(found, key=STRENGTHS.index) if found else "-"


def _warning(text: str) -> list[str]:
    """`! global cannot use ...   [head-dim]`, the fix on its own line, the code at the right edge."""
    code = ""
    if text.endswith("]") and " [" in text:
        text, _, code = text.rpartition(" [")
        code = f"[{code}"
    main, _, fix = text.partition("; would be ")
    lines = wrap(f"! {main}", 2, 0)
    if code:
        if len(lines[-1]) + 2 + len(code) <= WIDTH:
            lines[-1] = lines[-1] + code.rjust(WIDTH - len(lines[-1]))
        else:
            lines.append(code.rjust(WIDTH))
    lines += wrap(f"would be {fix}", 2) if fix else []
    return [paint(line, "warn") for line in lines]


def _refusals(plan: Plan) -> list[str]:
    lines: list[str] = []
    for group in plan.groups:
        why = plan.notes.why_not.get(group.name, ())
        lines += ["", paint(f"{group.name}: not used", "bold")] if why else []
        for item in why:
            label = f"- {item['kernel'] or 'any'}"
            fix = f"; {item['fix'][0]}" if item["fix"] else ""
            lines += label_block(label, f"{item['phase']}: {item['code']}: {item['message']}{fix}", 14)
    return lines
