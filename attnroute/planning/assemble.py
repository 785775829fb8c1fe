"""From the joint choice to the plan: each group's block, the page of each kernel, capacity, costs."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from attnroute.registry.dims import MLA_KINDS

from .capacity import Held, kv_json, mamba_json, pool_of
from .joint import GroupClass, Joint, best_alone, model_level
from .pages import bytes_per_token, kernel_pages
from .record import PHASES, PhaseKernel, Plan, PlanGroup
from .words import notes_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from attnroute.dispatch.group import KVGroup

    from .options import Option
    from .search import Search


def assemble(
    groups: Sequence[KVGroup],
    search: Search,
    classes: Sequence[GroupClass],
    joint: Joint,
    asked: dict[str, Any],
) -> Plan:
    """The plan of a joint choice. `asked` is what the caller stated, for the record."""
    setting, spans, states = search.setting, search.spans, search.states
    held: list[Held] = []
    by_name: dict[str, PlanGroup] = {}
    original = {g.name: g for g in groups}
    longest = asked["max_model_len"]
    blocks = joint.blocks
    chosen = iter(() if blocks is None else zip(blocks.pages, blocks.sizes, strict=True))
    for member, item, options in zip(search.members, classes, joint.chosen, strict=True):
        group = member.group
        page_bytes, size = next(chosen) if item.need is not None else (None, None)
        phases = _phases(item, options, size)
        each = bytes_per_token(group)
        count = None
        if size is not None:
            held.append(Held(member.layers, each, page_bytes or 0, partial(spans.blocks, group, size)))
            count = None if longest is None else spans.blocks(group, size, longest)
        for name in member.names:
            stored = None if size is None else size * each
            by_name[name] = PlanGroup(
                name=name,
                role=group.role,
                layers=original[name].layers,
                head_dim=group.head_dim,
                head_dim_v=group.v_dim,
                block_size=size,
                page_bytes=page_bytes,
                padding_percent=None if page_bytes is None or not stored else 100.0 * (page_bytes - stored) / stored,
                phases=phases,
                needed=tuple(p.phase for p in item.phases),
                shape=shape_of(group),
                blocks_per_request=count,
            )
    targets = [g.block_size for g in by_name.values() if g.block_size is not None and g.role == "target"]
    alone = best_alone(classes)
    total = sum(c.layers for c in classes) or 1
    return Plan(
        arch=setting.decode.arch,
        engine="generic",
        packages=dict(setting.decode.packages.versions),
        block_size=min(targets or [g.block_size for g in by_name.values() if g.block_size is not None], default=None),
        manager_block=None if blocks is None else blocks.manager_block,
        page_bytes=None if blocks is None or blocks.one_table else blocks.page_bytes,
        layout=joint.layout,
        graph_level=model_level(classes, joint.chosen),
        groups=tuple(by_name[g.name] for g in groups),
        mamba=mamba_json(states, joint.blocks),
        kv=None if blocks is None else kv_json(pool_of(held, states, blocks), asked["kv_memory"], longest),
        cost={
            "time": joint.time / total,
            "time_if_each_alone": alone / total,
            "waste": 0.0 if joint.blocks is None else joint.blocks.waste,
            "graph": joint.graph / total,
            "measured": any(o is not None and o.time is not None for c in joint.chosen for o in c),
        },
        options=asked | {"packages_origin": setting.decode.packages.origin},
        prefill_arch=setting.prefill.arch if setting.prefill is not setting.decode else None,
        prefill_packages=dict(setting.prefill.packages.versions) if setting.prefill is not setting.decode else None,
        _explain=partial(notes_for, search, classes, joint),
    )


def shape_of(group: KVGroup) -> dict[str, Any]:
    """What a reader wants to know of a group besides its head dims."""
    found: dict[str, Any] = {
        "kind": group.kind,
        "attn_type": group.attn_type,
        "num_q_heads": group.num_q_heads,
        "num_kv_heads": group.num_kv_heads,
        "dtype": group.dtype,
        "kv_dtype": group.kv,
        "sliding_window": group.sliding_window,
        "chunk": group.chunk,
        "causal": group.causal,
        "bytes_per_token": bytes_per_token(group),
    }
    return found | ({"latent": group.latent, "rope": group.rope} if group.kind in MLA_KINDS else {})


def _phases(item: GroupClass, options: Sequence[Option | None], block: int | None) -> dict[str, PhaseKernel | None]:
    sets = [
        o.pages if o is not None and p.paged and block is not None else None
        for p, o in zip(item.phases, options, strict=True)
    ]
    pages = kernel_pages(sets, block) if block is not None else (None,) * len(sets)
    found: dict[str, PhaseKernel | None] = dict.fromkeys(PHASES)
    for need, option, page in zip(item.phases, options, pages, strict=True):
        if option is not None:
            found[need.phase] = PhaseKernel(
                kernel=option.kernel,
                provider=option.provider,
                page_size=page,
                q_dtype=option.q_dtype,
                row=option.row,
                graph_level=option.graph_level,
                calls=option.calls,
                proof=option.strength,
                measured=None if option.time is None else round(option.time, 4),
            )
    return found
