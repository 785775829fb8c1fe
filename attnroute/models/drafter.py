"""Block drafters (DFlash, DFlash2, DSpark): causality and window of each layer, as vllm 0.33.0 resolves them.

`_dflash_layer_causal` and `_resolve_layer_attention` of model_executor/models/qwen3_dflash.py: `is_causal` decides,
then `dflash_config.causal`; without either a sliding layer is causal and a full one is not. `dflash_config.use_swa`
makes every layer of an all-full drafter a sliding one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnroute.models.family import FULL, SLIDING

if TYPE_CHECKING:
    from attnroute.models.schedule import Kinds
    from attnroute.models.source import Fields

_MARKS = ("DFlash", "DSpark")


def is_block_drafter(root: Fields, text: Fields) -> bool:
    """Whether the config is that of a drafter which proposes a whole block in one pass."""
    named = [a for fields in (root, text) for a in fields.items("architectures") or [] if isinstance(a, str)]
    return any(mark in name for name in named for mark in _MARKS) or any(
        fields.raw("dflash_config") is not None
        or str(fields.raw("speculators_model_type")).startswith(("dflash", "dspark"))
        for fields in (root, text)
    )


@dataclass(frozen=True, slots=True)
class Draft:
    """Kinds and causality of a block drafter's layers. `window` None means the config's `sliding_window`."""

    kinds: list[Kinds]
    causal: list[bool]
    window: int | None
    sinks: bool


def drafter_layers(root: Fields, text: Fields, kinds: list[Kinds]) -> Draft:
    """The layers of a block drafter, given the kinds that its layer types alone would mean."""
    fields = text if text.raw("dflash_config") is not None else root
    own = fields.mapping("dflash_config")
    if not text.has("layer_types"):
        kinds = [(FULL,)] * len(kinds)
    if own.get("use_swa") and not any(SLIDING in k for k in kinds):
        kinds = [(SLIDING,)] * len(kinds)
    window = fields.as_integer("dflash_config.swa_window_size", own.get("swa_window_size"))
    if any(SLIDING in k for k in kinds) and window is None:
        text.require("sliding_window")
    sinks = own.get("attention_sink_bias", text.flag("add_swa_attention_sink_bias"))
    return Draft(kinds, [_causal(root, text, own.get("causal"), k) for k in kinds], window, sinks is True)


def _causal(root: Fields, text: Fields, own: object, kinds: Kinds) -> bool:
    for stated in (text.flag("is_causal"), root.flag("is_causal"), own):
        if isinstance(stated, bool):
            return stated
    across = root.flag("sliding_window_non_causal")
    if across is not None or root.raw("speculators_model_type") is not None:
        return across is False
    return SLIDING in kinds and text.has("layer_types")
