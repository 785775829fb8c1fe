"""The declared edges of rows, and which of them a capture has answered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnroute.probe.asks import PHASES, askable, pairs
from attnroute.probe.case import SILENT, Ask
from attnroute.probe.cases import cases_for
from attnroute.probe.compare import compare
from attnroute.probe.sampling import ANY_PAGES, RATIOS, head_samples, int_samples
from attnroute.registry.headdims import HeadDims
from attnroute.registry.sets import IntSet
from attnroute.registry.table import names

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from attnroute.registry.registry import Registry
    from attnroute.registry.table import Row

#: Query tokens tried where any number is declared.
STEPS = (1, 2, 4)


@dataclass(frozen=True, slots=True)
class Edge:
    """One end of what a row declares, in words, and whether a request stands there."""

    text: str
    holds: Callable[[Ask], bool]
    name: str = ""  # of a feature or phase


@dataclass(frozen=True, slots=True)
class Coverage:
    """A row's edges: those with an answer, and those without, each with the reason."""

    row: str
    answered: tuple[str, ...]
    open: tuple[tuple[str, str], ...]


def _when(value: Callable[[Ask], object], wanted: object) -> Callable[[Ask], bool]:
    return lambda ask: value(ask) == wanted


def _asks_for(feature: str) -> Callable[[Ask], bool]:
    if feature == "varlen":
        return lambda ask: len(set(ask.q_lens())) > 1
    return lambda ask: feature in ask.features()


def edges(row: Row) -> Iterator[Edge]:
    """Phases, ends of each set, pairs of dtypes, layouts, graphs and features that the row declares."""
    dims = row.dims
    for phase in names(dims["phase"]):
        yield Edge(f"phase {phase}", _when(lambda a: a.phase, phase), phase)
    for sample in head_samples(HeadDims.parse(dims["head_dim"])) if "head_dim" in dims else ():
        if sample.reason == "edge":
            qk, v = sample.value
            text = f"head {qk}" if qk == v else f"head {qk}x{v}"
            yield Edge(text, _when(lambda a: (a.head_dim, a.head_dim_v), (qk, v)))
    ends: list[tuple[str, str, tuple[int, ...], Callable[[Ask], int]]] = [
        ("page", "page", ANY_PAGES, lambda a: a.page_size),
        ("group_ratio", "ratio", RATIOS, lambda a: a.ratio),
        ("q_len", "q_len", STEPS, lambda a: a.q_len),
        ("q_heads", "q_heads", RATIOS, lambda a: a.q_heads),
    ]
    for name, word, tried, value in ends:
        prefill = name == "q_len" and not {"decode", "verify"} & set(names(dims["phase"]))
        if name not in dims or prefill or (name == "q_heads" and dims[name] == "any"):
            continue
        for sample in int_samples(IntSet.parse(dims[name]), tried):
            if sample.reason == "edge":
                yield Edge(f"{word} {sample.value[0]}", _when(value, sample.value[0]))
    for _, q, kv in pairs(row):
        yield Edge(f"{q}/{kv}", _when(lambda a: (a.q_dtype, a.kv_dtype), (q, kv)))
    for layout in row.layouts or ():
        yield Edge(layout, _when(lambda a: a.layout, layout))
    if row.graph_level not in (None, "none", "unknown"):
        yield Edge("captured", lambda a: a.graph)
    for name, state in row.features.items():
        if name == "mask" and state == "required" and "draft-mask" in row.calls:
            yield Edge(name, lambda a: a.q_len > 1)  # the launcher passes the mask of the draft block
        elif state not in (False, "unknown"):
            yield Edge(name, _asks_for(name), name)


