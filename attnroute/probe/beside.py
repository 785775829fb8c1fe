"""What a run does beside its cases, as its flags say: compiling alone, and timing sets of shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attnroute.errors import UsageError
from attnroute.probe.capture import Journal
from attnroute.probe.case import SILENT
from attnroute.probe.grid import SETS
from attnroute.probe.schedule import cpu_count, journal_path, run_tasks, timings_path, unbuilt
from attnroute.probe.session import build_slots, module_tasks, record

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from pathlib import Path

    from attnroute.probe.case import Case
    from attnroute.probe.grid import Shape
    from attnroute.probe.schedule import Result, Task
    from attnroute.probe.session import Session


def compile_all(
    session: Session, cases: Sequence[Case], args: argparse.Namespace, out: Path, gpus: int, end: float | None
) -> int:
    """Compiles what the cases and the timings need, and nothing else; exit 0, or 1 if something did not compile.

    A module that the compiler refuses is the answer to the cases that need it, and is written down as theirs.
    """
    from attnroute.probe import timing_run

    timed = _timed(args)
    journal = _begun(session, out) if timed else None
    tasks, needs = ([], {}) if args.time_only else module_tasks(session, cases)
    if timed:
        tasks += timing_run.prepare_tasks(session, _shapes(args), gpus)
    tasks = list({task.id: task for task in tasks}.values())
    failed: dict[str, Result] = {}

    def done(task: Task, result: Result) -> None:
        if result["outcome"] != "ok":
            failed[task.id] = result
            print(f"{task.id}: {result['outcome']}: {_message(result)}")

    left = run_tasks(tasks, _slots(gpus), done, deadline=end)
    for case in cases:
        said = [unbuilt(failed[name]) for name in sorted(needs.get(case.id, set()) & failed.keys())]
        answer = next((result for result in said if not result["cut"]), None)
        if answer is not None:
            Journal(journal_path(out)).append(record(case, answer, session.packages[case.provider]))
    silent = any(result["outcome"] in SILENT for result in failed.values())
    if journal is not None and not left and not silent and args.shapes is None:
        timing_run.mark_prepared(journal, _sets(args))
    print(f"compiled {len(tasks) - left - len(failed)} of {len(tasks)}; {len(failed)} failed")
    return 1 if failed else 0


def timings(
    session: Session, args: argparse.Namespace, out: Path, gpus: int, end: float | None
) -> tuple[list[dict[str, Any]], float | None]:
    """(timings, bandwidth): what earlier runs wrote down, and what is missing if timing was asked for."""
    from attnroute.probe import timing_run

    journal = _begun(session, out, stamp=_timed(args))
    if not _timed(args):
        return timing_run.timings_of(journal), timing_run.bandwidth_of(journal)
    shapes = _shapes(args)
    done_before = timing_run.is_prepared(journal, _sets(args))
    prepare = [] if done_before else timing_run.prepare_tasks(session, shapes, gpus)
    counts = [sum(t.kind == kind for t in prepare) for kind in ("build", "case")]
    print(f"{len(shapes)} shapes to time; compiling {counts[0]} modules, warming {counts[1]} kernels", flush=True)
    run_tasks(prepare, _slots(gpus), lambda _task, _result: None, deadline=end)
    bandwidth = timing_run.bandwidth_of(journal) or timing_run.measure_bandwidth(journal)
    print(f"copy bandwidth {bandwidth:.0f} GB/s", flush=True)

    def progress(done: int, of: int, result: Result) -> None:
        why = "" if result["outcome"] == "ok" else f"; the last ended early: {_message(result)}"
        print(f"timed {done} of {of} chunks{why}", flush=True)

    timing_run.run_timings(
        session, shapes, journal, bandwidth_gbs=bandwidth, gpus=gpus, deadline=end, progress=progress
    )
    return timing_run.timings_of(journal), bandwidth


def _begun(session: Session, out: Path, *, stamp: bool = True) -> Journal:
    """The journal of timings, which names the packages that it was begun with; UsageError if they are others now.

    With `stamp` a new one is begun with the packages at hand.
    """
    journal = Journal(timings_path(out))
    begun = journal.read().get("packages")
    if begun is not None and begun["packages"] != dict(session.packages):
        held = " ".join(f"{name} {version}" for name, version in begun["packages"].items())
        raise UsageError(f"{timings_path(out)} was begun with {held}; give another --out", code="usage")
    if begun is None and stamp:
        journal.append({"id": "packages", "packages": dict(session.packages), "timings": []})
    return journal


def _timed(args: argparse.Namespace) -> bool:
    return bool(args.time or args.time_only)


def _sets(args: argparse.Namespace) -> list[str]:
    return list(args.sets or SETS)


def _shapes(args: argparse.Namespace) -> list[Shape]:
    return [shape for name in _sets(args) for shape in SETS[name]()][: args.shapes]


def _slots(gpus: int) -> dict[str, int]:
    return {"build": build_slots(), "case": min(12 * gpus, cpu_count())}


def _message(result: Result) -> str:
    return str(result.get("message", ""))[:200]
