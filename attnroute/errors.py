"""Errors that reach a person: each names what was asked, what is allowed and, if any, the nearest valid thing."""

from __future__ import annotations

from collections.abc import Iterable


class AttnrouteError(Exception):
    """Base of all errors attnroute raises on purpose; its text is written for the person who asked.

    `code` is a stable, short name that tools may match; the command line prints the text and exits with `exit_code`.
    """

    exit_code = 2

    def __init__(self, message: str, *, code: str = "error") -> None:
        super().__init__(message)
        self.code = code


class UsageError(AttnrouteError):
    """A flag, argument or field has a value that cannot be meant."""


class UnservedError(AttnrouteError):
    """A forced kernel or an asked-for plan cannot serve the request: the answer is no."""

    exit_code = 1


def near_miss(name: str, choices: Iterable[str]) -> str | None:
    """The choice most like `name`, or None if nothing is close."""
    from difflib import get_close_matches

    folded = {choice.lower().replace("_", "-"): choice for choice in choices}
    hits = get_close_matches(name.lower().replace("_", "-"), list(folded), n=1, cutoff=0.6)
    return folded[hits[0]] if hits else None


def unknown_name(what: str, name: str, choices: Iterable[str]) -> str:
    """`unknown kernel 'xqq': did you mean 'xqa'? Known: fa2 fa3 ...` (the sentence all rooms use)."""
    known = sorted(choices)
    hint = near_miss(name, known)
    middle = f": did you mean {hint!r}?" if hint else "."
    return f"unknown {what} {name!r}{middle} Known: {' '.join(known)}"
