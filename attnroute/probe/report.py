"""What a person sees of a run: kernels against outcomes, then each place where the hardware and the tables disagree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attnroute.probe.case import OUTCOMES, Ask, Case
from attnroute.probe.predict import VERDICTS

Record = Mapping[str, Any]


def outcome_table(records: Iterable[Record]) -> str:
    """One line a kernel and provider: how many cases ended in which outcome."""
    counts: dict[str, Counter[str]] = {}
    for r in records:
        counts.setdefault(f"{r['kernel']}@{r['provider']}", Counter())[r["outcome"]] += 1
    shown = [o for o in OUTCOMES if any(c[o] for c in counts.values())]
    width = max([len(name) for name in counts] + [6])
    lines = ["KERNEL".ljust(width) + "".join(f"{o.upper():>{max(len(o), 5) + 2}}" for o in shown)]
    for name, counter in sorted(counts.items()):
        lines.append(name.ljust(width) + "".join(f"{counter[o] or '-':>{max(len(o), 5) + 2}}" for o in shown))
    return "\n".join(lines)


def label(record: Record) -> str:
    """Kernel, provider and request of a record in words."""
    case = Case(record["kernel"], record["provider"], Ask.from_json(record["request"]))
    return f"{record['kernel']}@{record['provider']} {case.label}"


def line(record: Record) -> str:
    """One case with what was expected and what came."""
    predicted = record["predicted"]
    expected = predicted.get("outcome") or predicted.get("code") or predicted.get("status")
    text = f"{label(record)}: tables {predicted.get('status')} ({expected}), hardware {record['outcome']}"
    return f"{text}: {record['message']}" if record.get("message") else text


def summary(records: Sequence[Record]) -> str:
    """The table, the contradictions in full, the surprises, and how many cases say nothing."""
    verdicts = Counter(r["verdict"] for r in records)
    parts = [outcome_table(records), ""]
    for name, title in (("contradicts", "The tables are contradicted"), ("surprise", "Beyond the tables")):
        found = [r for r in records if r["verdict"] == name]
        if found:
            parts += [f"{title} ({len(found)}):", *(f"  {line(r)}" for r in found), ""]
    counted = ", ".join(f"{verdicts[v]} {v}" for v in VERDICTS if verdicts[v])
    return "\n".join([*parts, f"{len(records)} cases: {counted or 'none'}"])


def listing(cases: Iterable[Case]) -> str:
    """One line a case: id, request, what the tables say, and why it is asked."""
    lines = []
    for case in cases:
        said = case.predicted.get("outcome") or case.predicted.get("code") or case.predicted.get("status", "?")
        lines.append(
            f"{case.id}  {case.label}  [{said}]  {case.why[0]}"
            + (f" +{len(case.why) - 1}" if len(case.why) > 1 else "")
        )
    return "\n".join(lines)
