"""Dtype names: what configs and engines write, and what attnroute calls it."""

from __future__ import annotations

from attnroute.errors import UsageError, unknown_name

BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "fp8_e4m3": 1, "fp8_e5m2": 1, "int8": 1}

COMPUTE = {
    "bf16": "bf16", "bfloat16": "bf16",
    "fp16": "fp16", "float16": "fp16", "half": "fp16",
    "fp32": "fp32", "float32": "fp32", "float": "fp32",
}  # fmt: skip

KV = {
    **COMPUTE,
    "fp8": "fp8_e4m3", "fp8_e4m3": "fp8_e4m3", "fp8_e4m3fn": "fp8_e4m3", "float8_e4m3fn": "fp8_e4m3",
    "fp8_e5m2": "fp8_e5m2", "float8_e5m2": "fp8_e5m2",
    "nvfp4": "nvfp4",
    "int8": "int8",
    "int8_per_token_head": "int8",
    "fp8_per_token_head": "fp8_e4m3",
}  # fmt: skip

PER_TOKEN_HEAD = "per_token_head_scales"  # noqa: S105  a trait, not a secret


def dtype_bytes(dtype: str) -> int:
    """Bytes of one element; KeyError for packed formats (nvfp4), whose size depends on the row."""
    return BYTES[dtype]


def compute_dtype(name: str, what: str = "dtype") -> str:
    """fp16, bf16 or fp32 for any common spelling ("torch.bfloat16", "half"); UsageError for others."""
    key = name.lower().removeprefix("torch.")
    if key not in COMPUTE:
        raise UsageError(f"{what}: {unknown_name('dtype', name, COMPUTE)}", code="dtype")
    return COMPUTE[key]


def kv_dtype(name: str, what: str = "kv_dtype") -> tuple[str, tuple[str, ...]]:
    """(dtype, traits) for an asked KV-cache dtype; vLLM's `*_per_token_head` names carry the trait of their scales."""
    key = name.lower().removeprefix("torch.")
    if key not in KV:
        raise UsageError(f"{what}: {unknown_name('KV-cache dtype', name, [*KV, 'auto'])}", code="kv-dtype")
    return KV[key], (PER_TOKEN_HEAD,) if key.endswith("_per_token_head") else ()
