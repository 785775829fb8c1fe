"""The flags of a probe run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from attnroute.probe.grid import SETS

if TYPE_CHECKING:
    import argparse

QUICK_CASES = 12  # --quick: what is claimed and its edges, so many cases a kernel


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of a probe run."""
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the capture here; an interrupted run goes on")
    parser.add_argument("--quick", type=int, nargs="?", const=QUICK_CASES, metavar="N",
                        help=f"the telling cases, N a kernel ({QUICK_CASES}: two minutes once compiled)")  # fmt: skip
    parser.add_argument(
        "--kernel", action="append", default=[], metavar="NAME", help="this kernel, or KERNEL@PACKAGE; repeatable"
    )
    parser.add_argument(
        "--case", action="append", default=[], metavar="ID", help="this case, or a prefix of its id; repeatable"
    )
    parser.add_argument(
        "--list", action="store_true", help="print the cases and their predictions; needs no GPU with --arch"
    )
    parser.add_argument("--arch", metavar="ID", help="architecture (default: that of this machine's GPU)")
    parser.add_argument("--package", action="append", default=[], metavar="NAME==VERSION",
                        help="version of a package without metadata, or not here (dry runs)")  # fmt: skip
    parser.add_argument(
        "--predict", type=Path, metavar="FILE", help="write the predictions here and stop; needs no GPU with --arch"
    )
    parser.add_argument(
        "--skip-answered", action="append", default=[], type=Path, metavar="CAPTURE",
        help="leave out cases that this capture answered for the same package versions; repeatable"
    )  # fmt: skip
    parser.add_argument(
        "--compile-only", action="store_true", help="compile what the cases (with --time the grid) need, and stop"
    )
    parser.add_argument(
        "--no-compile", action="store_true", help="leave out, for now, cases whose modules are not compiled yet"
    )
    parser.add_argument("--time", action="store_true", help="time the grid of shapes after the cases")
    parser.add_argument("--time-only", action="store_true", help="time the grid of shapes alone")
    parser.add_argument(
        "--sets", action="append", default=[], choices=tuple(SETS),
        help="time this set of shapes only (grid.py says what they are); repeatable"
    )  # fmt: skip
    parser.add_argument("--shapes", type=int, metavar="N", help="time only the first N shapes of the grid")
    parser.add_argument(
        "--jobs",
        type=int,
        default=0,
        metavar="N",
        help="cases at a time (default: by processors, at most 12 a GPU)",
    )
    parser.add_argument("--timeout", type=float, default=150, metavar="S", help="seconds for one case (default 150)")
    parser.add_argument(
        "--deadline", type=float, metavar="S", help="start nothing new after so many seconds; run again to go on"
    )
    parser.add_argument("--seed", type=int, metavar="N", help="of the random inputs (default: fresh)")
