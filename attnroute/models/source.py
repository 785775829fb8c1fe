"""Reads a config.json so that every complaint can name file, line and field."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attnroute.errors import UsageError
from attnroute.models.dtypes import compute_dtype

MAX_BYTES = 4 * 1024 * 1024
MOST = 2**40
"""No number in a config is larger; a damaged file must not make a program allocate by it."""
_MOST = dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers"), 100_000)
_TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|[{}\[\]]', re.DOTALL)
_COLON = re.compile(r"\s*:")


def locate(text: str, path: Sequence[str]) -> int | None:
    """Line (from 1) of the key at `path` in JSON text, or None: `json` keeps no positions, so the text is scanned
    again.
    """
    keys: list[str | None] = []
    objects: list[bool] = []
    wanted = list(path)
    for match in _TOKEN.finditer(text):
        mark = match.group()
        if mark in "{[":
            keys.append(None)
            objects.append(mark == "{")
        elif mark in "}]":
            keys, objects = keys[:-1], objects[:-1]
        elif objects and objects[-1] and _COLON.match(text, match.end()):
            keys[-1] = json.loads(mark)
            if keys == wanted:
                return text.count("\n", 0, match.start()) + 1
    return None


@dataclass(slots=True)
class ConfigFile:
    """One JSON file: its path as the person wrote it, its text, and the object in it."""

    path: Path
    text: str
    data: dict[str, Any]

    def error(self, path: Sequence[str], message: str) -> UsageError:
        """`examples/x/config.json:12: text_config.head_dim: message`; the line is left out if the field is absent."""
        line = locate(self.text, path) if path else None
        where = f"{self.path}:{line}" if line else f"{self.path}"
        return UsageError(": ".join([where, *([".".join(path)] if path else []), message]), code="model-config")


def _no_disagreeing_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in pairs:
        if key in out and out[key] != value:
            raise ValueError(f"field {key!r} is written twice, with different values")
        out[key] = value
    return out


def read_file(path: Path) -> ConfigFile:
    """Parse one JSON object; UsageError for what cannot be read, naming the file and, where one exists, the line."""
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise UsageError(
                f"{path}: {size:,} bytes; a model config is a few kilobytes, more than {MAX_BYTES:,} are not read",
                code="model-config",
            )
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}", code="model-config") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 at byte {error.start}; JSON is UTF-8", code="model-config") from None
    try:
        data = json.loads(text, object_pairs_hook=_no_disagreeing_twins)
    except json.JSONDecodeError as error:
        hint = "the file is empty" if not text.strip() else f"not JSON: {error.msg}"
        raise UsageError(f"{path}:{error.lineno}:{error.colno}: {hint}", code="model-config") from None
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise UsageError(f"{path}: {reason}", code="model-config") from None
    if not isinstance(data, dict):
        raise UsageError(f"{path}: holds {_kind(data)}, a model config is an object {{...}}", code="model-config")
    return ConfigFile(path, text, data)


def config_path(path: str | Path) -> Path:
    """The config.json meant by a file or a folder; UsageError if there is none."""
    asked = Path(path)
    if asked.is_dir():
        inside = asked / "config.json"
        if not inside.is_file():
            found = ", ".join(sorted(p.name for p in asked.glob("*.json"))[:5])
            raise UsageError(
                f"{asked}: a folder without config.json" + (f" (it has {found})" if found else ""), code="model-config"
            )
        return inside
    if not asked.exists():
        raise UsageError(
            f"{asked}: no such file or folder; name a Hugging Face config.json or the folder that holds it"
            " (models are not downloaded)",
            code="model-config",
        )
    return asked


def _kind(value: object) -> str:
    names = {
        dict: "an object",
        list: "a list",
        str: "a string",
        bool: "a truth value",
        int: "a number",
        float: "a number",
        type(None): "null",
    }
    return names.get(type(value), type(value).__name__)


@dataclass(slots=True)
class Fields:
    """The part of a config that describes the language model, with a family's defaults underneath.

    Getters treat null as absent, as transformers does. A default that is used is remembered in `defaulted`.
    """

    file: ConfigFile
    path: tuple[str, ...]
    data: Mapping[str, Any]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    defaulted: dict[str, Any] = field(default_factory=dict)

    def error(self, name: str, message: str) -> UsageError:
        """An error about one (dotted) field of this part."""
        return self.file.error((*self.path, *name.split(".")), message)

    def raw(self, name: str) -> Any:
        """The value of a dotted field, None if absent or null."""
        value: Any = self.data
        for part in name.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if value is None and self.defaults.get(name) is not None:
            value = self.defaulted[name] = self.defaults[name]
        return value

    def has(self, name: str) -> bool:
        """Whether the file itself (not a default) gives the field a value."""
        return self.data.get(name) is not None

    def integer(self, name: str, *, least: int = 1) -> int | None:
        """A whole number of at least `least`, None if absent."""
        return self.as_integer(name, self.raw(name), least=least)

    def as_integer(self, name: str, value: Any, *, least: int = 1) -> int | None:
        """Check a value that was found under `name`."""
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(name, f"{_show(value)} is {_kind(value)}, a whole number is needed")
        if value < least:
            raise self.error(name, f"{value} is too small, at least {least} is needed")
        if value > _MOST.get(name, MOST):
            raise self.error(name, f"{_show(value)} is too large, at most {_MOST.get(name, MOST):,} is believed")
        return value

    def first_integer(self, *names: str, least: int = 1) -> int | None:
        """The first of several spellings that is there."""
        for name in names:
            value = self.integer(name, least=least)
            if value is not None:
                return value
        return None

    def require(self, *names: str) -> int:
        """Like `first_integer`, but missing is an error that names the first spelling."""
        value = self.first_integer(*names)
        if value is None:
            inside = f" in {'.'.join(self.path)}" if self.path else ""
            line = locate(self.file.text, self.path) if self.path else None
            also = f" (nor {', '.join(names[1:])})" if len(names) > 1 else ""
            where = f"{self.file.path}:{line}" if line else f"{self.file.path}"
            raise UsageError(f"{where}: no {names[0]}{inside}{also}, which is needed", code="model-config")
        return value

    def number(self, name: str) -> float | None:
        """A positive number, None if absent."""
        value = self.raw(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
            raise self.error(name, f"{_show(value)} is not a positive number")
        return float(value)

    def flag(self, name: str) -> bool | None:
        """A truth value, None if absent."""
        value = self.raw(name)
        if value is not None and not isinstance(value, bool):
            raise self.error(name, f"{_show(value)} is {_kind(value)}, true or false is needed")
        return value

    def text(self, name: str) -> str | None:
        """A string, None if absent."""
        value = self.raw(name)
        if value is not None and not isinstance(value, str):
            raise self.error(name, f"{_show(value)} is {_kind(value)}, a string is needed")
        return value

    def dtype(self, name: str) -> str | None:
        """A compute dtype (fp16, bf16, fp32), None if absent or "auto"."""
        value = self.text(name)
        if value is None or value == "auto":
            return None
        try:
            return compute_dtype(value)
        except UsageError as error:
            raise self.error(name, str(error).removeprefix("dtype: ")) from None

    def items(self, name: str) -> list[Any] | None:
        """A list, None if absent."""
        value = self.raw(name)
        if value is not None and not isinstance(value, list):
            raise self.error(name, f"{_show(value)} is {_kind(value)}, a list is needed")
        return value

    def mapping(self, name: str) -> Mapping[str, Any]:
        """An object, empty if absent."""
        value = self.raw(name)
        if value is not None and not isinstance(value, dict):
            raise self.error(name, f"{_show(value)} is {_kind(value)}, an object is needed")
        return value or {}


def _show(value: object) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 40 else text[:37] + "..."


NESTED = (
    ("text_config",),
    ("llm_config",),
    ("language_config",),
    ("thinker_config", "text_config"),
    ("transformer_layer_config",),
)


def parts(file: ConfigFile) -> tuple[Fields, Fields]:
    """(the whole file, the part of it that describes the language model: itself, or a nested config)."""
    root = Fields(file, (), file.data)
    for path in NESTED:
        data: Any = file.data
        for key in path:
            data = data.get(key) if isinstance(data, dict) else None
        if isinstance(data, dict) and any(key in data for key in ("model_type", "hidden_size", "num_hidden_layers")):
            return root, Fields(file, path, data)
    return root, Fields(file, (), file.data)
