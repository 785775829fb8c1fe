"""Conditions and first-match rules of an engine's data file, compiled to closures, and the facts that they test."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnroute.errors import AttnrouteError
from attnroute.registry.sets import Span, parse_span

if TYPE_CHECKING:
    from attnroute.engines.data import Engine

Condition = Callable[["Facts"], bool]
_PLACE = re.compile(r"\{(\w+)(?:\|([^}]*))?\}")


class EngineError(AttnrouteError):
    """The engine itself refuses to start, in its own words; `kind` is the exception that it raises."""

    exit_code = 1

    def __init__(self, message: str, kind: str = "ValueError") -> None:
        super().__init__(message, code="engine-refuses")
        self.kind = kind


class Facts(dict[str, Any]):
    """What rules may test. Names under the data's `derived` are worked out when they are first asked for.

    `given` are the facts that were stated; a derived fact with `with` is worked out from them and the changes it names.
    """

    __slots__ = ("engine", "given")

    def __init__(self, engine: Engine, given: Mapping[str, Any]) -> None:
        super().__init__(given)
        self.engine = engine
        self.given = given

    def __missing__(self, name: str) -> Any:
        value = self[name] = self.engine.derived[name](self)
        return value

    def but(self, changes: Mapping[str, Any]) -> Facts:
        """These facts with some changed; what was derived is derived anew."""
        return Facts(self.engine, {**self.given, **changes})


def say(text: str, facts: Mapping[str, Any]) -> str:
    """`text` with `{fact}` filled in; `{fact|0}` says 0 where the fact is null."""

    def fill(match: re.Match[str]) -> str:
        value = facts[match[1]]
        return match[2] if value is None and match[2] is not None else str(value)

    return _PLACE.sub(fill, text)


def _range_test(span: Span) -> Callable[[Any], bool]:
    return lambda value: value is not None and value in span


def value_test(wanted: Any) -> Callable[[Any], bool]:
    """A test for one value, a list of values or sets, or a set of integers in the tables' spelling."""
    items = wanted if isinstance(wanted, list) else [wanted]
    ranges = [parse_span(i) for i in items if isinstance(i, str) and ".." in i]
    plain = frozenset(i for i in items if not (isinstance(i, str) and ".." in i))
    if not ranges:
        return plain.__contains__
    tests = [_range_test(r) for r in ranges]
    if len(tests) == 1 and not plain:
        return tests[0]
    return lambda value: value in plain or any(test(value) for test in tests)


def condition(data: Mapping[str, Any] | None) -> Condition:
    """A `when` mapping as a function of the facts: every entry must hold; `any` and `not` nest."""
    if not data:
        return lambda _facts: True
    tests: list[tuple[str, Callable[[Any], bool]]] = []
    nested: list[Condition] = []
    for name, wanted in data.items():
        if name == "any":
            nested.append(_any([condition(item) for item in wanted]))
        elif name == "not":
            nested.append(_not(condition(wanted)))
        else:
            tests.append((name, value_test(wanted)))
    if len(tests) == 1 and not nested:
        only, test_one = tests[0]
        return lambda facts: test_one(facts[only])

    def holds(facts: Facts) -> bool:
        for name, test in tests:
            if not test(facts[name]):
                return False
        return all(part(facts) for part in nested)

    return holds


def _any(parts: list[Condition]) -> Condition:
    return lambda facts: any(part(facts) for part in parts)


def _not(part: Condition) -> Condition:
    return lambda facts: not part(facts)


def declared(value: Any, name: str) -> Condition:
    """A declared property: true, false, a list in which the fact `name` must be, or a condition."""
    if isinstance(value, bool):
        return lambda _facts: value
    if isinstance(value, Mapping):
        return condition(value)
    test = value_test(value)
    return lambda facts: test(facts[name])


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule: `use` is a value, or a function that reads it from a fact."""

    when: Condition
    use: Any
    fact: str | None
    why: str | None
    raises: str | None
    error: str


def rule(data: Mapping[str, Any]) -> Rule:
    """Compile `{when, use | raises, why}`."""
    use = data.get("use")
    fact = use["fact"] if isinstance(use, Mapping) else None
    return Rule(
        condition(data.get("when")), use, fact, data.get("why"), data.get("raises"), data.get("error", "ValueError")
    )


@dataclass(frozen=True, slots=True)
class Answer:
    """What a table resolves to, with the reasons of the rules that changed it."""

    value: Any
    why: tuple[str, ...]


class Table:
    """Steps in order; in each the first rule that matches sets the value, which later steps see as `version`."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.steps = [[rule(r) for r in step["rules"]] for step in data["steps"]]

    def answer(self, facts: Facts) -> Answer:
        """Run the steps. Raises EngineError where a rule says that the engine raises."""
        before = facts.get("version")
        value: Any = None
        why: list[str] = []
        facts["version"] = None
        try:
            for rules in self.steps:
                for r in rules:
                    if not r.when(facts):
                        continue
                    if r.raises is not None:
                        raise EngineError(say(r.raises, facts), r.error)
                    value = facts[r.fact] if r.fact is not None else r.use
                    facts["version"] = value
                    if r.why:
                        why.append(say(r.why, facts))
                    break
        finally:
            facts["version"] = before
        return Answer(value, tuple(why))
