"""The tables' dtype names and torch's dtypes."""

from __future__ import annotations

from typing import Any

from attnroute.errors import unknown_name
from attnroute.launch.errors import LaunchError

_TORCH = {
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp32": "float32",
    "fp8_e4m3": "float8_e4m3fn",
    "fp8_e5m2": "float8_e5m2",
    "int8": "int8",
    "nvfp4": "uint8",
}


def torch_dtype(name: str) -> Any:
    """torch's dtype for a table's name (`nvfp4` is stored two to a byte); raises LaunchError for an unknown one."""
    import torch

    if name not in _TORCH:
        raise LaunchError(unknown_name("dtype", name, _TORCH), code="dtype")
    return getattr(torch, _TORCH[name])


def dtype_name(dtype: Any) -> str:
    """The table's name of a torch dtype, or torch's own where the tables have none."""
    plain = str(dtype).removeprefix("torch.")
    return next((name for name, torch_name in _TORCH.items() if torch_name == plain), plain)


def is_fp8(name: str) -> bool:
    """Whether a table's dtype is one of the fp8 formats."""
    return name.startswith("fp8")
