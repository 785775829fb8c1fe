"""Reads a Hugging Face config.json (target or drafter) and says what KV-cache groups and recurrent state it needs."""

from __future__ import annotations

from attnroute.models.families import family_of, known_types
from attnroute.models.family import Family
from attnroute.models.model import Layer, Model, StateSpec, StateTensor
from attnroute.models.read import read_model

__all__ = ["Family", "Layer", "Model", "StateSpec", "StateTensor", "family_of", "known_types", "read_model"]
