"""The golden vectors are what README.md says: enough of them, their branches measured, small, from one wheel."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from types import ModuleType

HERE = Path(__file__).parent


def _loader() -> ModuleType:
    spec = importlib.util.spec_from_file_location("attnroute_vectors_load", HERE / "load.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


LOAD = _loader()


@pytest.mark.parametrize("name", LOAD.names())
def test_a_file_has_enough_cases_and_took_the_branches(name: str) -> None:
    meta = LOAD.meta(name)
    assert meta["count"] >= 5000
    assert len(LOAD.load(name, platform=None)) == meta["count"]
    short = {f for f, found in meta["functions"].items() if found["percent"] < 95}
    assert short <= set(meta["unreached"]), "a function below 95 % of its branches needs its reason"


def test_all_files_come_from_one_wheel_and_the_readme_names_them() -> None:
    assert len({(LOAD.meta(n)["vllm"], LOAD.meta(n)["sha256"]) for n in LOAD.names()}) == 1
    readme = (HERE / "README.md").read_text()
    assert [n for n in LOAD.names() if f"| {n} |" not in readme] == []


def test_all_files_together_stay_small() -> None:
    assert sum(path.stat().st_size for path in HERE.glob("*.json.gz")) < 4_000_000


def test_founding_numbers_are_among_the_cases() -> None:
    state = [{"shapes": [[10, 10240], [48, 128, 128]], "state_dtypes": ["bf16", "fp32"]}]
    found = {
        (tuple(b["name"] for b in given["backends"]), expected["block_size"])
        for given, expected in LOAD.load("block_size_for_model")
        if given["states"] == state and given["cache_dtype"] == "auto" and not given["user_block_size"]
        if "block_size" in expected and given["hybrid"] and not given["skip_layers"] and given["cc"] == "10.0"
    }
    assert (("FLASHINFER",), 832) in found
    assert (("FLASHINFER", "FLASH_ATTN"), 896) in found
