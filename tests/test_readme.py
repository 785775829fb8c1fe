"""README.md is executed: its Python block and its commands that need no installation."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "README.md").read_text(encoding="utf-8")
CLI = "import sys; from attnroute.cli.main import main; sys.exit(main())"
#: `attnroute ...` lines of code blocks, without what stands before `&&`.
COMMANDS = re.findall(
    r"^(?:[^`\n]*&& )?attnroute (.+)$", "\n".join(re.findall(r"^```\n(.*?)^```$", PAGE, re.M | re.S)), re.M
)


def python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


def test_there_are_commands() -> None:
    assert len(COMMANDS) >= 2


@pytest.mark.parametrize("command", COMMANDS)
def test_command(command: str) -> None:
    done = python(CLI, *shlex.split(command))
    assert done.returncode == 0, done.stderr
    assert all(len(line) <= 80 for line in done.stdout.splitlines())


def test_python_block() -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)
    done = python(code)
    assert done.returncode == 0, done.stderr
    assert "xqa" in done.stdout


def test_links_lead_somewhere() -> None:
    for page in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"):
        for target in re.findall(r"\]\(([\w./-]+)\)", (ROOT / page).read_text(encoding="utf-8")):
            assert (ROOT / target).exists(), f"{page}: {target}"


def test_ci_runs_the_documented_test_command() -> None:
    """`pip install -e '.[test]' && pytest`, in that order and with nothing added to pytest."""
    assert "pip install -e '.[test]' && pytest\n" in PAGE
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert "pip install --quiet -e '.[test]'" in lines
    assert lines[-1] == "pytest"
