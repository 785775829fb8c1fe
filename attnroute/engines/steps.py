"""The steps of vLLM's start-up over one model, each using what the ones before it left."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import lcm, prod
from typing import TYPE_CHECKING

from attnroute.engines import align, blocks, capacity, groups, layout
from attnroute.engines.data import Backend, Engine, Size, first_use
from attnroute.engines.facts import World, model_size_facts, spec_size_facts, world_facts
from attnroute.engines.kernels import GroupPlan, plan_kernels
from attnroute.engines.layer import layer_spec
from attnroute.engines.result import EngineOptions, EngineResult, StateLike, StatePage
from attnroute.engines.rules import EngineRefusal
from attnroute.engines.selection import NoBackend, Selection, requested, select
from attnroute.engines.spec import CacheSpec, Limits, attention_spec, packed, request_pages
from attnroute.engines.world import MLA_KINDS, head_size, kv_name, make_world

if TYPE_CHECKING:
    from attnroute.dispatch.group import KVGroup
    from attnroute.engines.rules import Facts

_DIGITS = re.compile(r"\d+")
STATE_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "fp8_e4m3": 1, "fp8_e5m2": 1, "int8": 1}


def natural(name: str) -> tuple[str, tuple[int, ...]]:
    """Order of layer names with their numbers as numbers."""
    return _DIGITS.sub("", name), tuple(map(int, _DIGITS.findall(name)))


@dataclass(slots=True)
class Member:
    """One group that was passed in, and what the steps found out about it."""

    group: KVGroup
    kv: str
    selection: Selection | None = None
    rejected: dict[str, tuple[str, ...]] = field(default_factory=dict)
    spec: CacheSpec | None = None
    unified: CacheSpec | None = None
    plan: GroupPlan | None = None
    made: tuple[int, ...] = ()
    kernel_page: int = 0


class Steps:
    """One start-up. `run` answers; the attributes are what each step leaves."""

    def __init__(self, engine: Engine, arch: str, cc: tuple[int, int], target: Sequence[KVGroup], draft: Sequence[KVGroup],
                 state: Sequence[StateLike], options: EngineOptions) -> None:  # fmt: skip
        self.engine, self.arch, self.options, self.state = engine, arch, options, tuple(state)
        ordered = sorted(target, key=lambda g: natural(g.layers[0]) if g.layers else ("", ()))
        drafts = sorted(draft, key=lambda g: natural(g.layers[0]) if g.layers else ("", ()))
        self.world, self.hooks = make_world(engine, cc, ordered, options, [*ordered, *drafts])
        self.members = [Member(g, kv_name(engine, g, self.world.cache_dtype)) for g in (*ordered, *drafts)]
        self.warnings: list[str] = []
        self.errors: list[str] = []
        self.blocks = align.BlockState(options.block_size or int(engine.constant("default_block")))
        self.cache_mode = "align" if options.prefix_caching and self.state else "none"
        self.layout: str | None = None
        self.made: list[groups.CacheGroup] = []
        self.kernel_blocks: list[int | None] = []
        self.layers: groups.Layers = groups.Layers((), ())
        self.names: list[str] = []
        self.found: capacity.Blocks | None = None

    @property
    def per_layer(self) -> bool:
        return self.options.head_size == "per-layer"

    def run(self) -> EngineResult:
        """All steps; the first error stops them."""
        for step in (self.choose_backends, self.choose_block, self.make_specs, self.choose_layout, self.group, self.split, self.kernels,
                     self.count):  # fmt: skip
            try:
                step()
            except EngineRefusal as refusal:
                self.errors.append(str(refusal) or f"{refusal.kind} in {step.__name__.replace('_', ' ')}")
                break
        return self.result()

    # -- backends ----------------------------------------------------------------------------------------------------
    def layer_world(self, member: Member) -> World:
        """The world of a drafter's layers: text only, and --attention-backend does not reach a block drafter."""
        return self.world if member.group.role == "target" else replace(self.world, model_mm_prefix=False)

    def layer_facts(self, member: Member) -> Facts:
        g = member.group
        return world_facts(
            self.engine, self.layer_world(member), head=head_size(g), kv=member.kv, dtype=g.dtype, block=self.options.block_size,
            mla=g.kind in MLA_KINDS, sparse=g.kind == "mla_sparse", sinks=bool(g.sinks), attn_type=g.attn_type,
            per_head_scales="per_head_scales" in g.traits, window=g.sliding_window is not None,
            mm_prefix="mm_prefix" in g.traits and g.role == "target", non_causal=not g.causal and g.attn_type == "decoder",
            heads=g.num_q_heads,
        )  # fmt: skip

    def size_facts(self, member: Member) -> Facts:
        """The facts from which a backend declares block sizes for this group before any spec exists."""
        world = self.layer_world(member)
        if not self.per_layer:
            return model_size_facts(self.engine, world)
        return spec_size_facts(self.engine, world, self.natural_spec(member, 1))

    def natural_spec(self, member: Member, block: int) -> CacheSpec:
        """The group's cache with blocks of `block` tokens, not packed."""
        g = member.group
        if g.kind in MLA_KINDS:
            return attention_spec(self.engine, "mla", block=block, heads=1, head=head_size(g), kv=member.kv, dtype=g.dtype)
        kind = {"encoder_decoder": "cross", "encoder": "encoder_only", "encoder_only": "encoder_only"}.get(g.attn_type, "full")
        if kind == "full" and g.chunk is not None:
            kind = "chunked"
        return attention_spec(
            self.engine, kind, block=block, heads=g.num_kv_heads, head=g.head_dim, head_v=g.head_dim_v, kv=member.kv, dtype=g.dtype,
            chunk=g.chunk,
        )  # fmt: skip

    def choose_backends(self) -> None:
        per_kind = dict(self.options.backend_per_kind)
        self.warnings += self.hooks
        for member in self.members:
            g = member.group
            asked = self.world.backend_asked if g.role == "target" else None
            name = requested(asked, per_kind, mla=g.kind in MLA_KINDS, window=g.sliding_window is not None, attn_type=g.attn_type)
            try:
                member.selection = select(self.engine, self.layer_facts(member), self.size_facts(member), name)
            except NoBackend as refusal:
                member.rejected = dict(refusal.reasons)
                raise
            member.rejected = dict(member.selection.reasons)
            if member.selection.precluded:
                names = ", ".join(member.selection.precluded)
                self.warnings.append(
                    f"--block-size {self.options.block_size} precluded higher-priority backend(s) {names} for {g.name}. Using "
                    f"{member.selection.backend.label} instead, which may result in reduced performance."
                )

    def backend(self, member: Member) -> Backend:
        assert member.selection is not None
        return member.selection.backend

    def cached(self) -> list[Member]:
        """Members that keep a KV cache."""
        return [m for m in self.members if m.group.attn_type not in ("encoder", "encoder_only")]

    # -- one block for the model -------------------------------------------------------------------------------------
    def asked(self) -> tuple[blocks.Asked, ...]:
        """Distinct backends in layer order, each with the facts of its question; per layer also each cache's own."""
        found: dict[tuple[str, tuple[Size, ...]], blocks.Asked] = {}
        for member in self.members:
            for backend in (self.backend(member), *self.indexer(member)):
                facts = self.size_facts(member)
                key = (backend.name, blocks.declared_sizes(backend, facts) if self.per_layer else ())
                found.setdefault(key, (backend, facts))
        return tuple(found.values())

    def indexer(self, member: Member) -> tuple[Backend, ...]:
        name = self.engine.data["indexers"].get(member.group.kind)
        return (self.engine.backend(name),) if name else ()

    def state_bytes(self) -> int:
        return max((sum(prod(t.shape) * STATE_BYTES[t.dtype] for t in s.tensors) for s in self.state), default=0)

    def checkpoints(self) -> list[int | None]:
        """Alignment of prefill checkpoints of each kind of state; None where it exports none."""
        if self.options.checkpoint_alignment is not None:
            return [self.options.checkpoint_alignment or None for _ in self.state]
        facts = world_facts(self.engine, self.world, state_key_dim=self.options.key_dim)
        rules = self.engine.data["state_backends"]
        return [first_use(rules[s.kind].get("checkpoint", []), facts) for s in self.state]

    def choose_block(self) -> None:
        first = self.members[0].group
        known = [c for c in self.checkpoints() if c is not None]
        cache = align.ModelCache(
            asked=self.asked(), kv=self.world.cache_dtype, dtype=first.dtype, head=self.world.model_head or 0,
            kv_heads=1 if first.kind in MLA_KINDS else self.world.model_kv_heads, mla=first.kind in MLA_KINDS,
            skip_layers=self.world.skip_layers, hybrid=bool(self.state), state_bytes=self.state_bytes(), cache_mode=self.cache_mode,
            checkpoint=lcm(*known) if len(known) == len(self.state) and known else 1, user_block=self.options.block_size is not None,
        )  # fmt: skip
        self.blocks = align.block_size_for_model(self.engine, cache, self.blocks)

    # -- each layer's cache ------------------------------------------------------------------------------------------
    def make_specs(self) -> None:
        for member in self.members:
            g, backend = member.group, self.backend(member)
            if g.kind not in MLA_KINDS and g.chunk is None and g.attn_type == "decoder":
                spec = layer_spec(
                    self.engine, self.layer_world(member), backend, kv=member.kv, dtype=g.dtype, heads=g.num_kv_heads, head=g.head_dim,
                    head_v=g.head_dim_v, window=g.sliding_window, block=self.blocks.block_size, shared_page=self.blocks.skip_page_padded,
                )  # fmt: skip
                assert spec is not None
            else:
                spec = self.natural_spec(member, self.blocks.block_size)
            spec = packed(self.engine, backend, spec)
            sizes = blocks.declared_sizes(backend, spec_size_facts(self.engine, self.layer_world(member), spec))
            if sizes and all(s.exact for s in sizes):
                spec = replace(spec, stride_tokens=max(s.base for s in sizes))
            if g.role == "draft" and self.world.dcp > 1:
                spec = replace(spec, dcp_sharded=False)
            member.spec = spec

    def state_specs(self) -> list[CacheSpec]:
        rules = self.engine.data["state_backends"]
        block = self.blocks.mamba_block_size or self.options.max_model_len or self.blocks.block_size
        found = []
        for state, checkpoint in zip(self.state, self.checkpoints(), strict=True):
            extra = rules[state.kind].get("checkpoint_blocks", 1 if checkpoint is not None else 0)
            found.append(
                CacheSpec(
                    "mamba", block, tensors=tuple((tuple(t.shape), STATE_BYTES[t.dtype]) for t in state.tensors),
                    padded=self.blocks.mamba_page_padded, cache_mode=self.cache_mode, dcp_sharded=False,
                    spec_blocks=self.options.num_speculative_tokens, checkpoint_blocks=extra if self.cache_mode == "align" else 0,
                )
            )  # fmt: skip
        return found

    def choose_layout(self) -> None:
        facts = model_size_facts(self.engine, self.world)
        names = layout.supported(self.engine, {self.backend(m).name: self.backend(m) for m in self.members}.values(), facts)
        specs = [m.spec for m in self.cached() if m.spec is not None] + self.state_specs()
        self.layout = layout.resolve_layout(self.engine, names, specs, requested=self.options.layout)

    # -- groups ------------------------------------------------------------------------------------------------------
    def group(self) -> None:
        members = self.cached()
        specs = [m.spec for m in members if m.spec is not None] + self.state_specs()
        owners = [m.group.layers or (m.group.name,) for m in members] + [s.layers or (s.name,) for s in self.state]
        roles = [m.group.role for m in members] + ["target"] * len(self.state)
        layers = sorted(
            ((role, natural(name), name, k) for k, (names, role) in enumerate(zip(owners, roles, strict=True)) for name in names),
            key=lambda item: (item[0] != "target", item[1]),
        )
        self.names = [name for _, _, name, _ in layers]
        self.layers = groups.Layers(tuple(specs), tuple(k for _, _, _, k in layers))
        self.made = groups.make_groups(
            self.engine, self.layers, self.layout or "", hybrid_manager=self.options.hybrid_manager, name=self.names.__getitem__
        )
        capacity.check_partition(self.made, self.layers)
        for k, member in enumerate(members):
            holds = [(n, g) for n, g in enumerate(self.made) if any(self.layers.order[x] == k for x in g.layers)]
            member.made = tuple(n for n, _ in holds)
            g = holds[0][1]
            member.unified = g.specs[next(i for i, x in enumerate(g.layers) if self.layers.order[x] == k)] if g.uniform else g.first

    def split(self) -> None:
        """Kernel blocks: of each group for all its backends, then of each backend by itself."""
        members = self.cached()
        for n, made in enumerate(self.made):
            inside = [m for m in members if n in m.made]
            if not inside:
                self.kernel_blocks.append(made.block)
                continue
            asked = [(self.backend(m), spec_size_facts(self.engine, self.layer_world(m), m.unified)) for m in inside]
            whole = (self.layout or "").startswith("B") and len(made.layers) > 1
            block = made.block if whole else blocks.common_block(made.block, asked)
            self.kernel_blocks.append(block)
            for member, one in zip(inside, asked, strict=True):
                own = blocks.common_block(made.block, [one])
                member.kernel_page = block if whole else min(own, block) if own != made.block else block
                if whole and own < made.block:
                    member.kernel_page = own
                padded = member.unified is not None and member.unified.padded is not None
                if padded and member.kernel_page != made.block:
                    raise EngineRefusal(
                        f"Padded KV pages do not support kernel block splitting: {member.group.name} has blocks of {made.block} tokens "
                        f"padded to {member.unified.page if member.unified else 0} bytes, its kernel reads {member.kernel_page}.",
                        "AssertionError",
                    )

    # -- kernels and memory ------------------------------------------------------------------------------------------
    def kernels(self) -> None:
        for member in self.members:
            spec = member.unified or member.spec
            assert spec is not None
            page = member.kernel_page or spec.block
            world = self.layer_world(member)
            member.plan = plan_kernels(
                self.engine, world, self.backend(member), member.group, spec, member.kv, page,
                spec_tokens=self.options.num_speculative_tokens,
            )  # fmt: skip

    def limits(self) -> Limits:
        flight = self.options.max_in_flight_tokens or int(self.engine.constant("default_in_flight_tokens"))
        return Limits(self.options.max_model_len or 0, flight, self.world.dcp, self.cache_mode, self.options.encoder_tokens)

    def count(self) -> None:
        if self.options.max_model_len is None or (self.options.kv_memory is None and self.options.num_gpu_blocks is None):
            return
        everything = frozenset(range(len(self.layers.order)))
        self.found = capacity.count_blocks(
            self.engine, self.made, [everything], [self.options.kv_memory or 0], self.layout or "", self.limits(),
            block_size=self.blocks.block_size, num_blocks=self.options.num_gpu_blocks, hashing=self.options.prefix_caching,
            connector=self.options.kv_connector,
        )  # fmt: skip

    # -- the answer --------------------------------------------------------------------------------------------------
    def result(self) -> EngineResult:
        from attnroute.engines.answer import build

        return build(self)

    def state_page(self) -> StatePage | None:
        size = self.state_bytes()
        if not size:
            return None
        specs = self.state_specs()
        pages = [self.made[n].first.page for n in range(len(self.made)) if self.made[n].first.is_state]
        page = max(pages, default=self.blocks.mamba_page_padded or size)
        return StatePage(size, page, specs[0].block, request_pages(self.engine, specs[0], self.limits()))

