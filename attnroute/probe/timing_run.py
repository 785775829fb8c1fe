"""Times the grid: a few processes one after another, alone on the GPU, each shape in two of them."""

from __future__ import annotations

import contextlib
import gc
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from attnroute.dispatch.group import KVGroup
from attnroute.dispatch.route import route
from attnroute.launch.bind import launcher_for, launcher_name
from attnroute.launch.problem import Limits
from attnroute.probe.grid import hash_of
from attnroute.probe.schedule import Result, Task, run_tasks
from attnroute.probe.session import build_tasks, on_gpu
from attnroute.probe.survey import survey
from attnroute.probe.timing import FLUSH_BYTES, Entry, Sets, TimingFaultError, copy_bandwidth, time_shape

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from attnroute.launch.base import Launcher
    from attnroute.launch.problem import Module
    from attnroute.probe.capture import Journal
    from attnroute.probe.case import Ask
    from attnroute.probe.grid import Shape
    from attnroute.probe.session import Session

PASSES = (1, 2)
PREPARED = "prepared"  # in the journal: `--compile-only` has done what comes before timing
CHUNK = 210  # a process needs some ten seconds before it can time anything
CHUNK_TIMEOUT = 300.0
LONG = 4096  # tokens in the cache of a request whose keys are worth splitting
CROWDED = 64 << 30  # bytes still held: wrappers that refer to themselves have piled up
WARM = 4  # kernels that one process compiles, since importing their packages takes as long as one of them
FEW, MANY = 16, 192  # requests times KV heads at most, at least, at which a kernel compiled in the process is compiled


def entries_for(session: Session, shape: Shape) -> list[Entry]:
    """The kernels that the tables accept for a shape and that have a launcher, each with the query dtype it reads."""
    layer = shape.layer
    group = KVGroup("timed", layer.head_dim, layer.q_heads, layer.kv_heads, dtype="bf16", kv_dtype=shape.kv_dtype,
                    sliding_window=layer.window, sinks=layer.sinks)  # fmt: skip
    decision = route(group, session.arch, dict(session.packages), phase="decode", page_size=shape.page_size,
                     layout="NHD", cuda_graph="uniform1", registry=session.registry)  # fmt: skip
    found = []
    for answer in sorted(decision.candidates, key=lambda c: (c.kernel, c.provider)):
        if answer.accepted and session.has_launcher(answer.kernel, answer.provider):
            row = next(r for r in session.registry.table(session.arch).rows if r.id == answer.row)
            sinks = row.features.get("sinks")
            dtype = str(sinks[0]) if isinstance(sinks, (list, tuple)) else "fp32"
            ask = shape.ask(dtype, answer.q_dtype or "bf16")
            found.append(Entry(answer.kernel, answer.provider, ask, answer.calls))
    return found


def maker(session: Session) -> Callable[[Entry, Limits], Launcher]:
    """Launchers for entries."""

    def make(entry: Entry, limits: Limits) -> Launcher:
        name = launcher_name(entry.kernel, entry.provider, session.kernels)
        return launcher_for(name, entry.provider, entry.ask.problem(), limits, entry.calls)

    return make


def prepare_tasks(session: Session, shapes: Iterable[Shape], gpus: int = 1) -> list[Task]:
    """What has to happen before timing: modules compiled, and one run of each kernel that compiles in its process.

    Such a kernel keeps what it compiled on disk, which then serves the timing; the runs go in parallel.
    """
    asked: dict[str, tuple[Shape, Entry]] = {}
    warm: dict[str, tuple[Shape, Entry]] = {}
    for shape in shapes:
        streams = shape.batch * shape.layer.kv_heads  # few are split over the keys, many are not: other kernels
        step = "split" if streams <= FEW and shape.context >= LONG else "whole" if streams >= MANY else None
        for entry in entries_for(session, shape):
            name = f"{entry.kernel}@{entry.provider}/{_compiled_for(entry.ask)}"
            asked.setdefault(name, (shape, entry))
            if step is not None and session.compiles_in_process(entry.kernel, entry.provider):
                warm.setdefault(f"{name}/{step}", (shape, entry))
    works = {name: partial(_modules, session, shape, entry) for name, (shape, entry) in asked.items()}
    tasks = list(build_tasks(works, survey(works)).values())
    todo = list(warm.values())
    for number, start in enumerate(range(0, len(todo), WARM)):
        work = partial(on_gpu, number % gpus, partial(_warm, session, todo[start : start + WARM]))
        tasks.append(Task(f"warm-{number}", "case", work, CHUNK_TIMEOUT))
    return tasks


def _compiled_for(ask: Ask) -> str:
    """What kernels are compiled for, of a request: not the number of heads, requests or tokens."""
    parts = (ask.q_dtype, ask.kv_dtype, ask.head_dim, ask.ratio, ask.page_size, ask.window is not None, ask.sinks)
    return "-".join(map(str, parts))


def _modules(session: Session, shape: Shape, entry: Entry) -> tuple[Module, ...]:
    return maker(session)(entry, Limits(shape.batch, shape.context)).modules()


def _warm(session: Session, todo: Sequence[tuple[Shape, Entry]]) -> Result:
    """Runs each kernel once. What fails here fails again where it is timed, and is written down there."""
    for shape, entry in todo:
        with contextlib.suppress(Exception):
            _run_once(session, shape, entry)
    return {"outcome": "ok"}


