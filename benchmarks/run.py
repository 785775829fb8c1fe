"""Runs the benchmarks and prints measured against budget; exits 1 if a median is over.

python benchmarks/run.py                 all
python benchmarks/run.py -k fresh        what pytest takes, it passes on
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))


def words(seconds: float) -> str:
    """`0.00123` as `1.23 ms`."""
    size, unit = next(((size, unit) for size, unit in UNITS if seconds >= size), UNITS[-1])
    return f"{seconds / size:.3g} {unit}"


def load() -> str:
    """What else the machine is doing: a median above budget under load says little."""
    return f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown"


def main() -> int:
    """Run pytest over bench_*.py, print the table, return the exit code."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pytest", "-q", "-o", "python_files=bench_*.py", f"--benchmark-json={report}"]
        command += ["--benchmark-quiet", "--benchmark-columns=median", *(sys.argv[1:] or []), str(ROOT / "benchmarks")]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
        measured = json.loads(report.read_text())["benchmarks"] if report.exists() and report.stat().st_size else []
    if done.returncode:
        print(done.stdout)
    print(f"{'MEASURED':46}{'BEST':>9}{'MEDIAN':>9}{'BUDGET':>9}{'USED':>7}  ({os.cpu_count()} cores, load {load()})")
    over = 0
    for entry in measured:
        median, budget = entry["stats"]["median"], entry["extra_info"]["budget"]
        over += median > budget
        mark = "  over" if median > budget else ""
        columns = f"{words(entry['stats']['min']):>9}{words(median):>9}{words(budget):>9}{median / budget:>7.0%}{mark}"
        print(f"{entry['extra_info']['what']:46}{columns}")
    return done.returncode or int(over > 0)


if __name__ == "__main__":
    sys.exit(main())
