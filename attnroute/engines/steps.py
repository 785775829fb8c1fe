"""The steps of vLLM's start-up over one model, each using what the ones before it left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import lcm, prod
from typing import TYPE_CHECKING

from attnroute.engines import align, blocks, caches, capacity, groups
from attnroute.engines.answer import build
from attnroute.engines.caches import STATE_BYTES, natural
from attnroute.engines.data import Backend, Engine, Size, first_use
from attnroute.engines.facts import World, model_size_facts, spec_size_facts, world_facts
from attnroute.engines.kernels import GroupPlan
from attnroute.engines.result import EngineOptions, EngineResult, StateLike
from attnroute.engines.rules import EngineError
from attnroute.engines.selection import NoBackendError, Selection, requested, select
from attnroute.engines.spec import CacheSpec, attention_spec
from attnroute.engines.world import MLA_KINDS, head_size, kv_name, make_world

if TYPE_CHECKING:
    from attnroute.dispatch.group import KVGroup
    from attnroute.engines.rules import Facts


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

    def __init__(
        self,
        engine: Engine,
        arch: str,
        cc: tuple[int, int],
        target: Sequence[KVGroup],
        draft: Sequence[KVGroup],
        state: Sequence[StateLike],
        options: EngineOptions,
    ) -> None:
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
        for step in (Steps.choose_backends, Steps.choose_block, *caches.STEPS):
            try:
                step(self)
            except EngineError as refusal:
                self.errors.append(str(refusal) or f"{refusal.kind} in {step.__name__.replace('_', ' ')}")
                break
        return build(self)

    def layer_world(self, member: Member) -> World:
        """The world of a drafter's layers: text only, and --attention-backend does not reach a block drafter."""
        return self.world if member.group.role == "target" else replace(self.world, model_mm_prefix=False)

    def layer_facts(self, member: Member) -> Facts:
        g = member.group
        return world_facts(
            self.engine,
            self.layer_world(member),
            head=head_size(g),
            kv=member.kv,
            dtype=g.dtype,
            block=self.options.block_size,
            mla=g.kind in MLA_KINDS,
            sparse=g.kind == "mla_sparse",
            sinks=bool(g.sinks),
            attn_type=g.attn_type,
            per_head_scales="per_head_scales" in g.traits,
            window=g.sliding_window is not None,
            mm_prefix="mm_prefix" in g.traits and g.role == "target",
            non_causal=not g.causal and g.attn_type == "decoder",
            heads=g.num_q_heads,
        )

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
            return attention_spec(
                self.engine, "mla", block=block, heads=1, head=head_size(g), kv=member.kv, dtype=g.dtype
            )
        kind = {"encoder_decoder": "cross", "encoder": "encoder_only", "encoder_only": "encoder_only"}.get(
            g.attn_type, "full"
        )
        if kind == "full" and g.chunk is not None:
            kind = "chunked"
        return attention_spec(
            self.engine,
            kind,
            block=block,
            heads=g.num_kv_heads,
            head=g.head_dim,
            head_v=g.head_dim_v,
            kv=member.kv,
            dtype=g.dtype,
            chunk=g.chunk,
        )

    def choose_backends(self) -> None:
        per_kind = dict(self.options.backend_per_kind)
        self.warnings += self.hooks
        for member in self.members:
            g = member.group
            asked = self.world.backend_asked if g.role == "target" else None
            name = requested(
                asked, per_kind, mla=g.kind in MLA_KINDS, window=g.sliding_window is not None, attn_type=g.attn_type
            )
            try:
                member.selection = select(self.engine, self.layer_facts(member), self.size_facts(member), name)
            except NoBackendError as refusal:
                member.rejected = dict(refusal.reasons)
                raise
            member.rejected = dict(member.selection.reasons)
            if member.selection.precluded:
                names = ", ".join(member.selection.precluded)
                self.warnings.append(
                    f"--block-size {self.options.block_size} precluded higher-priority backend(s) {names} for {g.name}."
                    f" Using {member.selection.backend.label} instead, which may result in reduced performance."
                )

    def backend(self, member: Member) -> Backend:
        assert member.selection is not None
        return member.selection.backend

    def cached(self) -> list[Member]:
        """Members that keep a KV cache."""
        return [m for m in self.members if m.group.attn_type not in ("encoder", "encoder_only")]

    def asked(self) -> tuple[blocks.Asked, ...]:
        """Distinct backends in layer order, each with the facts of its question; per layer also each cache's own."""
        found: dict[tuple[str, tuple[Size, ...]], blocks.Asked] = {}
        for member in self.members:
            for backend in (self.backend(member), *self.indexer(member)):
                # Afterwards, as shipped, the one configuration of the engine is asked, the target's, for drafters too.
                facts = self.size_facts(member) if self.per_layer else model_size_facts(self.engine, self.world)
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
            asked=self.asked(),
            kv=self.world.cache_dtype,
            dtype=first.dtype,
            head=self.world.model_head or 0,
            kv_heads=1 if first.kind in MLA_KINDS else self.world.model_kv_heads,
            mla=first.kind in MLA_KINDS,
            skip_layers=self.world.skip_layers,
            hybrid=bool(self.state),
            state_bytes=self.state_bytes(),
            cache_mode=self.cache_mode,
            checkpoint=lcm(*known) if len(known) == len(self.state) and known else 1,
            user_block=self.options.block_size is not None,
        )
        self.blocks = align.block_size_for_model(self.engine, cache, self.blocks)
