"""A probe session: the tables, the packages at hand, and the tasks that ask the GPU about each case."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from attnroute.launch.bind import launcher_for, launcher_name
from attnroute.launch.errors import LaunchError
from attnroute.probe.cases import cases_for
from attnroute.probe.machine import visible_gpus
from attnroute.probe.predict import predicted_cases, verdict
from attnroute.probe.run_case import limits_for, run_case
from attnroute.probe.schedule import Result, Task, cpu_count, run_tasks
from attnroute.probe.survey import Needs, survey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from attnroute.launch.base import Launcher
    from attnroute.launch.problem import Limits, Module
    from attnroute.probe.capture import Journal
    from attnroute.probe.case import Case
    from attnroute.probe.tolerance import Tolerances
    from attnroute.registry.registry import Registry

#: Modules that many cases import; imported once before forking where that leaves the device alone.
PRELOAD = (
    "torch",
    "flashinfer",
    "flashinfer.decode",
    "flashinfer.jit.xqa",
    "vllm.vllm_flash_attn.flash_attn_interface",
)
#: Hidden while they are: FlashInfer does without it, and importing it starts CUDA in the process.
HIDDEN = ("cutlass",)
BUILD_TIMEOUT, BUILD_JOBS = 900.0, 2


@dataclass(frozen=True)
class Session:
    """What stays the same over a run."""

    registry: Registry
    arch: str
    packages: Mapping[str, str]
    tolerances: Tolerances

    @property
    def kernels(self) -> Mapping[str, Any]:
        """The catalogue's kernels."""
        found: Mapping[str, Any] = self.registry.catalogue["kernels"]
        return found

    def has_launcher(self, kernel: str, provider: str) -> bool:
        """Whether the catalogue names a launcher and it has been written."""
        try:
            name = launcher_name(kernel, provider, self.kernels)
        except LaunchError:
            return False
        return find_spec(f"attnroute.launch.{name}") is not None

    def compiles_in_process(self, kernel: str, provider: str) -> bool:
        """Whether a first call of a new geometry compiles in the process that makes it."""
        name = launcher_name(kernel, provider, self.kernels)
        return bool(import_module(f"attnroute.launch.{name}").Launch.compiles_in_process)

    def cases(self, kernels: Iterable[str] = (), ids: Iterable[str] = ()) -> list[Case]:
        """Cases with predictions, most telling first; narrowed to kernels and ids (a prefix is enough) where given."""
        wanted, names = tuple(ids), tuple(kernels)
        found = cases_for(self.registry.table(self.arch), self.packages, tiles=self.tolerances.key_tiles)
        found = [c for c in found if self.has_launcher(c.kernel, c.provider)]
        if names:
            found = [c for c in found if c.kernel in names or f"{c.kernel}@{c.provider}" in names]
        if wanted:
            found = [
                c for c in found if any(c.id.startswith(w) or c.id.partition("/")[2].startswith(w) for w in wanted)
            ]
        return predicted_cases(self.registry, self.arch, self.packages, found)

    def make(self, case: Case, limits: Limits) -> Launcher:
        """The launcher of a case, with the obligations of its row."""
        return launcher_for(
            launcher_name(case.kernel, case.provider, self.kernels),
            case.provider,
            case.ask.problem(),
            limits,
            case.calls,
        )

    def modules(self, case: Case) -> tuple[Module, ...]:
        """What the case needs compiled. None where the package refuses to say: the case itself will show why."""
        try:
            return self.make(case, limits_for(case.ask, "cuda")).modules()
        except Exception:  # noqa: BLE001 - asked again, and recorded, when the case runs
            return ()


def build(module: Module, jobs: int = BUILD_JOBS) -> Result:
    """Compiles one module in this process. The compiler's first error is the message if it fails."""
    os.environ["MAX_JOBS"] = str(jobs)
    if not module.ready():
        module.build()
    return {"outcome": "ok"}


