"""What an engine decides for a whole model: plain frozen records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

PHASES = ("prefill", "decode", "verify", "draft")


class StateTensorLike(Protocol):
    """One tensor of a linear layer's state: shape after tensor parallelism, attnroute's dtype name."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str: ...


class StateLike(Protocol):
    """The recurrent state of some layers (`models.StateSpec` is one). `tensors` are one layer's, for one request."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def layers(self) -> tuple[str, ...]: ...
    @property
    def tensors(self) -> Sequence[StateTensorLike]: ...


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """What the operator of a vLLM server states. Names follow vLLM's flags; None is "not given".

    `kv_cache_dtype` is vLLM's own name (`auto`, `fp8`, `nvfp4`, `int8_per_token_head` ...); `auto` takes each group's
    own dtype. `skip_layers` are layer indices or `sliding_window`. `kv_memory` is bytes for the KV cache on one GPU.
    `max_in_flight_tokens` is max_num_batched_tokens times concurrent batches; it bounds what a sliding-window layer
    holds. `head_size`: `per-layer` asks each layer's own head size at all four sites, `as-shipped` is what the version
    does by itself (two sites of four). `fa_built` and `cubins` describe the machine: FlashAttention versions that are
    compiled in, NVIDIA's kernel binaries reachable. `model_type` is the config's, for hooks that vLLM has for single
    models; `model_head` is the head size of its configuration (None: the first group's). `key_dim` is the key dim of
    its linear layers. `mla_v` is the v_head_dim of an MLA model (None: as its nope part).
    `max_model_len` and `encoder_tokens` are in tokens; `auto_fit` shortens `max_model_len` to what the memory holds.
    """

    block_size: int | None = None
    kv_cache_dtype: str = "auto"
    skip_layers: tuple[str, ...] = ()
    backend: str | None = None
    backend_per_kind: tuple[tuple[str, str], ...] = ()
    flash_attn_version: int | None = None
    use_trtllm_attention: bool | None = None
    disable_q_quantization: bool = False
    max_model_len: int | None = None
    max_in_flight_tokens: int | None = None
    kv_memory: int | None = None
    num_gpu_blocks: int | None = None
    prefix_caching: bool = True
    hybrid_manager: bool = True
    num_speculative_tokens: int = 0
    tp: int = 1
    dcp: int = 1
    pcp: int = 1
    layout: str | None = None
    batch_invariant: bool = False
    checkpoint_alignment: int | None = None
    model_type: str | None = None
    head_size: str = "per-layer"
    fa_built: tuple[int, ...] = (2, 3, 4)
    cubins: bool = True
    kv_connector: bool = False
    model_head: int | None = None
    key_dim: int | None = None
    mla_v: int | None = None
    encoder_tokens: int = 0
    auto_fit: bool = False


@dataclass(frozen=True, slots=True)
class KernelUse:
    """The kernel of one phase. `kernel` is attnroute's id, None where the engine's kernel has none here; `name` is the
    engine's own word for it. `q_dtype` is what the kernel reads. `page` counts tokens.
    """

    kernel: str | None
    provider: str | None
    name: str
    page: int | None
    q_dtype: str | None


@dataclass(frozen=True, slots=True)
class EngineGroup:
    """One of the groups that were passed in, as the engine treats it.

    `kind` is the engine's kind of cache (full, window, chunked, mla, mamba ...). `block` is the manager block in tokens
    (after page unification), `kernel_page` what the kernel reads as one unit. `page_bytes` is one layer's block with
    padding, `unpadded_bytes` without. `engine_groups` are indices of `EngineResult.groups_made`. `rejected` maps the
    backends tried before to the engine's reasons. `phases` maps prefill, decode, verify, draft to kernels. `kv` is the
    engine's name of the KV dtype. Before an error stops the engine, `block`, `kernel_page` and the pages are 0.
    """

    name: str
    role: str
    kind: str
    layers: tuple[str, ...]
    head_dim: int
    backend: str | None
    fa_version: int | None
    rejected: Mapping[str, tuple[str, ...]]
    precluded: tuple[str, ...]
    block: int
    kernel_page: int
    page_bytes: int
    unpadded_bytes: int
    blocks_per_request: int | None
    graph_level: str
    reorder_threshold: int | None
    phases: Mapping[str, KernelUse | None]
    engine_groups: tuple[int, ...] = ()
    kv: str = "auto"
    notes: tuple[str, ...] = ()

    @property
    def padding_percent(self) -> float:
        """Padding of the page in percent of what is stored."""
        return 100.0 * (self.page_bytes - self.unpadded_bytes) / self.unpadded_bytes if self.unpadded_bytes else 0.0


@dataclass(frozen=True, slots=True)
class MadeGroup:
    """A KV-cache group as the engine makes it: layers that share one block table. `blocks` is per request of
    `max_model_len` tokens (None if that is not given), `kernel_block` what the worker splits a block into.
    """

    kind: str
    layers: tuple[str, ...]
    block: int
    kernel_block: int | None
    page_bytes: int
    blocks: int | None
    uniform_type: bool = False


@dataclass(frozen=True, slots=True)
class StatePage:
    """The recurrent state of the largest linear layer: its bytes, the page it is padded to, tokens of its block."""

    state_bytes: int
    page_bytes: int
    block: int
    blocks_per_request: int

    @property
    def padding_percent(self) -> float:
        """100 (page - state) / state: vLLM's "Padding mamba page size by"."""
        return 100.0 * (self.page_bytes - self.state_bytes) / self.state_bytes


@dataclass(frozen=True, slots=True)
class Capacity:
    """KV capacity. `tokens` = floor(concurrency x max_model_len); `bytes_per_token` of the attention layers alone.
    `max_model_len` is the option's, or what was fitted.
    """

    num_blocks: int
    bytes_per_block: int
    blocks_per_request: int
    tokens: int
    concurrency: float
    bytes_per_token: int
    max_model_len: int


@dataclass(frozen=True, slots=True)
class EngineResult:
    """Everything an engine decides. `errors` are start-up errors in the engine's words (then fields after the failure
    hold what was known). `kv_cache_dtype`, `backend_asked` and `flash_attn_version` are the operator's, or those that
    the model's own configuration sets. What to type, and what the engine does unasked, say `vllm_args.flags_for`.
    """

    engine: str
    version: str
    arch: str
    head_size: str
    groups: tuple[EngineGroup, ...]
    block_size: int
    scheduler_block_size: int | None
    layout: str | None
    graph_level: str
    reorder_threshold: int | None
    state: StatePage | None
    groups_made: tuple[MadeGroup, ...]
    capacity: Capacity | None
    mamba_cache_mode: str = "none"
    warnings: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    kv_cache_dtype: str = "auto"
    backend_asked: str | None = None
    flash_attn_version: int | None = None
    skip_page_bytes: int | None = None
    options: EngineOptions = field(default_factory=EngineOptions)

    def group(self, name: str) -> EngineGroup:
        """The group of that name; KeyError if there is none."""
        for group in self.groups:
            if group.name == name:
                return group
        raise KeyError(name)

    def for_layer(self, layer: str) -> EngineGroup:
        """The group that holds a layer; KeyError if none does."""
        for group in self.groups:
            if layer in group.layers:
                return group
        raise KeyError(layer)
