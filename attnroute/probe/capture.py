"""Captures: what a GPU answered, as one JSON file, and the line-by-line file that survives an interruption."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from attnroute.errors import AttnrouteError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

SCHEMA = 1
_TOP = ("schema", "gpu", "arch", "driver", "cuda", "torch", "packages", "date", "bandwidth_gbs", "cases", "timings")


class CaptureError(AttnrouteError):
    """A capture cannot be read; the text names the file and what is wrong with it."""


def read_capture(path: Path) -> dict[str, Any]:
    """A capture with the fields that DESIGN names; CaptureError otherwise."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CaptureError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise CaptureError(f"{path}: not JSON ({error})") from error
    missing = [name for name in _TOP if not isinstance(data, dict) or name not in data]
    if missing:
        raise CaptureError(f"{path}: not a capture, {' '.join(missing)} missing")
    if data["schema"] != SCHEMA:
        raise CaptureError(f"{path}: schema {data['schema']}, this version reads {SCHEMA}")
    found: dict[str, Any] = data
    return found


def write_capture(path: Path, data: Mapping[str, Any]) -> None:
    """Writes a capture whole or not at all; one case a line, so that two captures can be compared by eye."""
    lines = ["{"]
    for name in _TOP:
        value = data[name]
        if name in ("cases", "timings"):
            rows = ",\n  ".join(json.dumps(row, sort_keys=False) for row in value)
            lines.append(f' "{name}": [\n  {rows}\n ],' if rows else f' "{name}": [],')
        else:
            lines.append(f" {json.dumps(name)}: {json.dumps(value)},")
    lines[-1] = lines[-1].removesuffix(",")
    text = "\n".join([*lines, "}"]) + "\n"
    json.loads(text)
    beside = path.with_name(path.name + ".tmp")
    path.parent.mkdir(parents=True, exist_ok=True)
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)


class Journal:
    """Finished cases, one JSON object a line, flushed as they come. A line cut off by a crash is dropped on reading."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> dict[str, dict[str, Any]]:
        """Records by id; of two with one id the last."""
        found: dict[str, dict[str, Any]] = {}
        if self.path.exists():
            for line in self.path.read_text(encoding="utf-8").splitlines():
                try:
                    record = json.loads(line)
                except ValueError:
                    continue
                if isinstance(record, dict) and "id" in record:
                    found[record["id"]] = record
        return found

    def append(self, record: Mapping[str, Any]) -> None:
        """Adds one record durably."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        torn = self.path.exists() and not self.path.read_bytes().endswith(b"\n") and self.path.stat().st_size > 0
        with self.path.open("a", encoding="utf-8") as file:
            file.write(("\n" if torn else "") + json.dumps(dict(record)) + "\n")
            file.flush()
            os.fsync(file.fileno())


def capture_name(gpu: str, arch: str, date: str, taken: Iterable[str]) -> str:
    """`h200-sm90-2026-11-30-1.json`, with the first number that is not taken."""
    short = gpu.lower().replace("nvidia", "").strip().split()[0].strip("-") or "gpu"
    held = set(taken)
    number = next(n for n in range(1, 10_000) if f"{short}-{arch}-{date}-{n}.json" not in held)
    return f"{short}-{arch}-{date}-{number}.json"
