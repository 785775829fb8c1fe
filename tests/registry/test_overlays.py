"""Overlays add and replace by name; two that set the same thing are an error that names both."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from attnroute.registry.compile import arch_ids, compile_arch, compile_catalogue
from attnroute.registry.folders import environment_overlays
from attnroute.registry.problems import TableError
from attnroute.registry.validate import validate
from tests.registry import mini
from tests.registry.mini import overlay, row

NOVA = """
kernels:
  nova:
    name: Nova
    family: nova
    about: A kernel that does not exist.
    kinds: [gqa]
    providers: {nova-attn: {module: nova}}
"""
TRAP = """
arch: sm1
traps:
  fast:
    - trap: one
      package: {demo: 1.0..}
      where: {page: 512}
      outcome: faults
      why: It does.
      evidence: [{claimed: a, says: b}]
"""
HEAD = "arch: sm1\nkernels:\n  fast:\n"


def test_a_row_is_replaced_by_name_and_in_place(tmp_path: Path) -> None:
    root = mini.write(tmp_path, sm1=mini.SM1 + row("second", "page: 64"))
    over = overlay(tmp_path / "o", sm1=HEAD + row("first", "page: 128") + row("third", "page: 256"))
    rows = compile_arch(root, "sm1", [over])["rows"]
    assert [(r["row"], r["dims"]["page"], r["seen"]) for r in rows] == [
        ("first", 128, ["2.0"]), ("second", 64, ["2.0"]), ("third", 256, ["2.0"]),
    ]  # fmt: skip


def test_a_new_architecture_kernel_and_package(tmp_path: Path) -> None:
    root = mini.write(tmp_path)
    over = overlay(
        tmp_path / "o",
        kernels=NOVA,
        packages="packages:\n  nova-attn: {module: nova, about: A., releases: {1.2.0: {}}}\n",
        sm130="arch: sm130\nname: New\ncompute_capability: '13.0'\nkernels:\n  nova:\n"
        + row("only").replace("{demo: 1.0..}", "{nova-attn: 1.2.0..}").replace('["2.0"]', "[1.2.0]"),
    )
    assert arch_ids(root, [over]) == ["sm1", "sm2", "sm130"]
    assert compile_arch(root, "sm130", [over])["rows"][0]["provider"] == "nova-attn"
    catalogue = compile_catalogue(root, [over])
    assert {"fast", "slow", "nova"} == set(catalogue["kernels"])
    assert catalogue["archs"]["sm130"]["name"] == "New"
    assert validate([over], root) == []


def test_a_single_file_is_an_overlay(tmp_path: Path) -> None:
    root = mini.write(tmp_path)
    for name in ("arch/sm1.yaml", "sm1.yaml"):
        file = tmp_path / "single" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(HEAD + row("second", "page: 64"), encoding="utf-8")
        assert len(compile_arch(root, "sm1", [file])["rows"]) == 2


def test_releases_and_traps_are_added(tmp_path: Path) -> None:
    root = mini.write(tmp_path)
    over = overlay(tmp_path / "o", packages="packages:\n  demo: {releases: {2.1.0: {}}}\n", sm1=TRAP)
    assert set(compile_catalogue(root, [over])["packages"]["demo"]["releases"]) == {"1.0", "2.0", "2.0.1", "2.1.0"}
    assert compile_arch(root, "sm1", [over])["traps"][0]["trap"] == "one"
    assert compile_arch(root, "sm2", [over])["traps"][0]["trap"] == "one"


def compile_one(root: Path, overlays: list[Path]) -> object:
    return compile_arch(root, "sm1", overlays)


def compile_everything(root: Path, overlays: list[Path]) -> object:
    return compile_catalogue(root, overlays)


@pytest.mark.parametrize(
    ("files", "what"),
    [
        ({"sm1": HEAD + row("first", "page: 64")}, "kernels.fast/first"),
        ({"sm1": HEAD + row("added", "page: 64")}, "kernels.fast/added"),
        ({"calls": "calls:\n  zero: {meaning: Other.}\n"}, "calls.zero"),
        ({"kernels": "kernels:\n  fast: {name: Other}\n"}, "kernels.fast.name"),
        ({"kernels": "default_order: {decode: [slow]}\nkernels: {}\n"}, "default_order.decode"),
    ],
)
def test_two_overlays_that_set_the_same_thing(tmp_path: Path, files: dict[str, str], what: str) -> None:
    root = mini.write(tmp_path)
    both = [overlay(tmp_path / name, **files) for name in ("one", "two")]
    if "kernels" in files and "name" in files["kernels"]:
        overlay(tmp_path / "two", kernels="kernels:\n  fast: {name: Third}\n")
    with pytest.raises(TableError) as caught:
        (compile_everything if what[0] in "cd" else compile_one)(root, both)
    text = str(caught.value)
    assert f"two overlays set {what}" in text
    assert "one" in text
    assert "two" in text


def test_overlays_may_agree_on_the_head(tmp_path: Path) -> None:
    root = mini.write(tmp_path)
    head = "arch: sm3\nname: Three\ncompute_capability: '3.0'\nkernels:\n  fast:\n"
    both = [
        overlay(tmp_path / name, sm3=head + row(name, f"page: {page}")) for name, page in (("one", 64), ("two", 128))
    ]
    assert [r["row"] for r in compile_arch(root, "sm3", both)["rows"]] == ["one", "two"]


def test_only_the_overlays_own_problems_are_reported(tmp_path: Path) -> None:
    root = mini.write(tmp_path, calls="calls: {}\n")
    over = overlay(tmp_path / "o", sm1=HEAD + row("second", "page: 64\nzz: 1"))
    (problem,) = [p for p in validate([over], root) if p.code == "unknown-key"]
    assert problem.file.endswith("o/arch/sm1.yaml")


def test_the_environment_names_overlays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNROUTE_CAPABILITIES", os.pathsep.join(["/a", "", "/b.yaml"]))
    assert environment_overlays() == (Path("/a"), Path("/b.yaml"))


@pytest.mark.parametrize("name", ["missing", "missing.yaml", "empty"])
def test_an_overlay_that_is_not_there(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(TableError, match="overlay"):
        compile_arch(mini.write(tmp_path), "sm1", [tmp_path / name])
