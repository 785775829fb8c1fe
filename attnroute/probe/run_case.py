"""One case in this process: bind, plan, run, compare. The scheduler gives each case a process of its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from attnroute.launch.base import Launcher
from attnroute.launch.problem import AttentionOut, Limits
from attnroute.probe.case import Ask, Case
from attnroute.probe.data import Inputs, make_inputs, refresh
from attnroute.probe.outcome import classify, words
from attnroute.probe.reference import reference, split_by_request, worst_error

if TYPE_CHECKING:
    from attnroute.probe.tolerance import Tolerances

Make = Callable[[Case, Limits], Launcher]
Result = dict[str, Any]


def limits_for(ask: Ask, device: str) -> Limits:
    """Limits that just hold the case's batch."""
    return Limits(len(ask.lens), max(ask.lens), sum(ask.q_lens()), cuda_graph=ask.graph, device=device)


def run_case(case: Case, make: Make, tolerances: Tolerances, *, device: str = "cuda", seed: int = 0) -> Result:
    """The result of a case: outcome, error (relative, None if nothing was computed), tolerance, message, seconds."""
    start = time.monotonic()
    result: Result = {
        "outcome": "ok",
        "error": None,
        "message": "",
        "tolerance": tolerances.error(case.kernel, case.ask),
    }
    try:
        launcher = make(case, limits_for(case.ask, device))
        inputs = make_inputs(case.ask, device, seed)
        later = replace(case.ask, lens=case.ask.lens[::-1]) if case.ask.graph else case.ask
        made = _graph(launcher, later, inputs, seed) if case.ask.graph else _eager(launcher, inputs)
        _wait(device)
        result |= judge(later, inputs, made, result["tolerance"], tolerances.lse)
    except Exception as error:  # noqa: BLE001 - whatever a package throws is the answer
        result |= {"outcome": classify(error), "message": words(error)}
    result["seconds"] = round(time.monotonic() - start, 2)
    return result


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        import torch

        torch.cuda.synchronize()


def _eager(launcher: Launcher, inputs: Inputs) -> AttentionOut:
    launcher.plan(inputs.batch)
    return launcher.run(inputs.q, inputs.kv, sinks=inputs.sinks, out=inputs.out)


def _graph(launcher: Launcher, later: Ask, inputs: Inputs, seed: int) -> AttentionOut:
    """Capture, then new numbers, lengths and pages in place, a new plan, and a replay: what a server does."""
    import torch

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        _eager(launcher, inputs)
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = launcher.run(inputs.q, inputs.kv, sinks=inputs.sinks, out=inputs.out)
    refresh(inputs, later, seed + 1)
    launcher.plan(inputs.batch)
    graph.replay()
    return made


def judge(ask: Ask, inputs: Inputs, made: AttentionOut, tolerance: float, lse_tolerance: float) -> Result:
    """Compares with the reference; a wrong answer that is right without a feature says that it was ignored."""
    outs, lses = reference(ask, inputs)
    error = worst_error(split_by_request(made.out, ask), outs)
    if inputs.guards_touched():
        return {"outcome": "wrong-numbers", "error": _number(error), "message": "wrote outside the output"}
    if error > tolerance:
        missing = _ignored(ask, inputs, made, tolerance)
        if missing:
            return {"outcome": "ignored", "error": _number(error), "message": f"the answer is right without {missing}"}
        unwritten = bool(made.out.isnan().any())
        text = "NaN in the output" if unwritten else f"relative error {error:.3g}, tolerance {tolerance}"
        return {"outcome": "wrong-numbers", "error": _number(error), "message": text}
    if made.lse is not None:
        off = max(float((a - b).abs().max()) for a, b in zip(split_by_request(made.lse, ask), lses, strict=True))
        if not off <= lse_tolerance:
            return {"outcome": "wrong-numbers", "error": _number(error), "message": f"log-sum-exp off by {off:.3g}"}
    return {"outcome": "ok", "error": _number(error)}


def _number(error: float) -> float | None:
    return float(f"{error:.4g}") if error < 1e30 else None


def _ignored(ask: Ask, inputs: Inputs, made: AttentionOut, tolerance: float) -> str:
    """The feature without which the answer would be right, or nothing."""
    without: dict[str, dict[str, Any]] = {
        "window": {"window": None},
        "softcap": {"softcap": None},
        "sinks": {"sinks": None},
        "noncausal": {"causal": True},
    }
    for name in ask.features():
        if name in without:
            plain = replace(ask, **without[name])
            held = replace_sinks(inputs, keep=plain.sinks is not None)
            if worst_error(split_by_request(made.out, ask), reference(plain, held)[0]) <= tolerance:
                return name
    return ""


def replace_sinks(inputs: Inputs, *, keep: bool) -> Inputs:
    """The same inputs with or without their sinks."""
    return Inputs(inputs.q, inputs.kv, inputs.batch, inputs.sinks if keep else None, inputs.guarded)
