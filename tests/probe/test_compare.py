"""Predictions, verdicts, captures, and what a person sees of them."""

import json

import pytest

pytest.importorskip("torch")

from attnroute.probe.asks import SOFTCAP
from attnroute.probe.capture import CaptureError, Journal, capture_name, read_capture, write_capture
from attnroute.probe.case import Ask, Case
from attnroute.probe.cases import cases_for
from attnroute.probe.compare import compare, contradictions
from attnroute.probe.predict import predict, predicted_cases, verdict
from attnroute.probe.report import listing, outcome_table, summary
from attnroute.probe.session import record
from attnroute.probe.timing import compared
from attnroute.registry.registry import load_registry

from .fakes import PACKAGES, Registry, table


@pytest.fixture(scope="module")
def cases():
    return predicted_cases(Registry(), "sm00", PACKAGES, cases_for(table(), PACKAGES))


def find(cases, **wanted):
    return next(c for c in cases if all(getattr(c.ask, name) == value for name, value in wanted.items()))


def test_the_tables_are_asked_as_a_person_would(cases):
    assert find(cases, head_dim=48).predicted["status"] == "accepted"
    beyond = find(cases, head_dim=112).predicted
    assert (beyond["status"], beyond["code"]) == ("rejected", "head-dim")
    assert find(cases, page_size=64).predicted["code"] == "page-size"
    assert find(cases, softcap=SOFTCAP).predicted["code"] == "softcap"
    hole = next(c for c in cases if c.ask.ratio == 5 and c.ask.kv_dtype == "bf16" and c.ask.dtype == "bf16").predicted
    assert (hole["status"], hole["outcome"]) == ("known-wrong", "wrong-numbers")
    assert find(cases, page_size=8).predicted["outcome"] == "faults"


@pytest.mark.parametrize(
    ("status", "predicted", "outcome", "expected"),
    [
        ("accepted", "ok", "ok", "agrees"),
        ("accepted", "ok", "wrong-numbers", "contradicts"),
        ("accepted", "ok", "build-fails", "contradicts"),
        ("accepted", "ok", "timeout", "silent"),
        ("accepted", "ok", "not-installed", "silent"),
        ("rejected", None, "raises", "agrees"),
        ("rejected", None, "ok", "surprise"),
        ("rejected", None, "wrong-numbers", "surprise"),
        ("known-wrong", "wrong-numbers", "wrong-numbers", "agrees"),
        ("known-wrong", "wrong-numbers", "ok", "contradicts"),
        ("known-wrong", "faults", "ok", "surprise"),
        ("known-wrong", "faults", "wrong-numbers", "surprise"),
        ("undeclared", None, "ok", "news"),
        ("not-considered", None, "ok", "silent"),
    ],
)
def test_verdicts(status, predicted, outcome, expected):
    assert verdict({"status": status, "outcome": predicted}, outcome) == expected


def capture_of(cases, outcome):
    records = [record(c, {"outcome": outcome, "message": "said so"}, "1.2") for c in cases]
    return {"schema": 1, "gpu": "NVIDIA Test", "arch": "sm00", "driver": "1", "cuda": None, "torch": "2",
            "packages": PACKAGES, "date": "2026-01-01", "bandwidth_gbs": None, "cases": records,
            "timings": []}  # fmt: skip


def test_a_capture_is_compared_with_the_tables_of_today(cases, tmp_path):
    path = tmp_path / "c.json"
    write_capture(path, capture_of(cases, "ok"))
    records = compare(Registry(), read_capture(path))
    bad = contradictions(records)
    assert bad
    assert {r["predicted"]["status"] for r in bad} == {"known-wrong"}
    assert not [r for r in records if r["predicted"]["status"] == "accepted" and r["verdict"] != "agrees"]


def test_a_capture_is_written_whole_and_read_with_words_for_what_is_wrong(cases, tmp_path):
    path = tmp_path / "c.json"
    write_capture(path, capture_of(cases[:2], "ok"))
    assert len(path.read_text().splitlines()) > 4
    assert list(tmp_path.iterdir()) == [path]
    for text, words in (
        ("{", "not JSON"),
        ("{}", "missing"),
        (path.read_text().replace('"schema": 1', '"schema": 9'), "schema 9"),
    ):
        broken = tmp_path / "broken.json"
        broken.write_text(text)
        with pytest.raises(CaptureError, match=words):
            read_capture(broken)
    with pytest.raises(CaptureError, match=r"none\.json"):
        read_capture(tmp_path / "none.json")


def test_names_of_captures_count_up():
    assert capture_name("NVIDIA H200", "sm90", "2026-01-02", []) == "h200-sm90-2026-01-02-1.json"
    assert capture_name("NVIDIA H200", "sm90", "2026-01-02", ["h200-sm90-2026-01-02-1.json"]).endswith("-2.json")


def test_a_report_shows_outcomes_contradictions_and_surprises(cases):
    records = [record(c, {"outcome": "ok", "message": ""}, "1.2") for c in cases]
    text = summary(records)
    assert "alpha@alpha-dist" in outcome_table(records)
    assert "The tables are contradicted" in text
    assert "Beyond the tables" in text
    assert f"{len(cases)} cases" in text
    assert len(listing(cases).splitlines()) == len(cases)


def test_the_journal_keeps_the_last_word(tmp_path):
    journal = Journal(tmp_path / "sub" / "j")
    assert journal.read() == {}
    journal.append({"id": "a", "n": 1})
    journal.append({"id": "a", "n": 2})
    assert journal.read() == {"a": {"id": "a", "n": 2}}
    assert json.loads(journal.path.read_text().splitlines()[0]) == {"id": "a", "n": 1}


def test_a_failure_that_shows_only_sometimes_is_not_refuted_by_a_right_answer():
    known = {"status": "known-wrong", "outcome": "wrong-numbers"}
    assert verdict(known, "ok") == "contradicts"
    assert verdict({**known, "sometimes": True}, "ok") == "surprise"
    assert verdict({**known, "sometimes": True}, "wrong-numbers") == "agrees"


def test_the_table_says_which_failures_show_only_sometimes():
    ask = Ask("decode", 1, "bf16", "bf16", "fp8_e4m3", 256, 256, 64, 8, 2, (4000,), window=1024)
    case = Case("fa4", "vllm", ask, (), ())
    predicted, _ = predict(load_registry(), "sm90", {"vllm": "0.33.0"}, case)
    assert (predicted["status"], predicted["outcome"], predicted["sometimes"]) == ("known-wrong", "wrong-numbers", True)


def test_an_output_that_is_no_number_is_a_wrong_answer_and_no_timing():
    import torch

    first = torch.ones(2, 3)
    assert compared(first * 1.5, first) == {"off": 0.5}
    for value in (float("nan"), float("inf")):
        found = compared(torch.full((2, 3), value), first)
        assert (found["off"], found["failed"]) == (None, "wrong-numbers")
