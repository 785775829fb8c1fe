"""What a process pays before its first answer, from an installed wheel."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.conftest import child_clock, clean_environment

#: Measures a statement after some preparation, in a process of its own.
TIMED = "from time import perf_counter_ns as clock\n{before}\nstart = clock()\n{timed}\nprint(clock() - start)"


@pytest.mark.budget(30e-3, "import attnroute")
@pytest.mark.benchmark(timer=child_clock)
def test_import(benchmark: Any, in_child: Callable[[str], None]) -> None:
    code = TIMED.format(before="", timed="import attnroute")
    benchmark.pedantic(in_child, args=(code,), rounds=15, warmup_rounds=2)


@pytest.mark.budget(3e-3, "load the compiled registry, one architecture")
@pytest.mark.benchmark(timer=child_clock)
def test_load(benchmark: Any, in_child: Callable[[str], None]) -> None:
    code = TIMED.format(before="from attnroute import load_registry", timed="load_registry().table('sm120')")
    benchmark.pedantic(in_child, args=(code,), rounds=15, warmup_rounds=2)


@pytest.mark.parametrize(
    "packages",
    [
        pytest.param(
            ["--package", "flashinfer-python==0.6.16.post3"],
            marks=pytest.mark.budget(120e-3, "attnroute explain, the whole process"),
        ),
        # Without a name the machine is asked which GPU and packages it has, with cuda-python where that is installed.
        pytest.param([], marks=pytest.mark.budget(120e-3, "attnroute explain, packages of this machine")),
    ],
    ids=["named", "detected"],
)
def test_explain_process(benchmark: Any, python: Path, tmp_path: Path, packages: list[str]) -> None:
    ask = "import sys; from attnroute.cli.main import main; sys.exit(main())"
    question = ["explain", "--arch", "sm120", "--head-dim", "512", "--q-heads", "16", "--kv-heads", "2", *packages]

    def process() -> None:
        subprocess.run(
            [python, "-c", ask, *question], cwd=tmp_path, env=clean_environment(), capture_output=True, check=True
        )

    benchmark.pedantic(process, rounds=15, warmup_rounds=2)
