"""The answer to one question: what was chosen, and what became of every other candidate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from attnroute.registry.sets import IntSet


@dataclass(frozen=True)
class Why:
    """One reason. `code` is stable (reasons.yaml); `asked` and `allowed` are written as in the tables."""

    code: str
    asked: Any
    allowed: Any
    rows: tuple[str, ...]
    message: str

    def to_json(self) -> dict[str, Any]:
        return {
            "code": self.code,
            "asked": self.asked,
            "allowed": self.allowed,
            "rows": list(self.rows),
            "message": self.message,
        }


@dataclass(frozen=True)
class Fix:
    """A change the asker can make that leads to acceptance, in the form that can be applied."""

    change: dict[str, Any]
    message: str

    def to_json(self) -> dict[str, Any]:
        return {"change": self.change, "message": self.message}


@dataclass(slots=True, eq=False)
class CandidateAnswer:
    """One candidate's status; read-only. `why` and `fix` are worked out when read.

    `status`: chosen, accepted, rejected, undeclared, known-wrong or not-considered. `page_sizes` is set if the
    candidate is accepted; `row` names the row that accepts, or would if what is unknown held.
    """

    kernel: str
    provider: str
    status: str
    row: str | None
    page_sizes: IntSet | None
    q_dtype: str | None
    calls: tuple[str, ...]
    layouts: tuple[str, ...] | None
    graph_level: str | None
    strength: str | None
    preference: Preference | None
    warnings: tuple[str, ...]
    _parts: tuple[Any, ...] = field(repr=False)  # what `_explain` and `_mend` work from
    _explain: Callable[..., tuple[Why, ...]] = field(repr=False)
    _mend: Callable[..., tuple[Fix, ...]] = field(repr=False)
    _why: tuple[Why, ...] | None = field(default=None, init=False, repr=False)
    _fix: tuple[Fix, ...] | None = field(default=None, init=False, repr=False)

    @property
    def why(self) -> tuple[Why, ...]:
        """Reasons, most telling first; empty for a candidate that is accepted."""
        if self._why is None:
            self._why = self._explain(*self._parts)
        return self._why

    @property
    def fix(self) -> tuple[Fix, ...]:
        """At most two changes of at most two parts each, each of which, applied, is accepted."""
        if self._fix is None:
            self._fix = self._mend(*self._parts)
        return self._fix

    @property
    def accepted(self) -> bool:
        return self.status in ("chosen", "accepted")

    def to_json(self) -> dict[str, Any]:
        return {
            "kernel": self.kernel,
            "provider": self.provider,
            "page_sizes": None if self.page_sizes is None or not self.accepted else self.page_sizes.to_yaml(),
            "status": self.status,
            "row": self.row,
            "why": [w.to_json() for w in self.why],
            "fix": [f.to_json() for f in self.fix],
        }


@dataclass(frozen=True)
class Preference:
    """Why a candidate stands where it does: measured (relative time 1.0 = best) or the default order."""

    measured: bool
    relative_time: float | None
    text: str

    def to_json(self) -> dict[str, Any]:
        return {"measured": self.measured, "relative_time": self.relative_time, "text": self.text}


@dataclass(frozen=True)
class Decision:
    """What `route` answers. `kernel` is None if nothing serves the request; the reasons are in `candidates`.

    `page_sizes` (tokens) is the set that the chosen row accepts, the one asked for if a page was asked for. `q_dtype`
    is the dtype in which the query must be passed, `layouts` the KV layouts declared (None: nobody looked), `calls` the
    obligations of the caller (calls.yaml), `graph_level` the highest CUDA-graph level the row declares.
    """

    arch: str
    phase: str
    request: dict[str, Any]
    packages: dict[str, str]
    packages_origin: str
    kernel: str | None
    provider: str | None
    row: str | None
    page_sizes: IntSet | None
    q_dtype: str | None
    layouts: tuple[str, ...] | None
    calls: tuple[str, ...]
    graph_level: str | None
    preference: Preference | None
    strength: str | None
    candidates: tuple[CandidateAnswer, ...]
    warnings: tuple[str, ...] = ()
    _evidence: Callable[[], list[dict[str, Any]]] = field(default=list, repr=False, compare=False)

    @property
    def served(self) -> bool:
        return self.kernel is not None

    @cached_property
    def evidence(self) -> list[dict[str, Any]]:
        """What backs the chosen row: sources, captures, reports, each with the place it is written (`at`)."""
        return self._evidence()

    def candidate(self, kernel: str, provider: str | None = None) -> CandidateAnswer | None:
        """The answer for one kernel (from one provider if named; else the best placed)."""
        hits = [c for c in self.candidates if c.kernel == kernel and provider in (None, c.provider)]
        return min(hits, key=lambda c: _STATUS_ORDER.index(c.status), default=None)

    def to_json(self) -> dict[str, Any]:
        """The contract's JSON of `explain`."""
        chosen = None
        if self.kernel is not None:
            chosen = {
                "kernel": self.kernel,
                "provider": self.provider,
                "row": self.row,
                "page_sizes": None if self.page_sizes is None else self.page_sizes.to_yaml(),
                "q_dtype": self.q_dtype,
                "calls": list(self.calls),
                "layouts": None if self.layouts is None else list(self.layouts),
                "graph_level": self.graph_level,
                "evidence": {"strength": self.strength, "list": self.evidence},
                "preference": None if self.preference is None else self.preference.to_json(),
            }
        return {
            "arch": self.arch,
            "phase": self.phase,
            "request": self.request,
            "packages": self.packages,
            "packages_origin": self.packages_origin,
            "decision": chosen,
            "candidates": [c.to_json() for c in self.candidates],
            "warnings": list(self.warnings),
        }


_STATUS_ORDER = ("chosen", "accepted", "undeclared", "known-wrong", "rejected", "not-considered")
