"""CONTRIBUTING.md is executed: its diffs apply to the tables, validate and answer, as an overlay too, in YAML alone."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
CLI = "import sys; from attnroute.cli.main import main; sys.exit(main())"
#: The sections of the page whose diffs build on one another, in that order.
STORY = ("Add an architecture", "Add a kernel", "Correct a row")


def diff_of(section: str) -> str:
    """The one diff of a section."""
    (body,) = re.findall(rf"^## {re.escape(section)}$(.*?)(?=^## |\Z)", PAGE, re.M | re.S)
    (diff,) = re.findall(r"^```diff\n(.*?)^```$", body, re.M | re.S)
    return str(diff)


def apply(diff: str, folder: Path) -> None:
    """Apply a diff to the tree in `folder`; offsets are fine, differing context is not."""
    git = shutil.which("git")
    if git is None:
        pytest.skip("needs git to apply a diff")
    env = os.environ | {"GIT_CEILING_DIRECTORIES": str(folder.parent)}
    done = subprocess.run(
        [git, "apply", "-"], cwd=folder, input=diff, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"a diff of CONTRIBUTING.md no longer applies:\n{done.stderr}\n{diff}"


def attnroute(*arguments: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", CLI, *map(str, arguments)],
        cwd=ROOT, env=os.environ | env, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip


def explain(overlay: Path, *arguments: str) -> dict[str, dict[str, object]]:
    """Candidates by kernel."""
    done = attnroute("explain", "--format", "json", *arguments, ATTNROUTE_CAPABILITIES=str(overlay))
    assert done.returncode in (0, 1), done.stderr
    return {entry["kernel"]: entry for entry in json.loads(done.stdout)["candidates"]}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A folder that holds a copy of capabilities/."""
    shutil.copytree(ROOT / "capabilities", tmp_path / "tree" / "capabilities")
    return tmp_path / "tree"


def additions(diff: str) -> dict[str, str]:
    """File -> what a diff adds to it, below the top-level keys that its context shows: an overlay's text."""
    files: dict[str, list[str]] = {}
    current: list[str] = []
    for line in diff.splitlines():
        if line.startswith("+++ "):
            current = files.setdefault(line.removeprefix("+++ b/capabilities/"), [])
        elif line.startswith("+") or re.fullmatch(r" \w+:", line):
            current.append(line[1:])
    return {name: "\n".join(lines) + "\n" for name, lines in files.items()}


@pytest.fixture
def overlay(tmp_path: Path) -> Path:
    """The first two diffs of the page as a newcomer would write them into a folder of their own: YAML only."""
    scratch = tmp_path / "scratch"
    (scratch / "capabilities").mkdir(parents=True)
    folder = tmp_path / "overlay"
    (folder / "arch").mkdir(parents=True)
    new_arch, new_kernel = diff_of(STORY[0]), diff_of(STORY[1])
    apply(new_arch, scratch)
    parts = re.split(r"(?m)^(?=--- )", new_kernel)
    for part in filter(None, parts):
        if "arch/sm130.yaml" in part:
            apply(part, scratch)
        else:
            for name, text in additions(part).items():
                (folder / name).write_text(text, encoding="utf-8")
    shutil.copy(scratch / "capabilities" / "arch" / "sm130.yaml", folder / "arch")
    assert {path.relative_to(folder).as_posix() for path in folder.rglob("*.*")} == {
        "arch/sm130.yaml", "kernels.yaml", "packages.yaml",
    }  # fmt: skip
    return folder


def test_each_diff_applies_and_validates(tree: Path) -> None:
    for section in STORY:
        apply(diff_of(section), tree)
        done = attnroute("validate", tree / "capabilities")
        assert done.returncode == 0, f"after '{section}':\n{done.stdout}{done.stderr}"


def test_the_mistake_is_refused_with_position_and_near_miss(tree: Path) -> None:
    for section in (*STORY, "Validate"):
        apply(diff_of(section), tree)
    table = (tree / "capabilities" / "arch" / "sm130.yaml").read_text(encoding="utf-8").splitlines()
    line = next(number for number, text in enumerate(table, 1) if "head_dims" in text)
    done = attnroute("validate", tree / "capabilities")
    assert done.returncode == 1
    said = done.stdout + done.stderr
    assert f"sm130.yaml:{line}:" in said
    assert "head_dim" in said.replace("head_dims", "")


def test_a_newcomers_overlay_validates(overlay: Path) -> None:
    checked = attnroute("validate", overlay)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_a_newcomers_architecture_and_kernel_answer_from_an_overlay(overlay: Path) -> None:
    question = ("--arch", "sm130", "--q-heads", "16", "--kv-heads", "2", "--package", "nova-attn==1.2.0")

    served = explain(overlay, *question, "--head-dim", "128", "--kv-dtype", "fp8_e4m3", "--page-size", "64")
    assert served["nova"]["status"] == "chosen"
    assert served["nova"]["provider"] == "nova-attn"
    assert served["native_tc"]["status"] == "not-considered"

    refused = explain(overlay, *question, "--head-dim", "96")
    (why,) = refused["nova"]["why"]
    assert (why["code"], why["allowed"]) == ("head-dim", "64..256/64")

    both = explain(overlay, *question, "--package", "flashinfer-python==0.7.4", "--head-dim", "128")
    assert {"chosen", "accepted"} == {both["nova"]["status"], both["native_tc"]["status"]}


def test_the_overlay_leaves_other_architectures_alone(overlay: Path) -> None:
    question = (
        "--arch",
        "sm120",
        "--head-dim",
        "128",
        "--q-heads",
        "16",
        "--kv-heads",
        "2",
        "--package",
        "flashinfer-python==0.7.4",
    )
    candidates = explain(overlay, *question)
    assert candidates["xqa"]["status"] in {"chosen", "accepted"}
    assert candidates["nova"]["status"] in {"rejected", "not-considered"}


def test_the_correction_changes_the_answers(tree: Path, overlay: Path) -> None:
    for section in STORY:
        apply(diff_of(section), tree)
    shutil.copy(tree / "capabilities" / "arch" / "sm130.yaml", overlay / "arch")
    question = ("--arch", "sm130", "--head-dim", "256", "--kv-heads", "1", "--package", "nova-attn==1.2.0")

    wrong = explain(overlay, *question, "--q-heads", "16")["nova"]
    assert wrong["status"] == "known-wrong"
    assert explain(overlay, *question, "--q-heads", "8", "--page-size", "64")["nova"]["status"] == "chosen"
    (why,) = explain(overlay, *question, "--q-heads", "8", "--page-size", "32")["nova"]["why"]
    assert why["code"] == "page-size"


def test_the_commands_of_the_page_exist() -> None:
    for command in sorted(set(re.findall(r"attnroute (validate|explain|query|arch|plan)\b", PAGE))):
        assert attnroute(command, "--help").returncode == 0
