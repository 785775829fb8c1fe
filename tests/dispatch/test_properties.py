"""What holds for every question: no decision violates its row, order is no matter, fixes work, explain agrees."""

from __future__ import annotations

import copy
import io
import json
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnroute.cli.main import main
from attnroute.dispatch.answer import CandidateAnswer
from attnroute.dispatch.decision import Decision
from attnroute.dispatch.fix import apply_change
from attnroute.dispatch.packages import Packages
from attnroute.dispatch.request import Request
from attnroute.dispatch.route import decide, route
from attnroute.registry import registry as registry_module
from attnroute.registry.build import build_table
from attnroute.registry.registry import Registry, default_registry
from tests.dispatch.draw import Question, changed, flags_of, packages_of, questions, request_of, route_arguments
from tests.second_evaluator import STEPS, Tables, public, within

TABLES = Tables(Path(__file__).resolve().parents[2] / "capabilities")
drawn = st.integers(0, 2**48).map(lambda seed: next(questions(TABLES, seed, 1)))


def some(count: int) -> Callable[[Any], Any]:
    return settings(max_examples=count, deadline=None)


def answered(question: Question, registry: Registry | None = None) -> Decision:
    return decide(registry or default_registry(), request_of(question), packages_of(question))


@pytest.fixture(scope="module", autouse=True)
def one_registry() -> Iterator[None]:
    """Commands read the tables once for the whole module."""
    registry = default_registry()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry_module, "load_registry", lambda overlays=(): registry)
        yield


def accepted(decision: Decision) -> dict[tuple[str, str], CandidateAnswer]:
    return {(answer.kernel, answer.provider): answer for answer in decision.candidates if answer.accepted}


