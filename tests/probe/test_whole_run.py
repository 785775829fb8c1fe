"""A whole run with stand-ins for the GPU and the kernels: capture, report, exit codes, going on after a deadline."""

import json
from dataclasses import replace

import pytest

pytest.importorskip("torch")

import attnroute.registry.registry
from attnroute.launch.problem import Module
from attnroute.probe import machine, main, session
from attnroute.probe.run_case import run_case

from .fakes import PACKAGES, Eager, Registry, Wrong, making

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@pytest.fixture
def pretend(monkeypatch, tmp_path):
    here = machine.Machine("NVIDIA Test", "0.0", "1.2", None, "2.0")
    monkeypatch.setattr(attnroute.registry.registry, "load_registry", Registry)
    monkeypatch.setattr(machine, "this_machine", lambda: here)
    monkeypatch.setattr(machine, "installed", lambda names, named: PACKAGES)
    monkeypatch.setattr(main, "PRELOAD", ())
    monkeypatch.setattr(main, "_touch_device", lambda: None)
    monkeypatch.setattr(main, "ask_in_child", dict)
    monkeypatch.setattr(main, "stand_in", lambda facts: None)
    monkeypatch.setattr(session.Session, "has_launcher", lambda self, kernel, provider: True)
    monkeypatch.setattr(session.Session, "modules", lambda self, case: ())

    def on_the_cpu(case, *args, **kwargs):  # which has no graphs to capture
        return run_case(replace(case, ask=replace(case.ask, graph=False)), *args, **{**kwargs, "device": "cpu"})

    monkeypatch.setattr(session, "run_case", on_the_cpu)
    for name in ("FLASHINFER_CUDA_ARCH_LIST", "OMP_NUM_THREADS", "PYTORCH_NVML_BASED_CUDA_CHECK",
                 "FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED", "FLASH_ATTENTION_CUTE_DSL_CACHE_DIR"):  # fmt: skip
        monkeypatch.setenv(name, "1")

    def run(kind, *flags):
        make = making(kind)
        monkeypatch.setattr(session.Session, "make", lambda self, case, limits: make(case, limits))
        return main.main(["--out", str(tmp_path / "r.json"), "--quick", "2", *flags])

    return run, tmp_path / "r.json"


def test_right_kernels_leave_a_capture_and_exit_0(pretend, capsys):
    run, out = pretend
    assert run(Eager) == 0
    data = json.loads(out.read_text())
    assert (data["gpu"], data["arch"], data["packages"]) == ("NVIDIA Test", "sm00", PACKAGES)
    assert [c["outcome"] for c in data["cases"]] == ["ok", "ok"]
    assert {"kernel", "provider", "request", "outcome", "error", "message"} <= set(data["cases"][0])
    said = capsys.readouterr().out
    assert "alpha@alpha-dist" in said
    assert "2 agrees" in said


def test_a_contradiction_exits_1_and_is_named(pretend, capsys):
    run, _ = pretend
    assert run(Wrong) == 1
    assert "The tables are contradicted (2)" in capsys.readouterr().out


def test_after_a_deadline_the_same_command_goes_on(pretend, capsys):
    run, out = pretend
    assert run(Wrong, "--deadline", "0.000001") == 0
    assert "2 cases not run yet" in capsys.readouterr().out
    assert run(Eager) == 0
    assert len(json.loads(out.read_text())["cases"]) == 2


def test_a_device_that_children_cannot_use_is_no_dead_end(pretend, monkeypatch, capsys):
    run, _ = pretend

    def broken():
        raise RuntimeError("cannot re-initialize")

    class Again:
        returncode = 7

    monkeypatch.setattr(main, "_touch_device", broken)
    monkeypatch.setattr(main.subprocess, "run", lambda *args, **kwargs: Again)
    assert run(Eager) == 7
    assert "imports its packages anew" in capsys.readouterr().out


def test_compiling_alone_runs_no_case(pretend, monkeypatch, capsys):
    run, out = pretend
    made = []
    module = Module("m", lambda: made.append(1), lambda: False)
    monkeypatch.setattr(session.Session, "modules", lambda self, case: (module,))
    assert run(Wrong, "--compile-only") == 0
    assert "compiled 1 of 1; 0 failed" in capsys.readouterr().out
    assert not out.exists()


def test_what_does_not_compile_is_named(pretend, monkeypatch, capsys):
    run, _ = pretend

    def broken():
        raise RuntimeError("ninja exited with 1")

    monkeypatch.setattr(session.Session, "modules", lambda self, case: (Module("m", broken, lambda: False),))
    assert run(Eager, "--compile-only") == 1
    assert "m: build-fails" in capsys.readouterr().out
