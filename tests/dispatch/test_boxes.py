"""Exclusions and traps that no table has today: levels, several at once, unknown outcomes, sets that become empty."""

from __future__ import annotations

import copy
from itertools import permutations
from typing import Any

import pytest

from attnroute.dispatch.answer import CandidateAnswer
from attnroute.dispatch.packages import Packages
from attnroute.dispatch.request import Request
from attnroute.dispatch.route import decide
from attnroute.registry.build import build_table
from attnroute.registry.registry import Registry, default_registry

NAMED = Packages((("flashinfer-python", "0.7.4"),))


def trap(name: str, where: dict[str, Any], outcome: str = "faults") -> dict[str, Any]:
    where = {dim: [value] if dim == "cuda_graph" else value for dim, value in where.items()}
    told = {"kernel": "xqa", "provider": "flashinfer-python", "versions": "0.6.16..", "trap": name, "code": None}
    return told | {"where": where, "outcome": outcome, "why": f"{name} says so"}


def xqa(traps: list[dict[str, Any]], holes: list[dict[str, Any]] = [], **asked: Any) -> CandidateAnswer:  # noqa: B006
    """XQA's answer on SM120 with more traps, and exclusions added to each of its rows."""
    base = default_registry()
    data = copy.deepcopy(base.section("arch/sm120"))
    data["traps"] += traps
    for row in data["rows"]:
        if row["kernel"] == "xqa":
            more = [{**hole, "id": f"{row['row']}#{90 + n}", "versions": None} for n, hole in enumerate(holes)]
            row["exclusions"] = [*row["exclusions"], *more]
    registry = Registry(base.store, base.overlays, _tables={"sm120": build_table(data, base.catalogue)})
    request = {"arch": "sm120", "storage": "paged", "head_dim": (128, 128), "dtype": "bf16", "kv_dtype": "bf16"} | asked
    answer = decide(registry, Request(**request), NAMED).candidate("xqa")
    assert answer is not None
    return answer


@pytest.mark.parametrize(
    ("level", "status"), [("uniform1", "chosen"), ("uniform", "known-wrong"), ("always", "rejected"), (None, "chosen")]
)
def test_a_trap_of_one_graph_level(level: str | None, status: str) -> None:
    assert xqa([trap("graph", {"cuda_graph": "uniform"})], cuda_graph=level).status == status


def test_a_trap_of_every_graph_level_leaves_none() -> None:
    traps = [trap(level, {"cuda_graph": level}) for level in ("none", "uniform1", "uniform", "always")]
    assert xqa(traps).status == "known-wrong"


def test_of_several_traps_the_worst_is_told_in_any_order() -> None:
    wrong, raises, unknown = (trap(o, {"head_dim": 128}, o) for o in ("wrong-numbers", "raises", "unknown"))
    for order in permutations([wrong, raises, unknown]):
        assert xqa([*order]).why[0].message.startswith("wrong-numbers:")
    for order in permutations([raises, unknown]):
        assert (xqa([*order]).status, xqa([*order]).why[0].code) == ("rejected", "head-dim")


@pytest.mark.parametrize("page", [64, None])
def test_a_trap_of_unknown_outcome_never_admits(page: int | None) -> None:
    answer = xqa([trap("some", {"page": [64, 32]}, "unknown")], page=page, allow_unknown=True)
    if page is None:
        assert str(answer.page_sizes) == "[16, 128]"
    else:
        assert answer.status == "undeclared"
        assert [fix.change for fix in answer.fix] == [{"page_size": 16}]


@pytest.mark.parametrize("page", [64, None])
def test_an_exclusion_of_unknown_outcome_yields_to_allow_unknown(page: int | None) -> None:
    hole = trap("some", {"page": [16, 32, 64, 128]}, "unknown")
    assert xqa([], [hole], page=page).status == "undeclared"
    assert xqa([], [hole], page=page, allow_unknown=True).accepted
    assert {"allow_unknown": True} in [fix.change for fix in xqa([], [hole], page=page).fix]


def test_boxes_that_together_leave_nothing_are_at_fault() -> None:
    some = [trap("a", {"page": [16, 32]}, "unknown"), trap("b", {"page": [64, 128]}, "build-fails")]
    for order in permutations(some):
        assert xqa([*order]).why[0].message.startswith("build-fails:")
        assert xqa([*order], page=16).status == "undeclared"
        assert str(xqa([*order][:1]).page_sizes) in ("[64, 128]", "[16, 32]")


def test_a_trap_may_need_that_a_feature_is_not_asked() -> None:
    plain = trap("plain", {"features": {"window": False}})
    assert xqa([plain]).status == "known-wrong"
    assert xqa([plain], features=(("window", True),)).accepted


def test_a_trap_of_other_versions_is_none() -> None:
    assert xqa([trap("old", {"head_dim": 128}) | {"versions": "..0.7.4"}]).accepted


def test_an_unknown_code_of_a_refusal_is_the_one_written() -> None:
    assert xqa([trap("said", {"head_dim": 128, "q_len": 1}, "raises") | {"code": "q-len"}]).why[0].code == "q-len"
