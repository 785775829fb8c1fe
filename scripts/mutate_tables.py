"""Mutation test of the validator: every scalar of every table is made wrong, and the fault must be found in its place.

    python scripts/mutate_tables.py                  # all mutants of all tables (minutes)
    python scripts/mutate_tables.py --sample 2000    # a sample; --seed N for another one
    python scripts/mutate_tables.py --alone          # one mutant at a time instead of many per pass (slow)

A mutant is one scalar, key or value, replaced by something that is wrong by construction: another type, a misspelt key,
an id no catalogue has, a reversed range, a spelling that YAML readers disagree about. It counts as found if a problem
stands at exactly its line and column. Mutants in different rows share a pass; one that is not found is tried again
alone. What is not found then is listed; below 99 % the exit code is 1.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from attnroute.registry.folders import open_folder  # noqa: E402
from attnroute.registry.positions import Document, parse  # noqa: E402
from attnroute.registry.tables import Tables, read_tables  # noqa: E402
from attnroute.registry.validate import validate_tables  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

Path_ = tuple[str | int, ...]
#: Keys whose values are texts without a rule of their own.
ID_LISTS = ("call", "compiles", "kinds", "when", "phase", "storage", "layout", "kind", "from", "to")
ENGINE_IDS = (
    *("facts", "derived", "resolve", "kv_dtypes", "packs", "backends", "constants", "spec_kinds", "state_backends"),
    *("own_packing", "indexers", "element_bytes"),
)
RANGE = re.compile(r"(\d+)\.\.(\d+)(?:/(\d+))?\Z")
VERSIONS = re.compile(r"(\d[\w.]*?)\.\.(\d[\w.]*)?\Z")


@dataclass(frozen=True, slots=True)
class Spot:
    """A scalar of a file: its text at [start:end], its place, the path to it, and earlier keys of the same mapping."""

    file: str
    path: Path_
    key: bool
    start: int
    end: int
    line: int
    col: int
    text: str
    before: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Mutant:
    """One scalar replaced."""

    spot: Spot
    kind: str
    new: str

    def __str__(self) -> str:
        spot, path = self.spot, "/".join(map(str, self.spot.path))
        return f"{spot.file}:{spot.line}:{spot.col}: {self.kind}: {spot.text!r} -> {self.new} ({path})"


def spots(file: str, text: str) -> list[Spot]:
    """All scalars of a file, by the parser's own events."""
    import yaml

    loader: Any = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
    events: Iterator[Any] = iter(yaml.parse(text, Loader=loader))
    found: list[Spot] = []

    def spot(event: Any, path: Path_, key: bool, before: tuple[str, ...]) -> None:
        start, end = event.start_mark, event.end_mark
        stop = start.index + len(text[start.index : end.index].rstrip())
        line, col = start.line + 1, start.column + 1
        found.append(Spot(file, path, key, start.index, stop, line, col, event.value, before))

    def walk(event: Any, path: Path_) -> None:
        if isinstance(event, yaml.ScalarEvent):
            spot(event, path, False, ())
        elif isinstance(event, yaml.SequenceStartEvent):
            index = 0
            while not isinstance(item := next(events), yaml.SequenceEndEvent):
                walk(item, (*path, index))
                index += 1
        elif isinstance(event, yaml.MappingStartEvent):
            keys: list[str] = []
            while not isinstance(item := next(events), yaml.MappingEndEvent):
                spot(item, (*path, item.value), True, tuple(keys))
                keys.append(item.value)
                walk(next(events), (*path, item.value))

    for event in events:
        if isinstance(event, yaml.MappingStartEvent):
            walk(event, ())
    return found


def mutants(spot: Spot) -> Iterator[Mutant]:
    """All that is tried on one scalar."""
    for kind, new in _key(spot) if spot.key else _value(spot):
        if new != spot.text:
            yield Mutant(spot, kind, new)


def _key(spot: Spot) -> Iterator[tuple[str, str]]:
    yield "bad id", "Zz_key!"
    yield "number as key", "17"
    yield "word that YAML 1.1 reads as false", "off"
    if not _defines(spot):
        yield "misspelt key", spot.text + "z"
        if len(spot.text) > 3:
            yield "misspelt key", spot.text[0] + spot.text[2] + spot.text[1] + spot.text[3:] + "q"
    if spot.before:
        yield "key twice", f'"{spot.before[-1]}"'


