"""The toy engine of examples/ runs, and what docs/integrate.md says is what it does."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

from attnroute.planning.record import Plan

ROOT = Path(__file__).resolve().parents[2]


def toy() -> ModuleType:
    spec = importlib.util.spec_from_file_location("toy_engine", ROOT / "examples" / "toy_engine.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules["toy_engine"] = module
    spec.loader.exec_module(module)
    return module


def test_it_serves_two_head_dims() -> None:
    lines = toy().serve(str(ROOT / "examples" / "gemma-4-26b-a4b"), "sm120")
    assert re.fullmatch(r"plan [0-9a-f]{12} on 2 ranks, [\d,]+ tokens", lines[0])
    assert any(": xqa page 16 in blocks of 16" in line for line in lines)
    assert not any("nothing serves" in line for line in lines)


def test_it_is_short() -> None:
    assert len((ROOT / "examples" / "toy_engine.py").read_text().splitlines()) <= 75


def test_the_page_names_what_exists() -> None:
    text = (ROOT / "docs" / "integrate.md").read_text()
    for name in re.findall(r"`plan\.([a-z_]+)", text):
        assert hasattr(Plan, name) or name in Plan.__dataclass_fields__, name
