"""Reads the golden vectors: what vLLM 0.33.0's own functions answered (README.md here says what the fields mean)."""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


@cache
def document(name: str) -> dict[str, Any]:
    """The whole file `NAME.json.gz`: `meta`, `defaults` and `cases`."""
    document: dict[str, Any] = json.loads(gzip.decompress((HERE / f"{name}.json.gz").read_bytes()))
    return document


def names() -> list[str]:
    """Every vector file's name."""
    return sorted(path.name.removesuffix(".json.gz") for path in HERE.glob("*.json.gz"))


def meta(name: str) -> dict[str, Any]:
    """Where the vectors come from: versions, sum of the wheel, seed, functions and the branches measured."""
    found: dict[str, Any] = document(name)["meta"]
    return found


def load(name: str, platform: str | None = "cuda") -> list[tuple[dict[str, Any], Any]]:
    """(input, expected) pairs, inputs with their defaults filled in.

    `platform` keeps that platform's cases (the few for others exist to walk every branch); None keeps all.
    """
    whole = document(name)
    filled = (({**whole["defaults"], **given}, expected) for given, expected in whole["cases"])
    return [(given, expected) for given, expected in filled if platform in (None, given["platform"])]
