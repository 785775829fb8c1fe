"""Processes: crashes and hangs cost one case, finished cases survive an interruption, builds come first."""

import json
import os
import signal
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

from attnroute.launch.problem import Module
from attnroute.probe.capture import Journal
from attnroute.probe.cases import cases_for
from attnroute.probe.predict import predicted_cases
from attnroute.probe.schedule import Task, child_problem, run_tasks
from attnroute.probe.session import Session, answers, correctness_tasks, module_tasks, on_gpu, run_cases
from attnroute.probe.tolerance import load_tolerances

from .fakes import PACKAGES, Crashing, Eager, Hanging, Registry, making, table

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def collect(tasks, slots=None, **more):
    answers = {}
    left = run_tasks(
        tasks, slots or {"case": 2, "build": 1}, lambda task, result: answers.setdefault(task.id, result), **more
    )
    return answers, left


def task(name, work, *, kind="case", timeout=20.0, needs=()):
    return Task(name, kind, work, timeout, frozenset(needs))


def fine():
    return {"outcome": "ok", "pid": os.getpid()}


def test_each_task_has_a_process_of_its_own():
    answers, left = collect([task(str(n), fine) for n in range(4)])
    assert left == 0
    assert len({a["pid"] for a in answers.values()} | {os.getpid()}) == 5


def test_a_crash_an_exit_and_a_hang_are_told_apart():
    answers, _ = collect(
        [
            task("crash", lambda: os.kill(os.getpid(), 11)),
            task("exit", lambda: os._exit(3)),
            task("hang", lambda: time.sleep(60), timeout=0.5),
            task("raise", lambda: 1 / 0),
            task("fine", fine),
        ]
    )
    assert answers["crash"]["outcome"] == "faults"
    assert "SIGSEGV" in answers["crash"]["message"]
    assert "code 3" in answers["exit"]["message"]
    assert answers["hang"]["outcome"] == "timeout"
    assert answers["raise"]["outcome"] == "raises"
    assert answers["fine"]["outcome"] == "ok"


def test_cases_wait_for_builds_and_a_failed_build_is_their_answer():
    def failing():
        raise RuntimeError("Ninja build failed.\nx.cu(1): error: static assertion failed\n")

    answers, _ = collect(
        [
            task("module", fine, kind="build"),
            task("broken", failing, kind="build"),
            task("a", fine, needs=["module"]),
            task("b", fine, needs=["broken"]),
            task("c", fine),
        ]
    )
    assert answers["a"]["outcome"] == answers["c"]["outcome"] == "ok"
    assert answers["b"]["outcome"] == "build-fails"
    assert "static assertion" in answers["b"]["message"]


def test_a_build_that_was_killed_or_ran_out_of_time_says_nothing_about_its_cases():
    def killed():
        os.kill(os.getpid(), signal.SIGKILL)

    builds = [task("slow", lambda: time.sleep(60), kind="build", timeout=0.5), task("killed", killed, kind="build")]
    answers, _ = collect([*builds, task("a", fine, needs=["slow"]), task("b", fine, needs=["killed"])])
    assert answers["a"]["outcome"] == answers["b"]["outcome"] == answers["killed"]["outcome"] == "timeout"
    assert answers["a"]["cut"]
    assert answers["b"]["cut"]


def test_what_the_deadline_cut_short_is_told_from_what_hung():
    tasks = [task("hung", lambda: time.sleep(60), timeout=0.3), task("cut", lambda: time.sleep(60), timeout=90)]
    answers, _ = collect(tasks, deadline=time.monotonic() + 0.4)
    assert [(answers[n]["outcome"], answers[n]["cut"]) for n in ("hung", "cut")] == [
        ("timeout", False),
        ("timeout", True),
    ]


def test_nothing_starts_after_the_deadline():
    answers, left = collect(
        [task(str(n), lambda: time.sleep(0.3) or fine()) for n in range(40)], deadline=time.monotonic() + 0.5
    )
    assert 0 < len(answers) < 40
    assert left == 40 - len(answers)


