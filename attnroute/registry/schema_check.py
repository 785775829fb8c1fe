"""Checks a parsed table against its schema and says what is wrong at the value's own line and column."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from attnroute.errors import near_miss
from attnroute.registry.positions import Document, Map, Node, Scalar, Seq
from attnroute.registry.schema_build import schema

if TYPE_CHECKING:
    from collections.abc import Iterator

    from attnroute.registry.problems import Problem

Fault = tuple[Node, str, str, str | None]  # where, code, message, hint


@lru_cache(maxsize=16)
def _validator(name: str) -> Any:
    from jsonschema import Draft202012Validator

    return Draft202012Validator(schema(name))


def check(document: Document, name: str) -> list[Problem]:
    """All faults of one document by the schema `name`; nothing if it could not be parsed."""
    if document.root is None:
        return []
    return [
        document.problem(node.line, node.col, code, message, hint)
        for node, code, message, hint in faults(document.root, name)
    ]


def faults(root: Map, name: str) -> list[Fault]:
    """As `check`, with nodes in place of positions."""
    errors = list(_validator(name).iter_errors(root.plain))
    strangers: dict[tuple[Any, ...], list[str]] = {}
    for error in errors:
        if error.validator == "additionalProperties":
            strangers[tuple(error.absolute_path)] = _strangers(error)
    return [fault for error in errors for fault in _explain(root, error, strangers)]


def messages(plain: Any, name: str) -> list[str]:
    """Faults of a value without positions, as sentences."""
    return [f"{e.message[:200]}{_in(tuple(e.absolute_path))}" for e in _validator(name).iter_errors(plain)]


def node_at(root: Node, path: Any) -> Node:
    """The node at a path of keys and indices."""
    node = root
    for step in path:
        if isinstance(node, Map):
            node = node.entries[step]
        elif isinstance(node, Seq):
            node = node.items[step]
    return node


def _strangers(error: Any) -> list[str]:
    from re import search

    known, patterns = error.schema.get("properties", {}), error.schema.get("patternProperties", {})
    return [key for key in error.instance if key not in known and not any(search(p, key) for p in patterns)]


def _explain(root: Map, error: Any, strangers: dict[tuple[Any, ...], list[str]]) -> Iterator[Fault]:
    path, rule, wanted = tuple(error.absolute_path), error.validator, error.validator_value
    node = node_at(root, path)
    if rule == "additionalProperties" and isinstance(node, Map):
        known = list(error.schema.get("properties", {}))
        for key in strangers[path]:
            yield _stranger(node.keys[key], key, known, error.schema, error.instance)
    elif rule in ("required", "dependentRequired"):
        missing = _missing(rule, wanted, error)
        # A misspelt key is reported as such; that it is also missing under its right name is no news.
        if missing and not any(near_miss(key, [missing]) for key in strangers.get(path, ())):
            yield node, "missing-key", f"key {missing!r} is missing{_in(path)}", None
    elif rule == "type":
        yield (
            node,
            "type",
            f"expected {_kinds(wanted)}, found {_shown(error.instance)}{_in(path)}",
            _type_hint(wanted, node),
        )
    elif rule == "enum":
        yield node, "unknown-value", *_enum(wanted, error.instance, path)
    elif rule == "pattern":
        message = error.schema.get("patternErrorMessage", "is not spelt as it must be")
        yield node, "spelling", f"{_shown(error.instance)} {message}{_in(path)}", None
    elif rule == "uniqueItems" and isinstance(node, Seq):
        yield from _repeated(node, path)
    elif rule in ("minItems", "minProperties", "minLength"):
        what = "text" if rule == "minLength" else "list" if rule == "minItems" else "mapping"
        yield node, "empty-value", f"the {what} is empty{_in(path)}", "leave the key out if nothing is known"
    elif rule == "maxProperties" and isinstance(node, Map):
        for key in list(node.keys)[wanted:]:
            yield node.keys[key], "too-many", f"{key!r} is one key too many{_in(path)}; at most {wanted}", None
    elif rule in ("minimum", "maximum"):
        edge = "least" if rule == "minimum" else "most"
        yield node, "range", f"{_shown(error.instance)} is out of range{_in(path)}: at {edge} {wanted}", None
    else:
        yield node, "schema", f"{error.message[:200]}{_in(path)}", None


def _stranger(at: Node, key: str, known: list[str], spec: dict[str, Any], there: dict[str, Any]) -> Fault:
    if not known:
        message = spec.get("patternErrorMessage", "is no id")
        return at, "spelling", f"{key!r} {message}", None
    hint = near_miss(key, [name for name in known if name not in there]) or near_miss(key, known)
    rest = f"known: {' '.join(known)}" if len(known) < 30 else None
    return at, "unknown-key", f"unknown key {key!r}", f"did you mean {hint!r}?" if hint else rest


def _missing(rule: str, wanted: Any, error: Any) -> str | None:
    if rule == "required":
        return next((key for key in wanted if key not in error.instance and f"{key!r}" in error.message), None)
    keys = [need for key, needs in wanted.items() if key in error.instance for need in needs]
    return next((key for key in keys if key not in error.instance and f"{key!r}" in error.message), None)


def _enum(wanted: list[Any], found: Any, path: tuple[Any, ...]) -> tuple[str, str]:
    names = [str(name) for name in wanted]
    hint = near_miss(found, names) if isinstance(found, str) else None
    return (
        f"unknown value {_shown(found)}{_in(path)}",
        f"did you mean {hint!r}?" if hint else f"known: {' '.join(names)}",
    )


def _repeated(node: Seq, path: tuple[Any, ...]) -> Iterator[Fault]:
    for i, item in enumerate(node.items):
        if any(item.plain == other.plain and type(item.plain) is type(other.plain) for other in node.items[:i]):
            yield item, "repeated", f"{_shown(item.plain)} stands twice in the list{_in(path)}", None


_KINDS = {
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "a mapping",
    "null": "nothing",
}


def _kinds(wanted: Any) -> str:
    names = [_KINDS[name] for name in ([wanted] if isinstance(wanted, str) else wanted)]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


def _shown(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return repr(value if len(value) < 60 else value[:57] + "...")
    if isinstance(value, (int, float)):
        return f"the number {value}"
    return "a list" if isinstance(value, list) else "a mapping"


def _type_hint(wanted: Any, node: Node) -> str | None:
    names = [wanted] if isinstance(wanted, str) else wanted
    if not isinstance(node, Scalar) or node.plain is None:
        return "write [...]" if names == ["array"] and not isinstance(node, Scalar) else None
    shown = {True: "true", False: "false"}.get(node.plain, node.plain) if isinstance(node.plain, bool) else node.plain
    if "string" in names and not isinstance(node.plain, str):
        return f'write "{shown}" if text is meant'
    if names == ["array"]:
        return f"write [{shown}]"
    return None


def _in(path: tuple[Any, ...]) -> str:
    """`in kernels.xqa[2].head_dim`, the last steps of the path only."""
    found = ""
    for step in path[-4:]:
        found += f"[{step}]" if isinstance(step, int) else f".{step}" if found else str(step)
    return f" in {found}" if found else ""
