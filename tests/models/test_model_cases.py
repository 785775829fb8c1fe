"""Every config of tests/cases/models.yaml gives the groups, state and notes that it says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from attnroute.models import Model, StateSpec, read_model

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
CASES: list[dict[str, Any]] = yaml.safe_load((ROOT / "tests/cases/models.yaml").read_text(encoding="utf-8"))
PLAIN = ("dtype", "kv_dtype", "kv_dtype_from", "max_model_len", "max_source_len", "window", "role", "model_type")


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_case(case: dict[str, Any], tmp_path: Path) -> None:
    path = EXAMPLES / case["example"] if "example" in case else tmp_path / "config.json"
    if "config" in case:
        path.write_text(json.dumps(case["config"], indent=2), encoding="utf-8")
    model = read_model(path, **case.get("options", {}))
    expect = dict(case["expect"])
    for field in PLAIN:
        if field in expect:
            assert getattr(model, field) == expect.pop(field), field
    for field in ("notes", "warnings"):
        if field in expect:
            assert list(getattr(model, field)) == expect.pop(field)
    if "has_note" in expect:
        assert expect.pop("has_note") in model.notes
    if "first_layer" in expect:
        assert model.layers[0].name == expect.pop("first_layer")
    check_groups(model, expect.pop("groups", None))
    check_shared(model, expect.pop("shared", None), expect.pop("shares", {}))
    check_state(model, expect.pop("state", None))
    assert not expect, f"nothing checks {sorted(expect)}"


def check_groups(model: Model, wanted: list[dict[str, Any]] | None) -> None:
    if wanted is None:
        return
    assert len(model.groups) == len(wanted)
    for group, fields in zip(model.groups, wanted, strict=True):
        for field, value in fields.items():
            actual = len(group.layers) if field == "count" else getattr(group, field)
            assert actual == (tuple(value) if isinstance(value, list) else value), (group.name, field)


def check_shared(model: Model, count: int | None, shares: dict[int, int]) -> None:
    if count is not None:
        assert sum(layer.kind == "shared" for layer in model.layers) == count
    names = {layer.index: layer.name for layer in model.layers}
    for index, target in shares.items():
        layer = model.layers[index]
        assert (layer.kind, layer.shares_with) == ("shared", names[target])
        assert layer.group == model.layers[target].group


def check_state(model: Model, wanted: list[dict[str, Any]] | None) -> None:
    if wanted is None:
        return
    assert len(model.state) == len(wanted)
    for spec, fields in zip(model.state, wanted, strict=True):
        actual = flat(spec)
        assert {field: actual[field] for field in fields} == fields


def flat(spec: StateSpec) -> dict[str, Any]:
    out: dict[str, Any] = {"kind": spec.kind, "count": len(spec.layers), "bytes": spec.bytes}
    for tensor in spec.tensors:
        out |= {
            tensor.name: list(tensor.shape),
            f"{tensor.name}_dtype": tensor.dtype,
            f"{tensor.name}_bytes": tensor.bytes,
        }
    return out


@pytest.mark.parametrize("folder", sorted(p.parent.name for p in EXAMPLES.glob("*/config.json")))
def test_every_example_reads(folder: str) -> None:
    """Each example is a known model type, has groups, and its layers name a group or a state that exists."""
    model = read_model(EXAMPLES / folder, role="draft" if "dflash" in folder else "target")
    assert model.name == folder
    assert model.groups
    assert not model.warnings
    assert not any("unknown" in note for note in model.notes)
    homes = {group.name for group in model.groups} | {spec.name for spec in model.state}
    assert {layer.group for layer in model.layers} == homes
    held = [name for group in model.groups for name in group.layers] + [n for s in model.state for n in s.layers]
    assert sorted(held) == sorted(layer.name for layer in model.layers if layer.kind != "shared")


@pytest.mark.parametrize("folder", sorted(p.parent.name for p in EXAMPLES.glob("*/config.json")))
def test_every_example_has_its_source(folder: str) -> None:
    assert f"`{folder}`" in (EXAMPLES / "README.md").read_text(encoding="utf-8")


def test_file_and_folder_are_the_same() -> None:
    assert read_model(EXAMPLES / "llama-3.1-8b") == read_model(EXAMPLES / "llama-3.1-8b" / "config.json")


def test_group_by_name() -> None:
    model = read_model(EXAMPLES / "gemma-4-26b-a4b")
    assert model.group("global").head_dim == 512
    assert model.state_bytes == 0
    with pytest.raises(KeyError):
        model.group("full")
