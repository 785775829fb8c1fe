"""The committed captures against the tables as they are now, and against what had been predicted."""

import importlib.util
import json
import sys
from functools import cache
from pathlib import Path

import pytest
import yaml

from attnroute.cli.main import main
from attnroute.probe.capture import read_capture
from attnroute.probe.case import OUTCOMES, SILENT, Case
from attnroute.probe.compare import compare, contradictions
from attnroute.probe.timings import read_timings
from attnroute.probe.tolerance import probe_data
from attnroute.registry.registry import load_registry
from attnroute.registry.schema_check import messages

ROOT = Path(__file__).resolve().parents[2]
CAPTURES = sorted((ROOT / "capabilities" / "captures").glob("*.json"))
PREDICTIONS = sorted((ROOT / "docs" / "predictions").glob("*.json"))
#: What issue 4 asks for: kernels that must have answers, by provider and version.
ASKED = {
    *(("flashinfer-python", "0.7.4", kernel) for kernel in ("xqa", "native_tc", "native_cc")),
    *(("flashinfer-python", "0.6.16.post3", kernel) for kernel in ("xqa", "native_cc")),
    ("flash-attn-4", "4.0.0b36", "fa4"),
    ("vllm", "0.33.0", "fa4"),
    ("vllm", "0.33.0", "fa3"),
}
BEFORE = ("status", "code", "outcome", "row")


@cache
def capture(path):
    return read_capture(path)


def cases():
    return [(path.name, case) for path in CAPTURES for case in capture(path)["cases"]]


def answered():
    return [case for _, case in cases() if case["outcome"] not in SILENT]


def shape(timing):
    request = timing["request"]
    return request["model"], timing["batch"], timing["context"], request["page_size"], request["kv_dtype"]


def script(name):
    """A module of scripts/, which is no package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: path.stem)
def test_no_capture_contradicts_the_tables(path):
    found = compare(load_registry(), capture(path))
    assert contradictions(found) == []
    assert {r["verdict"] for r in found} <= {"agrees", "surprise", "news", "silent"}


def test_the_command_says_so(capsys):
    assert main(["probe", "compare"]) == 0
    out = capsys.readouterr().out
    assert all(path.name in out for path in CAPTURES)


def test_a_wrong_answer_would_be_seen():
    changed = json.loads(json.dumps(capture(CAPTURES[0])))
    case = next(c for c in changed["cases"] if c["verdict"] == "agrees" and c["outcome"] == "ok")
    case["outcome"] = "wrong-numbers"
    assert [c["id"] for c in contradictions(compare(load_registry(), changed))] == [case["id"]]


def test_enough_was_asked_and_answered():
    assert len(answered()) >= 250
    assert sum("has no parameter" not in case["message"] for case in answered()) >= 250
    assert {(c["provider"], c["version"], c["kernel"]) for c in answered()} >= ASKED
    assert len(read_timings(capture(path) for path in CAPTURES)) >= 80


@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: path.stem)
def test_captures_are_whole(path):
    data = capture(path)
    assert messages(data, "capture") == []
    assert (data["arch"], data["gpu"]) == ("sm90", "NVIDIA H200")
    ids = [case["id"] for case in data["cases"]]
    assert len(set(ids)) == len(ids)
    for case in data["cases"]:
        assert Case.from_json({**case, "predicted": {}}).id == case["id"]
        assert case["outcome"] in OUTCOMES
        assert data["packages"][case["provider"]] == case["version"]
        if case["outcome"] == "ok":
            assert case["error"] <= case["tolerance"]
    text = path.read_text(encoding="utf-8")
    assert text.isascii()
    assert "\\u001b" not in text
    assert "/tmp/" not in text


def test_what_was_asked_had_been_predicted():
    """Predictions were committed before the first run; each answered case stands in them, with the same prediction."""
    known = {}
    for path in PREDICTIONS:
        data = json.loads(path.read_text(encoding="utf-8"))
        assert data["count"] == len(data["cases"])
        for case in data["cases"]:
            known[data["packages"][case["provider"]], case["id"]] = case
    for _, case in cases():
        before = known[case["version"], case["id"]]
        assert before["request"] == case["request"]
        assert {k: before["predicted"][k] for k in BEFORE} == {k: case["predicted"][k] for k in BEFORE}


def test_the_page_names_what_was_run_and_what_cannot_be_decided():
    page = (ROOT / "docs" / "probing.md").read_text(encoding="utf-8")
    for path in CAPTURES:
        outcomes = [case["outcome"] for case in capture(path)["cases"]]
        told = sum(outcome not in SILENT for outcome in outcomes)
        shapes = len({shape(timing) for timing in capture(path)["timings"]})
        line = next(line for line in page.splitlines() if f"`{path.name}`" in line)
        assert line.endswith(f"| {len(outcomes)} | {told} | {shapes} |")
    found = yaml.safe_load(probe_data("untestable.yaml"))
    assert all(f"- {entry['what']}\n" in page for entry in found["undecidable"])


def test_citations_and_edges_are_current():
    assert script("cite_captures").main(["--check"]) == 0, "run scripts/cite_captures.py"
    assert script("edge_coverage").main(["--check"]) == 0, "run scripts/edge_coverage.py"


def test_citations_name_cases_that_back_their_row():
    cited = script("cite_captures")
    found = cited.citations([path.name for path in CAPTURES], "sm90")
    by_name = {path.name: capture(path)["cases"] for path in CAPTURES}
    for subject, items in found.items():
        kernel = subject.split("/")[1]
        assert all(by_name[name][number]["kernel"] == kernel for name, held in items.items() for number in held)
    for name, text in (("gone", "sm90/xqa/no-such-row"), ("kept", "sm90/xqa/decode")):
        assert (text in found) == (name == "kept")


def test_citing_twice_changes_nothing_and_uncited_tables_come_back():
    cited = script("cite_captures")
    text = (ROOT / "capabilities" / "arch" / "sm90.yaml").read_text(encoding="utf-8")
    found = cited.citations([path.name for path in CAPTURES], "sm90")
    assert cited.rewritten(cited.rewritten(text, "sm90", {}), "sm90", found) == text
