"""Plain text for a person at 80 columns; colour only on a terminal, and never if NO_COLOR is set."""

from __future__ import annotations

import os
import re
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import TextIO

WIDTH = 80
_CODES = {"good": "32", "bad": "31", "warn": "33", "dim": "2", "bold": "1"}


def coloured(stream: TextIO | None = None) -> bool:
    """Whether colour may be written: a terminal, and NO_COLOR unset or empty (no-color.org)."""
    stream = sys.stdout if stream is None else stream
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb" and stream.isatty()


def paint(text: str, style: str) -> str:
    """`text` in a style, if colour may be written."""
    return f"\x1b[{_CODES[style]}m{text}\x1b[0m" if coloured() else text


def wrap(text: str, indent: int = 0, first: int | None = None) -> list[str]:
    """Lines of at most 80 columns; the first is indented by `first` (default `indent`), the rest by `indent`."""
    lead = " " * (indent if first is None else first)
    return textwrap.wrap(
        re.sub(r"\S+", lambda word: " ".join(_cut(word[0], WIDTH - indent)), text),
        WIDTH,
        initial_indent=lead,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    ) or [lead.rstrip()]


def _cut(word: str, room: int) -> list[str]:
    """A word wider than a line, such as a path, cut after slashes, else where the line ends."""
    parts: list[str] = []
    while len(word) > room:
        at = word.rfind("/", 0, room) + 1 or room
        parts.append(word[:at])
        word = word[at:]
    return [*parts, word] if word else parts


def table(rows: Sequence[Sequence[str]], right: Iterable[int] = ()) -> list[str]:
    """Columns padded to their widest cell, two spaces apart; columns in `right` are right-aligned."""
    if not rows:
        return []
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    at_right = set(right)
    lines = []
    for row in rows:
        cells = [
            cell.rjust(w) if i in at_right else cell.ljust(w)
            for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def label_block(label: str, text: str, width: int = 14) -> list[str]:
    """`label` in a column of `width`, the text wrapped beside it."""
    lines = wrap(text, width)
    return [label.ljust(width) + lines[0][width:], *lines[1:]] if len(label) < width else [label, *lines]
