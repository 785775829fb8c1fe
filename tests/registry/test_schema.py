"""The schemas: written down, strict, described, and free of ids and of `oneOf`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from jsonschema import Draft202012Validator

from attnroute.registry.dims import DIMENSIONS
from attnroute.registry.positions import parse
from attnroute.registry.schema_build import NAMES, rendered, schema
from attnroute.registry.schema_check import check

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER = Path(__file__).parents[2] / "capabilities"


def parts(value: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every subschema with its path."""
    if isinstance(value, dict):
        if "type" in value or "enum" in value:
            yield path, value
        for key, inner in value.items():
            if key not in ("enum", "required", "dependentRequired", "if"):
                yield from parts(inner, f"{path}/{key}")


@pytest.mark.parametrize("name", NAMES)
def test_written_down(name: str) -> None:
    path = FOLDER / "schema" / f"{name}.schema.json"
    assert path.read_text(encoding="utf-8") == rendered(name), "run scripts/build_schema.py"


@pytest.mark.parametrize("name", NAMES)
def test_strict_and_described(name: str) -> None:
    Draft202012Validator.check_schema(schema(name))
    text = json.dumps(schema(name))
    assert "oneOf" not in text
    assert "anyOf" not in text
    for path, part in parts(schema(name)):
        assert part.get("description"), path
        if part.get("type") == "object" and name != "capture":
            assert part.get("additionalProperties") is False, path


@pytest.mark.parametrize("name", [name for name in NAMES if name != "capture"])
def test_ids_are_never_enumerated(name: str) -> None:
    catalogue = {
        key: parse((FOLDER / f"{key}.yaml").read_bytes(), key).root for key in ("kernels", "packages", "calls")
    }
    ids = {one for key, root in catalogue.items() if root is not None for one in root.plain[key]}
    ids |= {path.stem for path in (FOLDER / "arch").glob("*.yaml")}
    for path, part in parts(schema(name)):
        assert not ids & set(map(str, part.get("enum", ()))), path


def test_every_dimension_can_be_written() -> None:
    row = schema("arch")["properties"]["kernels"]["patternProperties"]
    (rows,) = row.values()
    assert {d.name for d in DIMENSIONS if d.name != "lse"} <= set(rows["items"]["properties"])


@pytest.mark.parametrize(
    ("text", "col", "message", "hint"),
    [
        ("a: {}", 6, "key 'meaning' is missing in calls.a", None),
        ("a: {maening: x}", 7, "unknown key 'maening'", "did you mean 'meaning'?"),
        ("a: {meaning: 5}", 16, "expected text, found the number 5 in calls.a.meaning", 'write "5" if text is meant'),
        ("a: {meaning: x, when: [sink]}", 26, "unknown value 'sink' in calls.a.when[0]", "did you mean 'sinks'?"),
        ("a: {meaning: x, when: sinks}", 25, "expected a list, found 'sinks' in calls.a.when", "write [sinks]"),
        ("a: {meaning: x, when: [alibi, alibi]}", 33, "'alibi' stands twice in the list in calls.a.when", None),
        ("A b: {meaning: x}", 3, "'A b' is no id, such as zeroed-workspace", None),
        ("a: {meaning: x, when: []}", 25, "the list is empty in calls.a.when", "leave the key out if nothing is known"),
    ],
)
def test_messages(text: str, col: int, message: str, hint: str | None) -> None:
    (problem,) = check(parse(f"calls:\n  {text}\n", "calls.yaml"), "calls")
    assert (problem.line, problem.col, problem.message, problem.hint) == (2, col, message, hint)
