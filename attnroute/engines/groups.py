"""Layers that share a block table: page unification, grouping, the padding that both cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import gcd
from typing import TYPE_CHECKING

from attnroute.engines import packing
from attnroute.engines.merge import FULL, MLA, WINDOW, merge, merges, uniform_type
from attnroute.engines.rules import EngineError
from attnroute.engines.spec import CacheSpec, cdiv, finished

if TYPE_CHECKING:
    from attnroute.engines.data import Engine

Name = Callable[[int], str]


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """Layers (by position) of one block table. `specs` holds one spec for all, or where `uniform` one for each."""

    layers: tuple[int, ...]
    specs: tuple[CacheSpec, ...]
    uniform: bool = False

    @property
    def first(self) -> CacheSpec:
        return self.specs[0]

    @property
    def block(self) -> int:
        """Tokens of a block."""
        return self.first.block

    @property
    def page_bytes(self) -> int:
        """Bytes of a block: of one layer, or of all layers together in a uniform-type group."""
        return sum(s.page for s in self.specs) if self.uniform else self.first.page

    @property
    def layer_specs(self) -> tuple[CacheSpec, ...]:
        """The spec of each layer."""
        return self.specs if self.uniform else self.specs * len(self.layers)


def group_kind(engine: Engine, group: CacheGroup) -> str:
    """vLLM's word for the group's kind of cache."""
    kinds = {engine.kinds[s.kind]["vllm"] for s in group.specs}
    if len(kinds) == 1:
        return str(kinds.pop())
    return "full_attention" if {engine.kinds[s.kind]["base"] for s in group.specs} == {"full"} else "unknown"


@dataclass(frozen=True, slots=True)
class Layers:
    """The attention and state layers of a model in order: layer n has `specs[order[n]]`."""

    specs: tuple[CacheSpec, ...]
    order: tuple[int, ...]

    def used(self) -> list[int]:
        """Indices of specs that some layer has, by first appearance."""
        return list(dict.fromkeys(self.order))

    def only(self, keep: Callable[[CacheSpec], bool]) -> tuple[Layers, tuple[int, ...]]:
        """The layers whose spec is kept, and their positions in this model."""
        kept = [keep(s) for s in self.specs]
        positions = tuple(n for n, k in enumerate(self.order) if kept[k])
        return Layers(self.specs, tuple(self.order[n] for n in positions)), positions


def _layer_name(n: int) -> str:
    return f"layer.{n}"


def unify(layers: Layers, name: Name = _layer_name) -> Layers:
    """Every layer's page made as large as the largest: a state is padded, a page that divides it gets a larger block,
    any other attention page is padded. Raises EngineError for an MLA page, which cannot be padded.
    """
    used = layers.used()
    pages = {k: layers.specs[k].page for k in used}
    if len(set(pages.values())) <= 1:
        return layers
    largest = max(pages.values())
    specs = list(layers.specs)
    for k in used:
        spec, page = specs[k], pages[k]
        if page == largest:
            continue
        if spec.is_state:
            specs[k] = replace(spec, padded=largest)
        elif page == 0:
            raise EngineError("integer modulo by zero", "ZeroDivisionError")
        elif largest % page == 0:
            specs[k] = replace(spec, block=spec.block * (largest // page))
        elif spec.kind not in MLA:
            specs[k] = replace(spec, padded=largest)
        else:
            raise EngineError(
                f"Layer {name(layers.order.index(k))}: page size is not divisible by the maximum page size "
                "and cannot be padded. Padding is only supported for non-MLA attention layers.",
                "NotImplementedError",
            )
        specs[k] = finished(specs[k])
        if specs[k].page != largest:
            raise EngineError("", "AssertionError")
    return Layers(tuple(specs), layers.order)


def by_page(layers: Layers, engine: Engine) -> list[tuple[tuple[int, ...], CacheSpec]]:
    """Groups of equal size for layers whose pages are equal: (positions, merged spec) each.

    Layers with mergeable specs make a bucket; the smallest bucket is the group size, unless the largest is hardly
    larger; buckets are dealt out so that every pipeline stage gets some of each group.
    """
    positions: dict[CacheSpec, list[int]] = {}
    for n, k in enumerate(layers.order):
        positions.setdefault(layers.specs[k], []).append(n)
    buckets: list[tuple[list[int], list[CacheSpec]]] = []
    for spec, where in positions.items():
        for names, specs in buckets:
            if merges([*specs, spec], ("AssertionError", "ValueError")):
                names += where
                specs.append(spec)
                break
        else:
            buckets.append((list(where), [spec]))
    counts = [len(names) for names, _ in buckets]
    size = max(counts) if max(counts) < min(counts) * engine.constant("padding_tolerance") else min(counts)
    found = []
    for names, _ in buckets:
        number = cdiv(len(names), size)
        found += [names[i::number] for i in range(number)]
    return [(tuple(names), merge([layers.specs[layers.order[n]] for n in names])) for names in found]


def promote_local(layers: Layers) -> Layers:
    """Window and chunked layers allocated as full attention beside full layers. Raises EngineError if the result is
    not of one type.
    """

    def one_type(specs: list[CacheSpec]) -> bool:
        return merges(specs) or uniform_type(specs)

    used = layers.used()
    if not used:
        return layers
    specs = list(layers.specs)
    if one_type([specs[k] for k in used]):
        return layers
    kinds = {specs[k].kind for k in used}
    blocks = {specs[k].block for k in used if specs[k].kind in FULL}
    if kinds & FULL and (kinds & WINDOW or "chunked" in kinds):
        for k in used:
            spec = specs[k]
            if spec.kind == "window_mla":
                raise EngineError(
                    "MLAAttentionSpec.__init__() got an unexpected keyword argument 'bounded_replay'", "TypeError"
                )
            if spec.kind in ("window", "chunked"):
                block = next(iter(blocks)) if len(blocks) == 1 else spec.block
                padded = spec.padded if spec.padded is None else max(spec.padded, spec.unpadded * block // spec.block)
                specs[k] = replace(spec, kind="full", block=block, padded=padded, extra_retained=0)
    if not one_type([specs[k] for k in used]):
        raise EngineError("Failed to promote local KV cache specs to one unified type.")
    return Layers(tuple(specs), layers.order)


def _without_hybrid_manager(layers: Layers) -> Layers:
    specs = list(layers.specs)
    halves: dict[bool, list[int]] = {}
    for k in layers.used():
        halves.setdefault(not specs[k].is_state and not specs[k].dcp_sharded, []).append(k)
    for half in halves.values():
        promoted = promote_local(Layers(tuple(specs), tuple(k for k in layers.order if k in half)))
        for k in half:
            specs[k] = promoted.specs[k]
    return Layers(tuple(specs), layers.order)


def _whole(layers: Layers) -> list[CacheGroup]:
    """All layers in one group of a uniform type."""
    return [CacheGroup(tuple(range(len(layers.order))), tuple(layers.specs[k] for k in layers.order), uniform=True)]


def _full_allocation(layers: Layers) -> list[CacheGroup] | None:
    """MLA beside plain sliding windows whose pages cannot be made equal: windows allocated as full attention."""
    kinds = {layers.specs[k].kind for k in layers.used()}
    if kinds & {"hidden", "window_mla", "chunked"} or not ("mla" in kinds and "window" in kinds):
        return None
    try:
        promoted = promote_local(layers)
    except EngineError as refusal:
        if refusal.kind != "ValueError":
            raise
        return None
    return _whole(promoted) if uniform_type([promoted.specs[k] for k in promoted.used()]) else None


def make_groups(
    engine: Engine, layers: Layers, layout: str, *, hybrid_manager: bool = True, name: Name = _layer_name
) -> list[CacheGroup]:
    """KV-cache groups of a model, in vLLM's order. Raises EngineError where vLLM raises."""
    if not hybrid_manager:
        layers = _without_hybrid_manager(layers)
    if not layers.order:
        return []
    used = [layers.specs[k] for k in layers.used()]
    if merges(used):
        return [CacheGroup(tuple(range(len(layers.order))), (merge(used),))]
    if uniform_type(used):
        return _whole(layers)
    hidden, hidden_at = layers.only(lambda s: s.kind == "hidden")
    rest, rest_at = layers.only(lambda s: s.kind != "hidden")
    if layout.startswith("B") and (groups := packing.packed_groups(rest)) is not None:
        made = [
            CacheGroup(tuple(rest_at[n] for n in g), tuple(rest.specs[rest.order[n]] for n in g), uniform=True)
            for g in groups
        ]
        return made + [CacheGroup((at,), (hidden.specs[k],)) for at, k in zip(hidden_at, hidden.order, strict=True)]
    try:
        rest = unify(rest, lambda n: name(rest_at[n]))
    except EngineError as refusal:
        fallback = _full_allocation(layers) if refusal.kind == "NotImplementedError" else None
        if fallback is None:
            raise
        return fallback
    made = [CacheGroup(tuple(rest_at[n] for n in names), (spec,)) for names, spec in by_page(rest, engine)]
    return _with_hidden(made, hidden, hidden_at) if hidden_at else made


def _with_hidden(groups: list[CacheGroup], hidden: Layers, at: Sequence[int]) -> list[CacheGroup]:
    """Hidden-state layers added, their pages padded to the common one, which first grows to hold one token of them."""
    page = groups[0].page_bytes
    per_token = {k: hidden.specs[k].heads * hidden.specs[k].head * hidden.specs[k].bytes for k in hidden.used()}
    most = max(per_token.values())
    if most > page:
        scale = cdiv(most, page)
        page *= scale
        groups = [
            replace(
                g, specs=tuple(replace(s, block=s.block * scale, padded=s.padded and s.padded * scale) for s in g.specs)
            )
            for g in groups
        ]
    blocks = gcd(*(g.block for g in groups))
    for n, k in zip(at, hidden.order, strict=True):
        limit = min(blocks, max(page // per_token[k], 1))
        block = next(c for c in range(limit, 0, -1) if blocks % c == 0)
        groups.append(CacheGroup((n,), (replace(hidden.specs[k], block=block, padded=page),)))
    return groups
