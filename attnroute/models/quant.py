"""The KV-cache dtype that a checkpoint declares, so that `auto` can honour it.

As vllm 0.33.0 reads it: a `kv_cache_scheme` of 8-bit floats (compressed-tensors, ModelOpt) is fp8_e4m3, one of 4-bit
floats is nvfp4, ModelOpt's `kv_cache_quant_algo` is FP8 or NVFP4; hf_quant_config.json beside config.json counts
where config.json is silent. What is declared but not understood is a warning, and the cache keeps the model's dtype.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnroute.errors import UsageError
from attnroute.models.dtypes import KV
from attnroute.models.source import ConfigFile, Fields, read_file

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Declared:
    """A declared KV dtype (None: none), the field that declares it, layers exempted from it, and doubts."""

    dtype: str | None = None
    field: str = ""
    skip: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def declared_kv(root: Fields, text: Fields) -> Declared:
    """What config.json (its root, then its language part), then hf_quant_config.json, declare."""
    in_config = _from_config(root, text)
    beside = root.file.path.with_name("hf_quant_config.json")
    if not beside.is_file():
        return in_config
    file = read_file(beside)
    other = _scan(file, _inner(file.data), "quantization")
    if in_config.dtype is None:
        if other.dtype or other.warnings:
            return Declared(
                other.dtype,
                f"hf_quant_config.json: {other.field}",
                in_config.skip or other.skip,
                in_config.warnings + other.warnings,
            )
        return in_config
    if other.dtype and other.dtype != in_config.dtype:
        doubt = f"{beside.name} declares KV {other.dtype}, {root.file.path.name} {in_config.dtype}; the latter is used"
        return Declared(in_config.dtype, in_config.field, in_config.skip, (*in_config.warnings, doubt))
    return in_config


def _from_config(root: Fields, text: Fields) -> Declared:
    for fields in (root, text):
        for name in ("quantization_config", "compression_config"):
            data = fields.mapping(name)
            if data:
                return _scan(root.file, _inner(data), ".".join((*fields.path, name)))
    for fields in (text, root):
        stated = fields.text("kv_cache_dtype")
        if stated is not None:
            return _scan(root.file, {"kv_cache_dtype": stated}, "")
    return Declared()


def _inner(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """ModelOpt nests what matters under `quantization`; both levels count, the inner one first."""
    nested = data.get("quantization")
    return {**data, **nested} if isinstance(nested, dict) else data


def _scan(file: ConfigFile, data: Mapping[str, Any], where: str) -> Declared:
    raw_skip = data.get("kv_cache_dtype_skip_layers")
    if raw_skip is not None and not isinstance(raw_skip, list):
        raise UsageError(f"{file.path}: {where}.kv_cache_dtype_skip_layers: a list is needed", code="model-config")
    skip = tuple(str(entry) for entry in raw_skip or ())
    for name in ("kv_cache_scheme", "kv_cache_quant_algo", "kv_cache_dtype"):
        value = data.get(name)
        if value is None or value == "auto":
            continue
        field = f"{where}.{name}" if where else name
        dtype = _scheme(value) if isinstance(value, dict) else _name(value)
        if dtype is None:
            doubt = (
                f"{file.path.name}: {field}: KV quantisation {_shown(value)} is not known; the model's dtype is used"
            )
            return Declared(None, field, skip, (doubt,))
        return Declared(dtype, field, skip)
    return Declared(None, "", skip)


def _scheme(scheme: Mapping[str, Any]) -> str | None:
    bits, kind = scheme.get("num_bits"), scheme.get("type")
    if kind == "float":
        return {8: "fp8_e4m3", 4: "nvfp4"}.get(bits) if isinstance(bits, int) else None
    return None


def _name(value: object) -> str | None:
    return KV.get(value.lower()) if isinstance(value, str) else None


def _shown(value: object) -> str:
    return f"{value.get('num_bits')}-bit {value.get('type')}" if isinstance(value, dict) else repr(value)
