"""Packages imported once, before any child is forked, without starting CUDA in the parent.

Several kernel packages ask torch for the GPU's capability while they are imported, which starts CUDA; a child forked
later could then not use the device. So a child asks first, and its answers stand in for torch's functions until the
packages are imported; each child puts torch's own back.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from attnroute.probe import schedule
from attnroute.probe.machine import NoGpuError

_own: dict[str, Callable[..., Any]] = {}


def device_facts() -> dict[str, Any]:
    """What torch says of device 0, as plain values. Starts CUDA: for a child."""
    import torch

    properties = torch.cuda.get_device_properties(0)
    plain = {n: getattr(properties, n) for n in dir(properties) if not n.startswith("_")}
    return {n: v for n, v in plain.items() if isinstance(v, (int, float, str, bool))}


def ask_in_child() -> dict[str, Any]:
    """`device_facts` from a child; raises NoGpuError with its words if it cannot use the device."""
    answers: list[dict[str, Any]] = []

    def work() -> dict[str, Any]:
        return {"outcome": "ok", "facts": device_facts()}

    schedule.run_tasks([schedule.Task("facts", "case", work, 120)], {"case": 1}, lambda _task, r: answers.append(r))
    if answers[0]["outcome"] != "ok":
        raise NoGpuError(f"torch cannot use the GPU: {answers[0].get('message', 'no answer')}")
    found: dict[str, Any] = answers[0]["facts"]
    return found


def stand_in(facts: Mapping[str, Any]) -> None:
    """Lets torch answer from `facts` instead of starting CUDA, in this process; children get torch's own back."""
    import torch

    properties = SimpleNamespace(**facts)
    answers: dict[str, Callable[..., Any]] = {
        "get_device_capability": lambda _device=None: (facts["major"], facts["minor"]),
        "get_device_properties": lambda _device=None: properties,
        "get_device_name": lambda _device=None: facts["name"],
        "current_device": lambda: 0,
    }
    for name, answer in answers.items():
        _own.setdefault(name, getattr(torch.cuda, name))
        setattr(torch.cuda, name, answer)
    if give_back not in schedule.AFTER_FORK:
        schedule.AFTER_FORK.append(give_back)


def give_back() -> None:
    """torch's own functions again."""
    import torch

    for name, function in _own.items():
        setattr(torch.cuda, name, function)
    _own.clear()


def preload(modules: Sequence[str], hidden: Sequence[str] = ()) -> list[str]:
    """Imports what can be imported, as if `hidden` were not installed.

    Returns a line for each module that failed in another way than by being absent.
    """
    problems = []
    blocked = [name for name in hidden if name not in sys.modules]
    sys.modules.update(dict.fromkeys(blocked))  # type: ignore[arg-type]  # None makes an import fail
    try:
        for name in modules:
            try:
                importlib.import_module(name)
            except ImportError:
                continue  # its cases will say so one by one
            except Exception as error:  # noqa: BLE001 - whatever a package throws at import
                problems.append(f"{name} cannot be imported: {type(error).__name__}: {error}")
    finally:
        for name in blocked:
            del sys.modules[name]
    return problems
