"""route() and a second evaluator that shares no code with it give the same answers to 10,000 drawn questions."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

from attnroute.dispatch.decision import Decision
from attnroute.dispatch.route import decide, route
from attnroute.registry.dims import DIMENSIONS, FEATURE_CODES
from attnroute.registry.registry import default_registry
from attnroute.registry.sets import IntSet
from tests.dispatch.draw import Question, packages_of, questions, request_of, route_arguments
from tests.second_evaluator import LIMIT, Tables

ROOT = Path(__file__).resolve().parents[2]
COUNT, SEED = 10_000, 53111

#: Every code that `route` can give: those of dimensions and features, and of what is no dimension.
NO_DIMENSION = "arch package-missing package-version not-considered q-dtype evidence env call known-wrong undeclared"
CODES = {d.code for d in DIMENSIONS if d.code} | set(FEATURE_CODES.values()) | set(NO_DIMENSION.split())


def ask(question: Question) -> tuple[Decision, bool]:
    """The answer, through `route` where a group can say the question, and whether it was."""
    said = route_arguments(question)
    packages = packages_of(question)
    if said is not None:
        group, keywords = said
        return route(group, question.arch, packages, **keywords), True
    return decide(default_registry(), request_of(question), packages), False


@cache
def listed(pages: IntSet) -> frozenset[int]:
    return frozenset(pages.values(LIMIT)) - {0}


def seen_by(decision: Decision) -> dict[tuple[str, str], tuple[Any, ...]]:
    found = {}
    for answer in decision.candidates:
        status = "accepted" if answer.accepted else answer.status
        code = answer.why[0].code if answer.why else None
        pages = listed(answer.page_sizes) if answer.accepted and answer.page_sizes is not None else None
        found[answer.kernel, answer.provider] = (status, code, pages, answer.row if answer.accepted else None)
    return found


def seen_by_second(tables: Tables, question: Question) -> dict[tuple[str, str], tuple[Any, ...]]:
    found = {}
    for key, verdict in tables.answer(question.arch, question.ask, question.packages, question.complete).items():
        accepted = verdict["status"] == "accepted"
        pages, row = (verdict["pages"], verdict["row"]["id"]) if accepted else (None, None)
        found[key] = (verdict["status"], verdict["code"], pages, row)
    return found


def test_two_evaluators_agree() -> None:
    """Every candidate: status, code, and for accepted ones row and page sizes. Every row and every code is hit."""
    tables = Tables(ROOT / "capabilities")
    rows, codes, served, routed = Counter[tuple[str, str]](), Counter[str](), 0, 0
    differ: list[str] = []
    for question in questions(tables, SEED, COUNT):
        decision, through_route = ask(question)
        routed += through_route
        served += decision.served
        first, second = seen_by(decision), seen_by_second(tables, question)
        assert set(first) == set(second)
        for (kernel, provider), answer in first.items():
            codes.update([answer[1]] if answer[1] else [])
            rows.update([(answer[3], provider)] if answer[3] else [])
            if answer != second[kernel, provider]:
                differ.append(f"{question}\n  {kernel}@{provider}\n  {answer}\n  {second[kernel, provider]}")
    everything = {(row["id"], *row["package"]) for arch in tables.rows for row in tables.rows[arch]}
    print(f"{served} of {COUNT} served, {routed} through route(); {len(rows)} of {len(everything)} rows accepted one")
    print("codes:", ", ".join(f"{code} {count}" for code, count in codes.most_common()))
    assert not differ, f"{len(differ)} differ, first:\n" + "\n".join(differ[:3])
    assert served >= 0.3 * COUNT
    assert routed >= 0.5 * COUNT
    assert everything == set(rows), "no question reached these rows"
    assert set(codes) == CODES
    assert set(codes) <= set(default_registry().catalogue["reasons"])


def test_the_second_evaluator_stands_alone() -> None:
    """It imports nothing of attnroute and stays small: 200 lines."""
    text = (ROOT / "tests/second_evaluator.py").read_text(encoding="utf-8")
    assert not re.search(r"^\s*(import|from) +(attnroute|tests)", text, re.MULTILINE)
    assert len(text.splitlines()) <= 200
