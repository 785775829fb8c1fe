"""Every case of tests/cases/explain.yaml, asked through route() and through `attnroute explain --format json`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from attnroute.cli.main import main
from attnroute.dispatch.decision import Decision
from attnroute.dispatch.group import KVGroup
from attnroute.dispatch.route import route
from attnroute.registry import registry as registry_module
from attnroute.registry.registry import default_registry

ROOT = Path(__file__).resolve().parents[2]
FILE = yaml.safe_load((ROOT / "tests/cases/explain.yaml").read_text(encoding="utf-8"))
CASES: list[dict[str, Any]] = [case | {"ask": FILE["defaults"] | case["ask"]} for case in FILE["cases"]]
each = pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
KEYS = {"name", "source", "ask", "expect", "chosen", "q_dtype", "calls", "warns"}


def arguments(ask: dict[str, Any]) -> list[str]:
    found = ["explain", "--format", "json"]
    for flag, value in ask.items():
        found += [] if value is None else [f"--{flag}"] if value is True else [f"--{flag}", str(value)]
    return found


def through_route(ask: dict[str, Any]) -> Decision:
    """The same question as a group; `ask` holds every flag that a case uses."""
    left = {flag.replace("-", "_"): value for flag, value in ask.items() if value is not None}
    name, _, version = left.pop("package").partition("==")
    mla = left.get("kind") == "mla"
    group = KVGroup(
        "case",
        left.pop("latent") if mla else left.pop("head_dim"),
        left.pop("q_heads"),
        left.pop("kv_heads"),
        sliding_window=1024 if left.pop("sliding_window", False) else None,
        softcap=30.0 if left.pop("softcap", False) else None,
        causal=not left.pop("non_causal", False),
        traits=tuple(trait for trait in ("alibi", "mask") if left.pop(trait, False)),
        latent=ask.get("latent"),
        **{
            field: left.pop(field)
            for field in ("head_dim_v", "dtype", "kv_dtype", "sinks", "kind", "rope", "nope")
            if field in left
        },
    )
    q_len = left.pop("q_len", 1)
    phase = left.pop("phase", "decode" if q_len == 1 else "verify")
    cannot = (left.pop("cannot"),) if "cannot" in left else ()
    return route(group, left.pop("arch"), {name: version}, phase=phase, q_len=q_len, cannot=cannot, **left)


@each
def test_case(case: dict[str, Any]) -> None:
    assert set(case) <= KEYS
    answer = through_route(case["ask"]).to_json()
    chosen = answer["decision"]
    if "chosen" in case:
        assert (chosen or {}).get("kernel") == case["chosen"]
    if "q_dtype" in case:
        assert chosen["q_dtype"] == case["q_dtype"]
    assert set(case.get("calls", ())) <= set(chosen["calls"] if chosen else ())
    assert case.get("warns", "") in " ".join(answer["warnings"])
    for name, wanted in case["expect"].items():
        kernel, _, provider = name.partition("@")
        (candidate,) = (c for c in answer["candidates"] if c["kernel"] == kernel and provider in ("", c["provider"]))
        check(candidate, dict(wanted))


def check(candidate: dict[str, Any], wanted: dict[str, Any]) -> None:
    status, reason = wanted.pop("status"), (candidate["why"] or [{}])[0]
    served = candidate["status"] in ("chosen", "accepted")
    assert candidate["status"] == status or (status == "accepted" and served), reason
    assert served == (not candidate["why"])
    for field in ("code", "asked", "allowed"):
        if field in wanted:
            assert reason[field] == wanted.pop(field)
    if "pages" in wanted:
        assert candidate["page_sizes"] == wanted.pop("pages")
    if "row" in wanted:
        assert candidate["row"] == wanted.pop("row")
    assert wanted.pop("says", "") in reason.get("message", "")
    if "fix" in wanted:
        fixes = [fix["change"] for fix in candidate["fix"]]
        assert (fixes[0] if fixes else []) == wanted.pop("fix")
    assert not wanted, f"nothing checks {sorted(wanted)}"


@each
def test_the_command_says_the_same(
    case: dict[str, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = default_registry()
    monkeypatch.setattr(registry_module, "load_registry", lambda overlays: registry)  # read once for all cases
    decision = through_route(case["ask"])
    assert main(arguments(case["ask"])) == (0 if decision.served else 1)
    written = capsys.readouterr()
    assert not written.err
    assert json.loads(written.out) == json.loads(json.dumps(decision.to_json()))


def test_the_cases_cover_every_kernel_and_architecture() -> None:
    registry = default_registry()
    named = {name.partition("@")[0] for case in CASES for name in case["expect"]}
    assert named == set(registry.catalogue["kernels"])
    assert {case["ask"]["arch"] for case in CASES} == set(registry.archs)
    assert len({case["name"] for case in CASES}) == len(CASES) >= 75
    assert all(case["source"] for case in CASES)