class Answers:
    """What all captures of an architecture said, by the row that accepts each case."""

    def __init__(self, registry: Registry, arch: str, captures: Iterable[Mapping[str, Any]], data: Any) -> None:
        self.registry, self.arch, self.data = registry, arch, data
        self.answered: dict[str, list[Ask]] = {}
        self.silent: dict[str, list[Ask]] = {}
        self.planned: dict[str, list[Ask]] = {}
        self.packages: list[Mapping[str, str]] = []
        table = registry.table(arch)
        for capture in captures:
            if capture["arch"] != arch:
                continue
            for record in compare(registry, capture):
                row, ask = record["predicted"]["row"], Ask.from_json(record["request"])
                if record["predicted"]["status"] == "accepted":
                    held = self.silent if record["outcome"] in SILENT else self.answered
                    held.setdefault(row, []).append(ask)
            for case in cases_for(table, capture["packages"]):
                for why in case.why:
                    row, _, reason = why.partition(": ")
                    if reason.rpartition(" ")[2] not in ("outside", "unknown"):
                        self.planned.setdefault(row, []).append(case.ask)
            self.packages.append(capture["packages"])

    def of(self, row: Row) -> Coverage:
        """The coverage of one row."""
        have, lack = [], []
        for edge in edges(row):
            if any(edge.holds(ask) for ask in self.answered.get(row.id, ())):
                have.append(edge.text)
            else:
                lack.append((edge.text, self._reason(row, edge)))
        return Coverage(row.id, tuple(have), tuple(lack))

    def _reason(self, row: Row, edge: Edge) -> str:
        for limit in self.data["undecidable"]:
            if edge.name and edge.name in (*limit.get("features", ()), *limit.get("phases", ())):
                return str(limit["why"])
        for limit in self.data["not_run"]:
            if (limit["kernel"], limit["provider"]) == (row.kernel, row.provider):
                return str(limit["why"])
        if not askable(row):
            return "The launchers do not ask this storage, kind or cache dtype."
        versions = [p[row.provider] for p in self.packages if row.provider in p]
        if not any(version in row.versions for version in versions):
            return f"No capture was taken with {row.provider} {row.versions}."
        if edge.name == "noncausal" and str(row.dims.get("q_len", 1)) == "1":
            return "With one query token there is nothing to mask."
        if any(edge.holds(ask) for ask in self.silent.get(row.id, ())):
            return "Asked, but the time was up before the kernel was compiled: no answer."
        if any(edge.holds(ask) for ask in self.planned.get(row.id, ())):
            return "A case is ready; the time was up before its turn."
        if edge.name in PHASES:
            return "A row is asked in one phase; this one was asked in another."
        kin = [asks for name, asks in self.answered.items() if name.split("/")[1] == row.kernel and name != row.id]
        if any(edge.holds(ask) for asks in kin for ask in asks):
            return "Answered in another row of the same kernel; no case of its own."
        return "No case: rows that differ from an earlier one in their sets alone are asked the ends of those sets."


def coverage(
    registry: Registry, arch: str, captures: Iterable[Mapping[str, Any]], data: Mapping[str, Any]
) -> list[Coverage]:
    """All rows of the architecture. `data` is what `untestable.yaml` holds."""
    answers = Answers(registry, arch, captures, data)
    return [answers.of(row) for row in registry.table(arch).rows]


def rendered(found: list[Coverage]) -> str:
    """The coverage as a page for people."""
    reasons = sorted({why for row in found for _, why in row.open}, key=lambda why: (-_count(found, why), why))
    tags = {why: tag for tag, why in enumerate(reasons, 1)}
    have = sum(len(row.answered) for row in found)
    lack = sum(len(row.open) for row in found)
    asked = [row for row in found if row.answered]
    lines = [
        "# Which declared edges the captures have answered",
        "",
        "Written by `scripts/edge_coverage.py` from the rows, the captures and `capabilities/untestable.yaml`.",
        "An edge is an end of a declared set, a phase, a pair of dtypes, a layout, a feature, or capture in a graph.",
        "It has an answer if a case inside the row stood there and the kernel answered. Numbers stand for reasons.",
        "",
        f"{len(found)} rows, {len(asked)} of them with answers; {have} edges answered, {lack} not.",
        "",
        "| reason | edges | why there is no answer |",
        "| --- | --- | --- |",
        *(f"| {tags[why]} | {_count(found, why)} | {why} |" for why in reasons),
        "",
        "## Rows with answers",
        "",
        "| row | answered | not answered (reason) |",
        "| --- | --- | --- |",
    ]
    lines += [f"| `{row.row}` | {', '.join(row.answered)} | {_grouped(row, tags)} |" for row in asked]
    lines += ["", "## Rows without any", "", "| row | not answered (reason) |", "| --- | --- |"]
    lines += [f"| `{row.row}` | {_grouped(row, tags)} |" for row in found if not row.answered]
    return "\n".join(lines) + "\n"


def _count(found: list[Coverage], why: str) -> int:
    return sum(reason == why for row in found for _, reason in row.open)


def _grouped(row: Coverage, tags: Mapping[str, int]) -> str:
    by: dict[int, list[str]] = {}
    for text, why in row.open:
        by.setdefault(tags[why], []).append(text)
    return "; ".join(f"{', '.join(texts)} ({tag})" for tag, texts in sorted(by.items()))
