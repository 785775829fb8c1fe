"""The question that the joint choice answers, built from groups, and asked again for what a plan explains."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from .blocks import Need
from .joint import GroupClass, solve
from .pages import bytes_per_token
from .phases import phase_need, phases_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from attnroute.dispatch.group import KVGroup

    from .blocks import StateNeed
    from .joint import Joint, Weights
    from .pages import Spans
    from .phases import Setting

#: What makes two groups one class: everything but their names and layers.
_GEOMETRY = attrgetter(
    "head_dim", "head_dim_v", "num_q_heads", "num_kv_heads", "kind", "dtype", "kv_dtype", "sliding_window", "chunk",
    "softcap", "sinks", "causal", "attn_type", "role", "traits", "latent", "rope", "nope", "topk",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Member:
    """Groups of equal geometry: one of them, the names of all, the layers of all."""

    group: KVGroup
    names: tuple[str, ...]
    layers: int

    @property
    def title(self) -> str:
        return " ".join(self.names)


@dataclass(frozen=True, slots=True)
class Search:
    """Everything that `solve` is asked with."""

    members: tuple[Member, ...]
    setting: Setting
    spans: Spans
    states: tuple[StateNeed, ...]
    weights: Weights
    granule: int
    asked_block: int | None
    layout: str | None

    def classes(self, setting: Setting | None = None) -> list[GroupClass]:
        """The groups' phases with the kernels that may serve them; under another setting for a question of what if."""
        return [_class(m, setting or self.setting, self.spans) for m in self.members]

    def solve(self, classes: Sequence[GroupClass], *, one_kernel: bool | None = None) -> Joint | None:
        """The cheapest joint choice for these classes, or None."""
        return solve(
            classes, self.states, self.weights, granule=self.granule, asked_block=self.asked_block, layout=self.layout,
            slack=self.setting.slack, one_kernel=self.setting.one_kernel if one_kernel is None else one_kernel,
        )  # fmt: skip

    def what_if(self, **changes: Any) -> Setting:
        """The setting with changes, and with a list of its own for what falls back."""
        return replace(self.setting, fallbacks=[], **changes)


def members_of(groups: Sequence[KVGroup]) -> tuple[Member, ...]:
    """Groups of equal geometry together, ordered by what they are and not by how they were passed, so that the order
    of groups and layers changes nothing.
    """
    found: dict[Any, list[KVGroup]] = {}
    for group in groups:
        found.setdefault(_GEOMETRY(group), []).append(group)
    ordered = sorted(found.items(), key=lambda item: repr(item[0])) if len(found) > 1 else found.items()
    return tuple(Member(g[0], tuple(m.name for m in g), sum(max(1, len(m.layers)) for m in g)) for _, g in ordered)


def _class(member: Member, setting: Setting, spans: Spans) -> GroupClass:
    group = member.group
    phases = tuple(phase_need(group, member.names, p, setting) for p in phases_of(group, setting.speculative))
    if group.attn_type in ("encoder", "encoder_only"):
        return GroupClass(phases, member.layers, None)
    return GroupClass(phases, member.layers, need_of(group, member.layers, setting, spans))


def need_of(group: KVGroup, layers: int, setting: Setting, spans: Spans) -> Callable[[int], Need]:
    """The block question of `layers` layers of a group's geometry, as a function of the unit of its block."""
    each = bytes_per_token(group)
    contexts = setting.workload.context_lens
    held = tuple(spans.tokens(group, c) for c in contexts)
    counts = tuple(partial(_blocks, spans, group, c) for c in contexts)
    span = (group.attn_type, group.sliding_window, group.chunk)
    return lambda unit: Need(each, layers, unit, span, held, counts)


def _blocks(spans: Spans, group: KVGroup, context: int, block: int) -> int:
    return spans.blocks(group, block, context)
