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
    assert "the longest context that fits is" in " ".join(err.split())
    code, _, err = run(capsys, GEMMA, "--arch", "sm120", "--tp", "3")
    assert code == 2
    assert "possible sizes: 1 2" in " ".join(err.split())
    code, _, err = run(capsys, GEMMA, "--arch", "sm120", "--draft", GEMMA)
    assert code == 2
    assert "--num-speculative-tokens" in " ".join(err.split())
    code, _, err = run(capsys, "--arch", "sm120")
    assert code == 2
    assert "MODEL is missing" in " ".join(err.split())


def test_sizes() -> None:
    assert memory("105GiB") == 105 << 30
    assert memory("80 GB") == 80 * 10**9
    assert memory("4096") == 4096
    assert memory("1.5k") == 1536
    with pytest.raises(Exception, match="no size"):
        memory("lots")


QWEN = str(ROOT / "examples/qwen3.8-27b/config.json")
DRAFTER = str(ROOT / "examples/qwen3.8-27b-dflash2/config.json")
FOUNDING = [QWEN, "--draft", DRAFTER, "--num-speculative-tokens", "7", "--arch", "sm100", "--engine", "vllm",
            "--compare", "model-wide", "--kv-memory", "104.9GiB", "--max-model-len", "16384"]  # fmt: skip


def rows(out: str) -> dict[str, list[str]]:
    """The comparison by its first column."""
    lines = out[out.index("COMPARE") :].split("\n\n", maxsplit=1)[0].splitlines()
    cells = [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in lines]
    return {name: rest for name, *rest in cells}


def test_both_columns_of_the_founding_table(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, *FOUNDING)
    assert code == 0
    assert all(len(line) <= 80 for line in out.splitlines())
    table = rows(out)
    assert table["block size, tokens"] == ["832", "896"]
    assert table["Mamba padding"] == ["1.71 %", "9.54 %"]
    assert table["KV capacity, tokens"][2] == "x 1.047"
    assert table["draft: backend"] == ["FLASH_ATTN", "FLASH_ATTN"]


def test_a_block_that_throws_the_drafter_off(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, *FOUNDING, "--block-size", "64")
    assert code == 0
    table = rows(out)
    assert table["draft: backend"] == ["FLASH_ATTN", "FLASHINFER"]
    assert table["draft: draft"][0] == "fa4"
    flat = " ".join(out.split())
    assert "FLASH_ATTN thrown off: block_size not supported" in flat
    assert "no CUDA graph can replay" in flat


def test_what_to_type_into_vllm(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, GEMMA, "--arch", "sm120", "--package", OLD, "--kv-dtype", "fp8_e4m3")
    assert code == 0
    flat = " ".join(out.split())
    assert "IN vLLM 0.33.0 (pins flashinfer-python 0.7.2.post1, not 0.6.16.post3)" in flat
    assert "by default TRITON_ATTN (triton) on all layers" in flat
    assert "this plan --attention-backend FLASHINFER --kv-cache-dtype fp8_e4m3" in flat


def test_an_operator_s_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    """vLLM PR #53111's: Gemma-4 on FlashInfer with XQA."""
    command = (
        "vllm serve google/gemma-4-26B-A4B-it --attention-backend FLASHINFER --kv-cache-dtype fp8"
        """ --attention-config '{"use_trtllm_attention": true}' --language-model-only --max-model-len 160000"""
        " --max-num-seqs 4"
    )
    code, out, _ = run(capsys, GEMMA, "--arch", "sm120", "--from-vllm-args", command)
    assert code == 0
    flat = " ".join(out.split())
    assert "engine vllm" in flat
    assert "as given FLASHINFER (xqa) on sliding FLASHINFER (native_tc) on global" in flat
    assert "reverting this KV-cache group to native FlashInfer decode" in flat
    assert "not read --max-num-seqs" in flat
    code, _, err = run(capsys, "--arch", "sm120", "--from-vllm-args", command)
    assert code == 2
    assert "google/gemma-4-26B-A4B-it is no file or folder here" in " ".join(err.split())
    code, _, err = run(capsys, GEMMA, "--arch", "sm120", "--from-vllm-args", "vllm bench latency")
    assert code == 2
    assert "no `vllm serve`" in err


def test_layers_that_keep_the_model_s_dtype_are_a_group_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    command = "vllm serve M --kv-cache-dtype fp8 --kv-cache-dtype-skip-layers 0 1"
    model = str(ROOT / "examples/qwen3-8b/config.json")
    code, out, _ = run(capsys, model, "--arch", "sm90", "--from-vllm-args", command, "--format", "json")
    assert code == 0
    groups = {g["name"]: g for g in json.loads(out)["groups"]}
    assert {name: len(g["layers"]) for name, g in groups.items()} == {"full-bf16": 2, "full-fp8_e4m3": 34}
    assert [groups[name]["shape"]["kv_dtype"] for name in sorted(groups)] == ["bf16", "fp8_e4m3"]


def test_what_to_type_says_drafts_and_state(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(
        capsys, *FOUNDING, "--state-dtype", "bf16", "--max-num-batched-tokens", "8192", "--format", "json"
    )
    assert code == 0
    flags = json.loads(out)["in_vllm"]["flags"]
    assert "--mamba-ssm-cache-dtype bfloat16" in flags
    assert "--max-num-batched-tokens 8192" in flags
    drafts = next(flag for flag in flags if flag.startswith("--speculative-config"))
    assert json.loads(drafts.split(" ", 1)[1].strip("'")) == {"model": DRAFTER, "num_speculative_tokens": 7}


def test_speed_names_the_phases_that_were_measured(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, QWEN, "--arch", "sm90", "--engine", "vllm")
    assert code == 0
    assert "measured: fa3 in decode; by the default order: fa3 in prefill" in " ".join(out.split())
    code, out, _ = run(capsys, str(ROOT / "examples/whisper-large-v3/config.json"), "--arch", "sm90")
    assert "nothing measured on sm90 for these groups and kernels" in " ".join(out.split())


def test_no_concession_is_counted_where_nothing_serves(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, str(ROOT / "examples/mimo-v2-flash/config.json"), "--arch", "sm120")
    assert code == 1
    assert "given up" not in out
    assert "every phase that is served has the first kernel of its order" in " ".join(out.split())


def test_a_context_that_vllm_fits_to_the_memory(capsys: pytest.CaptureFixture[str]) -> None:
    command = "vllm serve M --max-model-len auto --kv-cache-memory-bytes 4G"
    model = str(ROOT / "examples/qwen3-8b/config.json")
    code, out, _ = run(capsys, model, "--arch", "sm90", "--from-vllm-args", command, "--format", "json")
    assert code == 0
    found = json.loads(out)
    assert found["kv"]["max_model_len"] == 29104  # what the error names without auto
    assert "--max-model-len auto" in found["in_vllm"]["flags"]
    code, _, err = run(capsys, model, "--arch", "sm90", "--from-vllm-args", command.replace("auto", "40960"))
    assert code == 1
    assert "the estimated maximum model length is 29104" in " ".join(err.split())
