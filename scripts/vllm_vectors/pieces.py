"""All vector files, in the order they are written."""

from __future__ import annotations

from . import (
    alignment,
    blocks,
    capacity,
    declared,
    flashinfer,
    layers,
    layouts,
    pages,
    planning,
    selection,
    validation,
    versions,
)

ROOMS = (
    versions,
    declared,
    blocks,
    pages,
    alignment,
    layers,
    validation,
    selection,
    planning,
    capacity,
    layouts,
    flashinfer,
)
ALL = tuple(piece for room in ROOMS for piece in room.PIECES)
