"""Lint rules: what the schemas cannot say about the tables, one small module a rule.

A rule is a module with `check(context)`, which yields findings. `RULES` is their order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnroute.registry.lint import (
    catalogue,
    dead,
    engines,
    evidence,
    gaps,
    names,
    overlap,
    overrides,
    phases,
    preference,
    references,
    required,
    seen,
    spelling,
    traps,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from attnroute.registry.lint.context import Context, Finding

RULES: tuple[Callable[[Context], Iterator[Finding]], ...] = (
    spelling.check,
    names.check,
    catalogue.check,
    references.check,
    required.check,
    phases.check,
    seen.check,
    evidence.check,
    overrides.check,
    overlap.check,
    dead.check,
    traps.check,
    gaps.check,
    preference.check,
    engines.check,
)
