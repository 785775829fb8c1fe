"""Groups and states that the planning tests share."""

from __future__ import annotations

from pathlib import Path

from attnroute.models import Model, read_model

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
FLASHINFER = {"flashinfer-python": "0.7.4"}
OLD = {"flashinfer-python": "0.6.16.post3"}


def model(name: str, **options: object) -> Model:
    return read_model(EXAMPLES / name, **options)  # type: ignore[arg-type]