@given(drawn)
@some(250)
def test_no_decision_violates_its_row(question: Question) -> None:
    """The row holds every fixed dimension, and pages are the row's less the holes; no trap of the version holds it."""
    ask = dict.fromkeys(("topk", "layout", "cuda_graph")) | question.ask
    for key, answer in accepted(answered(question)).items():
        (row,) = (r for r in TABLES.rows[question.arch] if (r["id"], *r["package"]) == (answer.row, key[1]))
        for dim in (
            "kind",
            "phase",
            "storage",
            "head_dim",
            "q_len",
            "group_ratio",
            "q_heads",
            "topk",
            "latent",
            "rope",
            "page",
        ):
            fixed = ask.get(dim) is not None
            assert not fixed or ask[dim] in row["sets"][dim], dim
        if ask["kv"] is not None:
            reads = [answer.q_dtype] if answer.q_dtype else row["dtypes"]
            assert any(ask["kv"] in row["dtypes"].get(q, ()) for q in reads)
        assert answer.page_sizes is not None
        for page in [*answer.page_sizes.values(4096)][:: 1 + len([*answer.page_sizes.values(4096)]) // 5]:
            if page and ask["page"] is None:
                assert page in row["sets"]["page"]
                asked = Question(question.arch, question.ask | {"page": page}, question.packages, question.complete)
                assert key in accepted(answered(asked)), page
        version = public(question.packages[key[1]])
        full = dict.fromkeys(STEPS) | ask
        full["own"] = ["bf16", "fp16"] if ask["q"] is None else [ask["q"]]
        full["q_heads_gathered"] = ask["q_heads"] and ask["q_heads"] * ask["dcp"]
        for trap in TABLES.traps[question.arch]:
            if (trap["kernel"], *trap["package"]) == key and within(trap["versions"], version):
                mine = [r for r in TABLES.rows[question.arch] if (r["kernel"], *r["package"]) == key]
                assert TABLES.met(trap, mine, full) != []


def registry_with(arch: str, data: dict[str, Any]) -> Registry:
    """The registry with another table for one architecture."""
    base = default_registry()
    return Registry(base.store, base.overlays, _tables={arch: build_table(data, base.catalogue)})


@cache
def compiled(arch: str) -> Any:
    return default_registry().section(f"arch/{arch}")


@given(drawn, st.integers(0, 2**32))
@some(150)
def test_removing_a_row_never_admits_more(question: Question, seed: int) -> None:
    data = dict(compiled(question.arch))
    before = accepted(answered(question))
    rows = list(data["rows"])
    mine = [
        n
        for n, row in enumerate(rows)
        if any(a.row == f"{question.arch}/{row['kernel']}/{row['row']}" for a in before.values())
    ]
    del rows[Random(seed).choice(mine or range(len(rows)))]
    after = accepted(answered(question, registry_with(question.arch, data | {"rows": rows})))
    assert set(after) <= set(before)


def in_any_order(decision: Decision) -> Any:
    """An answer without the orders that follow the file: of rows named, of values declared, of words in messages."""
    found = {}
    for answer in decision.candidates:
        whys = [
            (w.code, w.asked, sorted(map(str, w.allowed)) if isinstance(w.allowed, list) else w.allowed)
            for w in answer.why
        ]
        rows = [sorted(row.partition("#")[0] for row in w.rows) for w in answer.why]
        pages = sorted(answer.page_sizes.values(2048)) if answer.accepted and answer.page_sizes else None
        fixes = [fix.change for fix in answer.fix]
        found[answer.kernel, answer.provider] = (
            answer.status,
            answer.row,
            answer.q_dtype,
            answer.calls,
            pages,
            whys,
            rows,
            fixes,
        )
    return decision.kernel, decision.provider, decision.warnings, found


@cache
def shuffled(arch: str, seed: int) -> Registry:
    random, data = Random(seed), copy.deepcopy(compiled(arch))
    for items in (data["rows"], data["traps"], *(row["exclusions"] for row in data["rows"])):
        random.shuffle(items)
    return registry_with(arch, data)


@given(drawn, st.integers(0, 4))
@some(200)
def test_order_in_the_file_changes_nothing(question: Question, seed: int) -> None:
    assert in_any_order(answered(question)) == in_any_order(answered(question, shuffled(question.arch, seed)))


@given(drawn)
@some(150)
def test_every_fix_is_accepted(question: Question) -> None:
    """Applied to the request as `apply_change` does, and asked anew from the start with the change written in."""
    request, packages = request_of(question), packages_of(question)
    for answer in decide(default_registry(), request, packages).candidates:
        assert len(answer.fix) <= 2
        for fix in answer.fix:
            assert len(fix.change) <= 2
            mended = decide(default_registry(), *apply_change(request, packages, fix.change))
            again = answered(changed(question, fix.change))
            for decision in (mended, again):
                assert (answer.kernel, answer.provider) in accepted(decision), fix.change


def command(flags: list[str]) -> tuple[int, Any]:
    out = io.StringIO()
    with redirect_stdout(out):
        code = main(["explain", *flags, "--format", "json"])
    return code, json.loads(out.getvalue())


@given(drawn)
@some(120)
def test_explain_agrees_and_so_do_its_fixes(question: Question) -> None:
    flags = flags_of(question)
    if flags is None:
        return
    decision = answered(question)
    code, said = command(flags)
    assert code == (0 if decision.served else 1)
    if question.ask["kv"] is None:  # the command adds with which dtypes an accepted kernel is known to be wrong
        said["warnings"] = [note for note in said["warnings"] if not note.endswith("[known-wrong]")]
    assert said == json.loads(json.dumps(decision.to_json()))
    for answer in said["candidates"]:
        for fix in answer["fix"][:1]:
            mended = flags_of(changed(question, fix["change"]))
            assert mended is not None
            _, then = command(mended)
            (status,) = (
                c["status"]
                for c in then["candidates"]
                if (c["kernel"], c["provider"]) == (answer["kernel"], answer["provider"])
            )
            assert status in ("chosen", "accepted")


@given(drawn)
@some(150)
def test_a_repeated_question_gives_an_equal_answer(question: Question) -> None:
    assert answered(question).to_json() == answered(question).to_json()
    said = route_arguments(question)
    if said is not None:
        group, keywords = said
        first = route(group, question.arch, question.packages, **keywords)
        assert route(group, question.arch, question.packages, **keywords).to_json() == first.to_json()
        assert first.candidates[0].why == first.candidates[0].why


DECISION = {"kernel", "provider", "row", "page_sizes", "q_dtype", "calls", "graph_level", "evidence", "preference"}
CANDIDATE = {"kernel", "provider", "page_sizes", "status", "row", "why", "fix"}
STATUSES = {"chosen", "accepted", "rejected", "undeclared", "known-wrong", "not-considered"}


@given(drawn)
@some(150)
def test_json_follows_the_contract(question: Question) -> None:
    decision = answered(question)
    said = json.loads(json.dumps(decision.to_json()))
    assert {"arch", "phase", "request", "packages", "decision", "candidates"} <= set(said)
    assert (said["decision"] is None) == (not decision.served)
    if said["decision"]:
        assert set(said["decision"]) >= DECISION
        assert said["decision"]["evidence"]["strength"]
    assert sum(answer["status"] == "chosen" for answer in said["candidates"]) == (1 if decision.served else 0)
    reasons = default_registry().catalogue["reasons"]
    for answer in said["candidates"]:
        assert set(answer) == CANDIDATE
        assert answer["status"] in STATUSES
        assert bool(answer["why"]) != (answer["status"] in ("chosen", "accepted"))
        for why in answer["why"]:
            assert set(why) == {"code", "asked", "allowed", "rows", "message"}
            assert why["code"] in reasons
            assert why["message"]
        for fix in answer["fix"]:
            assert set(fix) == {"change", "message"}


def test_a_free_request_is_a_projection() -> None:
    """With nothing fixed but the architecture, whatever has a row for paged decode is accepted."""
    request = Request(arch="sm90", storage="paged")
    decision = decide(default_registry(), request, Packages((("flashinfer-python", "0.7.4"), ("vllm", "0.33.0"))))
    assert {"xqa", "native_tc", "fa3", "triton"} <= {answer.kernel for answer in accepted(decision).values()}