def broken_device():
    raise RuntimeError("device gone")


def test_a_child_that_cannot_use_the_device_says_so():
    assert child_problem(lambda: None) == ""
    assert "device gone" in child_problem(broken_device)


def test_a_need_that_nothing_meets_is_an_error():
    with pytest.raises(ValueError, match="'module'"):
        collect([task("a", fine, needs=["module"])])


def session():
    return Session(Registry(), "sm00", PACKAGES, load_tolerances())


def some_cases(count):
    found = [c for c in cases_for(table(), PACKAGES) if not c.ask.graph and c.ask.head_dim == 64 and c.ask.ratio == 4]
    small = [replace(c, ask=replace(c.ask, lens=(1, 40))) for c in found[:count]]
    return predicted_cases(Registry(), "sm00", PACKAGES, small)


def run(kind, cases, journal, **more):
    return run_cases(session(), cases, journal, jobs=2, timeout=more.pop("timeout", 60), seed=1, make=making(kind),
                     device="cpu", **more)  # fmt: skip


def test_an_interrupted_run_goes_on_where_it_was(tmp_path):
    cases = some_cases(3)
    journal = Journal(tmp_path / "j")
    first = run(Eager, cases[:2], journal)
    assert [r["outcome"] for r in first] == ["ok", "ok"]
    with journal.path.open("a") as file:
        file.write('{"id": "torn off by a cra')
    again = run(Crashing, cases, journal)
    assert [r["outcome"] for r in again] == ["ok", "ok", "faults"]
    assert again[2]["verdict"] == "contradicts"
    assert len(journal.read()) == 3


def test_cases_that_the_deadline_cut_short_are_asked_again(tmp_path):
    journal, cases = Journal(tmp_path / "j"), some_cases(2)
    assert run(Hanging, cases, journal, deadline=time.monotonic() + 0.5) == []
    assert [r["outcome"] for r in run(Eager, cases, journal)] == ["ok", "ok"]


def test_a_journal_of_another_version_answers_nothing_and_verdicts_are_those_of_the_tables_now(tmp_path):
    journal, cases = Journal(tmp_path / "j"), some_cases(1)
    (first,) = run(Eager, cases, journal)
    refused = cases[0].with_prediction({"status": "rejected", "code": "x", "outcome": None}, ())
    assert answers(session(), journal, [refused])[first["id"]]["verdict"] == "surprise"
    journal.append({**first, "outcome": "not-installed"})
    assert answers(session(), journal, cases) == {}
    journal.append({**first, "version": "0.9"})
    assert answers(session(), journal, cases) == {}


def test_a_process_gets_one_of_the_gpus_that_it_may_use(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    assert on_gpu(1, lambda: os.environ["CUDA_VISIBLE_DEVICES"]) == "7"


def test_a_hanging_case_is_silent_about_the_tables(tmp_path):
    records = run(Hanging, some_cases(1), Journal(tmp_path / "j"), timeout=1)
    assert (records[0]["outcome"], records[0]["verdict"]) == ("timeout", "silent")
    assert json.dumps(records)


def test_cases_whose_modules_are_missing_can_be_left_for_later():
    cases = [SimpleNamespace(id=name) for name in ("has", "lacks")]
    modules = {"has": (Module("a", None, lambda: True),), "lacks": (Module("b", None, lambda: False),)}
    session = SimpleNamespace(modules=lambda case: modules[case.id], make=None, tolerances=None)
    whole = correctness_tasks(session, cases, timeout=1, seed=1)
    assert [(t.id, t.kind) for t in whole] == [("b", "build"), ("has", "case"), ("lacks", "case")]
    assert [t.id for t in correctness_tasks(session, cases, timeout=1, seed=1, compile_missing=False)] == ["has"]
    tasks, needs = module_tasks(session, cases)
    assert [t.id for t in tasks] == ["b"]
    assert needs == {"has": set(), "lacks": {"b"}}
