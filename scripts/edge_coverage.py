#!/usr/bin/env python3
"""Writes docs/probing-edges.md: which declared edges of the SM90 rows the captures have answered, and why not the rest.

usage: edge_coverage.py [--check]

`--check` writes nothing and exits 1 if the page is out of date.
"""

from __future__ import annotations

import sys
from pathlib import Path

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from attnroute.probe.capture import read_capture
from attnroute.probe.edges import coverage, rendered
from attnroute.probe.tolerance import probe_data
from attnroute.registry.registry import load_registry

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "probing-edges.md"
ARCH = "sm90"


def page() -> str:
    """The page as it should be."""
    captures = [read_capture(path) for path in sorted((ROOT / "capabilities" / "captures").glob("*.json"))]
    return rendered(coverage(load_registry(), ARCH, captures, yaml.safe_load(probe_data("untestable.yaml"))))


def main(arguments: list[str]) -> int:
    """Writes or compares; 1 under --check if the page is out of date."""
    text = page()
    if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == text:
        print(f"{PAGE.name} is up to date")
        return 0
    if "--check" in arguments:
        print(f"{PAGE.name} is out of date: run scripts/edge_coverage.py")
        return 1
    PAGE.write_text(text, encoding="utf-8")
    print(f"wrote {PAGE.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
