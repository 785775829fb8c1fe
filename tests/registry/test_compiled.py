"""The compiled form: the wheel's one file answers as the folder does, section by section."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from attnroute.errors import UsageError
from attnroute.registry.compile import arch_ids, compile_arch, compile_folder, folder_store, write_compiled
from attnroute.registry.folders import read_section
from attnroute.registry.problems import TableError
from attnroute.registry.validate import validate
from tests.registry import mini

FOLDER = Path(__file__).parents[2] / "capabilities"


def test_the_packed_file_holds_what_the_folder_says(tmp_path: Path) -> None:
    packed = write_compiled(FOLDER, tmp_path / "out", "1.2.3")
    assert packed == tmp_path / "out" / "capabilities.json"
    store = folder_store(FOLDER)
    header = json.loads(packed.read_bytes().split(b"\n", 1)[0])
    assert (header["schema"], header["version"], header["sha256"]) == (1, "1.2.3", store.digest)
    assert set(header["sections"]) == {*store.sections, "sources"}
    for name in store.sections:
        assert read_section(packed, name) == json.loads(json.dumps(store.read(name)))
    assert compile_folder(packed) == compile_folder(FOLDER)


def test_an_overlay_over_a_packed_file(tmp_path: Path) -> None:
    packed = write_compiled(mini.write(tmp_path), tmp_path / "c.json")
    over = mini.overlay(tmp_path / "o", sm1="arch: sm1\nkernels:\n  fast:\n" + mini.row("second", "page: 64"))
    assert len(compile_arch(packed, "sm1", [over])["rows"]) == 2
    assert validate([over], packed) == []


def test_archs_in_natural_order() -> None:
    found = arch_ids(FOLDER)
    assert found.index("sm90") < found.index("sm100") < found.index("sm120")


def test_unknown_architecture_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="did you mean 'sm1'"):
        compile_arch(mini.write(tmp_path), "sm11")


@pytest.mark.parametrize(
    "text",
    ["page: {a: 1}", "dtypes: 5", "exclusions: [{where: 5}]", "exclusions: [5]", "features: 5", "call: 5", "env: 5"],
)
def test_invalid_tables_raise_one_kind_of_error(tmp_path: Path, text: str) -> None:
    root = mini.write(tmp_path, sm1=mini.SM1 + f"      {text}\n")
    with pytest.raises(TableError, match=r"sm1\.yaml:"):
        compile_arch(root, "sm1")


def test_nothing_of_another_architecture_is_read(tmp_path: Path) -> None:
    root = mini.write(tmp_path, sm3="this: [is broken", calls="so: [is this")
    assert compile_arch(root, "sm2")["rows"]
