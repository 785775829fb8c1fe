"""Packages are imported once without CUDA being started in the parent; children ask the real torch."""

from __future__ import annotations

import pytest

from attnroute.probe import preload, schedule
from attnroute.probe.machine import NoGpuError

FACTS = {"major": 9, "minor": 0, "name": "NVIDIA Test", "multi_processor_count": 132}


@pytest.fixture
def standing_in():
    pytest.importorskip("torch")
    preload.stand_in(FACTS)
    yield
    preload.give_back()
    schedule.AFTER_FORK.remove(preload.give_back)


def test_the_parent_answers_from_what_a_child_said(standing_in):
    import torch

    assert torch.cuda.get_device_capability("cuda:0") == (9, 0)
    assert torch.cuda.get_device_properties(0).multi_processor_count == 132
    assert not torch.cuda.is_initialized()


def test_a_child_asks_torch_itself(standing_in):
    answers = []

    def work():
        import torch

        return {"outcome": "ok", "own": torch.cuda.get_device_capability.__module__}

    schedule.run_tasks([schedule.Task("a", "case", work, 60)], {"case": 1}, lambda task, result: answers.append(result))
    assert answers == [{"outcome": "ok", "own": "torch.cuda"}]


def test_without_a_usable_device_the_child_says_why(monkeypatch):
    def no_device():
        raise RuntimeError("no such device")

    monkeypatch.setattr(preload, "device_facts", no_device)
    with pytest.raises(NoGpuError, match=r"torch cannot use the GPU.*no such device"):
        preload.ask_in_child()


def test_absent_packages_are_no_problem_and_broken_ones_are_named(tmp_path, monkeypatch):
    (tmp_path / "broken_at_import.py").write_text("raise ValueError('half installed')")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = preload.preload(("not_a_package_at_all", "broken_at_import"))
    assert found == ["broken_at_import cannot be imported: ValueError: half installed"]
