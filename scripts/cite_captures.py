#!/usr/bin/env python3
"""Cites in each architecture's table the cases of captures that back its rows, exclusions and traps.

usage: cite_captures.py [--check]

A case backs a row that accepts it if the kernel was right, and an exclusion or trap if the package did what that says.
Citations stand first under `evidence`; those of earlier runs are replaced. `--check` writes nothing and exits 1 if a
table would change.
"""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from attnroute.probe.capture import read_capture
from attnroute.probe.compare import backing
from attnroute.registry.positions import Map, Seq, parse
from attnroute.registry.registry import load_registry

FOLDER = Path(__file__).resolve().parents[1] / "capabilities"
CITED = re.compile(r" *- \{capture: [^,}]+, cases: ")
WIDTH = 150
Citations = dict[str, dict[str, list[int]]]


def citations(names: list[str], arch: str) -> Citations:
    """By id of a row, exclusion or trap: each capture's cases that back it, counted from 0."""
    registry, found = load_registry(), {}
    for name in names:
        capture = read_capture(FOLDER / "captures" / name)
        if capture["arch"] != arch:
            continue
        for number, subject in enumerate(backing(registry, capture)):
            if subject is not None:
                found.setdefault(subject, {}).setdefault(name, []).append(number)
    return found


def items_of(root: Map, arch: str) -> dict[str, Map]:
    """Rows, exclusions and traps as written, by id."""
    found = {}
    for section, key in (("kernels", "row"), ("traps", "trap")):
        for kernel, listed in (root.map(section).entries if root.map(section) else {}).items():
            for item in listed.items if isinstance(listed, Seq) else ():
                name = f"{arch}/{kernel}/{item.plain[key]}"
                found[name] = item
                for number, hole in enumerate(item.maps("exclusions"), 1):
                    found[f"{name}#{number}"] = hole
    return found


def last_line(item: Map, lines: list[str]) -> int:
    """The last line (from 1) of an item: before the next that is indented no deeper, without comments and gaps."""
    at = item.line
    while at < len(lines) and (not lines[at].strip() or len(lines[at]) - len(lines[at].lstrip()) >= item.col - 1):
        if len(lines[at]) - len(lines[at].lstrip()) < item.col - 1:
            break
        at += 1
    while not lines[at - 1].strip() or lines[at - 1].lstrip().startswith("#"):
        at -= 1
    return at


def cited(indent: int, found: dict[str, list[int]]) -> list[str]:
    """The lines of one item's citations."""
    out = []
    for name, cases in found.items():
        start = f"{' ' * indent}- {{capture: {name}, cases: ["
        text = f"{', '.join(map(str, cases))}]}}"
        out += textwrap.wrap(text, WIDTH, initial_indent=start, subsequent_indent=" " * (indent + 9))
    return out


def rewritten(text: str, arch: str, found: Citations) -> str:
    """The table's text with these citations in place of earlier ones."""
    lines = without_cited(text.splitlines())
    root = parse("\n".join(lines) + "\n", f"arch/{arch}.yaml").root
    assert root is not None, f"arch/{arch}.yaml cannot be parsed"
    added: dict[int, list[str]] = {}
    for name, item in items_of(root, arch).items():
        if name not in found:
            continue
        node = item.get("evidence")
        if isinstance(node, Seq) and node.items:
            added[node.items[0].line - 1] = cited(node.items[0].col - 3, found[name])
        elif node is None:
            indent = item.col - 1
            added[last_line(item, lines)] = [" " * indent + "evidence:", *cited(indent + 2, found[name])]
    out = []
    for number in range(len(lines) + 1):
        out += added.get(number, [])
        out += lines[number : number + 1]
    return "\n".join(out) + "\n"


def without_cited(lines: list[str]) -> list[str]:
    """Without citations in rows and traps, and without `evidence:` where nothing else stood under it."""
    out, inside, bands = [], False, False
    for line in lines:
        bands = bands or line.startswith("preference:")
        inside = not bands and (inside or bool(CITED.match(line)))
        if not inside:
            out.append(line)
        inside = inside and not line.rstrip().endswith("]}")
    kept = []
    for here, after in zip(out, [*out[1:], ""], strict=True):
        deeper = len(after) - len(after.lstrip()) > len(here) - len(here.lstrip())
        if here.strip() != "evidence:" or deeper:
            kept.append(here)
    return kept


def main(arguments: list[str]) -> int:
    """Writes or compares; 1 under --check if a table is out of date."""
    flags = argparse.ArgumentParser(description="Cites captures in the tables.")
    flags.add_argument("--check", action="store_true", help="write nothing, exit 1 if a table would change")
    check = flags.parse_args(arguments).check
    names = sorted(path.name for path in (FOLDER / "captures").glob("*.json"))
    stale = []
    for arch in sorted({read_capture(FOLDER / "captures" / name)["arch"] for name in names}):
        path = FOLDER / "arch" / f"{arch}.yaml"
        text = path.read_text(encoding="utf-8")
        new = rewritten(text, arch, citations(names, arch))
        if new != text:
            stale.append(path.name)
            if not check:
                path.write_text(new, encoding="utf-8")
    print(("out of date: " if check else "wrote: ") + " ".join(stale) if stale else "citations are up to date")
    return 1 if stale and check else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
