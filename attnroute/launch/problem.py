"""What a launcher is bound to and what it is given: plain data, no kernel knowledge, no import of torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import sqrt
from typing import Any, NamedTuple

Tensor = Any  # torch.Tensor; torch is imported by the launchers alone


@dataclass(frozen=True, slots=True)
class Problem:
    """The geometry of one attention layer in one phase, as one rank sees it.

    Head counts are per rank; `head_dim` (q and k) and `head_dim_v` count elements, `page_size` tokens. `dtype` is the
    model's, `q_dtype` what the kernel reads, `kv_dtype` the cache's. `q_len` is the number of query tokens a request in
    one step (0: it varies, as in prefill). `window` counts the tokens that a query sees, itself included (None: all).
    `sinks` is the dtype in which the caller holds them, None without. `layout` names the axis order in memory; the
    tensors are always logically (pages, page, kv_heads, head_dim).
    """

    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    head_dim_v: int
    page_size: int
    dtype: str = "bf16"
    q_dtype: str = "bf16"
    kv_dtype: str = "bf16"
    phase: str = "decode"
    q_len: int = 1
    scale: float | None = None
    window: int | None = None
    softcap: float | None = None
    sinks: str | None = None
    lse: bool = False
    causal: bool = True
    layout: str = "NHD"

    @property
    def group_ratio(self) -> int:
        """Query heads per KV head."""
        return self.num_q_heads // self.num_kv_heads

    @property
    def softmax_scale(self) -> float:
        """The factor on q·k, 1/sqrt(head_dim) unless stated."""
        return 1.0 / sqrt(self.head_dim) if self.scale is None else self.scale


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest batch a launcher will see: requests, tokens of context, query tokens of all requests together."""

    max_batch: int
    max_context: int
    max_q_tokens: int | None = None
    cuda_graph: bool = True
    device: str = "cuda"
    sm_count: int = 192  # no GPU of the tables has more

    def most_q_tokens(self, q_len: int) -> int:
        """Query tokens of a step at most, where each request has `q_len` (0: it varies)."""
        return self.max_q_tokens or self.max_batch * (q_len or self.max_context)

    def max_pages(self, page_size: int) -> int:
        """Pages of the longest request."""
        return -(-self.max_context // page_size)


class KVPages(NamedTuple):
    """One layer's cache: k and v, each (pages, page, kv_heads, head_dim), and the factors that undo quantisation."""

    k: Tensor
    v: Tensor
    k_scale: float = 1.0
    v_scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Batch:
    """One step's requests. `block_table` int32 (batch, pages) and `seq_lens` int32 (batch,) on the device.

    `seq_lens` counts keys with the step's own tokens included. `lens` are the same on the host, so that planning need
    not wait for the device. `q_lens` gives the query tokens of each request where they differ (prefill), else None.
    """

    block_table: Tensor
    seq_lens: Tensor
    lens: tuple[int, ...]
    q_lens: tuple[int, ...] | None = None

    @property
    def size(self) -> int:
        """Requests in the batch."""
        return len(self.lens)


class AttentionOut(NamedTuple):
    """`out` (tokens, q_heads, head_dim_v) in the model's dtype; `lse` float32 (tokens, q_heads), natural log."""

    out: Tensor
    lse: Tensor | None


@dataclass(frozen=True, slots=True)
class Module:
    """Something that has to be compiled before the first step: `build` does it, `ready` says whether it is done."""

    name: str
    build: Any
    ready: Any = field(default=lambda: False)
