"""Many processes, one a task: forked from this one, which has imported the packages but never touched a device.

A task that crashes, hangs or poisons its CUDA context takes nothing else with it. Tasks that need a compiled module
wait for its build; builds and cases run side by side, each within its own number of processes.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnroute.probe.outcome import classify, signal_words, words

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

Result = dict[str, Any]
PAUSE = 0.02
#: Run in each child before its work.
AFTER_FORK: list[Callable[[], None]] = []


@dataclass(frozen=True)
class Task:
    """Work for one process. `kind` is `build` or `case`; `needs` names tasks that must have succeeded before."""

    id: str
    kind: str
    work: Callable[[], Result]
    timeout: float
    needs: frozenset[str] = frozenset()


@dataclass
class _Child:
    task: Task
    pid: int
    pipe: int
    started: float


def _child(task: Task, pipe: int) -> None:
    """The forked process: does the work, writes one JSON object, ends without running anybody's exit handlers."""
    os.setsid()
    faulthandler.disable()  # a crash is an answer here, not a reason to print this process's stacks
    quiet = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(quiet, stream)
    try:
        for prepare in AFTER_FORK:
            prepare()
        result = task.work()
    except BaseException as error:  # noqa: BLE001 - the parent wants to know, whatever it was
        result = {"outcome": classify(error), "message": words(error)}
    data = json.dumps(result).encode()
    while data:
        data = data[os.write(pipe, data) :]
    os._exit(0)


def _start(task: Task) -> _Child:
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        _child(task, writing)
    os.close(writing)
    os.set_blocking(reading, False)
    return _Child(task, pid, reading, time.monotonic())


def _finish(child: _Child, status: int) -> Result:
    data = b""
    with contextlib.suppress(BlockingIOError):
        while chunk := os.read(child.pipe, 1 << 16):
            data += chunk
    os.close(child.pipe)
    if os.WIFSIGNALED(status):
        by = os.WTERMSIG(status)  # nothing that a kernel does ends in SIGKILL: somebody was short of memory
        return {"outcome": "timeout" if by == signal.SIGKILL else "faults", "message": signal_words(by)}
    try:
        result: Result = json.loads(data)
    except ValueError:
        result = {"outcome": "faults", "message": f"the process ended with code {os.WEXITSTATUS(status)} and no answer"}
    return result


def _kill(child: _Child) -> None:
    for end in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            end(child.pid, signal.SIGKILL)


def run_tasks(
    tasks: Iterable[Task],
    slots: Mapping[str, int],
    on_done: Callable[[Task, Result], None],
    *,
    deadline: float | None = None,
    on_tick: Callable[[int, int, int], None] | None = None,
) -> int:
    """Runs all tasks, `slots[kind]` of a kind at a time, in the order given. Returns how many were not started.

    `on_done` gets each result as it comes. A task whose need failed is not run and ends as `build-fails` with that
    message; as `timeout`, `cut` short, if the need was killed or ran out of time, which says nothing about it. After
    `deadline` (time.monotonic) nothing new starts, and what still runs then ends so as well.
    """
    waiting = list(tasks)
    _check_needs(waiting)
    failed: dict[str, Result] = {}
    done: set[str] = set()
    running: list[_Child] = []
    try:
        while waiting or running:
            if deadline is not None and time.monotonic() >= deadline and waiting:
                break
            waiting = _launch(waiting, running, slots, done, failed, on_done)
            for child, result in _reap(running, deadline):
                done.add(child.task.id)
                if result.get("outcome") != "ok":
                    failed[child.task.id] = result
                on_done(child.task, result)
            if on_tick is not None:
                on_tick(len(waiting), *(sum(c.task.kind == kind for c in running) for kind in ("build", "case")))
            time.sleep(PAUSE)
        while running:
            for child, result in _reap(running, deadline):
                on_done(child.task, result)
            time.sleep(PAUSE)
    finally:
        for child in running:
            _kill(child)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child.pid, 0)
    return len(waiting)


def _check_needs(tasks: list[Task]) -> None:
    """A need that no task meets would be waited for for ever."""
    missing = {need for task in tasks for need in task.needs} - {task.id for task in tasks}
    if missing:
        raise ValueError(f"tasks need {sorted(missing)[0]!r} and others that nothing builds")


def _launch(
    waiting: list[Task],
    running: list[_Child],
    slots: Mapping[str, int],
    done: set[str],
    failed: Mapping[str, Result],
    on_done: Callable[[Task, Result], None],
) -> list[Task]:
    """Starts what has its needs and a free slot; returns what still waits."""
    free = {kind: count - sum(c.task.kind == kind for c in running) for kind, count in slots.items()}
    left = []
    for task in waiting:
        broken = next((need for need in task.needs if need in failed), None)
        if broken is not None:
            done.add(task.id)
            on_done(task, unbuilt(failed[broken]))
        elif task.needs <= done and free.get(task.kind, 0) > 0:
            free[task.kind] -= 1
            running.append(_start(task))
        else:
            left.append(task)
    return left


def unbuilt(build: Result) -> Result:
    """What a build that failed says about a task that needed it: nothing, unless the compiler refused."""
    refused = build["outcome"] in ("build-fails", "raises")
    outcome = "build-fails" if refused else "timeout"
    return {"outcome": outcome, "error": None, "message": str(build.get("message", "")), "cut": not refused}


def _reap(running: list[_Child], deadline: float | None) -> list[tuple[_Child, Result]]:
    """Children that ended or were ended for their time, taken out of `running`."""
    ended = []
    now = time.monotonic()
    for child in list(running):
        pid, status = os.waitpid(child.pid, os.WNOHANG)
        limit = child.started + child.task.timeout
        if pid:
            running.remove(child)
            ended.append((child, _finish(child, status)))
        elif now > (limit if deadline is None else min(limit, deadline + 5)):
            _kill(child)
            os.waitpid(child.pid, 0)
            os.close(child.pipe)
            running.remove(child)
            message = f"no answer in {now - child.started:.0f} s"
            ended.append((child, {"outcome": "timeout", "error": None, "message": message, "cut": now <= limit}))
    return ended


def cpu_count() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def child_problem(check: Callable[[], None], *, timeout: float = 120) -> str:
    """Empty if a child forked now can do what `check` does (use the device), else what it said.

    A package that touched the device while it was imported leaves forked children unable to.
    """

    def work() -> Result:
        check()
        return {"outcome": "ok"}

    answers: list[Result] = []
    run_tasks([Task("check", "case", work, timeout)], {"case": 1}, lambda _task, result: answers.append(result))
    return "" if answers[0]["outcome"] == "ok" else str(answers[0].get("message"))


def timings_path(out: Path) -> Path:
    """Where finished timings are kept."""
    return out.with_name(out.name + ".timings")


def journal_path(out: Path) -> Path:
    """Where finished cases are kept until the report is whole."""
    return out.with_name(out.name + ".journal")
