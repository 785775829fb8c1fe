"""Layers of equal geometry become one KV-cache group, with a name that people use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnroute.dispatch.group import KVGroup
from attnroute.models.family import FULL, SLIDING, Family

if TYPE_CHECKING:
    from collections.abc import Sequence

    from attnroute.models.geometry import Geometry


def group_names(geometries: Sequence[Geometry], family: Family, role: str) -> dict[Geometry, str]:
    """A name for each distinct geometry, in order of first layer.

    Target: its kind ("full", "sliding", "chunked", "cross", "encoder", "mla"), where Gemma's full layers beside
    sliding ones are "global". Drafter: "draft", or "draft-KIND" if it has several. Equal names are told apart by what
    differs.
    """
    distinct = list(dict.fromkeys(geometries))
    mixed = any(g.kind == SLIDING for g in distinct)
    names: dict[Geometry, str] = {}
    for geometry in distinct:
        base = "mla" if geometry.kv_kind != "gqa" else geometry.kind
        if base == FULL and mixed:
            base = family.full_name
        names[geometry] = base if role != "draft" else "draft" if len(distinct) == 1 else f"draft-{base}"
    for base in dict.fromkeys(names.values()):
        same = [g for g in distinct if names[g] == base]
        if len(same) > 1:
            for geometry, suffix in zip(same, _suffixes(same), strict=True):
                names[geometry] = f"{base}-{suffix}"
    return names


def _suffixes(same: Sequence[Geometry]) -> list[str]:
    """The first property that differs for all, else a number."""
    for values in (
        [g.kv_dtype for g in same],
        [f"h{g.head_dim}" for g in same],
        [f"{g.q_heads}x{g.kv_heads}" for g in same],
        ["causal" if g.causal else "noncausal" for g in same],
    ):
        if len(set(values)) == len(same):
            return values
    return [str(number + 1) for number in range(len(same))]


def make_group(name: str, geometry: Geometry, layers: Sequence[str], *, dtype: str, role: str) -> KVGroup:
    """The KVGroup of one geometry; `layers` are those that hold a cache, not those that share another's."""
    return KVGroup(
        name,
        geometry.head_dim,
        geometry.q_heads,
        geometry.kv_heads,
        head_dim_v=geometry.head_dim_v,
        kind=geometry.kv_kind,
        dtype=dtype,
        kv_dtype=geometry.kv_dtype,
        sliding_window=geometry.window,
        chunk=geometry.chunk,
        softcap=geometry.softcap,
        sinks=geometry.sinks,
        causal=geometry.causal,
        attn_type=geometry.attn_type,
        role=role,
        layers=tuple(layers),
        traits=geometry.traits,
        latent=geometry.latent,
        rope=geometry.rope,
        nope=geometry.nope,
        topk=geometry.topk,
    )
