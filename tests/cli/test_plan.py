"""The `plan` command: what a person sees, what a tool reads, exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from attnroute.cli.main import main
from attnroute.cli.plan import memory

ROOT = Path(__file__).resolve().parents[2]
GEMMA = str(ROOT / "examples/gemma-4-26b-a4b/config.json")
OLD = "flashinfer-python==0.6.16.post3"
NEW = "flashinfer-python==0.7.4"


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["plan", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


def test_one_line_a_group_and_one_warning(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, GEMMA, "--arch", "sm120", "--package", OLD)
    lines = out.splitlines()
    assert code == 0
    assert all(len(line) <= 80 for line in lines)
    assert lines[0] == "gemma-4-26b-a4b on sm120, tp 1, kv bf16 (model dtype), engine generic"
    assert lines[1].startswith("flashinfer-python 0.6.16.post3 (named); tables ")
    assert lines[3].split() == "GROUP LAYERS HEAD Q/KV WINDOW DECODE PREFILL PAGE BLOCK PROOF".split()
    assert lines[4].split()[:6] == ["sliding", "25", "256", "16/8", "1024", "xqa"]
    assert lines[5].split()[:6] == ["global", "5", "512", "16/2", "-", "native_tc"]
    assert sum(line.startswith("! ") for line in lines) == 1
    assert "! global cannot use xqa: head dim 512, declared 16..256 step 16" in out
    assert "  would be accepted with flashinfer-python 0.6.18" in out
    assert "nothing measured on sm120: order is the default, not a claim" in out


def test_a_newer_package_says_what_decided(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, GEMMA, "--arch", "sm120", "--package", NEW)
    assert code == 0
    assert [line.split()[5] for line in out.splitlines()[4:6]] == ["xqa", "xqa"]
    assert "first kernel of its order" in out
    assert "native_tc instead of xqa" in out
    assert "! " not in out


def test_drafts_on_sm120(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, GEMMA, "--arch", "sm120", "--package", NEW, "--num-speculative-tokens", "4")
    assert code == 0
    flat = " ".join(out.split())
    assert "verify steps of 5 tokens per request: full graphs in all layers" in flat
    assert "all 30 layers to xqa in global; native_tc there would keep them" in flat


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, GEMMA, "--arch", "sm120", "--package", OLD, "--format", "json")
    data = json.loads(out)
    assert code == 0
    assert data["packages"] == {"flashinfer-python": "0.6.16.post3"}
    assert [g["phases"]["decode"]["kernel"] for g in data["groups"]] == ["xqa", "native_tc"]


@pytest.mark.parametrize("example", sorted(p.parent.name for p in ROOT.glob("examples/*/config.json")))
def test_every_example_stays_within_80_columns(capsys: pytest.CaptureFixture[str], example: str) -> None:
    path = str(ROOT / "examples" / example)
    code, out, err = run(capsys, path, "--arch", "sm100", "--explain")
    assert code in (0, 1)
    assert "Traceback" not in err
    assert all(len(line) <= 80 for line in out.splitlines()), out


def test_nothing_serves_it(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, GEMMA, "--arch", "sm120", "--package", OLD, "--min-evidence", "measured")
    assert code == 1
    assert "nothing serves decode" in out


def test_errors_are_one_message(capsys: pytest.CaptureFixture[str]) -> None:
    small = [GEMMA, "--arch", "sm120", "--package", NEW, "--kv-memory", "1GiB", "--max-model-len", "131072"]
    code, _, err = run(capsys, *small)
    assert code == 1
    assert "the longest context that fits is" in err
    code, _, err = run(capsys, GEMMA, "--arch", "sm120", "--tp", "3")
    assert code == 2
    assert "possible sizes: 1 2" in err
    code, _, err = run(capsys, GEMMA, "--arch", "sm120", "--draft", GEMMA)
    assert code == 2
    assert "--num-speculative-tokens" in err
    code, _, err = run(capsys, "--arch", "sm120")
    assert code == 2
    assert "MODEL is missing" in err


def test_sizes() -> None:
    assert memory("105GiB") == 105 << 30
    assert memory("80 GB") == 80 * 10**9
    assert memory("4096") == 4096
    assert memory("1.5k") == 1536
    with pytest.raises(Exception, match="no size"):
        memory("lots")
