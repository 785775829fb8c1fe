"""What became of one candidate: a thin view of its verdict, worded when somebody reads it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .fix import fixes
from .masks import calls_of
from .why import Context, why

if TYPE_CHECKING:
    from attnroute.registry.sets import IntSet
    from attnroute.registry.table import Candidate, Row

    from .decision import Fix, Preference, Why
    from .judge import Verdict


@dataclass(slots=True, eq=False)
class CandidateAnswer:
    """One candidate's status; read-only. `why` and `fix` are worked out when read.

    `status`: chosen, accepted, rejected, undeclared, known-wrong or not-considered. `preference` says why an accepted
    candidate stands where it does.
    """

    status: str
    preference: Preference | None
    _ctx: Context = field(repr=False)
    _candidate: Candidate = field(repr=False)
    _verdict: Verdict = field(repr=False)
    _why: tuple[Why, ...] | None = field(default=None, init=False, repr=False)
    _fix: tuple[Fix, ...] | None = field(default=None, init=False, repr=False)

    @property
    def kernel(self) -> str:
        """The kernel's id."""
        return self._candidate.kernel

    @property
    def provider(self) -> str:
        """The distribution that ships it."""
        return self._candidate.provider

    @property
    def _row(self) -> Row | None:
        index = self._verdict.row
        return None if index is None else self._ctx.ev.table.rows[index]

    @property
    def row(self) -> str | None:
        """The row that accepts, or would if what is unknown held."""
        return None if (row := self._row) is None else row.id

    @property
    def page_sizes(self) -> IntSet | None:
        """Page sizes (tokens) that the row accepts for this request; None if no row does."""
        return self._verdict.pages

    @property
    def q_dtype(self) -> str | None:
        """The dtype in which the query must be passed."""
        return self._verdict.q_dtype

    @property
    def calls(self) -> tuple[str, ...]:
        """Obligations of the caller (calls.yaml)."""
        if (row := self._row) is None:
            return ()
        request = self._ctx.ev.request
        return calls_of(self._ctx.ev.table, row, request.asked, request.dtype, self._verdict.q_dtype)

    @property
    def layouts(self) -> tuple[str, ...] | None:
        """KV layouts declared; None where nobody looked."""
        return None if (row := self._row) is None else row.layouts

    @property
    def graph_level(self) -> str | None:
        """The highest CUDA-graph level declared."""
        return None if (row := self._row) is None else row.graph_level

    @property
    def strength(self) -> str | None:
        """How strong the row's evidence is."""
        return None if (row := self._row) is None else row.strength

    @property
    def warnings(self) -> tuple[str, ...]:
        """`unverified-version` if the installed version is above the last one looked at."""
        return ("unverified-version",) if self._verdict.unverified and self.accepted else ()

    @property
    def why(self) -> tuple[Why, ...]:
        """Reasons, most telling first; empty for a candidate that is accepted."""
        if self._why is None:
            self._why = why(self._ctx, self._candidate, self._verdict)
        return self._why

    @property
    def fix(self) -> tuple[Fix, ...]:
        """At most two changes of at most two parts each, each of which, applied, is accepted."""
        if self._fix is None:
            self._fix = fixes(self._ctx, self._candidate, self._verdict)
        return self._fix

    @property
    def accepted(self) -> bool:
        return self.status in ("chosen", "accepted")

    def to_json(self) -> dict[str, Any]:
        """The contract's form."""
        return {
            "kernel": self.kernel,
            "provider": self.provider,
            "page_sizes": None if self.page_sizes is None or not self.accepted else self.page_sizes.to_yaml(),
            "status": self.status,
            "row": self.row,
            "why": [w.to_json() for w in self.why],
            "fix": [f.to_json() for f in self.fix],
        }
