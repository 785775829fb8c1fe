"""One fault in a table: where it stands, what it is, how it is meant to be written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnroute.errors import AttnrouteError

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """A fault at `file:line:col` (both from 1; columns count characters).

    `code` is stable and short, `message` one sentence, `line_text` the offending line, `hint` the intended spelling.
    """

    file: str
    line: int
    col: int
    code: str
    message: str
    line_text: str = ""
    hint: str | None = None

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.col}: {self.code}: {self.message}"

    def render(self) -> str:
        """The headline, the offending line with a caret under the fault, and the hint where there is one."""
        parts = [str(self)]
        if self.line_text.strip():
            start = max(0, self.col - 61) if len(self.line_text) > 100 else 0
            shown = self.line_text[start : start + 100].replace("\t", " ")
            parts += [f"    {shown}", "    " + " " * (self.col - 1 - start) + "^"]
        if self.hint:
            parts.append(f"    {self.hint}")
        return "\n".join(parts)

    def to_json(self) -> dict[str, object]:
        """Plain fields, for `--format json`."""
        return {name: getattr(self, name) for name in ("file", "line", "col", "code", "message", "hint")}


class TableError(AttnrouteError):
    """Tables that cannot be used; `problems` holds every fault found."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        shown = "\n".join(problem.render() for problem in self.problems[:10])
        more = len(self.problems) - 10
        tail = f"\n... and {more} more; `attnroute validate` lists all" if more > 0 else ""
        super().__init__(shown + tail, code=self.problems[0].code if self.problems else "tables")
