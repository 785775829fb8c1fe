"""`like` and `mirrors`: what is inherited, what is not, and where each value is written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from attnroute.registry.compile import compile_arch, evidence, origins
from attnroute.registry.problems import TableError
from tests.registry import mini
from tests.registry.mini import KERNELS, SM1, SM2, at, row

if TYPE_CHECKING:
    from pathlib import Path


CIRCLE = KERNELS.replace("- row: base", "- row: base\n        like: fast/more", 1)
CIRCLE = CIRCLE.replace("  slow:", "      - {row: more, like: fast/base}\n  slow:")


def only_row(root: Path, arch: str = "sm1") -> dict[str, Any]:
    (found,) = compile_arch(root, arch)["rows"]
    return dict(found)


def test_like_gives_what_is_not_said(tmp_path: Path) -> None:
    table = SM1 + "      features: {lse: true, sinks: [fp32]}\n      page: 64\n      env: {network: true}\n"
    found = only_row(mini.write(tmp_path, sm1=table))
    assert found["features"] == {"window": True, "lse": True, "sinks": ["fp32"]}
    assert found["env"] == {"nvcc": True, "network": True}
    assert found["dims"]["page"] == 64
    assert found["dims"]["head_dim"] == "64..256/64"
    assert found["call"] == ["zero"]
    assert (found["versions"], found["seen"], found["provider"]) == ("1.0..", ["1.0", "2.0.1"], "demo")


def test_sets_replace_and_dtypes_are_a_set(tmp_path: Path) -> None:
    found = only_row(mini.write(tmp_path, sm1=SM1 + "      dtypes: {fp16: [fp16]}\n      call: [warm]\n"))
    assert found["dims"]["dtypes"] == {"fp16": ["fp16"]}
    assert found["call"] == ["warm"]


def test_exclusions_add(tmp_path: Path) -> None:
    own = "      exclusions: [{where: {page: 32}, outcome: raises, why: w, evidence: [{claimed: a, says: b}]}]\n"
    found = only_row(mini.write(tmp_path, sm1=SM1 + own))["exclusions"]
    assert [(e["id"], e["where"], e["code"]) for e in found] == [
        ("first#1", {"head_dim": 256, "page": 16}, None),
        ("first#2", {"page": 32}, "page-size"),
    ]


def test_row_package_and_seen_are_never_inherited(tmp_path: Path) -> None:
    bare = "\n".join(line for line in SM1.splitlines() if "package" not in line and "seen" not in line)
    with pytest.raises(TableError, match="package"):
        compile_arch(mini.write(tmp_path, sm1=bare + "\n"), "sm1")


def test_evidence_is_inherited_where_it_holds_everywhere(tmp_path: Path) -> None:
    root = mini.write(tmp_path, sm1=SM1 + "      evidence: [{report: a/b#1, says: it works}]\n")
    found = evidence(root, "sm1")["sm1/fast/first"]
    assert [item.get("report") or item.get("source") for item in found] == ["a/b#1", "demo 1.0"]
    line, col = at(root, "{report")
    assert found[0]["at"] == f"capabilities/arch/sm1.yaml:{line}:{col}"
    assert only_row(root)["strength"] == "source"
    assert evidence(root, "sm1")["sm1/fast/first#1"][0]["claimed"] == "notes"


def test_every_value_knows_where_it_is_written(tmp_path: Path) -> None:
    root = mini.write(tmp_path, sm1=SM1 + "      features: {lse: true}\n")
    found = origins(root, "sm1")["sm1/fast/first"]
    for key, text, file in (
        ("page", "[16, 32]", "kernels.yaml"),
        ("features.window", "true, lse", "kernels.yaml"),
        ("features.lse", "true}", "arch/sm1.yaml"),
        ("seen", '["1.0"', "arch/sm1.yaml"),
    ):
        line, col = at(root, text, file)
        assert found[key] == f"capabilities/{file}:{line}:{col}"


def test_like_of_like_and_of_another_architecture(tmp_path: Path) -> None:
    third = (
        "arch: sm3\nname: T\ncompute_capability: '3.0'\nkernels:\n  slow:\n    - row: a\n      like: sm1/fast/first\n"
    )
    third += (
        "      package: {demo: 2.0..}\n      seen: [2.0.1]\n      page: 128\n      evidence: [{claimed: c, says: d}]\n"
    )
    root = mini.write(tmp_path, sm3=third, sm1=SM1 + "      group_ratio: 1..4\n")
    found = only_row(root, "sm3")
    assert (found["dims"]["page"], found["dims"]["group_ratio"], found["versions"]) == (128, "1..4", "2.0..")
    assert found["strength"] == "claimed"


def test_mirrors_copies_and_caps_the_strength(tmp_path: Path) -> None:
    root = mini.write(tmp_path)
    mirrored = only_row(root, "sm2")
    assert mirrored == only_row(root) | {"strength": "inferred"}
    assert evidence(root, "sm2")["sm2/fast/first"][0]["mirrored"] == "sm1"


def test_an_override_of_a_mirrored_row_keeps_the_rest(tmp_path: Path) -> None:
    own = "kernels:\n  fast:\n    - row: first\n      page: 64\n      evidence: [{report: a/b#2, says: tried}]\n"
    found = only_row(mini.write(tmp_path, sm2=SM2.replace("kernels: {}\n", own)), "sm2")
    assert (found["dims"]["page"], found["strength"], found["versions"]) == (64, "report", "1.0..")
    assert found["exclusions"][0]["id"] == "first#1"


def test_a_mirrored_row_with_its_own_like_stands_alone(tmp_path: Path) -> None:
    first = SM1 + "      page: 64\n"
    own = "kernels:\n  fast:\n" + row("first", "group_ratio: 1")
    found = only_row(mini.write(tmp_path, sm1=first, sm2=SM2.replace("kernels: {}\n", own)), "sm2")
    assert (found["dims"]["page"], found["seen"]) == ([16, 32], ["2.0"])


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"sm1": SM1.replace("fast/base", "fast/bsae")}, "like names no row"),
        ({"sm1": SM1.replace("fast/base", "sm1/fast/first")}, "like leads back to itself"),
        ({"sm1": SM1.replace("kernels:", "mirrors: sm2\nkernels:")}, "mirrors itself"),
        ({"sm1": SM1.replace("kernels:", "mirrors: sm9\nkernels:")}, "unknown architecture"),
        ({"kernels": CIRCLE}, "leads back to itself"),
    ],
)
def test_references_that_lead_nowhere(tmp_path: Path, files: dict[str, str], words: str) -> None:
    with pytest.raises(TableError, match=words):
        compile_arch(mini.write(tmp_path, **files), "sm1")
