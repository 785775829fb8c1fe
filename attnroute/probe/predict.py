"""What the tables say about a case, written down before the hardware is asked, and what its answer then means."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attnroute.dispatch.group import KVGroup
from attnroute.dispatch.route import route
from attnroute.probe.case import SILENT, Ask, Case

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from attnroute.registry.registry import Registry

NOT_CONSIDERED = {"status": "not-considered", "code": None, "outcome": None, "row": None, "box": None}
#: How an answer relates to the prediction. Only `contradicts` makes the tables wrong.
VERDICTS = ("agrees", "contradicts", "surprise", "news", "silent")


def group_of(ask: Ask) -> KVGroup:
    """The KV-cache group whose request the case asks. Its dtype is what the kernel is given, so that a cast shows."""
    return KVGroup(
        "case",
        ask.head_dim,
        ask.q_heads,
        ask.kv_heads,
        head_dim_v=ask.head_dim_v,
        dtype=ask.q_dtype,
        kv_dtype=ask.kv_dtype,
        sliding_window=ask.window,
        softcap=ask.softcap,
        sinks=ask.sinks or False,
        causal=ask.causal,
    )


def predict(
    registry: Registry, arch: str, packages: Mapping[str, str], case: Case
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """(`status`, `code`, `outcome`, `row` and the hole or trap as the tables have them; the row's obligations)."""
    ask = case.ask
    level = None if not ask.graph else "uniform1" if ask.q_len == 1 else "uniform"
    decision = route(
        group_of(ask),
        arch,
        {case.provider: packages[case.provider]},
        phase=ask.phase,
        q_len=ask.q_len or None,
        page_size=ask.page_size,
        lse=ask.lse,
        storage=ask.storage,
        layout=ask.layout,
        cuda_graph=level,
        registry=registry,
    )
    answer = decision.candidate(case.kernel, case.provider)
    if answer is None:
        return dict(NOT_CONSIDERED), ()
    if answer.accepted and answer.q_dtype not in (None, ask.q_dtype):  # it takes the request, with another query
        return {"status": "rejected", "code": "q-dtype", "outcome": None, "row": answer.row, "box": None}, ()
    status = "accepted" if answer.accepted else answer.status
    why = answer.why[0] if answer.why else None
    outcome = "ok" if status == "accepted" else None
    if status == "known-wrong" and why is not None:
        outcome = why.message.partition(":")[0]
    named = why.rows[0] if why and why.rows else None  # the hole or trap that was hit, or rows that do not fit
    box = next((b for b in registry.table(arch).boxes if b.id == named), None)
    code = why.code if why else None
    found = {"status": status, "code": code, "outcome": outcome, "row": answer.row, "box": box.id if box else None}
    return found | ({"sometimes": True} if box and box.sometimes else {}), answer.calls


def predicted_cases(registry: Registry, arch: str, packages: Mapping[str, str], cases: Iterable[Case]) -> list[Case]:
    """The cases with their predictions filled in."""
    return [case.with_prediction(*predict(registry, arch, packages, case)) for case in cases]


def verdict(predicted: Mapping[str, Any], outcome: str) -> str:
    """What the hardware's answer means for the tables.

    `surprise`: outside what the tables claim, it works, or it fails without the package refusing; or a known failure
    shows differently (a read past the end need not crash, and some failures show only sometimes). `news`: the tables
    say nothing. `silent`: no answer came.
    """
    status = predicted.get("status")
    if outcome in SILENT or status == "not-considered":
        return "silent"
    if status == "accepted":
        return "agrees" if outcome == "ok" else "contradicts"
    if status == "known-wrong":
        if outcome == predicted.get("outcome"):
            return "agrees"
        shows = predicted.get("outcome") != "faults" and not predicted.get("sometimes")
        return "contradicts" if outcome == "ok" and shows else "surprise"
    if status == "rejected":
        return "agrees" if outcome in ("raises", "build-fails") else "surprise"
    return "news"
