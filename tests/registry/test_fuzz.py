"""Damaged tables: validation answers with problems, compilation with one kind of error, whatever was done to them."""

from __future__ import annotations

import contextlib
import random
import shutil
from pathlib import Path

import pytest

from attnroute.errors import AttnrouteError
from attnroute.registry.compile import compile_folder
from attnroute.registry.validate import validate
from tests.registry import mini

TOKENS = (
    "",
    "5",
    "[]",
    "{}",
    "null",
    "true",
    '"x"',
    "[[1]]",
    "{a: {b: 1}}",
    "..",
    "1..",
    "9..1",
    "any",
    "-",
    ":",
    "#",
    "x y",
)
LINES = (
    "    - 5",
    "    - {}",
    "  xqa: 5",
    "kernels: []",
    "like: a",
    "      like: sm1/fast/first",
    "mirrors: sm1",
    "traps: 7",
)


def damage(text: str, dice: random.Random) -> str:
    """A few lines dropped, repeated, moved, indented or with a value replaced."""
    lines = text.splitlines()
    for _ in range(dice.randint(1, 3)):
        i = dice.randrange(len(lines))
        act = dice.randrange(7)
        if act == 0:
            del lines[i]
        elif act == 1:
            lines.insert(i, lines[i])
        elif act == 2:
            lines.insert(dice.randrange(len(lines)), lines.pop(i))
        elif act == 3:
            lines[i] = " " * dice.randrange(9) + lines[i].strip()
        elif act == 4:
            lines.insert(i, dice.choice(LINES))
        else:
            head, colon, _ = lines[i].partition(":")
            lines[i] = f"{head}{colon} {dice.choice(TOKENS)}"
        if not lines:
            lines = ["x: 1"]
    return "\n".join(lines) + "\n"


FOLDER = Path(__file__).parents[2] / "capabilities"
EXTRA = """      exclusions:
        - where: {page: 16}
          outcome: raises
          why: It does.
          evidence: [{claimed: a, says: b}]
traps:
  fast:
    - trap: one
      package: {demo: 1.0..}
      where: {page: 512, features: {sinks: true}}
      outcome: faults
      why: It does.
      evidence: [{claimed: a, says: b}]
preference:
  - band: one
    phase: decode
    dtypes: {bf16: [bf16]}
    head_dim: 64
    batch: 1..9
    order: [{kernel: fast, provider: demo, versions: 1.0.., time: 1}]
    evidence: []
"""


def check(root: Path, chosen: Path, text: str) -> None:
    """Validate and compile the folder with one file replaced, then put it back."""
    whole = chosen.read_text(encoding="utf-8")
    chosen.write_text(text, encoding="utf-8")
    for problem in validate([root]):
        assert problem.code != "lint", f"{problem}\n{text}"
        assert problem.render()
    with contextlib.suppress(AttnrouteError):
        compile_folder(root)
    chosen.write_text(whole, encoding="utf-8")


@pytest.mark.parametrize("seed", range(4))
def test_damaged_tables(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    lint = "exceptions:\n  - {rule: overlap, at: sm1/fast/first, why: w}\n"
    root = mini.write(tmp_path, sm1=mini.SM1 + EXTRA, lint=lint)
    files = sorted(root.rglob("*.yaml"))
    for _ in range(40):
        chosen = dice.choice(files)
        check(root, chosen, damage(chosen.read_text(encoding="utf-8"), dice))


def test_damaged_engine(tmp_path: Path) -> None:
    dice = random.Random(0)
    root = mini.write(tmp_path)
    (root / "engines").mkdir()
    engine = root / "engines" / "vllm.yaml"
    shutil.copy(FOLDER / "engines" / "vllm.yaml", engine)
    for _ in range(10):
        check(root, engine, damage(engine.read_text(encoding="utf-8"), dice))
