"""The recurrent state of linear-attention layers: shapes after tensor parallelism, in bytes.

Formulas: `MambaStateShapeCalculator` of vllm 0.33.0 (model_executor/layers/mamba/mamba_utils.py). The convolution
state keeps kernel - 1 past inputs and, where vLLM passes them, one more per speculative token, so that a rejected
draft can be rolled back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnroute.models.dtypes import compute_dtype
from attnroute.models.model import StateTensor

if TYPE_CHECKING:
    from attnroute.models.family import State
    from attnroute.models.source import Fields


def tp_limits(fields: Fields, state: State) -> list[tuple[str, int]]:
    """(field, number) pairs that the tensor-parallel size must divide."""
    geometry = _Geometry(fields, state)
    if state.kind == "gdn":
        return [
            (geometry.name("k_heads"), geometry.get("k_heads")),
            (geometry.name("v_heads"), geometry.get("v_heads")),
        ]
    if state.kind in ("mamba2", "kda"):
        limits = [(geometry.name("heads"), geometry.get("heads"))]
        if state.kind == "mamba2" and geometry.get("groups") > 1:  # one group is replicated, several are divided
            limits.append((geometry.name("groups"), geometry.get("groups")))
        return limits
    return [(geometry.name("inner") if "inner" in state.fields else "hidden_size", geometry.inner())]


def state_tensors(
    fields: Fields, state: State, *, tp: int, dtype: str, recurrent: str, speculative: int
) -> tuple[StateTensor, ...]:
    """The tensors of one layer. `dtype` is the model's, `recurrent` the resolved dtype of the recurrent state."""
    g = _Geometry(fields, state)
    past = g.get("kernel") - 1 + (speculative if state.kind in ("gdn", "mamba2", "kda") else 0)
    if state.kind == "gdn":
        channels = 2 * g.get("k_heads") * g.get("k_dim") + g.get("v_heads") * g.get("v_dim")
        shape: tuple[int, ...] = (g.get("v_heads") // tp, g.get("v_dim"), g.get("k_dim"))
    elif state.kind == "kda":
        channels = 3 * g.get("heads") * g.get("head_dim")
        shape = (g.get("heads") // tp, g.get("head_dim"), g.get("head_dim"))
    elif state.kind == "mamba2":
        groups = g.get("groups")
        groups += 0 if groups % tp == 0 else tp - groups
        channels = g.inner() + 2 * groups * g.get("state")
        shape = (g.get("heads") // tp, g.head_dim(), g.get("state"))
    elif state.kind == "mamba1":
        channels = g.inner()
        shape = (channels // tp, g.get("state"))
    else:
        return (StateTensor("conv", (past, g.inner() // tp), dtype),)
    return (StateTensor("conv", (past, channels // tp), dtype), StateTensor("recurrent", shape, recurrent))


def recurrent_dtype(fields: Fields, state: State, dtype: str, asked: str) -> tuple[str, str | None]:
    """(dtype of the recurrent state, the field that says so or None): asked, stated in the file, the family's, the
    model's.
    """
    if asked != "auto":
        return compute_dtype(asked, "state_dtype"), None
    name, default = state.recurrent_dtype
    stated = fields.dtype(name) if name else None
    if stated is not None:
        return stated, name
    return default or dtype, None


class _Geometry:
    """The numbers of one state geometry, by the formula's own argument names."""

    def __init__(self, fields: Fields, state: State) -> None:
        self.fields = fields
        self.state = state

    def name(self, argument: str) -> str:
        """The field that holds an argument."""
        names = self.state.fields[argument]
        return next((n for n in names if self.fields.raw(n) is not None), names[0])

    def get(self, argument: str) -> int:
        return self.fields.require(*self.state.fields[argument])

    def inner(self) -> int:
        """Channels of the mixer: stated, or expand x hidden size, or heads x head dim."""
        if "inner" in self.state.fields:
            stated = self.fields.first_integer(*self.state.fields["inner"])
            if stated is not None:
                return stated
        if "expand" in self.state.fields:
            factor = self.fields.number(self.state.fields["expand"][0])
            if factor is not None:
                return int(factor * self.fields.require("hidden_size"))
        return self.get("heads") * self.get("head_dim")

    def head_dim(self) -> int:
        """Mamba-2's head dim; "auto" means inner / heads."""
        name = self.state.fields["head_dim"][0]
        if self.fields.raw(name) in (None, "auto"):
            inner, heads = self.inner(), self.get("heads")
            if inner % heads:
                raise self.fields.error(name, f"{inner} channels do not divide among {heads} heads")
            return inner // heads
        return self.get("head_dim")
