"""The one physical layout of the KV cache that all backends of a model can read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attnroute.engines.data import Backend, Engine, first_use
from attnroute.engines.rules import EngineError, Facts
from attnroute.engines.spec import CacheSpec

if TYPE_CHECKING:
    from collections.abc import Iterable


def declared_layouts(engine: Engine, backend: Backend, facts: Facts) -> tuple[str, ...] | None:
    """Layouts that a backend reads, most preferred first; None if it reads any and prefers none."""
    if backend.children:
        return supported(engine, backend.children, facts)
    found = first_use(backend.data.get("layouts", []), facts)
    return None if found is None else tuple(found)


def supported(engine: Engine, backends: Iterable[Backend], facts: Facts) -> tuple[str, ...]:
    """Layouts that all backends read, most preferred first. Raises EngineError if there is none."""
    rules = engine.data["layouts"]
    lists = [found for b in backends if (found := declared_layouts(engine, b, facts)) is not None]
    return common_layouts(rules["order"], lists or [tuple(rules["preference"])])


def common_layouts(order: Sequence[str], lists: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """The intersection: as declared if all agree, otherwise the one that most put first, ties in `order`."""
    if all(item == lists[0] for item in lists[1:]):
        return lists[0]
    votes = [item[0] for item in lists if item]
    shared = [name for name in order if all(name in item for item in lists)]
    if not shared:
        raise EngineError(f"No KV cache layout satisfies every supported set: {[list(item) for item in lists]}.")
    return tuple(sorted(shared, key=lambda name: -votes.count(name)))


def resolve_layout(
    engine: Engine,
    candidates: Sequence[str],
    specs: Sequence[CacheSpec],
    *,
    requested: str | None = None,
    connector: str | None = None,
) -> str:
    """The layout of the model: the first candidate that can hold these specs, or what was asked for by name (NHD and
    HND are known). Raises EngineError if none can.
    """
    names = engine.data["layouts"]["order"]

    def known(name: str) -> str:
        found = str(engine.data["layouts"]["aliases"].get(name, name))
        if found not in names:
            raise EngineError(f"Unknown KV cache layout {name!r}. Valid layouts: {names}")
        return found

    left = list(candidates)
    shapes = {(1 if s.is_state else s.head_slots, s.states, s.page) for s in specs}
    if len(shapes) > 1:
        left = [name for name in left if set(name[:2]) == {"L", "B"}]
        if not left:
            raise EngineError(
                f"Specs with mixed HNC shapes need a block-compact layout, but none is in every supported set: "
                f"{[list(candidates)]}."
            )
    sharding = {s.dcp_sharded for s in specs if not s.is_state and s.kind != "ring"}
    if len(sharding) > 1 and len({s.page for s in specs}) > 1:
        left = [name for name in left if name.startswith("B")]
        if not left:
            raise EngineError(
                "DCP with a replicated draft and mixed KV page sizes requires a block-outer KV cache layout; supported "
                f"sets: {[list(candidates)]}."
            )
    if requested is not None:
        name = known(requested)
        if name not in left:
            raise EngineError(
                f"VLLM_KV_CACHE_LAYOUT={requested} does not satisfy every supported set; valid layouts: {left}."
            )
        return name
    if connector is not None and known(connector) in left:
        return known(connector)
    return left[0]
