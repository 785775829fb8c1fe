"""What a model needs of an engine's memory: the records that `read_model` returns, plain and frozen."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from attnroute.models.dtypes import dtype_bytes

if TYPE_CHECKING:
    from attnroute.dispatch.group import KVGroup


@dataclass(frozen=True, slots=True)
class Layer:
    """One attention (or linear-attention) module of the model.

    `name` is spelled as vLLM 0.33 spells it for attention ("model.layers.3.self_attn.attn"). `index` counts from 0
    inside this model. `kind` is full, sliding, chunked, cross, encoder, linear or shared; a layer that runs two of
    them in parallel (Falcon-H1) has two records. `group` names the KV-cache group, or the state, that holds its
    memory. A shared layer holds none: it reads the cache of `shares_with` and is served by that layer's group.
    """

    name: str
    index: int
    kind: str
    group: str
    shares_with: str | None = None


@dataclass(frozen=True, slots=True)
class StateTensor:
    """One tensor of a layer's recurrent state, for one request: shape after tensor parallelism."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def bytes(self) -> int:
        """Bytes of the tensor."""
        return prod(self.shape) * dtype_bytes(self.dtype)


@dataclass(frozen=True, slots=True)
class StateSpec:
    """The state of all linear layers that share one geometry. `kind` is gdn, kda, mamba1, mamba2 or short_conv.

    The convolution state is (kernel - 1 + speculative tokens, channels), as vLLM lays it out by default; the recurrent
    state is heads first. Its size does not depend on the context length or on the block size.
    """

    name: str
    kind: str
    layers: tuple[str, ...]
    tensors: tuple[StateTensor, ...]

    @property
    def bytes(self) -> int:
        """Bytes of ONE layer's state for one request: what vLLM calls the Mamba page, before padding."""
        return sum(tensor.bytes for tensor in self.tensors)


@dataclass(frozen=True, slots=True)
class Model:
    """A model as attention kernels and KV-cache managers see it, one tensor-parallel rank of it.

    `kv_dtype` is resolved (never "auto") and `kv_dtype_from` says by what: "asked", the field of the checkpoint that
    declares it, or "model dtype". `window` is the narrowest sliding window. `max_model_len` is the longest context
    that the file states, `max_source_len` the longest encoder input. `notes` are assumptions, `warnings` are doubts.
    """

    name: str
    model_type: str
    role: str
    dtype: str
    kv_dtype: str
    kv_dtype_from: str
    tp: int
    groups: tuple[KVGroup, ...]
    layers: tuple[Layer, ...]
    state: tuple[StateSpec, ...] = ()
    max_model_len: int | None = None
    max_source_len: int | None = None
    window: int | None = None
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def state_bytes(self) -> int:
        """Bytes of the largest layer state (0 without linear layers): the page that a hybrid model's blocks must
        hold.
        """
        return max((spec.bytes for spec in self.state), default=0)

    def group(self, name: str) -> KVGroup:
        """The group of that name; KeyError if there is none."""
        for group in self.groups:
            if group.name == name:
                return group
        raise KeyError(name)
