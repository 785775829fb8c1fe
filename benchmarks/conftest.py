"""Fixtures of the benchmarks: a budget for each, and an environment with the wheel installed.

Files are called bench_*.py, so that plain `pytest` does not collect them; `python benchmarks/run.py` does.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "budget(seconds, what): the median this benchmark may take, and what is measured"
    )


@pytest.fixture(autouse=True)
def _budget(request: pytest.FixtureRequest, benchmark: Any) -> None:
    """Carry the budget into the report that run.py reads."""
    marker = request.node.get_closest_marker("budget")
    assert marker is not None, "every benchmark states its budget"
    benchmark.extra_info["budget"], benchmark.extra_info["what"] = marker.args


class ChildClock:
    """A clock that only advances by what a child process measured itself, so that its start-up does not count."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


#: The timer of benchmarks that measure inside a child process.
child_clock = ChildClock()


def clean_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "ATTNROUTE", "COV"))}


@pytest.fixture(scope="session")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment that has attnroute as users get it: from a wheel, with compiled tables."""
    folder = tmp_path_factory.mktemp("installed")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True, env=clean_environment())
    venv.create(folder / "venv", with_pip=False)
    scheme = sysconfig.get_preferred_scheme("prefix")
    site = Path(sysconfig.get_path("purelib", scheme, {"base": str(folder / "venv"), "platbase": str(folder / "venv")}))
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        opened.extractall(site)
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "venv" / "bin" / "python"


@pytest.fixture
def in_child(python: Path, tmp_path: Path) -> Callable[[str], None]:
    """Runs code in a new process; the code prints the nanoseconds that it measured."""

    def measure(code: str) -> None:
        done = subprocess.run(
            [python, "-c", code], cwd=tmp_path, env=clean_environment(), capture_output=True, text=True, check=True
        )
        child_clock.now += int(done.stdout.split()[-1]) * 1e-9

    return measure
