"""What vLLM 0.33.0's own functions answered, attnroute answers too, apart from what differences.yaml lists."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from attnroute.dispatch.group import KVGroup
from attnroute.dispatch.route import route
from attnroute.engines.data import Engine, load_engine
from attnroute.registry.registry import default_registry
from tests.engines import inputs, vectors
from tests.vectors import load

HERE = Path(__file__).parent
DIFFERENCES: list[dict[str, Any]] = yaml.safe_load((HERE / "differences.yaml").read_text())


@cache
def engine() -> Engine:
    return load_engine("vllm")


def _label(name: str, given: dict[str, Any], expected: Any) -> dict[str, Any]:
    """The input, with the words that `where` uses."""
    words = dict(given)
    words["host"] = given.get("host_blocks") is not None
    words["states_only"] = name == "flashinfer_graph" and all(s.get("kind") == "mamba" for s in given["group"])
    words["tall_head"] = isinstance(given.get("head"), int) and 256 < given["head"] <= 512
    words["accepted"] = isinstance(expected, dict) and expected.get("reasons") == []
    if "kv" in given:
        mode = inputs.mode
        own = mode(engine(), given["kv"]) != mode(engine(), given["cache_dtype"])
        words["own_head_or_dtype"] = given["head"] != given["model_head_size"] or own
    return words


def _matches(where: dict[str, Any], words: dict[str, Any]) -> bool:
    return all(words.get(k) in (v if isinstance(v, list) else [v]) for k, v in where.items())


def _shipped(name: str) -> list[dict[str, Any]]:
    return [d for d in DIFFERENCES if d["vectors"] == name and d["as"] == "shipped"]


def test_every_file_is_replayed() -> None:
    # tests/models replays the shapes of states.
    assert set(load.names()) - {"mamba_state_shapes"} == set(vectors.REPLAYS)


@pytest.mark.parametrize("name", sorted(vectors.REPLAYS))
def test_replay(name: str) -> None:
    rules, listed = engine(), _shipped(name)
    counts = [0] * len(listed)
    for given, expected in load.load(name):
        answer = vectors.answer(rules, name, given)
        if vectors.same(name, answer, expected):
            continue
        words = _label(name, given, expected)
        hit = next((n for n, d in enumerate(listed) if _matches(d["where"], words)), None)
        assert hit is not None, f"{given}\nvLLM {expected}\nhere {answer}"
        counts[hit] += 1
    for difference, count in zip(listed, counts, strict=True):
        assert count, f"no longer occurs, take it out: {difference['name']}"


@pytest.mark.parametrize("difference", [d for d in DIFFERENCES if d["as"] == "per-layer"], ids=lambda d: d["name"])
def test_own_head_size_changes_only_layers_that_differ(difference: dict[str, Any]) -> None:
    rules, found = engine(), 0
    for given, expected in load.load(difference["vectors"]):
        if vectors.same(
            difference["vectors"], vectors.answer(rules, difference["vectors"], given, per_layer=True), expected
        ):
            continue
        assert _matches(difference["where"], _label(difference["vectors"], given, expected)), given
        found += 1
    assert found, "no longer occurs: take it out"


def test_admitted_heads_that_no_row_serves() -> None:
    (difference,) = [d for d in DIFFERENCES if d["as"] == "sound"]
    rules, found = engine(), 0
    for given, expected in load.load(difference["vectors"]):
        if not _matches(difference["where"], _label(difference["vectors"], given, expected)):
            continue
        facts = inputs.layer_facts(rules, given).but({"hd256_aware": True})
        version = rules.tables["flash_attention_impl"].answer(facts).value
        if version != 2:
            continue
        group = KVGroup("g", given["head"], 8, 8, dtype=given["dtype"])
        arch = "sm" + given["cc"].replace(".", "")
        decision = route(group, arch, None, phase="decode", registry=default_registry(), engine="vllm")
        candidate = decision.candidate("fa2", "vllm")
        assert candidate is None or not candidate.accepted, given
        found += 1
    assert found, "no longer occurs: take it out"
