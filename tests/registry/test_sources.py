"""Quoted sources: found, moved, gone, or in a package that is not at hand."""

from __future__ import annotations

import io
import tarfile
import zipfile
from importlib.metadata import version
from typing import TYPE_CHECKING

import pytest

from attnroute.registry.sources import normal, same_version, validate_sources
from tests.registry import mini
from tests.registry.mini import SM1, at

if TYPE_CHECKING:
    from pathlib import Path

BODY = "one\ntwo\nhead_dim here\nfour\n" + "\n" * 20 + "far away\n"


def tree(folder: Path) -> Path:
    place = folder / "demo-1.0" / "demo"
    place.mkdir(parents=True)
    (place / "a.py").write_text(BODY, encoding="utf-8")
    return folder / "demo-1.0"


def wheel(folder: Path) -> Path:
    path = folder / "demo-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("demo/a.py", BODY)
    return path


def sdist(folder: Path) -> Path:
    path = folder / "demo-1.0.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        info = tarfile.TarInfo("demo-1.0/demo/a.py")
        info.size = len(BODY)
        archive.addfile(info, io.BytesIO(BODY.encode()))
    return path


@pytest.mark.parametrize("make", [tree, wheel, sdist])
@pytest.mark.parametrize("outer", [False, True], ids=["itself", "its folder"])
def test_packages_at_hand(tmp_path: Path, make: object, outer: bool) -> None:
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    path = make(shelf)  # type: ignore[operator]
    evidence = [
        '{source: demo 1.0, path: "demo/a.py:24", match: far away}',
        '{source: demo 1.0, path: "demo/a.py:2", match: far away}',
        '{source: demo 1.0, path: "demo/a.py:2", match: nowhere}',
        '{inferred: demo 1.0, because: so, path: "demo/b.py:2", match: x}',
        '{source: demo 2.0, path: "demo/a.py:2", match: x}',
    ]
    root = mini.write(tmp_path, sm1=SM1 + f"      evidence: [{', '.join(evidence)}]\n")
    report = validate_sources(root, [shelf if outer else path], installed=False)
    assert (report.checked, report.fine, dict(report.skipped)) == (5, False, {"demo 2.0": 1})
    assert report.render()[-2:] == [
        "5 quoted sources looked up, 3 of them moved or gone",
        "not at hand: demo 2.0 (1 of the quotes)",
    ]
    found = [(p.line, p.col, p.code, p.hint) for p in report.problems]
    assert found == [
        (*at(root, '"demo/a.py:2"', nth=1), "source-drift", "write demo/a.py:25"),
        (*at(root, "nowhere"), "source-drift", None),
        (*at(root, '"demo/b.py:2"'), "source-file", None),
    ]


def test_installed_packages(tmp_path: Path) -> None:
    have = version("packaging")
    table = (
        SM1.replace("packaging", "")
        + f"      evidence: [{{source: packaging {have}, path: 'packaging/version.py:1', match: '# '}}]\n"
    )
    report = validate_sources(mini.write(tmp_path, sm1=table))
    assert (report.checked, report.problems, dict(report.skipped)) == (1, [], {"demo 1.0": 1})


def test_nothing_outside_a_tree_is_read(tmp_path: Path) -> None:
    path = tree(tmp_path)
    (tmp_path / "secret").write_text("head_dim\n", encoding="utf-8")
    root = mini.write(
        tmp_path, sm1=SM1 + '      evidence: [{source: demo 1.0, path: "../secret:1", match: head_dim}]\n'
    )
    assert [p.code for p in validate_sources(root, [path], installed=False).problems] == ["source-file"]


def test_a_broken_archive_is_not_at_hand(tmp_path: Path) -> None:
    broken = tmp_path / "demo-1.0-py3-none-any.whl"
    broken.write_bytes(b"no zip")
    assert validate_sources(mini.write(tmp_path), [broken], installed=False).skipped == {"demo 1.0": 1}


def test_names_and_versions() -> None:
    assert normal("Dao-AILab/Flash_Attn.x") == "flash-attn-x"
    assert same_version("2.8.3.post1", "2.8.3.post1")
    assert same_version("0251105a", "git+0251105abcdef")
    assert not same_version("025", "git+0251105a")
    assert not same_version("1.0", "2.0")


def test_an_overlay_is_checked_alone(tmp_path: Path) -> None:
    more = '      evidence: [{source: demo 1.0, path: "demo/a.py:9", match: four}]\n'
    over = mini.overlay(tmp_path / "o", sm1="arch: sm1\nkernels:\n  fast:\n" + mini.row("second") + more)
    report = validate_sources(over, [tree(tmp_path)], installed=False)
    assert (report.checked, [p.hint for p in report.problems]) == (1, ["write demo/a.py:4"])
