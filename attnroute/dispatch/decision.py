"""The answer to one question: what was chosen, and what became of every other candidate."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attnroute.registry.sets import IntSet

    from .answer import CandidateAnswer
    from .packages import Packages
    from .request import Request


#: How candidates are listed: what can serve first, what nobody asked about last.
STATUS_ORDER = {"chosen": 0, "accepted": 1, "undeclared": 2, "known-wrong": 3, "rejected": 4, "not-considered": 5}


def answers_for(answers: Iterable[CandidateAnswer], kernel: str, provider: str | None = None) -> list[CandidateAnswer]:
    """The answers for one kernel (from one provider if named), best placed first."""
    hits = [a for a in answers if a.kernel == kernel and provider in (None, a.provider)]
    return sorted(hits, key=lambda a: STATUS_ORDER[a.status])


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


@dataclass(frozen=True)
class Preference:
    """Why a candidate stands where it does: measured (relative time 1.0 = best) or the default order."""

    measured: bool
    relative_time: float | None
    text: str

    def to_json(self) -> dict[str, Any]:
        return {"measured": self.measured, "relative_time": self.relative_time, "text": self.text}


@dataclass(slots=True, eq=False)
class Decision:
    """What `route` answers; read-only. `kernel` is None if nothing serves the request; `candidates` has the reasons."""

    arch: str
    phase: str
    candidates: tuple[CandidateAnswer, ...]
    warnings: tuple[str, ...]
    _best: CandidateAnswer | None = field(repr=False)
    _asked: Request = field(repr=False)
    _packages: Packages = field(repr=False)
    _evidence: Callable[[str, str], list[dict[str, Any]]] = field(repr=False)

    @property
    def kernel(self) -> str | None:
        """The chosen kernel's id, or None if nothing serves the request."""
        return None if self._best is None else self._best.kernel

    @property
    def provider(self) -> str | None:
        """The distribution that ships it."""
        return None if self._best is None else self._best.provider

    @property
    def row(self) -> str | None:
        """The row that accepts the request."""
        return None if self._best is None else self._best.row

    @property
    def page_sizes(self) -> IntSet | None:
        """Page sizes (tokens) that the row accepts; the one asked for if a page was asked for."""
        return None if self._best is None else self._best.page_sizes

    @property
    def q_dtype(self) -> str | None:
        """The dtype in which the query must be passed."""
        return None if self._best is None else self._best.q_dtype

    @property
    def layouts(self) -> tuple[str, ...] | None:
        """KV layouts declared; None where nobody looked."""
        return None if self._best is None else self._best.layouts

    @property
    def calls(self) -> tuple[str, ...]:
        """Obligations of the caller (calls.yaml)."""
        return () if self._best is None else self._best.calls

    @property
    def graph_level(self) -> str | None:
        """The highest CUDA-graph level the row declares."""
        return None if self._best is None else self._best.graph_level

    @property
    def preference(self) -> Preference | None:
        """Why the choice stands first: measured, or the default order."""
        return None if self._best is None else self._best.preference

    @property
    def strength(self) -> str | None:
        """How strong the row's evidence is."""
        return None if self._best is None else self._best.strength

    @property
    def served(self) -> bool:
        return self.kernel is not None

    @property
    def request(self) -> dict[str, Any]:
        """The request as understood, free dimensions left out."""
        return self._asked.to_json()

    @property
    def packages(self) -> dict[str, str]:
        """Versions by distribution that the answer is about."""
        return dict(self._packages.versions)

    @property
    def packages_origin(self) -> str:
        """Where the versions come from: named, installed here, pinned by an engine, last versions looked at."""
        return self._packages.origin

    @property
    def evidence(self) -> list[dict[str, Any]]:
        """What backs the chosen row: sources, captures, reports, each with the place it is written (`at`)."""
        return [] if self.row is None else self._evidence(self.arch, self.row)

    def candidate(self, kernel: str, provider: str | None = None) -> CandidateAnswer | None:
        """The answer for one kernel (from one provider if named; else the best placed)."""
        return next(iter(answers_for(self.candidates, kernel, provider)), None)

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
