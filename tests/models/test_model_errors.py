"""What cannot be read is refused with file, line, field, and what would be right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from attnroute.errors import UsageError
from attnroute.models import read_model
from attnroute.models.source import MAX_BYTES, locate

GOOD: dict[str, Any] = {
    "model_type": "llama",
    "dtype": "bfloat16",
    "hidden_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
}

FIELD_ERRORS: list[tuple[dict[str, Any], str]] = [
    (
        {"num_key_value_heads": 3},
        ":6: num_attention_heads: 8 query heads do not divide among 3 KV heads (num_key_value_heads)",
    ),
    ({"layer_types": ["full_attention"]}, ":8: layer_types: 1 entries, but num_hidden_layers is 2"),
    (
        {"layer_types": ["full_attention", "sliding_attenton"]},
        ":8: layer_types: layer 1 has the unknown type 'sliding_attenton'; did you mean 'sliding_attention'?",
    ),
    ({"layer_types": 3}, ":8: layer_types: a list of layer types is needed"),
    ({"layer_types": [3, 4]}, ":8: layer_types: layer 0 has the unknown type 3."),
    ({"layer_types": ["sliding_attention"] * 2}, ": no sliding_window, which is needed"),
    ({"layer_types": ["chunked_attention"] * 2}, ": no attention_chunk_size, which is needed"),
    ({"head_dim": 0}, ":8: head_dim: 0 is too small, at least 1 is needed"),
    ({"head_dim": -64}, ":8: head_dim: -64 is too small"),
    ({"head_dim": 12.5}, ":8: head_dim: 12.5 is a number, a whole number is needed"),
    ({"head_dim": "64"}, ':8: head_dim: "64" is a string, a whole number is needed'),
    ({"num_hidden_layers": True}, ":5: num_hidden_layers: true is a truth value, a whole number is needed"),
    ({"num_hidden_layers": None}, ": no num_hidden_layers (nor n_layer, n_layers, num_layers, decoder_layers), which"),
    ({"num_attention_heads": None}, "num_attention_heads: missing, and it is needed"),
    ({"hidden_size": None}, ": no hidden_size (nor n_embd, d_model, dim), which is needed"),
    ({"hidden_size": 250}, ":4: hidden_size: 250 does not divide among 8 heads (num_attention_heads)"),
    ({"num_kv_shared_layers": 2}, ":8: num_kv_shared_layers: 2 of 2 layers share a cache, none would hold one"),
    (
        {"num_kv_shared_layers": 1, "layer_types": ["full_attention", "sliding_attention"], "sliding_window": 8},
        ":8: num_kv_shared_layers: layer 1 (sliding) shares a cache, but no layer of its kind holds one",
    ),
    ({"attn_logit_softcapping": -1}, ":8: attn_logit_softcapping: -1 is not a positive number"),
    ({"dtype": "bloat16"}, ":3: dtype: unknown dtype 'bloat16': did you mean 'bfloat16'?"),
    ({"dtype": 16}, ":3: dtype: 16 is a number, a string is needed"),
    ({"quantization_config": []}, ":8: quantization_config: [] is a list, an object is needed"),
    (
        {"quantization_config": {"kv_cache_dtype_skip_layers": 3}},
        "quantization_config.kv_cache_dtype_skip_layers: a list is needed",
    ),
    ({"model_type": "deepseek_v4"}, ":2: model_type: deepseek_v4 cannot be read: its compressed sparse attention"),
    ({"model_type": "deepseek_v3"}, ": no kv_lora_rank, which is needed"),
    ({"model_type": "deepseek_v3", "kv_lora_rank": 512}, "qk_rope_head_dim: missing, and multi-head latent attention"),
    ({"model_type": "qwen3_5"}, ": no linear_num_key_heads, which is needed"),
    ({"model_type": "llama4", "no_rope_layers": [1]}, ":8: no_rope_layers: 1 entries, but num_hidden_layers is 2"),
    ({"model_type": "bamba", "attn_layer_indices": [7]}, ":8: attn_layer_indices: layer 7 does not exist"),
    ({"per_layer_config": {"1": {"head_dim": 0}}}, ": per_layer_config.1.head_dim: 0 is too small"),
]


def write(folder: Path, config: object) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(config, indent=2), encoding="utf-8")
    return path


@pytest.mark.parametrize(("change", "message"), FIELD_ERRORS)
def test_fields(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = write(tmp_path, {**GOOD, **change})
    with pytest.raises(UsageError) as caught:
        read_model(path, kv_dtype="auto", num_speculative_tokens=1)
    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)


def test_nested_field_has_its_own_line(tmp_path: Path) -> None:
    """A key of the same name in another part must not be pointed at."""
    config = {"model_type": "gemma3", "vision_config": {"head_dim": 72}, "text_config": {**GOOD, "head_dim": -1}}
    path = write(tmp_path, config)
    line = next(i for i, text in enumerate(path.read_text().splitlines(), 1) if '"head_dim": -1' in text)
    with pytest.raises(UsageError) as caught:
        read_model(path)
    assert str(caught.value) == f"{path}:{line}: text_config.head_dim: -1 is too small, at least 1 is needed"


def test_missing_in_a_nested_part_names_the_part(tmp_path: Path) -> None:
    path = write(tmp_path, {"text_config": {"model_type": "llama"}})
    with pytest.raises(UsageError, match=r":2: no num_hidden_layers in text_config"):
        read_model(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", ":1:1: the file is empty"),
        (b"{", "not JSON"),
        (b'{"a": 1,}', ":1:"),
        (b"[]", "holds a list, a model config is an object"),
        (b'"x"', "holds a string"),
        (b'{"model_type": "\xff"}', "not UTF-8 at byte 16"),
        (b'{"head_dim": 1, "head_dim": 2}', "field 'head_dim' is written twice, with different values"),
        (b"[" * 100_000, "nested too deeply"),
        (b" " * (MAX_BYTES + 1), "are not read"),
        (b'{"num_hidden_layers": ' + b"9" * 5000 + b"}", "digits"),
    ],
    ids=["empty", "open", "comma", "list", "string", "utf-8", "twice", "deep", "huge", "long number"],
)
def test_unreadable_files(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        read_model(path)
    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)


def test_missing_file_and_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no such file or folder; name a Hugging Face config\.json"):
        read_model(tmp_path / "org" / "name")
    (tmp_path / "params.json").write_text("{}")
    with pytest.raises(UsageError, match=r"a folder without config\.json \(it has params\.json\)"):
        read_model(tmp_path)


def test_a_file_that_is_not_one(tmp_path: Path) -> None:
    (tmp_path / "config.json").mkdir()
    with pytest.raises(UsageError, match=r"a folder without config\.json"):
        read_model(tmp_path / "config.json")


def test_byte_order_mark_is_forgiven(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(GOOD).encode())
    assert read_model(path).groups[0].num_q_heads == 8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tp": 3}, "tensor parallel size 3 is impossible: num_attention_heads is 8; possible sizes: 1 2 4 8"),
        ({"tp": 16}, "possible sizes: 1 2 4 8"),
        ({"tp": 0}, "tensor parallel size 0: a whole number of at least 1"),
        ({"role": "drafter"}, "role: unknown role 'drafter': did you mean 'draft'?"),
        ({"kv_dtype": "fp8_e4m4"}, "kv_dtype: unknown KV-cache dtype 'fp8_e4m4': did you mean 'fp8_e4m3'?"),
        ({"dtype": "bf61"}, "dtype: unknown dtype 'bf61'"),
        ({"skip_layers": [2]}, "skip_layers: '2' is neither 'sliding_window' nor a layer of"),
        ({"skip_layers": ["sliding"]}, "skip_layers: 'sliding' is neither"),
        ({"num_speculative_tokens": -1}, "num_speculative_tokens -1: a whole number"),
    ],
)
def test_options(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        read_model(write(tmp_path, GOOD), **options)
    assert message in str(caught.value)


def test_state_limits_tensor_parallel(tmp_path: Path) -> None:
    """8 ranks could divide the attention heads, but not the 6 value heads of the linear layers."""
    config = {**GOOD, "model_type": "qwen3_5_text", "num_attention_heads": 8, "num_key_value_heads": 8,
              "layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 2,
              "linear_num_value_heads": 6, "linear_key_head_dim": 64, "linear_value_head_dim": 64,
              "linear_conv_kernel_dim": 4}  # fmt: skip
    path = write(tmp_path, config)
    assert read_model(path, tp=2).state[0].tensors[1].shape == (3, 64, 64)
    with pytest.raises(UsageError, match=r"linear_num_key_heads is 2; possible sizes: 1 2$"):
        read_model(path, tp=8)


def test_locate() -> None:
    text = '{\n "a": {"b": "c: {\\"d\\"",\n  "d": [\n {"d": 1}],\n "e": 2},\n "d": 3}'
    assert locate(text, ["a", "d"]) == 3
    assert locate(text, ["d"]) == 6
    assert locate(text, ["a", "e"]) == 5
    assert locate(text, ["a", "z"]) is None
