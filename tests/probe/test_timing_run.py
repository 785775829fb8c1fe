"""Timing a grid without a GPU: what is compiled before it, which passes run, and how an interrupted run goes on."""

from math import ceil
from types import SimpleNamespace

import pytest

from attnroute.probe import timing_run
from attnroute.probe.capture import Journal
from attnroute.probe.grid import later, shapes, sweep
from attnroute.probe.timing import Entry
from attnroute.probe.timing_run import (
    FEW,
    LONG,
    MANY,
    PASSES,
    WARM,
    is_prepared,
    mark_prepared,
    passes_of,
    prepare_tasks,
    run_timings,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@pytest.fixture
def session(monkeypatch):
    """Two kernels a shape: one whose module is compiled ahead, one that compiles in the process that calls it."""

    def entries(_session, shape):
        return [Entry("ahead", "x", shape.ask("fp32"), ()), Entry("inside", "x", shape.ask("fp32"), ())]

    def needs(works):
        return {name: [(name.rpartition("-")[0], False)] if name.startswith("ahead") else [] for name in works}

    monkeypatch.setattr(timing_run, "entries_for", entries)
    monkeypatch.setattr(timing_run, "survey", needs)
    return SimpleNamespace(compiles_in_process=lambda kernel, _provider: kernel == "inside")


def test_each_module_is_compiled_once_and_each_kernel_warmed_split_and_whole(session):
    grid = shapes()
    tasks = prepare_tasks(session, grid, gpus=2)
    keys = {(s.layer.head_dim, s.layer.q_heads // s.layer.kv_heads, s.page_size, s.kv_dtype, s.layer.window is None,
             s.layer.sinks) for s in grid}  # fmt: skip
    builds = [t for t in tasks if t.kind == "build"]
    assert len({t.id for t in builds}) == len(builds) <= len(keys)
    warm = {(key, step) for s in grid for key in [(s.layer.head_dim, s.layer.q_heads // s.layer.kv_heads, s.page_size,
            s.kv_dtype, s.layer.window is None, s.layer.sinks)] for step in steps(s)}  # fmt: skip
    assert len([t for t in tasks if t.kind == "case"]) == ceil(len(warm) / WARM)
    assert {step for _, step in warm} == {"split", "whole"}


def steps(shape):
    streams = shape.batch * shape.layer.kv_heads
    if streams <= FEW and shape.context >= LONG:
        return ["split"]
    return ["whole"] if streams >= MANY else []


def written(monkeypatch, tmp_path, *, dies_after=None):
    """A chunk that writes down which shapes it was given, and may die on the way."""

    def chunk(_session, todo, journal, _bandwidth):
        for place, (number, shape) in enumerate(todo):
            if place == dies_after and not (tmp_path / f"died-{number}").exists():
                (tmp_path / f"died-{number}").touch()
                raise RuntimeError("the kernel faulted")
            journal.append({"id": f"{number}/{shape.id}", "timings": [{"shape": shape.id, "pass": number}]})
        return {"outcome": "ok"}

    monkeypatch.setattr(timing_run, "_chunk", chunk)
    return Journal(tmp_path / "t.timings")


def test_the_grid_is_timed_twice_and_a_sweep_once(session, monkeypatch, tmp_path):
    journal = written(monkeypatch, tmp_path)
    asked = [*shapes()[:5], *sweep()[:6], *later()[:2]]
    found = run_timings(session, asked, journal, bandwidth_gbs=4000.0, gpus=2)
    times = {s.id: sorted(t["pass"] for t in found if t["shape"] == s.id) for s in asked}
    assert times == {s.id: sorted(passes_of(s)) for s in asked}
    assert [times[s.id] for s in asked if not s.swept] == [list(PASSES)] * 7
    assert sum(map(len, times.values())) == 20


def test_what_is_compiled_for_one_set_is_not_for_another(tmp_path):
    journal = Journal(tmp_path / "t.timings")
    mark_prepared(journal, ["grid"])
    assert is_prepared(journal, ["grid"])
    assert not is_prepared(journal, ["grid", "drawn"])
    mark_prepared(journal, ["drawn"])
    assert is_prepared(journal, ["grid", "drawn"])


def test_a_chunk_that_dies_is_gone_on_with_and_says_why(session, monkeypatch, tmp_path):
    journal = written(monkeypatch, tmp_path, dies_after=2)
    said = []
    found = run_timings(session, shapes()[:6], journal, bandwidth_gbs=4000.0, gpus=1,
                        progress=lambda _done, _of, result: said.append(result["outcome"]))  # fmt: skip
    assert len(found) == 12
    assert said.count("raises") == 2
    again = run_timings(session, shapes()[:6], journal, bandwidth_gbs=4000.0)
    assert again == found, "what is written down is not timed again"
