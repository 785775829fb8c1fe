"""How many blocks fit a memory size, what one request needs of them, tokens and concurrency."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import gcd, lcm
from typing import TYPE_CHECKING

from attnroute.engines.groups import CacheGroup, Layers
from attnroute.engines.rules import EngineError
from attnroute.engines.spec import CacheSpec, Limits, cdiv, request_pages

if TYPE_CHECKING:
    from attnroute.engines.data import Engine

GIB = 1 << 30
_ADVICE = "See https://docs.vllm.ai/en/latest/configuration/conserving_memory/ for more details."


@dataclass(frozen=True, slots=True)
class Blocks:
    """Blocks that fit, what a request of the longest context takes, and the block sizes of the scheduler (tokens)."""

    num_blocks: int
    bytes_per_block: tuple[int, ...]
    per_request: int
    max_model_len: int
    scheduler_block: int
    hash_block: int

    @property
    def concurrency(self) -> float:
        """Requests of the longest context that fit at once."""
        if not self.per_request:
            raise EngineError("division by zero", "ZeroDivisionError")
        return self.num_blocks / self.per_request

    @property
    def tokens(self) -> int:
        """Capacity in tokens as vLLM reports it."""
        return int(self.concurrency * self.max_model_len)


def retained(layers: Layers, lookahead: int) -> Layers:
    """Sliding windows keep extra tokens where a drafter of several modules reads further ahead than one token."""
    extra = max(0, lookahead - 1)
    specs = tuple(replace(s, extra_retained=extra) if s.kind in ("window", "window_mla") else s for s in layers.specs)
    return Layers(specs, layers.order)


def check_partition(groups: Sequence[CacheGroup], layers: Layers) -> None:
    """Raises EngineError if a layer is in no group (packing drops layers of uneven page sizes)."""
    if sum(len(g.layers) for g in groups) != len(layers.order):
        raise EngineError("KV cache groups miss layers.", "AssertionError")


def on_stage(groups: Sequence[CacheGroup], stage: frozenset[int]) -> list[CacheGroup]:
    """The groups with only the layers of one pipeline stage."""
    found = []
    for group in groups:
        keep = [n in stage for n in group.layers]
        if all(keep):
            found.append(group)
            continue
        names = tuple(n for n, k in zip(group.layers, keep, strict=True) if k)
        specs = group.specs
        if group.uniform and names:
            specs = tuple(s for s, k in zip(specs, keep, strict=True) if k)
        found.append(CacheGroup(names, specs, group.uniform))
    return found


def _spec_of(group: CacheGroup, n: int) -> CacheSpec:
    return group.specs[n] if group.uniform else group.first


def _check_layout(groups: Sequence[CacheGroup], layout: str) -> None:
    """Whether the layout can hold these pages; raises EngineError in vLLM's words."""
    used = {spec for g in groups for n in range(len(g.layers)) for spec in (_spec_of(g, n),)}
    pages = {s.page for s in used}
    compact = set(layout[:2]) == {"L", "B"}
    if len(pages) > 1 and (not compact or (len(groups) > 1 and layout[0] == "L")):
        raise EngineError(
            f"KV cache layout {layout} cannot express this model's mixed page sizes ({sorted(pages)}); a backend "
            "should declare block-outermost supported layouts (e.g. BLHNC), or set VLLM_KV_CACHE_LAYOUT=BLHNC."
        )
    if layout[0] == "B" and compact:
        return
    for spec in used:
        if (
            layout[0] != "B"
            and cdiv(spec.page, spec.block_stride_alignment) * spec.block_stride_alignment != spec.page
            and not compact
        ):
            raise EngineError(f"{layout} cannot pad pages", "AssertionError")
        if spec.padded is not None and not compact and _outside(spec, layout) != 1:
            raise EngineError(
                "Page padding requires dimensions outside the page tail to be L, B, or singleton", "AssertionError"
            )


