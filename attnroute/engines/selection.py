"""Which backend a layer gets: the order tried, every backend's reasons against it, the first without any."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from attnroute.engines.blocks import accepts
from attnroute.engines.data import Backend, Engine, Order
from attnroute.engines.rules import EngineError, Facts, say

BLOCK_REASON = "block_size not supported"
_SHARED = ("head", "dtype", "kv", "compute", "window", "rswa")


@dataclass(frozen=True, slots=True)
class Selection:
    """A layer's backend, the reasons of those tried that cannot serve it, those that only --block-size ruled out."""

    backend: Backend
    reasons: Mapping[str, tuple[str, ...]]
    precluded: tuple[str, ...]


def priority(engine: Engine, facts: Facts) -> tuple[str, ...]:
    """Names of backends in the order in which they are tried."""
    return _order(engine.priority, facts)


def _order(orders: list[Order], facts: Facts) -> tuple[str, ...]:
    for order in orders:
        if order.when(facts):
            return order.names + (_order(order.tails, facts) if order.tails else ())
    return ()


def _declares(backend: Backend, name: str, facts: Facts) -> bool:
    if not backend.properties[name](facts):
        return False
    return name not in _SHARED or all(_declares(child, name, facts) for child in backend.children)


def combination_reason(backend: Backend, facts: Facts) -> str | None:
    """The reason that only the combination of facts gives, or None; a composite asks its children in turn."""
    for when, text in backend.combination:
        if when(facts):
            return say(text.replace("{backend}", backend.label), facts)
    for n, child in enumerate(backend.children):
        # Only the general child sees image masks.
        asked = facts if n == 0 or not facts["mm_prefix"] else facts.but({"mm_prefix": False})
        reason = combination_reason(child, asked)
        if reason is not None:
            return f"{child.label}: {reason}"
    return None


def reasons_against(backend: Backend, facts: Facts, sizes: Facts) -> tuple[str, ...]:
    """All reasons against a layer, in the engine's order and words; none if the backend is valid.

    `facts` are the layer's. `sizes` are the facts from which block sizes are declared: the model's own as shipped, the
    layer's where each layer's head size counts.
    """
    found = []
    for name, asked, text in facts.engine.checks:
        if not asked(facts):
            continue
        holds = accepts(backend, sizes, facts["block"]) if name == "block" else _declares(backend, name, facts)
        if not holds:
            found.append(say(text, facts))
    reason = combination_reason(backend, facts)
    if reason is not None:
        found.append(reason)
    return tuple(found)


def select(engine: Engine, facts: Facts, sizes: Facts, requested: str | None = None) -> Selection:
    """The backend for a layer. Raises EngineError if a requested one cannot serve it, or none can."""
    if requested is not None:
        backend = engine.selectable(requested)
        reasons = reasons_against(backend, facts, sizes)
        if reasons:
            raise EngineError(
                f"Selected backend AttentionBackendEnum.{requested} is not valid for this configuration. "
                f"Reason: {list(reasons)}"
            )
        return Selection(backend, {}, ())
    order = priority(engine, facts)
    against = {name: reasons_against(engine.backend(name), facts, sizes) for name in order}
    valid = [name for name in order if not against[name]]
    reasons_by_name = {name: why for name, why in against.items() if why}
    if not valid:
        words = ", ".join(f"{name}: [{', '.join(why)}]" for name, why in reasons_by_name.items())
        raise NoBackendError(f"No valid attention backend found for cuda. Reasons: {{{words}}}.", reasons_by_name)
    chosen = valid[0]
    precluded: tuple[str, ...] = ()
    if facts["block"] is not None:
        before = order[: order.index(chosen)]
        precluded = tuple(name for name in before if against[name] == (BLOCK_REASON,))
    return Selection(engine.backend(chosen), reasons_by_name, precluded)


class NoBackendError(EngineError):
    """No backend can serve a layer; `reasons` says why, by backend."""

    def __init__(self, message: str, reasons: Mapping[str, tuple[str, ...]]) -> None:
        super().__init__(message)
        self.reasons = reasons


def requested(
    backend: str | None, per_kind: Mapping[str, str], *, mla: bool, window: bool, attn_type: str = "decoder"
) -> str | None:
    """The backend that the operator asked for: by the layer's kind of cache first, then for all layers."""
    if not per_kind:
        return backend
    if attn_type == "encoder_only":
        kind = "encoder_only_attention"
    elif attn_type == "encoder_decoder":
        kind = "cross_attention"
    elif mla:
        kind = "sliding_window_mla" if window else "mla_attention"
    else:
        kind = "sliding_window" if window else "full_attention"
    return per_kind.get(kind, backend)
