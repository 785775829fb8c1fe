"""One layer's KV cache as vLLM describes it (its specs): bytes of a page, blocks of a request."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING

from attnroute.engines.facts import mode_of
from attnroute.engines.rules import EngineError

if TYPE_CHECKING:
    from attnroute.engines.data import Backend, Engine


@dataclass(frozen=True, slots=True)
class CacheSpec:
    """The cache of one layer. `kind` is one of the data's `spec_kinds`; sizes in tokens and bytes.

    `stored` is the type of one element, of `bytes`; `mode` the quantization mode; `cache_dtype` vLLM's name of the KV
    dtype, kept for MLA only; `slots` and `content` (bytes of one head slot for one
    state) are set where a backend packs the cache. `padded` is the padded page, `alignment` what an MLA page is rounded
    to, `stride_tokens` or `stride_bytes` what a block's stride must be a multiple of. `tensors` are (shape, element
    bytes) of a state; its `kind` is mamba.
    """

    kind: str
    block: int
    heads: int = 1
    head: int = 0
    head_v: int = 0
    bytes: int = 2
    stored: str = "bf16"
    mode: str = "NONE"
    cache_dtype: str | None = None
    window: int | None = None
    extra_retained: int = 0
    chunk: int | None = None
    rswa_window: int | None = None
    sink_len: int | None = None
    padded: int | None = None
    alignment: int | None = None
    tokens_per_state: int = 1
    dcp_sharded: bool = True
    slots: int | None = None
    content: int | None = None
    stride_tokens: int | None = None
    stride_bytes: int | None = None
    non_causal: bool = False
    tensors: tuple[tuple[tuple[int, ...], int], ...] = ()
    cache_mode: str = "none"
    spec_blocks: int = 0
    checkpoint_blocks: int = 0
    replicated: bool = False

    @property
    def is_state(self) -> bool:
        return self.kind == "mamba"

    @property
    def state_bytes(self) -> int:
        """Bytes of one head slot of one stored state; of the whole state for a linear layer."""
        if self.is_state:
            return sum(prod(shape) * size for shape, size in self.tensors)
        return self.content if self.content is not None else (self.head + self.head_v) * self.bytes

    @property
    def head_slots(self) -> int:
        return self.slots if self.slots is not None else self.heads

    @property
    def states(self) -> int:
        """Stored states of one block."""
        return 1 if self.is_state else self.block // self.tokens_per_state

    @property
    def unpadded(self) -> int:
        """Bytes of one block without padding."""
        return self.state_bytes if self.is_state else self.head_slots * self.states * self.state_bytes

    @property
    def page(self) -> int:
        """Bytes of one block. Raises EngineError if the padded page is too small for what it must hold."""
        if self.padded is None:
            return self.unpadded
        if self.padded < self.unpadded:
            raise EngineError("", "AssertionError")
        return self.padded

    @property
    def block_stride_alignment(self) -> int:
        """Bytes that the stride between blocks must be a multiple of."""
        if self.stride_tokens is None:
            return self.stride_bytes or 1
        from math import gcd

        kernel = gcd(self.stride_tokens, self.block)
        return 1 if kernel == self.block else finished(replace(self, block=kernel)).page


def finished(spec: CacheSpec) -> CacheSpec:
    """An MLA spec whose page is rounded up to its alignment; any other is returned as it is."""
    if spec.alignment is None or spec.kind not in ("mla", "window_mla"):
        return spec
    rounded = -(-spec.unpadded // spec.alignment) * spec.alignment
    return spec if rounded == spec.unpadded else replace(spec, padded=rounded)


def packed(engine: Engine, backend: Backend, spec: CacheSpec) -> CacheSpec:
    """The spec as the backend's kernels store it. Raises EngineError for a shape that the packing cannot hold."""
    if backend.children:
        general, causal = (packed(engine, child, spec) for child in backend.children)
        if general != causal:
            raise EngineError("Composite backends require the same KV cache spec")
        return general
    if spec.content is not None or spec.is_state:
        return spec
    facts = engine.facts({"kv_mode": spec.mode})
    for name in backend.data["packs"]:
        pack = engine.packs[name]
        if pack.mode(facts):
            slots = pack.slots * spec.heads if pack.slots != 1 else None
            return replace(spec, slots=slots, content=pack.content(spec.head, spec.head_v) * spec.bytes)
    return spec


def stored_type(engine: Engine, kv: str, dtype: str) -> str:
    """The type that a cache of KV dtype `kv` (vLLM's name) stores in a model of dtype `dtype`."""
    stored: str | None = engine.kv_dtypes[kv]["stored"]
    return stored if stored is not None else dtype


def attention_spec(
    engine: Engine,
    kind: str,
    *,
    block: int,
    heads: int,
    head: int,
    kv: str,
    dtype: str,
    head_v: int | None = None,
    **more: object,
) -> CacheSpec:
    """The spec of an attention layer as its layer class makes it, before any backend packs it."""
    mla = kind in ("mla", "window_mla", "hidden")
    opaque = engine.kv_dtypes[kv].get("mla_bytes") if mla else None
    stored = stored_type(engine, kv, dtype)
    value = 0 if mla else (head if head_v is None else head_v)
    return finished(
        CacheSpec(
            kind,
            block,
            heads,
            head,
            value,
            engine.data["element_bytes"][stored],
            stored,
            mode_of(engine, kv),
            kv if mla else None,
            content=opaque,
            **more,  # type: ignore[arg-type]
        )
    )


def cdiv(a: int, b: int) -> int:
    """Ceiling of a / b."""
    return -(-a // b)


@dataclass(frozen=True, slots=True)
class Limits:
    """What bounds a request: its longest context, tokens in flight, DCP, Mamba cache mode, encoder tokens."""

    max_model_len: int
    in_flight: int
    dcp: int = 1
    cache_mode: str = "none"
    encoder_tokens: int = 0


def request_pages(engine: Engine, spec: CacheSpec, limits: Limits) -> int:
    """Pages that one request of the longest context holds. Raises EngineError where the engine asserts."""
    how = engine.kinds[spec.kind]["blocks"]
    length = limits.max_model_len
    if how == "tokens":
        if spec.dcp_sharded and limits.dcp > 1:
            length = cdiv(length, limits.dcp)
        return cdiv(length, spec.block)
    if how == "window":
        if spec.dcp_sharded and limits.dcp > 1:
            raise EngineError("DCP not support sliding window.", "AssertionError")
        held = min((spec.window or 0) - 1 + spec.extra_retained + limits.in_flight, length)
        return cdiv(held, spec.block) + int(engine.constant("window_extra_blocks"))
    if how == "chunk":
        return cdiv(min((spec.chunk or 0) + limits.in_flight, length), spec.block)
    if how == "encoder":
        return cdiv(limits.encoder_tokens, spec.block)
    if how == "state":
        if limits.cache_mode == "align":
            return int(engine.constant("state_blocks_align")) + spec.spec_blocks + spec.checkpoint_blocks
        return int(engine.constant("state_blocks")) + spec.spec_blocks
    return 1 if how == "one" else 0


def table_width(engine: Engine, spec: CacheSpec, limits: Limits, max_len: int) -> int:
    """Entries of a request's block table."""
    how = engine.kinds[spec.kind]["blocks"]
    if how == "one":
        return 1
    if how == "state":
        if limits.cache_mode == "align":
            return cdiv(max_len, spec.block) + spec.spec_blocks
        return request_pages(engine, spec, limits)
    return cdiv(max_len, spec.block * (limits.dcp if spec.dcp_sharded else 1))