def _outside(spec: CacheSpec, layout: str) -> int:
    """Product of the axes H and N that lie outside the inner one of L and B."""
    end = max(layout.index("L"), layout.index("B"))
    sizes = {"H": 1 if spec.is_state else spec.head_slots, "N": spec.states}
    product = 1
    for axis in layout[:end]:
        product *= sizes.get(axis, 1)
    return product


def bytes_per_block(groups: Sequence[CacheGroup], layout: str) -> int:
    """Bytes of one block of the pool that all groups share; 0 without groups. Raises EngineError."""
    if not groups:
        return 0
    _check_layout(groups, layout)
    outermost = layout.startswith("B")
    alignments = {1}
    totals = []
    for group in groups:
        if group.uniform:
            pages = 0
            for spec in group.specs[: len(group.layers)]:
                step = spec.block_stride_alignment
                alignments.add(step)
                pages += spec.page if outermost else cdiv(spec.page, step) * step
            totals.append(pages)
        elif group.layers:
            step = group.first.block_stride_alignment
            alignments.add(step)
            page = group.first.page if outermost else cdiv(group.first.page, step) * step
            totals.append(page * len(group.layers))
    total = max(totals, default=0)
    if outermost:
        step = lcm(*alignments)
        total = cdiv(total, step) * step
    if total == 0:
        raise EngineError("integer division or modulo by zero", "ZeroDivisionError")
    return total


def request_blocks(engine: Engine, groups: Sequence[CacheGroup], limits: Limits) -> int:
    """Blocks that one request of the longest context takes over all groups."""
    return sum(max(request_pages(engine, s, limits) for s in dict.fromkeys(g.specs)) for g in groups)


def longest(engine: Engine, groups: Sequence[CacheGroup], per_block: int, memory: int, limits: Limits) -> int:
    """The longest context of which one request fits, at most the asked one; 0 if not even one token does."""

    def fits(length: int) -> bool:
        return per_block * request_blocks(engine, groups, replace(limits, max_model_len=length)) <= memory

    if not fits(1):
        return 0
    low, high, found = 1, limits.max_model_len, 1
    while low <= high:
        middle = (low + high) // 2
        if fits(middle):
            found, low = middle, middle + 1
        else:
            high = middle - 1
    return found


def _gib(amount: int) -> str:
    return f"{round(amount / GIB, 2)}"


def check_memory(engine: Engine, groups: Sequence[CacheGroup], per_block: int, memory: int, limits: Limits) -> None:
    """Raises EngineError, naming the longest context that fits, if one request does not fit into `memory` bytes."""
    if memory <= 0:
        raise EngineError(
            "No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the "
            f"engine (this flag also controls CPU memory reservation on the CPU backend, despite its name). {_ADVICE}"
        )
    needed = per_block * request_blocks(engine, groups, limits)
    if needed <= memory:
        return
    most = longest(engine, groups, per_block, memory, limits)
    estimate = f"Based on the available memory, the estimated maximum model length is {most}. " if most > 0 else ""
    raise EngineError(
        f"To serve at least one request with the model's max seq len ({limits.max_model_len}), ({_gib(needed)} GiB KV "
        f"cache is needed, which is larger than the available KV cache memory ({_gib(memory)} GiB). {estimate}Try "
        "increasing `gpu_memory_utilization` (which also controls CPU memory on the CPU backend) or decreasing "
        f"`max_model_len` when initializing the engine. {_ADVICE}"
    )


