"""The probe as a command: `scripts/arch_probe.py` and `attnroute probe run` are this. Exit 0, 1 (contradicted) or 2."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnroute.errors import AttnrouteError, UsageError
from attnroute.probe import beside, machine, report
from attnroute.probe.capture import SCHEMA, Journal, read_capture, write_capture
from attnroute.probe.case import SILENT
from attnroute.probe.cases import rank, uncovered
from attnroute.probe.flags import add_arguments
from attnroute.probe.preload import ask_in_child, preload, stand_in
from attnroute.probe.schedule import child_problem, cpu_count, journal_path
from attnroute.probe.session import HIDDEN, PRELOAD, Session, answers, run_cases, scratch_env
from attnroute.probe.tolerance import load_tolerances

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from attnroute.probe.case import Case

FRESH = "ATTNROUTE_PROBE_FRESH"  # set for a run whose cases import the packages themselves
QUICK_RANK = 1  # of --quick: what is claimed, and its edges


def named_packages(texts: Sequence[str]) -> dict[str, str]:
    """`NAME==VERSION` as a mapping; UsageError for anything else."""
    found = {}
    for text in texts:
        name, mark, version = text.partition("==")
        if not mark or not name or not version:
            raise UsageError(f"--package {text!r}: write NAME==VERSION, such as flashinfer-python==0.7.4", code="usage")
        found[name] = version
    return found


def run(args: argparse.Namespace) -> int:
    """Runs the probe as the flags say; raises AttnrouteError for what a person has to mend."""
    from attnroute.registry.registry import load_registry

    registry = load_registry()
    named = named_packages(args.package)
    dry = args.list or args.predict is not None
    here = None if dry and args.arch else machine.this_machine()
    arch = (
        registry.arch_id(args.arch)
        if args.arch
        else machine.arch_of(here.compute_capability, registry.catalogue["archs"])
        if here
        else ""
    )
    packages = machine.installed(registry.catalogue["packages"], named) if not (dry and named) else named
    session = Session(registry, arch, packages, load_tolerances())
    cases = _chosen(session, args)
    if args.list:
        print(report.listing(cases))
        print(
            f"{len(cases)} cases for {arch}; not asked: "
            + "; ".join(f"{row} ({why})" for row, why in uncovered(registry.table(arch), packages))
        )
        return 0
    if args.predict is not None:
        write_predictions(args.predict, session, cases)
        return 0
    if here is None:
        raise UsageError("a run needs this machine's own GPU; --arch goes with --list and --predict", code="usage")
    if not packages:
        raise machine.NoGpuError("no kernel package is installed: " + " ".join(sorted(registry.catalogue["packages"])))
    return _run(session, here, cases, args)


def _chosen(session: Session, args: argparse.Namespace) -> list[Case]:
    for kernel in args.kernel:
        if kernel.partition("@")[0] not in session.kernels:
            from attnroute.errors import unknown_name

            raise UsageError(unknown_name("kernel", kernel, session.kernels), code="unknown-kernel")
    answered = _answered(session, args.skip_answered)
    cases = [case for case in session.cases(args.kernel, args.case) if case.id not in answered]
    if args.case and not cases:
        raise UsageError(f"no case starts with {' or '.join(args.case)}; --list prints them", code="unknown-case")
    return quick(cases, args.quick) if args.quick else cases


def _answered(session: Session, captures: Sequence[Path]) -> set[str]:
    """Ids of cases that captures of the same versions have an answer to."""
    found: set[str] = set()
    for path in captures:
        for case in read_capture(path)["cases"]:
            same = session.packages.get(case["provider"]) == case["version"]
            if same and case["outcome"] not in SILENT:
                found.add(case["id"])
    return found


def quick(cases: Sequence[Case], most: int) -> list[Case]:
    """The first few cases of each kernel that are claims or their edges."""
    counts: dict[tuple[str, str], int] = {}
    kept = []
    for case in cases:
        key = (case.kernel, case.provider)
        if rank(case) <= QUICK_RANK and counts.get(key, 0) < most:
            counts[key] = counts.get(key, 0) + 1
            kept.append(case)
    return kept


def write_predictions(path: Path, session: Session, cases: Sequence[Case]) -> None:
    """What the tables say about every case, to be committed before the hardware is asked."""
    head = {
        "arch": session.arch,
        "packages": dict(session.packages),
        "tables": session.registry.label,
        "count": len(cases),
    }
    rows = ",\n  ".join(json.dumps(case.to_json()) for case in cases)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(head, indent=1)[:-2] + f',\n "cases": [\n  {rows}\n ]\n}}\n', encoding="utf-8")
    print(f"{len(cases)} predictions in {path}")


def _run(session: Session, here: machine.Machine, cases: list[Case], args: argparse.Namespace) -> int:
    out: Path = args.out or Path("attnroute-probe.json")
    scratch_env(out.resolve().parent / ".attnroute-scratch", here.compute_capability)
    end = time.monotonic() + args.deadline if args.deadline else None
    print(
        f"{here.gpu}, {session.arch}, driver {here.driver}; "
        + ", ".join(f"{n} {v}" for n, v in session.packages.items())
    )
    again = _preload()
    if again is not None:
        return again
    if args.compile_only:
        return beside.compile_all(session, cases, args, out, here.gpus, end)
    journal = Journal(journal_path(out))
    if args.time_only:
        records = list(answers(session, journal, cases).values())
    else:
        seed = args.seed if args.seed is not None else int.from_bytes(os.urandom(3), "big")
        jobs = args.jobs or min(12 * here.gpus, max(2, cpu_count() - 2))
        progress = _Progress(len(cases))
        records = run_cases(session, cases, journal, jobs=jobs, timeout=args.timeout, seed=seed,
                            gpus=here.gpus,
                            deadline=end, progress=progress, compile_missing=not args.no_compile)  # fmt: skip
        progress.close()
    timings, bandwidth = beside.timings(session, args, out, here.gpus, end)
    write_capture(out, assemble(session, here, records, timings, bandwidth))
    if records:
        print(report.summary(records))
    missing = len(cases) - len(records)
    print(f"capture in {out}" + (f"; {missing} cases not run yet, run again to go on" if missing else ""))
    if records and all(r["outcome"] in SILENT for r in records):
        raise machine.NoGpuError(f"no case was answered; the first said: {records[0]['message'] or 'nothing'}")
    return 1 if any(r["verdict"] == "contradicts" for r in records) else 0


def assemble(
    session: Session,
    here: machine.Machine,
    records: Sequence[Mapping[str, Any]],
    timings: Sequence[Mapping[str, Any]],
    bandwidth: float | None,
) -> dict[str, Any]:
    """The capture as DESIGN names its fields."""
    return {
        "schema": SCHEMA,
        "gpu": here.gpu,
        "arch": session.arch,
        "driver": here.driver,
        "cuda": here.cuda,
        "torch": here.torch,
        "packages": dict(session.packages),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "bandwidth_gbs": bandwidth,
        "cases": list(records),
        "timings": list(timings),
    }


def _touch_device() -> None:
    import torch

    torch.zeros(1, device="cuda").add_(1).item()


def _preload() -> int | None:
    """Imports the packages once, for all cases. Where that spoils the device for children, starts over without it."""
    stand_in(ask_in_child())
    wanted = PRELOAD if not os.environ.get(FRESH) else PRELOAD[:1]
    for line in preload(wanted, HIDDEN):
        print(line)
    problem = child_problem(_touch_device)
    if not problem:
        return None
    if os.environ.get(FRESH):
        raise machine.NoGpuError(f"children of this process cannot use the GPU: {problem}")
    print(f"each case imports its packages anew, since children of this process cannot use the GPU: {problem}")
    return subprocess.run([sys.executable, *sys.argv], env={**os.environ, FRESH: "1"}, check=False).returncode


class _Progress:
    """One line that is rewritten on a terminal, and a line now and then where there is none."""

    def __init__(self, total: int) -> None:
        self.total, self.tty, self.last = total, sys.stderr.isatty(), 0.0
        self.counts: dict[str, int] = {}

    def __call__(self, entry: Mapping[str, Any], done: int, of: int) -> None:
        self.counts[entry["outcome"]] = self.counts.get(entry["outcome"], 0) + 1
        now = time.monotonic()
        if now - self.last < (0.2 if self.tty else 10.0) and done != of:
            return
        self.last = now
        bar = "#" * (24 * done // max(of, 1))
        counted = " ".join(f"{name} {count}" for name, count in sorted(self.counts.items()))
        text = f"[{bar:<24}] {done}/{of}  {counted}"
        print(f"\r{text[:100]:<100}" if self.tty else text, end="" if self.tty else "\n", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Ends the line."""
        if self.tty:
            print(file=sys.stderr)


def main(argv: Sequence[str] | None = None) -> int:
    """Parses and runs; every failure is one clear line and exit code 2."""
    parser = argparse.ArgumentParser(
        prog="arch_probe", description="Asks this machine's GPU whether the tables are true."
    )
    add_arguments(parser)
    args = parser.parse_args(argv)
    try:
        return run(args)
    except AttnrouteError as error:
        print(f"arch_probe: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(
            "arch_probe: interrupted; finished cases are kept, run again with the same --out to go on", file=sys.stderr
        )
        return 2
