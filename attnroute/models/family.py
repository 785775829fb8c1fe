"""The vocabulary of families.py: how the table says what a config's fields mean."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

FULL, SLIDING, CHUNKED, CROSS, ENCODER, LINEAR = "full", "sliding", "chunked", "cross", "encoder", "linear"
KINDS = (FULL, SLIDING, CHUNKED, CROSS, ENCODER, LINEAR)

LAYER_TYPES: Mapping[str, tuple[str, ...]] = {
    "full_attention": (FULL,), "attention": (FULL,), "global_attention": (FULL,), "global": (FULL,), "*": (FULL,),
    "sliding_attention": (SLIDING,), "sliding_window_attention": (SLIDING,), "local_attention": (SLIDING,),
    "local": (SLIDING,), "chunked_attention": (CHUNKED,), "cross_attention": (CROSS,),
    "linear_attention": (LINEAR,), "mamba": (LINEAR,), "mamba2": (LINEAR,), "conv": (LINEAR,), "M": (LINEAR,),
    "hybrid": (FULL, LINEAR), "deepseek_sparse_attention": (FULL,),
    "mlp": (), "moe": (), "-": (), "E": (),
}  # fmt: skip
"""A layer's type as configs write it -> the attention that it runs (none for a pure feed-forward layer)."""


@dataclass(frozen=True, slots=True)
class Every:
    """Layer i (from 0) is `full` if (i + 1) % n == 0, else `other`; n is the first of `fields` in the file, or
    `default`.
    """

    fields: tuple[str, ...]
    default: int
    other: str


@dataclass(frozen=True, slots=True)
class PerLayer:
    """A list with one value a layer: those equal to `value` are `kind`, the others full."""

    field: str
    value: int
    kind: str


@dataclass(frozen=True, slots=True)
class Indices:
    """A list of layer numbers (counted from `base`) that are `kind`; the others are `other`."""

    field: str
    kind: str
    other: str
    base: int = 0


@dataclass(frozen=True, slots=True)
class Period:
    """Layer i is full if i % period == offset, else linear (Jamba)."""

    period: str
    offset: str


@dataclass(frozen=True, slots=True)
class Blocks:
    """A list of objects, one a layer (Nemotron-NAS): `attention.no_op` drops it, `attention.n_heads_in_group` sets
    the ratio.
    """

    field: str


Schedule = Every | PerLayer | Indices | Period | Blocks


@dataclass(frozen=True, slots=True)
class State:
    """Where the geometry of linear layers is written. `kind` names the formula in state.py; `fields` its arguments.

    A field may list alternatives. `recurrent_dtype` is the field that states the dtype of the recurrent state, then a
    dtype for files that don't ("" = the model's dtype).
    """

    kind: str
    fields: Mapping[str, tuple[str, ...]]
    recurrent_dtype: tuple[str, str] = ("", "")


@dataclass(frozen=True, slots=True)
class Family:
    """How one family's config is to be read; every default is the plain decoder."""

    names: tuple[str, ...]
    schedules: tuple[Schedule, ...] = ()
    defaults: Mapping[str, object] = field(default_factory=dict)
    per_kind: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Layer kind -> field -> the field that replaces it in layers of that kind."""
    per_kind_if: str | None = None
    """A flag without which the replaced number of KV heads does not hold (Gemma-4: attention_k_eq_v)."""
    sinks: Mapping[str, str] = field(default_factory=dict)
    """Layer kind -> the flag that says it has attention sinks; "always" needs no flag."""
    window_flag: bool = False
    """`use_sliding_window` (false if absent) switches the window on (Qwen)."""
    window_plus: int = 0
    """Tokens that a layer sees beyond the configured window (Cohere: the window excludes the query's own token)."""
    last_full: bool = False
    pattern: tuple[str, ...] = ("layer_types",)
    """Fields that hold the layer types: a list of names, or a string of characters."""
    always: tuple[str, ...] = ()
    """Kinds that every layer runs, whatever the config says (Falcon-H1: attention and Mamba in parallel)."""
    state: State | None = None
    mla: bool = False
    causal: bool = True
    attn_type: str = "decoder"
    full_name: str = FULL
    prefix: str = "model.layers"
    attn: str = "self_attn.attn"
    linear: str = "linear_attn"
    mm_prefix: str | None = None
    """Image tokens attend in both directions: always ("always"), or if use_bidirectional_attention has this value."""
    notes: tuple[str, ...] = ()
    refuse: str | None = None