def count_blocks(
    engine: Engine,
    groups: Sequence[CacheGroup],
    stages: Sequence[frozenset[int]],
    memory: Sequence[int],
    layout: str,
    limits: Limits,
    *,
    block_size: int,
    num_blocks: int | None = None,
    auto_fit: bool = False,
    hashing: bool = False,
    connector: bool = False,
    prefix_match_unit: int | None = None,
) -> Blocks:
    """Blocks of a model whose layers lie on pipeline `stages` with `memory` bytes each.

    `num_blocks` overrides the count; `auto_fit` shortens the context to what fits; `hashing` is prefix caching. Raises
    EngineError where vLLM does not start.
    """
    if any(s.page == 0 for g in groups for s in dict.fromkeys(g.specs)):
        raise EngineError("a block of 0 bytes", "ZeroDivisionError")
    projected = [on_stage(groups, stage) for stage in stages]
    per_block = [bytes_per_block(p, layout) for p in projected]
    if num_blocks is not None:
        memory = [num_blocks * size if size else amount for size, amount in zip(per_block, memory, strict=True)]
    usable = [amount - size for size, amount in zip(per_block, memory, strict=True)]  # one block is never handed out
    if auto_fit and any(projected):
        fits = [
            longest(engine, p, size, amount, limits)
            for p, size, amount in zip(projected, per_block, usable, strict=True)
            if p
        ]
        limits = replace(limits, max_model_len=min(limits.max_model_len, *fits))
        if limits.max_model_len <= 0:
            raise EngineError(
                "Cannot auto-fit max_model_len: not enough GPU memory available to serve even a single token. Try "
                "increasing `gpu_memory_utilization`."
            )
    for p, size, amount in zip(projected, per_block, usable, strict=True):
        if p:
            check_memory(engine, p, size, amount, limits)
    counts = [amount // size if size else 1 for size, amount in zip(per_block, memory, strict=True)]
    mine = projected[0]
    scheduler, hashed = block_sizes(
        mine, limits.dcp, block_size, hashing=hashing, connector=connector, unit=prefix_match_unit
    )
    # The scheduler keeps one spec a group, the first layer's.
    firsts = [CacheGroup(g.layers, (g.first,)) for g in mine]
    return Blocks(
        min(counts), tuple(per_block), request_blocks(engine, firsts, limits), limits.max_model_len, scheduler, hashed
    )


def block_sizes(
    groups: Sequence[CacheGroup],
    dcp: int,
    block_size: int,
    *,
    hashing: bool,
    connector: bool,
    unit: int | None,
) -> tuple[int, int]:
    """(scheduler block, hash block) in tokens: least common multiple and greatest common divisor of the groups' blocks.

    Raises EngineError for a `unit` (prefix_match_unit) that does not divide.
    """
    if len(groups) <= 1:
        size = block_size * (dcp if not groups or groups[0].first.dcp_sharded else 1)
        if unit not in (None, size) and len(groups) == 1 and (hashing or connector):
            raise EngineError(
                f"Invalid prefix_match_unit={unit}; with a single KV cache group, prefix-cache hits land on the block "
                f"size ({size}). Unset it or set it to {size}."
            )
        return size, size
    sizes = [g.block * (dcp if g.first.dcp_sharded else 1) for g in groups]
    scheduler = lcm(*sizes)
    states = [s for g in groups for s in dict.fromkeys(g.specs) if s.is_state]
    if not (hashing or connector) or any(s.cache_mode != "align" for s in states):
        return scheduler, scheduler
    cached = [s for g, s in zip(groups, sizes, strict=True) if all(x.kind != "ring" for x in g.specs)] or sizes
    hashed = unit if unit is not None else gcd(*cached)
    if any(s % hashed for s in cached):
        raise EngineError(
            f"Invalid prefix_match_unit={hashed}; prefix-cacheable KV cache group block sizes must be divisible by "
            f"prefix_match_unit. Got group block sizes={sizes}, prefix-cacheable={cached}."
        )
    compressed = {s.tokens_per_state for g in groups for s in g.specs if s.kind != "ring" and s.tokens_per_state > 1}
    partial = any(s.block > hashed or (dcp > 1 and s.block >= hashed) for s in states)
    if any((hashed if partial else scheduler) % c for c in compressed):
        raise EngineError(
            f"Invalid prefix_match_unit={hashed}; prefix-cache boundaries must align with each spec's per-state "
            f"compression. Got alignments={sorted(compressed)}."
        )
    return scheduler, hashed