def _defines(spot: Spot) -> bool:
    """Whether the key is an id defined here, so that another name is no fault in this place."""
    if spot.file.startswith("engines/"):
        return len(spot.path) == 2 and spot.path[0] in ENGINE_IDS
    return len(spot.path) == 2 and spot.path[0] == spot.file.removesuffix(".yaml")


def _untyped(spot: Spot) -> bool:
    """Whether any value may stand here: an engine's conditions and rules compare with what its facts hold."""
    if not spot.file.startswith("engines/"):
        return False
    open_ended = {"when", "asked", "with", "not", "any"} & set(spot.path) or spot.path[-1] == "use"
    return bool(open_ended) or (spot.path[0] in ("defaults", "backends") and not {"source", "text"} & set(spot.path))


def _value(spot: Spot) -> Iterator[tuple[str, str]]:
    untyped = _untyped(spot)
    yield ("empty mapping", "{}") if untyped else ("mapping", "{zz: 1}")
    if not untyped and not (spot.file.startswith("engines/") and spot.path[-1] in ("stored", "dtype", "threshold")):
        yield "nothing", "null"
    yield "octal", "010"
    yield "base 60", "1:30"
    yield "anchor", "&zz 1"
    yield "tag", "!!str zz"
    last = next((step for step in reversed(spot.path) if isinstance(step, str)), "")
    if untyped:
        return
    if re.match(r"\d+\Z|any\Z|\d+\.\.", spot.text) and last not in ("package", "seen"):
        yield "negative", "-3"
        yield "truth value", "true"
        yield "words", "from 16 to 64"
    else:
        yield "number", "-17"
    if found := RANGE.match(spot.text):
        lo, hi, step = found.groups()
        yield "reversed range", f"{hi}..{lo}" + (f"/{step}" if step else "")
        yield "one dot", f"{lo}.{hi}x" if step else f'"{lo}.{hi}"'
        if int(hi) - int(lo) > 1:
            yield "step misses the end", f"{lo}..{hi}/{int(hi) - int(lo) + 1}"
    elif found := VERSIONS.match(spot.text):
        lo, hi = found.groups()
        yield "three dots", f"{lo}...{hi or ''}"
        if hi:
            yield "reversed range", f"{hi}..{lo}"
    yield from _by_key(spot, str(last))


def _by_key(spot: Spot, last: str) -> Iterator[tuple[str, str]]:
    in_list = isinstance(spot.path[-1], int)
    if last in ("row", "trap", "family") or (in_list and last in ID_LISTS):
        yield "bad id", "Zz id!"
    if in_list and (
        last in ID_LISTS or "dtypes" in spot.path or "features" in spot.path or "default_order" in spot.path
    ):
        yield "out of catalogue", spot.text + "_zz"
    if last in ("outcome", "code", "like", "mirrors", "cuda_graph", "capture", "dimension"):
        yield "out of catalogue", spot.text + "z"
    if last in ("source", "of"):
        yield "out of catalogue", f"zz-{spot.text}"
        yield "no version", spot.text.split()[0]
        yield "unknown release", f"{spot.text.split()[0]} 99.1"
    if last == "seen":
        yield "out of catalogue", "99.1"
    if last == "path":
        yield "no line", spot.text.rpartition(":")[0] or "zz"
    if last == "report":
        yield "no number", f'"{spot.text.partition("#")[0]}"'
    if last == "arch":
        yield "not the file's name", "sm999"
    if last == "compute_capability":
        yield "unquoted number", spot.text
    if last in ("module", "workspace_bytes", "launcher"):
        yield "bad id", "'zz !'"


def unit(spot: Spot) -> Path_:
    """The part of a file that a pass mutates only once: a row, a trap, an entry of a catalogue."""
    return (
        spot.path[:4]
        if spot.file == "kernels.yaml"
        else spot.path[:3]
        if spot.file.startswith("arch/")
        else spot.path[:2]
    )


