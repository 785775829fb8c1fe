"""`attnroute probe`: run cases on this machine's GPU, compare captures with the tables, list cases."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnroute.cli import common
from attnroute.errors import UsageError

if TYPE_CHECKING:
    from attnroute.registry.registry import Registry


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The three verbs; each imports the probe only when it runs."""
    from attnroute.probe.flags import add_arguments as add_run

    verbs = parser.add_subparsers(dest="verb", metavar="run|compare|cases", required=True)
    run_parser = verbs.add_parser("run", help="ask this machine's GPU; writes a capture")
    add_run(run_parser)
    compare = verbs.add_parser("compare", help="check captures against the tables as they are now")
    compare.add_argument(
        "captures", nargs="*", type=Path, metavar="CAPTURE", help="files; default: all in capabilities/captures"
    )
    common.add_registry(compare)
    common.add_format(compare)
    cases = verbs.add_parser("cases", help="the cases that a run would ask, with what the tables say; needs no GPU")
    cases.add_argument("--arch", required=True, help="architecture (sm90, ...)")
    cases.add_argument("--kernel", action="append", default=[], metavar="NAME", help="only this kernel; repeatable")
    cases.add_argument(
        "--case", action="append", default=[], metavar="ID", help="only this case, or a prefix of its id"
    )
    common.add_packages(cases)
    common.add_registry(cases)
    common.add_format(cases)


def run(args: argparse.Namespace) -> int:
    """Exit 0 if the hardware and the tables agree, 1 if they do not, 2 without a GPU or with unreadable input."""
    if args.verb == "run":
        from attnroute.probe.main import run as probe

        return probe(args)
    from attnroute.registry.registry import load_registry

    registry = load_registry(args.overlay)
    return _compare(registry, args) if args.verb == "compare" else _cases(registry, args)


def _compare(registry: Registry, args: argparse.Namespace) -> int:
    from attnroute.probe.capture import read_capture
    from attnroute.probe.compare import compare, contradictions
    from attnroute.probe.report import summary
    from attnroute.registry.store import CHECKOUT_FOLDER

    paths: list[Path] = args.captures or sorted((CHECKOUT_FOLDER / "captures").glob("*.json"))
    if not paths:
        raise UsageError("no captures: name a capture file, or run in a checkout that has some", code="no-captures")
    wrong, report, lines = 0, [], []
    for path in paths:
        records = compare(registry, read_capture(path))
        bad = contradictions(records)
        wrong += len(bad)
        report.append({"capture": path.name, "cases": len(records), "contradicts": bad})
        lines += [f"{path.name}: {len(records)} cases, {len(bad)} contradict the tables"]
        lines += [summary(bad), ""] if bad else []
    if args.format == "json":
        common.print_json({"tables": registry.label, "captures": report})
    else:
        print("\n".join(lines))
    return 1 if wrong else 0


def _cases(registry: Registry, args: argparse.Namespace) -> int:
    from attnroute.dispatch.packages import resolve_packages
    from attnroute.probe.cases import uncovered
    from attnroute.probe.report import listing
    from attnroute.probe.session import Session
    from attnroute.probe.tolerance import load_tolerances

    arch = registry.arch_id(args.arch)
    packages = dict(resolve_packages(registry, arch, common.parse_packages(args.package) or None).versions)
    found = Session(registry, arch, packages, load_tolerances()).cases(args.kernel, args.case)
    skipped: list[Any] = list(uncovered(registry.table(arch), packages))
    if args.format == "json":
        common.print_json(
            {"arch": arch, "packages": packages, "cases": [c.to_json() for c in found], "not_asked": skipped}
        )
        return 0
    print(listing(found))
    print(f"{len(found)} cases for {arch}; {len(skipped)} rows give none:")
    print("\n".join(f"  {row}: {reason}" for row, reason in skipped))
    return 0