def build_slots() -> int:
    """Modules compiled at a time."""
    return max(1, cpu_count() // BUILD_JOBS)


def build_named(name: str, modules: Callable[[], tuple[Module, ...]]) -> Result:
    """Compiles, in this process, that one of the modules."""
    return build(next(module for module in modules() if module.name == name))


def build_tasks(works: Mapping[str, Callable[[], tuple[Module, ...]]], needs: Needs) -> dict[str, Task]:
    """A task for each module that is needed and not compiled, by its name."""
    found: dict[str, Task] = {}
    for work, modules in needs.items():
        for name, ready in modules:
            if not ready and name not in found:
                found[name] = Task(name, "build", partial(build_named, name, works[work]), BUILD_TIMEOUT)
    return found


def module_tasks(session: Session, cases: Iterable[Case]) -> tuple[list[Task], dict[str, set[str]]]:
    """A task for each module that the cases need and that is not compiled; and by case which of them it needs."""
    works = {case.id: partial(session.modules, case) for case in cases}
    found = survey(works) if works else {}
    tasks = build_tasks(works, found)
    return list(tasks.values()), {case: {name for name, _ in needs if name in tasks} for case, needs in found.items()}


def correctness_tasks(
    session: Session,
    cases: Iterable[Case],
    *,
    timeout: float,
    seed: int,
    gpus: int = 1,
    make: Callable[[Case, Limits], Launcher] | None = None,
    device: str = "cuda",
    compile_missing: bool = True,
) -> list[Task]:
    """A task for each module still to be compiled, and one for each case, which waits for its modules.

    Without `compile_missing` there are tasks only for the cases whose modules are there.
    """
    cases, runs = list(cases), []
    builds, needed = module_tasks(session, cases) if make is None else ([], {})
    for number, case in enumerate(cases):
        needs = needed.get(case.id, set())
        if needs and not compile_missing:
            continue
        maker = make or session.make
        asked = partial(run_case, case, maker, session.tolerances, device=device, seed=seed + 2 * number)
        work = partial(on_gpu, number % gpus, asked)
        runs.append(Task(case.id, "case", work, timeout, frozenset(needs)))
    return [*(builds if compile_missing else ()), *runs]


def on_gpu(number: int, work: Callable[[], Result]) -> Result:
    """Runs `work` in this process with one of the GPUs that it may use; the device must not have been touched yet."""
    if number:
        visible = visible_gpus()
        os.environ["CUDA_VISIBLE_DEVICES"] = visible[number] if visible else str(number)
    return work()


def record(case: Case, result: Mapping[str, Any], version: str) -> dict[str, Any]:
    """A case as the capture holds it."""
    return {
        "id": case.id,
        "kernel": case.kernel,
        "provider": case.provider,
        "version": version,
        "request": case.ask.to_json(),
        "outcome": result["outcome"],
        "error": result.get("error"),
        "tolerance": result.get("tolerance"),
        "message": result.get("message", ""),
        "seconds": result.get("seconds"),
        "why": list(case.why),
        "predicted": dict(case.predicted),
        "verdict": verdict(case.predicted, result["outcome"]),
    }


def answers(session: Session, journal: Journal, cases: Iterable[Case]) -> dict[str, dict[str, Any]]:
    """What a journal knows of these cases with the packages at hand, held against what the tables say now.

    A package that was not there, or a machine short of something, is asked again; a case that hung is not.
    """
    known = journal.read()
    found = {}
    for case in cases:
        held = known.get(case.id)
        if held is None or held["outcome"] == "not-installed":
            continue
        if held.get("version") == session.packages[case.provider]:
            found[case.id] = record(case, held, held["version"])
    return found


def run_cases(
    session: Session,
    cases: list[Case],
    journal: Journal,
    *,
    jobs: int,
    timeout: float,
    seed: int,
    gpus: int = 1,
    deadline: float | None = None,
    progress: Callable[[dict[str, Any], int, int], None] | None = None,
    make: Callable[[Case, Limits], Launcher] | None = None,
    device: str = "cuda",
    compile_missing: bool = True,
) -> list[dict[str, Any]]:
    """Asks every case that the journal does not answer yet, and returns all records in the order of the cases."""
    known = answers(session, journal, cases)
    todo = {case.id: case for case in cases if case.id not in known}
    tasks = correctness_tasks(session, todo.values(), timeout=timeout, seed=seed, gpus=gpus, make=make, device=device,
                              compile_missing=compile_missing)  # fmt: skip
    finished = 0

    def done(task: Task, result: Result) -> None:
        nonlocal finished
        if task.kind != "case":
            return
        finished += 1
        case = todo[task.id]
        if result.get("cut"):
            return  # by the deadline of this run, or for want of its module; the next run asks again
        entry = record(case, result, session.packages[case.provider])
        known[case.id] = entry
        journal.append(entry)
        if progress is not None:
            progress(entry, finished, sum(t.kind == "case" for t in tasks))

    run_tasks(tasks, {"build": build_slots(), "case": jobs}, done, deadline=deadline)
    return [known[case.id] for case in cases if case.id in known]


def scratch_env(folder: Path, capability: str) -> None:
    """Keeps on disk what packages compile in-process, and tells FlashInfer the target, which else asks the device."""
    os.environ.setdefault("FLASHINFER_CUDA_ARCH_LIST", capability)  # it adds the letter that nvcc wants by itself
    os.environ.setdefault("FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED", "1")
    os.environ.setdefault("FLASH_ATTENTION_CUTE_DSL_CACHE_DIR", str(folder / "cute"))
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # many processes at once
