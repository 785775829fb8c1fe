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
    print(f"{'MEASURED':46}{'MEDIAN':>10}{'BUDGET':>10}{'USED':>8}  ({os.cpu_count()} cores)")
    over = 0
    for entry in measured:
        median, budget = entry["stats"]["median"], entry["extra_info"]["budget"]
        over += median > budget
        mark = "  over" if median > budget else ""
        print(f"{entry['extra_info']['what']:46}{words(median):>10}{words(budget):>10}{median / budget:>8.0%}{mark}")
    return done.returncode or int(over > 0)


if __name__ == "__main__":
    sys.exit(main())
