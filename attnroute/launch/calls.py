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

    equal_kv_strides: bool = False
    cut_block_table: bool = False
    sinks_dtype: str | None = None
    num_splits: int | None = None
    out_dtype: str | None = None
    exact_table: bool = False
    aligned_strides: bool = False
    notes: tuple[str, ...] = ()


Handler = Callable[[Settings], Settings]


def _set(**changes: object) -> Handler:
    return lambda settings: replace(settings, **changes)  # type: ignore[arg-type]


def _kept(why: str) -> Handler:
    """An obligation that every launcher meets by its structure."""
    return lambda settings: replace(settings, notes=(*settings.notes, why))


def _refused(what: str) -> Handler:
    """An obligation that no launcher can meet yet: better refused here than launched wrongly."""

    def refuse(_settings: Settings) -> Settings:
        raise LaunchError(f"the launchers have no argument for {what}", code="call")

    return refuse


HANDLERS: dict[str, Handler] = {
    "zeroed-workspace": _kept("the workspace is zeroed when it is allocated, and no other launcher writes to it"),
    "cast-q": _kept("run() casts the query to the dtype that the decision names"),
    "draft-mask": _kept("plan() packs the mask of the draft block"),
    "linear-drafts": _kept("the mask is that of one chain of drafts; there is no argument for a tree"),
    "equal-kv-strides": _set(equal_kv_strides=True),
    "block-table-width": _set(cut_block_table=True),
    "stable-block-table": _kept("tables are copied into buffers that keep their addresses"),
    "single-kv-scale": _kept("the key scale goes into the softmax scale, the value scale to the output"),
    "kv-block-scales": _refused("scale factors of blocks of 16 elements"),
    "sinks-fp32": _set(sinks_dtype="fp32"),
    "sinks-bf16": _set(sinks_dtype="bf16"),
    "sinks-jit-variant": _kept("sinks are compiled into a module of their own"),
    "num-splits-1": _set(num_splits=1),
    "plan-on-host": _kept("plan() runs on the host and outside of captures"),
    "fixed-batch-in-graph": _kept("each batch size has a wrapper of its own with fixed buffers"),
    "warm-up": _kept("warmup() compiles every module before the first step"),
    "fetch-cubins": _kept("warmup() runs the kernel, which fetches it"),
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
    "kv-scales-per-token-head": _refused("one scale for each token and head"),
    "vllm-batch-invariant": _set(num_splits=1),
    "unbounded-window-none": _kept("an unbounded side of the window is passed as None"),
    "first-call-compiles": _kept("warmup() runs the kernel, which compiles it in the process"),
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
