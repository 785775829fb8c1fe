"""The later steps of vLLM's start-up: each layer's cache, the layout, groups, kernel blocks, kernels, memory."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from attnroute.engines import blocks, capacity, groups, layout
from attnroute.engines.facts import model_size_facts, spec_size_facts
from attnroute.engines.kernels import plan_kernels
from attnroute.engines.layer import layer_spec
from attnroute.engines.result import StatePage
from attnroute.engines.rules import EngineError
from attnroute.engines.spec import CacheSpec, Limits, packed, request_pages
from attnroute.engines.world import MLA_KINDS

if TYPE_CHECKING:
    from attnroute.engines.steps import Steps

_DIGITS = re.compile(r"\d+")
STATE_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "fp8_e4m3": 1, "fp8_e5m2": 1, "int8": 1}


def natural(name: str) -> tuple[str, tuple[int, ...]]:
    """Order of layer names with their numbers as numbers."""
    return _DIGITS.sub("", name), tuple(map(int, _DIGITS.findall(name)))


def make_specs(steps: Steps) -> None:
    """The cache that each group asks for, as its backend packs it."""
    for member in steps.members:
        g, backend = member.group, steps.backend(member)
        if g.kind not in MLA_KINDS and g.chunk is None and g.attn_type == "decoder":
            spec = layer_spec(
                steps.engine,
                steps.layer_world(member),
                backend,
                kv=member.kv,
                dtype=g.dtype,
                heads=g.num_kv_heads,
                head=g.head_dim,
                head_v=g.head_dim_v,
                window=g.sliding_window,
                block=steps.blocks.block_size,
                shared_page=steps.blocks.skip_page_padded,
            )
            assert spec is not None
        else:
            spec = steps.natural_spec(member, steps.blocks.block_size)
        spec = packed(steps.engine, backend, spec)
        sizes = blocks.declared_sizes(backend, spec_size_facts(steps.engine, steps.layer_world(member), spec))
        if sizes and all(s.exact for s in sizes):
            spec = replace(spec, stride_tokens=max(s.base for s in sizes))
        if g.role == "draft" and steps.world.dcp > 1:
            spec = replace(spec, dcp_sharded=False)
        member.spec = spec


def state_specs(steps: Steps) -> list[CacheSpec]:
    """The caches of the states, padded to the attention page."""
    rules = steps.engine.data["state_backends"]
    block = steps.blocks.mamba_block_size or steps.options.max_model_len or steps.blocks.block_size
    found = []
    for state, checkpoint in zip(steps.state, steps.checkpoints(), strict=True):
        extra = rules[state.kind].get("checkpoint_blocks", 1 if checkpoint is not None else 0)
        found.append(
            CacheSpec(
                "mamba",
                block,
                tensors=tuple((tuple(t.shape), STATE_BYTES[t.dtype]) for t in state.tensors),
                padded=steps.blocks.mamba_page_padded,
                cache_mode=steps.cache_mode,
                dcp_sharded=False,
                spec_blocks=steps.options.num_speculative_tokens,
                checkpoint_blocks=extra if steps.cache_mode == "align" else 0,
            )
        )
    return found


def choose_layout(steps: Steps) -> None:
    """The layout that all backends read."""
    facts = model_size_facts(steps.engine, steps.world)
    names = layout.supported(
        steps.engine, {steps.backend(m).name: steps.backend(m) for m in steps.members}.values(), facts
    )
    specs = [m.spec for m in steps.cached() if m.spec is not None] + state_specs(steps)
    steps.layout = layout.resolve_layout(steps.engine, names, specs, requested=steps.options.layout)


def group(steps: Steps) -> None:
    """The groups that vLLM makes of all layers, and what each of ours becomes in them."""
    members = steps.cached()
    specs = [m.spec for m in members if m.spec is not None] + state_specs(steps)
    owners = [m.group.layers or (m.group.name,) for m in members] + [s.layers or (s.name,) for s in steps.state]
    roles = [m.group.role for m in members] + ["target"] * len(steps.state)
    layers = sorted(
        (
            (role, natural(name), name, k)
            for k, (names, role) in enumerate(zip(owners, roles, strict=True))
            for name in names
        ),
        key=lambda item: (item[0] != "target", item[1]),
    )
    steps.names = [name for _, _, name, _ in layers]
    steps.layers = groups.Layers(tuple(specs), tuple(k for _, _, _, k in layers))
    steps.made = groups.make_groups(
        steps.engine,
        steps.layers,
        steps.layout or "",
        hybrid_manager=steps.options.hybrid_manager,
        name=steps.names.__getitem__,
    )
    capacity.check_partition(steps.made, steps.layers)
    for k, member in enumerate(members):
        holds = [(n, g) for n, g in enumerate(steps.made) if any(steps.layers.order[x] == k for x in g.layers)]
        member.made = tuple(n for n, _ in holds)
        g = holds[0][1]
        member.unified = (
            g.specs[next(i for i, x in enumerate(g.layers) if steps.layers.order[x] == k)] if g.uniform else g.first
        )


def split(steps: Steps) -> None:
    """Kernel blocks: of each group for all its backends, then of each backend by itsteps."""
    members = steps.cached()
    for n, made in enumerate(steps.made):
        inside = [m for m in members if n in m.made]
        if not inside:
            steps.kernel_blocks.append(made.block)
            continue
        asked = [(steps.backend(m), spec_size_facts(steps.engine, steps.layer_world(m), m.unified)) for m in inside]
        whole = (steps.layout or "").startswith("B") and len(made.layers) > 1
        block = made.block if whole else blocks.common_block(made.block, asked)
        steps.kernel_blocks.append(block)
        for member, one in zip(inside, asked, strict=True):
            own = blocks.common_block(made.block, [one])
            member.kernel_page = block if whole else min(own, block) if own != made.block else block
            if whole and own < made.block:
                member.kernel_page = own
            padded = member.unified is not None and member.unified.padded is not None
            if padded and member.kernel_page != made.block:
                raise EngineError(
                    f"Padded KV pages do not support kernel block splitting: {member.group.name} has blocks of "
                    f"{made.block} tokens padded to {member.unified.page if member.unified else 0} bytes, its "
                    f"kernel reads {member.kernel_page}.",
                    "AssertionError",
                )


def kernels(steps: Steps) -> None:
    """Kernels of every group."""
    for member in steps.members:
        spec = member.unified or member.spec
        assert spec is not None
        page = member.kernel_page or spec.block
        world = steps.layer_world(member)
        member.plan = plan_kernels(
            steps.engine,
            world,
            steps.backend(member),
            member.group,
            spec,
            member.kv,
            page,
            spec_tokens=steps.options.num_speculative_tokens,
        )


def limits(steps: Steps) -> Limits:
    """What bounds one request."""
    flight = steps.options.max_in_flight_tokens or int(steps.engine.constant("default_in_flight_tokens"))
    return Limits(
        steps.options.max_model_len or 0, flight, steps.world.dcp, steps.cache_mode, steps.options.encoder_tokens
    )


def count(steps: Steps) -> None:
    """Blocks that fit, if a memory size and a context length are known."""
    if steps.options.max_model_len is None or (
        steps.options.kv_memory is None and steps.options.num_gpu_blocks is None
    ):
        return
    everything = frozenset(range(len(steps.layers.order)))
    steps.found = capacity.count_blocks(
        steps.engine,
        steps.made,
        [everything],
        [steps.options.kv_memory or 0],
        steps.layout or "",
        limits(steps),
        block_size=steps.blocks.block_size,
        num_blocks=steps.options.num_gpu_blocks,
        auto_fit=steps.options.auto_fit,
        hashing=steps.options.prefix_caching,
        connector=steps.options.kv_connector,
    )


def state_page(steps: Steps) -> StatePage | None:
    """The largest state and the page that it is padded to; None without linear layers."""
    size = steps.state_bytes()
    if not size:
        return None
    specs = state_specs(steps)
    pages = [steps.made[n].first.page for n in range(len(steps.made)) if steps.made[n].first.is_state]
    page = max(pages, default=steps.blocks.mamba_page_padded or size)
    return StatePage(size, page, specs[0].block, request_pages(steps.engine, specs[0], limits(steps)))


STEPS = (make_specs, choose_layout, group, split, kernels, count)