class Bench:
    """The tables, read once; a pass parses the mutated file alone."""

    def __init__(self, folder: Path) -> None:
        self.base = open_folder(folder)
        self.texts = {
            name: source.read_text("utf-8") for name, source in self.base.files.items() if isinstance(source, Path)
        }
        whole = read_tables(folder)
        self.documents: dict[str, Document] = {name: whole.raw(whole.base, name) for name in self.base.files}
        self.mirrors = {n: d.root.plain.get("mirrors") for n, d in self.documents.items() if d.root is not None}

    def places(self, file: str, batch: list[Mutant]) -> tuple[set[tuple[int, int]], dict[Mutant, tuple[int, int]]]:
        """(line, col) of every problem of the file with these mutants in it, and where each mutant's ought to be."""
        text, expected, shift = self.texts[file], {}, 0
        parts, last = [], 0
        for mutant in sorted(batch, key=lambda m: m.spot.start):
            spot = mutant.spot
            parts += [text[last : spot.start], mutant.new]
            expected[mutant] = (spot.line + shift, spot.col)
            shift += mutant.new.count("\n") - text.count("\n", spot.start, spot.end)
            last = spot.end
        tables = self._tables(file, parse("".join([*parts, text[last:]]), self.base.show(file)))
        shown = self.base.show(file)
        problems = validate_tables(tables, frozenset({file}))
        return {(p.line, p.col) for p in problems if p.file == shown}, expected

    def _tables(self, file: str, document: Document) -> Tables:
        """Tables of the mutated file and those that its checks read; the others are left out."""
        keep = set(self.base.files)
        if file.startswith("arch/"):
            mirrored = self.mirrors.get(file)
            keep = {n for n in keep if not n.startswith("arch/") or n in (file, f"arch/{mirrored}.yaml")}
        elif file not in ("kernels.yaml",):
            keep = {n for n in keep if not n.startswith("arch/")}
        base = type(self.base)(
            self.base.shown, {n: self.base.files[n] for n in self.base.files if n in keep}, self.base.captures
        )
        documents = {self.base.show(n): self.documents[n] for n in keep} | {self.base.show(file): document}
        return Tables(base, (), documents, problems=list(document.problems))

    def missed(self, chosen: list[Mutant], alone: bool = False) -> list[Mutant]:
        """The mutants that no problem points at."""
        missed = []
        for file in sorted({m.spot.file for m in chosen}):
            for batch in batches([m for m in chosen if m.spot.file == file], 1 if alone else 40):
                found, expected = self.places(file, batch)
                for mutant in batch:
                    if expected[mutant] in found:
                        continue
                    single, place = self.places(file, [mutant])
                    if place[mutant] not in single:
                        missed.append(mutant)
        return missed


def batches(chosen: list[Mutant], size: int) -> Iterator[list[Mutant]]:
    """Mutants of one file, at most one for each unit in a batch."""
    rest = chosen
    while rest:
        batch: list[Mutant] = []
        later: list[Mutant] = []
        units: set[Path_] = set()
        for mutant in rest:
            place = unit(mutant.spot)
            if (
                len(batch) < size
                and place not in units
                and not any(place[: len(u)] == u or u[: len(place)] == place for u in units)
            ):
                batch.append(mutant)
                units.add(place)
            else:
                later.append(mutant)
        yield batch
        rest = later


def all_mutants(bench: Bench) -> list[Mutant]:
    """Every mutant of every scalar, in the order of the files."""
    return [m for file, text in sorted(bench.texts.items()) for s in spots(file, text) for m in mutants(s)]


def main(arguments: list[str]) -> int:
    """Run, list what was missed, and say how much was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "capabilities")
    parser.add_argument("--sample", type=int, help="take this many mutants instead of all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--alone", action="store_true", help="one mutant a pass")
    options = parser.parse_args(arguments)
    start = time.perf_counter()
    bench = Bench(options.folder)
    chosen = all_mutants(bench)
    total = len(chosen)
    if options.sample is not None and options.sample < total:
        chosen = random.Random(options.seed).sample(chosen, options.sample)
    missed = bench.missed(chosen, options.alone)
    for mutant in missed:
        print(mutant)
    for kind, count in Counter(m.kind for m in missed).most_common():
        print(f"missed {count:5} of {sum(m.kind == kind for m in chosen):6}  {kind}")
    share = 100 * (1 - len(missed) / max(1, len(chosen)))
    print(f"{len(chosen)} of {total} mutants, {share:.2f} % found in their place, {time.perf_counter() - start:.0f} s")
    return 0 if share >= 99 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
