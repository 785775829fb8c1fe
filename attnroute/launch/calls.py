"""What each `call` obligation of the tables means for a launcher.

A handler turns the obligation into a setting; the launchers read settings and never a row. Obligations that a launcher
meets by construction (it plans on the host, keeps tables at fixed addresses, ...) still have a handler that says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from attnroute.errors import unknown_name
from attnroute.launch.errors import LaunchError


@dataclass(frozen=True, slots=True)
class Settings:
    """How a kernel must be called, beyond shapes."""

    zero_workspace: bool = False
    cast_q: bool = False
    draft_mask: bool = False
    linear_drafts: bool = False
    equal_kv_strides: bool = False
    cut_block_table: bool = False
    single_kv_scale: bool = False
    block_scales: bool = False
    sinks_dtype: str | None = None
    sinks_variant: bool = False
    num_splits: int | None = None
    out_dtype: str | None = None
    exact_table: bool = False
    aligned_strides: bool = False
    token_scales: bool = False
    notes: tuple[str, ...] = ()


Handler = Callable[[Settings], Settings]


def _set(**changes: object) -> Handler:
    return lambda settings: replace(settings, **changes)  # type: ignore[arg-type]


def _kept(why: str) -> Handler:
    """An obligation that every launcher meets by its structure."""
    return lambda settings: replace(settings, notes=(*settings.notes, why))


HANDLERS: dict[str, Handler] = {
    "zeroed-workspace": _set(zero_workspace=True),
    "cast-q": _set(cast_q=True),
    "draft-mask": _set(draft_mask=True),
    "linear-drafts": _set(linear_drafts=True),
    "equal-kv-strides": _set(equal_kv_strides=True),
    "block-table-width": _set(cut_block_table=True),
    "stable-block-table": _kept("tables are copied into buffers that keep their addresses"),
    "single-kv-scale": _set(single_kv_scale=True),
    "kv-block-scales": _set(block_scales=True),
    "sinks-fp32": _set(sinks_dtype="fp32"),
    "sinks-bf16": _set(sinks_dtype="bf16"),
    "sinks-jit-variant": _set(sinks_variant=True),
    "num-splits-1": _set(num_splits=1),
    "plan-on-host": _kept("plan() runs on the host and outside of captures"),
    "fixed-batch-in-graph": _kept("each batch size has a wrapper of its own with fixed buffers"),
    "prewarm-kv-stride": _kept("equal strides are required where a second module would be compiled"),
    "warm-up": _kept("warmup() compiles every module before the first step"),
    "fetch-cubins": _kept("warmup() fetches the kernels before the first step"),
    "hnd-cache": _kept("layout HND is passed on as it is, without a copy"),
    "bottom-right-causal": _kept("plan() refuses requests with fewer keys than query tokens"),
    "kv-cache-as-ragged": _kept("ragged keys and values are passed with index pointers"),
    "o-dtype-16bit": _kept("outputs have the model's dtype"),
    "o-dtype-fp8": _set(out_dtype="fp8_e4m3"),
    "out-bf16": _set(out_dtype="bf16"),
    "no-split-kv": _set(num_splits=1),
    "exact-block-table": _set(exact_table=True),
    "aligned-strides": _set(aligned_strides=True),
    "finite-page-tails": _kept("the caller fills a page's unused rows with finite values when it allocates the cache"),
    "low-level-forward": _kept("the launcher calls the function that takes the scales"),
    "kv-scales-per-token-head": _set(token_scales=True),
    "vllm-batch-invariant": _set(num_splits=1),
    "unbounded-window-none": _kept("an unbounded side of the window is passed as None"),
    "first-call-compiles": _kept("the kernel compiles in the process; run it once for each shape before traffic"),
    "mla-fused-cache": _kept("the latent and rotary parts are one tensor"),
}


def settings_for(calls: Iterable[str]) -> Settings:
    """All obligations of a decision together; raises LaunchError for one that has no handler."""
    settings = Settings()
    for call in calls:
        handler = HANDLERS.get(call)
        if handler is None:
            raise LaunchError(unknown_name("call obligation", call, HANDLERS), code="call")
        settings = handler(settings)
    return settings