def _run_once(session: Session, shape: Shape, entry: Entry) -> None:
    from attnroute.launch.dtypes import torch_dtype

    sets = Sets(shape, "cuda", 0, count=1)
    launcher = maker(session)(entry, Limits(shape.batch, shape.context))
    launcher.plan(sets.batch())
    launcher.run(sets.q[0].to(torch_dtype(entry.ask.q_dtype)), sets.kv[0], sinks=sets.sinks_for(entry.ask))


def passes_of(shape: Shape) -> tuple[int, ...]:
    """Both passes for a shape that a choice may be judged by; one, either of them, for one of the sweep."""
    return (PASSES[hash_of(shape.id) % 2],) if shape.swept else PASSES


def mark_prepared(journal: Journal, sets: Iterable[str]) -> None:
    """Writes down that what these sets need is compiled, beside what was before."""
    before = journal.read().get(PREPARED, {}).get("sets", ())
    journal.append({"id": PREPARED, "sets": sorted({*before, *sets}), "timings": []})


def is_prepared(journal: Journal, sets: Iterable[str]) -> bool:
    """Whether all that these sets need is compiled."""
    return set(sets) <= set(journal.read().get(PREPARED, {}).get("sets", ()))


def measure_bandwidth(journal: Journal) -> float:
    """GB/s of a large copy, measured in a process of its own and written down; 0 if that failed."""
    answers: list[Result] = []

    def work() -> Result:
        return {"outcome": "ok", "gbs": round(copy_bandwidth(), 1)}

    run_tasks([Task("bandwidth", "case", work, 120)], {"case": 1}, lambda _task, result: answers.append(result))
    found = float(answers[0].get("gbs", 0.0))
    if found:
        journal.append({"id": "bandwidth", "gbs": found, "timings": []})
    return found


def bandwidth_of(journal: Journal) -> float | None:
    """The bandwidth that was written down."""
    held = journal.read().get("bandwidth")
    return None if held is None else float(held["gbs"])


def timings_of(journal: Journal) -> list[dict[str, Any]]:
    """All timings written down so far."""
    return [timing for entry in journal.read().values() for timing in entry["timings"]]


def run_timings(
    session: Session,
    shapes: Sequence[Shape],
    journal: Journal,
    *,
    bandwidth_gbs: float,
    gpus: int = 1,
    deadline: float | None = None,
    progress: Callable[[int, int, Result], None] | None = None,
) -> list[dict[str, Any]]:
    """All timings: those the journal holds, then each missing (pass, shape). A fault costs its chunk a retry.

    Each GPU times one process at a time. Where there are two, each pass has its own.
    """
    for _ in range(4):
        known = journal.read()
        tasks: list[Task] = []
        for start in range(0, len(shapes), CHUNK):
            for number in PASSES:
                chunk = [
                    (number, s)
                    for s in shapes[start : start + CHUNK]
                    if number in passes_of(s) and f"{number}/{s.id}" not in known
                ]
                if chunk:
                    gpu = (number - 1) % gpus
                    work = partial(on_gpu, gpu, partial(_chunk, session, chunk, journal, bandwidth_gbs))
                    tasks.append(Task(f"chunk-{number}-{start}", f"gpu{gpu}", work, CHUNK_TIMEOUT))
        if not tasks:
            break
        finished: list[str] = []

        def done(task: Task, result: Result, finished: list[str] = finished, of: int = len(tasks)) -> None:
            finished.append(task.id)
            if progress is not None:
                progress(len(finished), of, result)

        if run_tasks(tasks, {f"gpu{n}": 1 for n in range(gpus)}, done, deadline=deadline):
            break
    return timings_of(journal)


def _chunk(session: Session, todo: Sequence[tuple[int, Shape]], journal: Journal, bandwidth_gbs: float) -> Result:
    """One process: its shapes one after another, each recorded as soon as it is timed."""
    import torch

    begun = time.monotonic()
    flush = torch.empty((FLUSH_BYTES,), dtype=torch.uint8, device="cuda")
    for _ in range(4000):  # the clocks have to come up before the first number counts
        flush.fill_(1)
    for number, shape in todo:
        try:
            records = time_shape(shape, entries_for(session, shape), maker(session), flush=flush, seed=number)
        except TimingFaultError as fault:
            journal.append(_entry(shape, number, fault.records, bandwidth_gbs))
            raise
        journal.append(_entry(shape, number, records, bandwidth_gbs) | {"at": round(time.monotonic() - begun, 2)})
        if torch.cuda.memory_allocated() > CROWDED:
            gc.collect()
            torch.cuda.empty_cache()
    return {"outcome": "ok"}


def _entry(shape: Shape, number: int, records: Sequence[dict[str, Any]], bandwidth_gbs: float) -> dict[str, Any]:
    floor = round(shape.kv_bytes() / (bandwidth_gbs * 1e3), 2) if bandwidth_gbs else None
    common = {
        "request": shape.to_json(),
        "batch": shape.batch,
        "context": shape.context,
        "pass": number,
        "floor_us": floor,
    }
    timings = [{"kernel": r["kernel"], "provider": r["provider"], **common, **r} for r in records]
    return {"id": f"{number}/{shape.id}", "timings": timings}
