"""An operator's command line."""

from __future__ import annotations

import pytest

from attnroute.engines.vllm_args import parse
from attnroute.errors import UsageError

# What the stored excerpt of vllm-project/vllm#53111 shows of its reproducer, which breaks off after the backend; the
# last flag is ours, since 0.33.0 otherwise refuses the model for its image masks. Below, #43232's.
GEMMA = """vllm serve nvidia/Gemma-4-26B-A4B-NVFP4 \\
  --attention-backend FLASHINFER \\
  --language-model-only"""
XQA = """
VLLM_KV_CACHE_LAYOUT=HND FLASHINFER_DISABLE_VERSION_CHECK=1 \\
vllm serve "Qwen/Qwen3-30B-A3B-FP8" --attention-backend FLASHINFER --kv-cache-dtype fp8 \\
  --max-model-len 32768 --max-num-seqs 16 --gpu-memory-utilization 0.85 \\
  --enable-prefix-caching --no-enable-log-requests
"""


def test_pull_request_53111() -> None:
    found = parse(GEMMA)
    assert found.model == "nvidia/Gemma-4-26B-A4B-NVFP4"
    assert found.options.backend == "FLASHINFER"
    assert found.text_only
    assert found.ignored == ()


def test_variables_and_ignored_flags() -> None:
    found = parse(XQA)
    options = found.options
    assert (options.layout, options.kv_cache_dtype, options.max_model_len, options.prefix_caching) == (
        "HND",
        "fp8",
        32768,
        True,
    )
    assert found.gpu_memory_utilization == 0.85
    assert found.ignored == ("FLASHINFER_DISABLE_VERSION_CHECK", "--max-num-seqs", "--no-enable-log-requests")


def test_json_short_and_dotted_flags() -> None:
    found = parse(
        "vllm serve M -tp 4 -dcp=2 --attention-config "
        '\'{"backend_per_kind": {"sliding_window": "FLASH_ATTN"}, "flash_attn_version": 3}\' '
        "--attention-config.use_trtllm_attention false --speculative-config "
        '\'{"method": "dflash", "model": "D", "num_speculative_tokens": 7}\' '
        "--kv-cache-dtype-skip-layers 0 31 sliding_window --no-enable-prefix-caching --block-size=64 "
        "--max-model-len 128k "
        "--max-num-batched-tokens 4096"
    )
    options = found.options
    assert (options.tp, options.dcp, options.block_size, options.max_model_len) == (4, 2, 64, 128000)
    assert options.backend_per_kind == (("sliding_window", "FLASH_ATTN"),)
    assert (options.flash_attn_version, options.use_trtllm_attention) == (3, False)
    assert (found.method, found.draft_model, options.num_speculative_tokens) == ("dflash", "D", 7)
    assert options.skip_layers == ("0", "31", "sliding_window")
    assert not options.prefix_caching
    assert options.max_in_flight_tokens == 8192


def test_auto_and_model_flag() -> None:
    found = parse("vllm serve --model M --attention-backend auto --max-model-len auto --kv-cache-memory-bytes 2G")
    assert (found.model, found.options.backend, found.options.max_model_len) == ("M", None, None)
    assert found.options.auto_fit
    assert parse("vllm serve M --attention-backend flashinfer").options.backend == "FLASHINFER"  # vLLM upper-cases it
    assert found.options.kv_memory == 2 << 30


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("sglang serve M", "no `vllm serve`"),
        ("vllm serve M --block-size sixteen", "--block-size: 'sixteen' cannot be read"),
        ("vllm serve M --attention-config '{'", "--attention-config: '{' cannot be read"),
        ("vllm serve M --attention-config '[]'", "a JSON object is needed"),
        ("vllm serve M --block-size", "--block-size needs a value"),
        ("vllm serve M 'x", "cannot be split"),
        ('vllm serve M --speculative-config \'{"num_speculative_tokens": "7"}\'', "a whole number is needed"),
    ],
)
def test_errors(command: str, words: str) -> None:
    with pytest.raises(UsageError, match=words.replace("[", r"\[").replace("{", r"\{")):
        parse(command)


def test_mistyped_flag_is_named() -> None:
    assert parse("vllm serve M --blocksize 64").ignored == ("--blocksize (did you mean --block-size?)",)
