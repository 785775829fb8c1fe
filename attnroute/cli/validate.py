"""`attnroute validate`: a capabilities folder, a file or an overlay, every fault at its line and column."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from attnroute.cli import common
from attnroute.cli.text import paint
from attnroute.errors import UsageError, near_miss


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `validate`."""
    parser.add_argument(
        "paths",
        nargs="*",
        type=Path,
        metavar="PATH",
        help="a folder of tables, one file, or an overlay; default: ./capabilities",
    )
    parser.add_argument(
        "--base", type=Path, help="the tables that an overlay lies on; default: those beside it, else this package's"
    )
    parser.add_argument(
        "--sources", nargs="*", type=Path, metavar="WHERE", default=None,
        help="also check that evidence still stands where it says: in installed packages, or in the wheels, sdists and "
        "source trees named here",
    )  # fmt: skip
    common.add_format(parser)


def run(args: argparse.Namespace) -> int:
    """Exit 0 if nothing is wrong, 1 if something is, 2 if a path cannot be read."""
    from attnroute.registry.validate import validate

    paths = args.paths or [Path("capabilities")]
    for path in [*paths, *(args.sources or [])]:
        if not path.exists():
            beside = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
            hint = near_miss(path.name, beside)
            tail = f"; did you mean {path.parent / hint}?" if hint else ""
            raise UsageError(f"{path} does not exist{tail}", code="no-file")
    problems = validate(paths, args.base)
    drifted = False
    report: dict[str, Any] = {"paths": [str(p) for p in paths], "problems": [p.to_json() for p in problems]}
    lines = [problem.render() for problem in problems]
    if args.sources is not None and not problems:
        from attnroute.registry.sources import validate_sources

        result = validate_sources(paths[0], args.sources)
        drifted = not result.fine
        report["sources"] = result.to_json()
        lines += result.render()
    wrong = bool(problems) or drifted
    if args.format == "json":
        common.print_json(report)
        return 1 if wrong else 0
    if problems:
        files = len({p.file for p in problems})
        lines.append(paint(f"{len(problems)} fault{_s(problems)} in {files} file{'' if files == 1 else 's'}", "bad"))
    elif not drifted:
        lines.append(paint(f"nothing wrong in {', '.join(map(str, paths))}", "good"))
    print("\n".join(lines))
    return 1 if wrong else 0


def _s(items: list[Any]) -> str:
    return "" if len(items) == 1 else "s"
