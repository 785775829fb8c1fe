"""Small capability tables in a temporary folder, for tests that break them."""

from __future__ import annotations

from textwrap import dedent
from typing import TYPE_CHECKING

from attnroute.registry.dims import DIMENSIONS, FEATURE_CODES
from attnroute.registry.validate import validate

if TYPE_CHECKING:
    from pathlib import Path

    from attnroute.registry.problems import Problem

KERNELS = """
default_order: {decode: [fast, slow]}
kernels:
  fast:
    name: Fast
    family: demo
    about: A kernel that does not exist.
    kinds: [gqa]
    providers:
      demo: {module: demo}
      other: {module: other}
    rows:
      - row: base
        phase: [decode]
        storage: [paged]
        head_dim: 64..256/64
        page: [16, 32]
        dtypes: {bf16: [bf16, fp8_e4m3]}
        group_ratio: 1..16
        features: {window: true, lse: false}
        env: {nvcc: true}
        call: [zero]
        exclusions:
          - where: {head_dim: 256, page: 16}
            outcome: faults
            why: It crashes.
            evidence: [{claimed: notes, says: it crashes}]
        evidence:
          - {source: demo 1.0, path: "demo/a.py:3", match: "head_dim", every_arch: true}
          - {claimed: elsewhere, says: not inherited}
  slow:
    name: Slow
    family: demo
    about: Another kernel that does not exist.
    kinds: [gqa]
    providers:
      demo: {module: demo}
"""
PACKAGES = """
packages:
  demo: {module: demo, about: A package., releases: {1.0: {}, "2.0": {}, 2.0.1: {}}}
  other: {module: other, about: Another., releases: {1.0.0: {pins: {demo: 2.0.1}}}}
""".replace("{1.0: {}", '{"1.0": {}')
CODES = sorted({d.code for d in DIMENSIONS if d.code} | set(FEATURE_CODES.values()))
REASONS = "reasons:\n" + "".join(f"  {code}: {{meaning: m, do: d}}\n" for code in CODES)
CALLS = "calls:\n  zero: {meaning: Fill with zeros.}\n  warm: {meaning: Run once.}\n"
SM1 = """
arch: sm1
name: One
compute_capability: "1.0"
kernels:
  fast:
    - row: first
      like: fast/base
      package: {demo: 1.0..}
      seen: ["1.0", 2.0.1]
"""
SM2 = """
arch: sm2
name: Two
compute_capability: "2.0"
mirrors: sm1
kernels: {}
"""


def write(folder: Path, **files: str) -> Path:
    """The small tables, with files replaced by keyword: `kernels`, `packages`, ..., or an architecture."""
    base = {"kernels": KERNELS, "packages": PACKAGES, "reasons": REASONS, "calls": CALLS, "sm1": SM1, "sm2": SM2}
    root = folder / "capabilities"
    (root / "arch").mkdir(parents=True, exist_ok=True)
    for name, text in (base | files).items():
        place = root / ("arch" if name.startswith("sm") else ".") / f"{name}.yaml"
        place.write_text(dedent(text).lstrip("\n"), encoding="utf-8")
    return root


def overlay(folder: Path, **files: str) -> Path:
    """An overlay folder with these files."""
    for name, text in files.items():
        place = folder / ("arch" if name.startswith("sm") else ".") / f"{name}.yaml"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(dedent(text).lstrip("\n"), encoding="utf-8")
    return folder


def row(name: str, body: str = "", package: str = "{demo: 1.0..}") -> str:
    """A row of `fast` in sm1 that is like fast/base, with more keys; append to SM1."""
    text = f"""
    - row: {name}
      like: fast/base
      package: {package}
      seen: ["2.0"]
"""
    return text.lstrip("\n") + "".join(f"      {line}\n" for line in body.splitlines())


def problems(root: Path) -> list[Problem]:
    """What is wrong with the folder."""
    return validate([root])


def at(root: Path, text: str, file: str = "arch/sm1.yaml", nth: int = 1) -> tuple[int, int]:
    """Line and column where the nth occurrence of a text begins."""
    found = (root / file).read_text(encoding="utf-8")
    index = -1
    for _ in range(nth):
        index = found.index(text, index + 1)
    return found.count("\n", 0, index) + 1, index - found.rfind("\n", 0, index)
