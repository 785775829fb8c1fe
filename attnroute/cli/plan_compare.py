"""Two answers of an engine side by side: each layer's own head size, and the engine as shipped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attnroute.cli.text import paint, table, wrap

if TYPE_CHECKING:
    from attnroute.planning.record import Plan, PlanGroup


def compare(plan: Plan) -> list[str]:
    """The lines of a comparison; none without one. A group is shown where the two differ, with the engine's reasons."""
    other = plan.compare
    if other is None:
        return []
    rows = [["COMPARE", "PER LAYER", "MODEL-WIDE", ""], *_model(plan, other)]
    why: list[str] = []
    theirs = {g["name"]: g for g in other["groups"]}
    for group in plan.groups:
        its = theirs[group.name]
        rows += _group(group, its)
        if its["backend"] != group.backend:
            reasons = its["rejected"].get(group.backend) or ["not tried"]
            asked = f"asked with the model's head size instead of the layer's {group.head_dim}"
            why.append(
                f"{group.name}, model-wide: {group.backend} thrown off: {', '.join(reasons)} ({asked});"
                f" {its['backend']} instead"
            )
            why += [f"{group.name}, model-wide: {note}" for note in its["notes"]]
    lines = table(rows, right=(1, 2, 3))
    lines[0] = paint(lines[0], "bold")
    for text in (*why, *(f"model-wide: {w}" for w in (*other["errors"], *other["warnings"]))):
        lines += wrap(f"  {text}", 4, 0)
    version = plan.engine_detail["version"] if plan.engine_detail else ""
    about = (
        f"Per layer: every question is asked with the layer's own head size. Model-wide: {plan.engine} {version} as"
        " shipped, which asks the model's head size at two of four sites."
    )
    return ["", *lines, *wrap(about, 0)]


def _model(plan: Plan, other: Any) -> list[list[str]]:
    rows = [["block size, tokens", str(plan.block_size), str(other["block_size"]), ""]]
    mine, its = plan.mamba, other["mamba"]
    if mine and its:
        rows.append(["Mamba padding", f"{mine['padding_percent']:.2f} %", f"{its['padding_percent']:.2f} %", ""])
    tokens = plan.kv["tokens"] if plan.kv else None
    if tokens is not None and other["tokens"] is not None:
        rows.append(["KV capacity, tokens", f"{tokens:,}", f"{other['tokens']:,}", f"x {tokens / other['tokens']:.3f}"])
    rows.append(["CUDA graphs, whole model", plan.graph_level, other["graph_level"], ""])
    return rows


def _group(group: PlanGroup, its: Any) -> list[list[str]]:
    mine = {p: use.kernel for p, use in group.phases.items() if use is not None}
    phases = [p for p in mine if its["phases"].get(p) != mine[p]] or [next(iter(mine))] if mine else []
    rows = [[f"{group.name}: backend", group.backend or "none", its["backend"] or "none", ""]]
    rows += [[f"{group.name}: {p}", mine[p], str(its["phases"].get(p)), ""] for p in phases]
    pages = " ".join(map(str, group.page_sizes))
    its_page = f"{its['page_size']} of {its['block_size']}"
    rows.append([f"{group.name}: page of block", f"{pages} of {group.block_size}", its_page, ""])
    padding = group.padding_percent or 0.0
    if padding or its["padding_percent"]:
        rows.append([f"{group.name}: padding", f"{padding:.2f} %", f"{its['padding_percent']:.2f} %", ""])
    return rows
