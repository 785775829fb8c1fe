"""The command: lists and predicts without a GPU, and says in one line why it cannot run without one."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from attnroute.errors import UsageError
from attnroute.probe import beside, machine, timing_run
from attnroute.probe.capture import Journal
from attnroute.probe.cases import cases_for
from attnroute.probe.main import main, named_packages
from attnroute.probe.predict import predicted_cases
from attnroute.probe.schedule import Task, journal_path, timings_path
from attnroute.probe.session import Session, answers
from attnroute.probe.tolerance import load_tolerances

SCRIPT = Path(__file__).parents[2] / "scripts/arch_probe.py"
NAMED = ["--arch", "sm90", "--package", "flashinfer-python==0.7.4"]


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(machine.shutil, "which", lambda name: None)


def test_without_a_gpu_one_line_and_exit_2(no_gpu, capsys, tmp_path):
    assert main(["--out", str(tmp_path / "r.json")]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "no NVIDIA GPU found" in said
    assert not list(tmp_path.iterdir())


def test_the_script_is_the_command():
    done = subprocess.run([sys.executable, SCRIPT, "--help"], capture_output=True, text=True, check=True, timeout=60)
    assert "--quick" in done.stdout


def test_a_list_needs_no_gpu(no_gpu, capsys):
    assert main(["--list", "--kernel", "xqa", *NAMED]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith("xqa@flashinfer-python/") for line in lines[:-1])
    assert len(lines) > 50
    one = lines[3].split()[0]
    assert main(["--list", "--case", one, *NAMED]) == 0
    assert "1 cases" in capsys.readouterr().out


def test_quick_is_a_few_claims_of_each_kernel(no_gpu, capsys):
    assert main(["--list", "--quick", *NAMED]) == 0
    lines = capsys.readouterr().out.splitlines()[:-1]
    kernels = [line.split("@")[0] for line in lines]
    assert max(kernels.count(k) for k in set(kernels)) == 12
    assert len(set(kernels)) >= 3


def test_predictions_are_written_before_anything_runs(no_gpu, tmp_path):
    path = tmp_path / "p" / "predictions.json"
    assert main(["--predict", str(path), *NAMED]) == 0
    data = json.loads(path.read_text())
    assert data["count"] == len(data["cases"]) > 100
    assert {c["predicted"]["status"] for c in data["cases"]} >= {"accepted", "rejected", "known-wrong"}


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--kernel", "xqq", "--list", *NAMED], "did you mean 'xqa'"),
        (["--case", "nothing", "--list", *NAMED], "no case starts with nothing"),
        (["--list", "--arch", "sm90", "--package", "flashinfer"], "NAME==VERSION"),
        (["--list", "--arch", "sm91"], "sm90"),
    ],
)
def test_what_cannot_be_meant_is_said(argv, words, capsys):
    assert main(argv) == 2
    assert words in capsys.readouterr().err


def test_nvidia_smi_is_read(monkeypatch):
    class Done:
        returncode, stdout, stderr = 0, "NVIDIA H200, 9.0, 580.1\nNVIDIA H200, 9.0, 580.1\n", ""

    monkeypatch.setattr(machine.shutil, "which", lambda name: "/bin/x")
    monkeypatch.setattr(machine.subprocess, "run", lambda *a, **k: Done)
    assert machine.find_gpu() == ("NVIDIA H200", "9.0", "580.1", 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert machine.find_gpu()[3] == 1
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(machine.NoGpuError, match="CUDA_VISIBLE_DEVICES is empty"):
        machine.find_gpu()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    Done.returncode, Done.stdout, Done.stderr = 9, "", "driver not loaded"
    with pytest.raises(machine.NoGpuError, match="driver not loaded"):
        machine.find_gpu()
    with pytest.raises(machine.NoGpuError, match=r"compute capability 8\.6"):
        machine.arch_of("8.6", {"sm90": {"compute_capability": "9.0"}})
    assert machine.arch_of("9.0", {"sm90": {"compute_capability": "9.0"}}) == "sm90"
    assert named_packages(["a==1"]) == {"a": "1"}


def test_a_driver_that_does_not_answer_or_a_torch_without_the_device_is_one_line(monkeypatch, capsys):
    def hangs(*args, **_):
        raise subprocess.TimeoutExpired(args[0], 60)

    monkeypatch.setattr(machine.shutil, "which", lambda name: "/bin/nvidia-smi")
    monkeypatch.setattr(machine.subprocess, "run", hangs)
    assert main([]) == 2
    assert "did not answer" in capsys.readouterr().err


def test_timings_begun_with_other_packages_are_not_gone_on_with(tmp_path):
    def begun(version):
        return beside._begun(SimpleNamespace(packages={"flashinfer-python": version}), tmp_path / "r.json")

    begun("0.7.4")
    assert begun("0.7.4").read()["packages"]["packages"] == {"flashinfer-python": "0.7.4"}
    with pytest.raises(UsageError, match=r"begun with flashinfer-python 0\.7\.4; give another --out"):
        begun("0.8")


@pytest.mark.parametrize(("outcome", "shapes", "prepared"), [
    ("ok", None, True), ("build-fails", None, True), ("timeout", None, False), ("ok", 5, False),
])  # fmt: skip
def test_compiling_is_done_only_when_nothing_was_cut(monkeypatch, tmp_path, outcome, shapes, prepared):
    task = Task("module", "build", lambda: {"outcome": outcome, "message": ""}, 20)
    monkeypatch.setattr(timing_run, "prepare_tasks", lambda *_: [task])
    args = SimpleNamespace(time=False, time_only=True, sets=["drawn"], shapes=shapes)
    session = SimpleNamespace(packages={"a": "1"})
    beside.compile_all(session, [], args, tmp_path / "r.json", 1, None)
    assert timing_run.is_prepared(Journal(timings_path(tmp_path / "r.json")), ["drawn"]) == prepared


@pytest.mark.parametrize(("outcome", "answered"), [("build-fails", "build-fails"), ("raises", "build-fails"),
                                                   ("ok", None), ("timeout", None), ("faults", None)])  # fmt: skip
def test_a_module_that_does_not_compile_is_the_answer_of_its_cases(monkeypatch, tmp_path, capsys, outcome, answered):
    pytest.importorskip("torch")
    from .fakes import PACKAGES, Registry, table

    case = predicted_cases(Registry(), "sm00", PACKAGES, cases_for(table(), PACKAGES)[:1])[0]
    task = Task("module", "build", lambda: {"outcome": outcome, "message": "static assertion"}, 20)
    monkeypatch.setattr(beside, "module_tasks", lambda *_: ([task], {case.id: {"module"}}))
    args = SimpleNamespace(time=False, time_only=False, sets=[], shapes=None)
    session = Session(Registry(), "sm00", PACKAGES, load_tolerances())
    assert beside.compile_all(session, [case], args, tmp_path / "r.json", 1, None) == (outcome != "ok")
    held = answers(session, Journal(journal_path(tmp_path / "r.json")), [case])
    assert held.get(case.id, {}).get("outcome") == answered
    if answered:
        assert (held[case.id]["message"], held[case.id]["verdict"]) == ("static assertion", "contradicts")


def test_old_timings_are_not_put_under_new_packages(tmp_path):
    args = SimpleNamespace(time=False, time_only=False)
    beside._begun(SimpleNamespace(packages={"a": "1"}), tmp_path / "r.json")
    with pytest.raises(UsageError, match="begun with a 1"):
        beside.timings(SimpleNamespace(packages={"a": "2"}), args, tmp_path / "r.json", 1, None)


def test_cases_that_a_capture_answered_are_left_out_where_versions_agree(no_gpu, tmp_path, capsys):
    def listed(*flags):
        assert main(["--list", "--kernel", "xqa", *NAMED, *flags]) == 0
        return [line.split()[0] for line in capsys.readouterr().out.splitlines()[:-1]]

    every = listed()
    rows = [
        {"id": every[0], "provider": "flashinfer-python", "version": "0.7.4", "outcome": "ok"},
        {"id": every[1], "provider": "flashinfer-python", "version": "0.7.4", "outcome": "timeout"},
        {"id": every[2], "provider": "flashinfer-python", "version": "0.7.3", "outcome": "ok"},
    ]
    head = dict.fromkeys(("gpu", "arch", "driver", "cuda", "torch", "packages", "date", "bandwidth_gbs"))
    path = tmp_path / "c.json"
    path.write_text(json.dumps({"schema": 1, **head, "cases": rows, "timings": []}))
    assert listed("--skip-answered", str(path)) == [e for e in every if e != every[0]]
