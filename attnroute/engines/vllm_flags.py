"""What to type into vLLM so that it does what a plan says, and what it does unasked."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from attnroute.engines.result import EngineGroup, EngineOptions, EngineResult

Ask = Callable[[EngineOptions], EngineResult]
_KINDS = {
    "full": "full_attention",
    "window": "sliding_window",
    "mla": "mla_attention",
    "chunked": "full_attention",
    "cross": "cross_attention",
}


@dataclass(frozen=True, slots=True)
class Flags:
    """`type_this`: flags of `vllm serve`; `environment`: variables in front of it. `unreachable` says what no flag of
    this version brings about, and which upstream change does. `default` is what the engine does unasked, a line each.
    """

    type_this: tuple[str, ...]
    environment: tuple[str, ...]
    unreachable: tuple[str, ...]
    default: tuple[str, ...]

    @property
    def command(self) -> str:
        """The command line without its model."""
        return " ".join([*self.environment, "vllm serve MODEL", *self.type_this])


def flags_for(result: EngineResult, ask: Ask | None = None) -> Flags:
    """The flags for a result. `ask` answers as `plan_groups` for the same groups with other options; with it the flags
    are tried on the engine as shipped, and what they cannot reach is said.
    """
    options = result.options
    if ask is None:
        return Flags(*_written(options), (), ())
    bare = EngineOptions(
        kv_cache_dtype=options.kv_cache_dtype,
        max_model_len=options.max_model_len,
        kv_memory=options.kv_memory,
        num_speculative_tokens=options.num_speculative_tokens,
        model_type=options.model_type,
        model_head=options.model_head,
        key_dim=options.key_dim,
        fa_built=options.fa_built,
        cubins=options.cubins,
        head_size="as-shipped",
        tp=options.tp,
    )
    unasked = ask(bare)
    best = None
    for candidate in _candidates(result):
        found = ask(candidate)
        missing = differences(result, found)
        if best is None or len(missing) < len(best[1]):
            best = (candidate, missing)
        if not missing:
            break
    assert best is not None
    chosen, missing = best
    flags, environment = _written(chosen)
    return Flags(
        flags,
        environment,
        tuple(f"{m}; upstream #58630 asks each layer's own head size" for m in missing),
        describe(unasked),
    )


def _candidates(result: EngineResult) -> Iterator[EngineOptions]:
    shipped = replace(result.options, head_size="as-shipped")
    yield shipped
    kinds: dict[str, set[str]] = {}
    for group in result.groups:
        if group.backend is not None:
            kinds.setdefault(_KINDS.get(group.kind, "full_attention"), set()).add(group.backend)
    per_kind = tuple(sorted((kind, next(iter(names))) for kind, names in kinds.items() if len(names) == 1))
    yield replace(shipped, backend_per_kind=per_kind)
    if result.options.block_size is not None:
        yield replace(shipped, block_size=None)
        yield replace(shipped, block_size=None, backend_per_kind=per_kind)
    elif result.block_size:
        yield replace(shipped, block_size=result.block_size)
        yield replace(shipped, block_size=result.block_size, backend_per_kind=per_kind)


def differences(wanted: EngineResult, found: EngineResult) -> tuple[str, ...]:
    """What one result has otherwise than the other, in words: errors, block, backends, kernel pages, layout, graphs."""
    if found.errors:
        return tuple(f"{found.engine} {found.version} does not start: {e}" for e in found.errors)
    said = []
    if wanted.block_size != found.block_size:
        said.append(f"block size {wanted.block_size}, {found.engine} {found.version} takes {found.block_size}")
    for mine, theirs in zip(wanted.groups, found.groups, strict=True):
        if mine.backend != theirs.backend:
            why = f" (--block-size precludes {', '.join(theirs.precluded)})" if theirs.precluded else ""
            said.append(f"{mine.name} on {mine.backend}, {found.engine} {found.version} takes {theirs.backend}{why}")
        elif mine.kernel_page != theirs.kernel_page and wanted.block_size == found.block_size:
            said.append(
                f"{mine.name} with kernel pages of {mine.kernel_page}, {found.engine} {found.version} takes "
                f"{theirs.kernel_page}"
            )
    if wanted.layout != found.layout:
        said.append(f"layout {wanted.layout}, {found.engine} {found.version} takes {found.layout}")
    return tuple(said)


def describe(result: EngineResult) -> tuple[str, ...]:
    """A result in a few lines."""
    if result.errors:
        return tuple(f"does not start: {e}" for e in result.errors)
    lines = [f"block size {result.block_size}, layout {result.layout}, CUDA graphs {result.graph_level}"]
    if result.state is not None:
        lines.append(f"state padded by {result.state.padding_percent:.2f} % to {result.state.page_bytes:,} bytes")
    lines += [_group_line(group) for group in result.groups]
    return tuple(lines)


def _group_line(group: EngineGroup) -> str:
    version = f" v{group.fa_version}" if group.fa_version else ""
    kernels = ", ".join(f"{phase} {use.name}" for phase, use in group.phases.items() if use is not None)
    return f"{group.name}: {group.backend}{version}, kernel page {group.kernel_page} ({kernels})"


def _written(o: EngineOptions) -> tuple[tuple[str, ...], tuple[str, ...]]:
    flags: list[str] = []
    plain: list[tuple[str, object, object]] = [
        ("--attention-backend", o.backend, None),
        ("--block-size", o.block_size, None),
        ("--kv-cache-dtype", o.kv_cache_dtype, "auto"),
        ("--max-model-len", None if o.auto_fit else o.max_model_len, None),
        ("--kv-cache-memory-bytes", o.kv_memory, None),
        ("--num-gpu-blocks-override", o.num_gpu_blocks, None),
        ("--tensor-parallel-size", o.tp, 1),
        ("--decode-context-parallel-size", o.dcp, 1),
        ("--prefill-context-parallel-size", o.pcp, 1),
    ]
    for name, value, default in plain:
        if value != default:
            flags += [f"{name} {value}"]
    if o.auto_fit:
        flags.append("--max-model-len auto")
    if o.skip_layers:
        flags.append(f"--kv-cache-dtype-skip-layers {' '.join(o.skip_layers)}")
    attention = {
        "backend_per_kind": dict(o.backend_per_kind) or None,
        "flash_attn_version": o.flash_attn_version,
        "use_trtllm_attention": o.use_trtllm_attention,
        "disable_flashinfer_q_quantization": o.disable_q_quantization or None,
    }
    attention = {k: v for k, v in attention.items() if v is not None}
    if attention:
        flags.append(f"--attention-config '{json.dumps(attention)}'")
    if not o.prefix_caching:
        flags.append("--no-enable-prefix-caching")
    if not o.hybrid_manager:
        flags.append("--disable-hybrid-kv-cache-manager")
    environment = [f"VLLM_KV_CACHE_LAYOUT={o.layout}"] if o.layout else []
    if o.batch_invariant:
        environment.append("VLLM_BATCH_INVARIANT=1")
    return tuple(flags), tuple(environment)
