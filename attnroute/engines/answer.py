"""The record of a start-up: what its steps left, in `EngineResult`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnroute.engines.caches import limits, state_page
from attnroute.engines.groups import group_kind
from attnroute.engines.result import Capacity, EngineGroup, EngineResult, MadeGroup
from attnroute.engines.rules import EngineError
from attnroute.engines.spec import request_pages
from attnroute.engines.world import head_size

if TYPE_CHECKING:
    from attnroute.engines.spec import CacheSpec
    from attnroute.engines.steps import Member, Steps


def build(steps: Steps) -> EngineResult:
    """The answer of a start-up, complete or stopped by an error."""
    made = tuple(_made(steps, n) for n in range(len(steps.made)))
    found = steps.found
    return EngineResult(
        engine=steps.engine.name,
        version=steps.engine.version,
        arch=steps.arch,
        head_size=steps.options.head_size,
        groups=tuple(_group(steps, m) for m in steps.members),
        block_size=steps.blocks.block_size,
        scheduler_block_size=_scheduler_block(steps),
        layout=steps.layout,
        graph_level=_graph(steps),
        reorder_threshold=_threshold(steps),
        state=None if steps.errors else state_page(steps),
        groups_made=made,
        capacity=None
        if found is None
        else Capacity(
            found.num_blocks,
            found.bytes_per_block[0],
            found.per_request,
            found.tokens,
            found.concurrency,
            _token_bytes(steps),
            found.max_model_len,
        ),
        mamba_cache_mode=steps.cache_mode,
        warnings=tuple(steps.warnings),
        errors=tuple(steps.errors),
        kv_cache_dtype=steps.world.cache_dtype,
        backend_asked=steps.world.backend_asked,
        flash_attn_version=steps.world.fa_asked,
        skip_page_bytes=steps.blocks.skip_page_padded,
        options=steps.options,
    )


def _pages(steps: Steps, member: Member) -> int | None:
    spec = member.unified or member.spec
    if spec is None or steps.options.max_model_len is None:
        return None
    try:
        return request_pages(steps.engine, spec, limits(steps))
    except EngineError:
        return None


def _group(steps: Steps, member: Member) -> EngineGroup:
    g, plan, spec = member.group, member.plan, member.unified or member.spec
    selection = member.selection
    kept = g.attn_type not in ("encoder", "encoder_only")
    return EngineGroup(
        name=g.name,
        role=g.role,
        kind=spec.kind if spec is not None else g.kind,
        layers=g.layers,
        head_dim=head_size(g),
        backend=None if selection is None else selection.backend.name,
        fa_version=None if plan is None else plan.fa_version,
        rejected=member.rejected,
        precluded=() if selection is None else selection.precluded,
        block=spec.block if spec is not None and kept else 0,
        kernel_page=member.kernel_page,
        page_bytes=_page(spec) if spec is not None and kept else 0,
        unpadded_bytes=spec.unpadded if spec is not None and kept else 0,
        blocks_per_request=_pages(steps, member),
        graph_level="none" if plan is None else plan.graph,
        reorder_threshold=None if plan is None else plan.threshold,
        phases={} if plan is None else plan.phases,
        engine_groups=member.made,
        kv=member.kv,
        notes=() if plan is None else plan.notes,
    )


def _page(spec: CacheSpec) -> int:
    """The page as it is asked for, be it too small (then an error says so)."""
    return spec.unpadded if spec.padded is None else spec.padded


def _made(steps: Steps, n: int) -> MadeGroup:
    made = steps.made[n]
    try:
        pages = (
            None
            if steps.options.max_model_len is None
            else max(request_pages(steps.engine, s, limits(steps)) for s in dict.fromkeys(made.specs))
        )
    except EngineError:
        pages = None
    return MadeGroup(
        group_kind(steps.engine, made),
        tuple(steps.names[x] for x in made.layers),
        made.block,
        steps.kernel_blocks[n] if n < len(steps.kernel_blocks) else None,
        made.page_bytes,
        pages,
        made.uniform,
    )


def _scheduler_block(steps: Steps) -> int | None:
    if steps.found is not None:
        return steps.found.scheduler_block
    if not steps.made:
        return None
    from math import lcm

    return lcm(*(g.block * (steps.world.dcp if g.first.dcp_sharded else 1) for g in steps.made))


def _graph(steps: Steps) -> str:
    """The lowest level of all groups and states."""
    levels = [m.plan.graph for m in steps.members if m.plan is not None]
    if len(levels) < len(steps.members):
        return "none"
    levels += [steps.engine.data["state_backends"][s.kind]["graph"] for s in steps.state]
    order: list[str] = steps.engine.data["graph_levels"]
    return min(levels, key=order.index, default="none")


def _threshold(steps: Steps) -> int | None:
    """The smallest threshold of all groups and states; None where nobody reorders."""
    found = [m.plan.threshold for m in steps.members if m.plan is not None]
    spec = steps.options.num_speculative_tokens
    for state in steps.state:
        rule = steps.engine.data["state_backends"][state.kind]
        found.append(1 if steps.world.dcp > 1 else rule["threshold"] + (spec if rule["spec"] else 0))
    return min((t for t in found if t is not None), default=None)


def _token_bytes(steps: Steps) -> int:
    """Bytes that one token of context takes in all attention layers that grow with it, padding apart."""
    total = 0
    for member in steps.cached():
        spec = member.unified or member.spec
        if spec is not None and spec.window is None and spec.chunk is None and spec.kind != "cross":
            total += spec.unpadded * max(1, len(member.group.layers)) // spec.block
    return total
