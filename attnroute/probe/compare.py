"""Captures against the tables as they are now: an answer must be what the tables say, or beyond them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attnroute.probe.case import Case
from attnroute.probe.predict import NOT_CONSIDERED, predict, verdict

if TYPE_CHECKING:
    from collections.abc import Mapping

    from attnroute.registry.registry import Registry


def compare(registry: Registry, capture: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The capture's cases with the prediction and verdict of the present tables."""
    out = []
    for entry in capture["cases"]:
        case = Case.from_json({**entry, "predicted": {}})
        version = entry.get("version") or capture["packages"].get(case.provider)
        if version is None:
            predicted: dict[str, Any] = dict(NOT_CONSIDERED)
        else:
            predicted, _ = predict(registry, capture["arch"], {case.provider: version}, case)
        out.append({**entry, "predicted": predicted, "verdict": verdict(predicted, entry["outcome"])})
    return out


def backing(registry: Registry, capture: Mapping[str, Any]) -> list[str | None]:
    """For each case of the capture the id of the row, exclusion or trap that its answer backs, or None."""
    out: list[str | None] = []
    for record in compare(registry, capture):
        predicted, agrees = record["predicted"], record["verdict"] == "agrees"
        out.append((predicted["row"] if predicted["status"] == "accepted" else predicted["box"]) if agrees else None)
    return out


def contradictions(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those that make the tables wrong."""
    return [r for r in records if r["verdict"] == "contradicts"]
