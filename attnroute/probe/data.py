"""Inputs of one case: fresh random numbers, scattered pages, and poison wherever a kernel has no business."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from attnroute.launch.dtypes import is_fp8, torch_dtype
from attnroute.launch.problem import Batch, KVPages

if TYPE_CHECKING:
    from collections.abc import Sequence

    from attnroute.probe.case import Ask

Tensor = Any
#: Finite, far from any score: a masked weight times this is still zero, a weight that is not masked shows at once.
POISON = 200.0
#: Scales of an fp8 cache, neither of them 1, so that dropping one shows.
FP8_SCALES = (0.5, 2.0)


@dataclass(slots=True)
class Inputs:
    """Tensors of a case on its device; `out` lies between two guard rows of `guarded`."""

    q: Tensor
    kv: KVPages
    batch: Batch
    sinks: Tensor | None
    guarded: Tensor

    @property
    def out(self) -> Tensor:
        """(tokens, q_heads, head_dim_v), filled with NaN until something writes it."""
        return self.guarded[1:-1]

    def poison(self) -> None:
        """NaN into every element of the output and its guards."""
        self.guarded.fill_(float("nan"))

    def guards_touched(self) -> bool:
        """Whether something wrote outside the output."""
        return not bool(self.guarded[0].isnan().all() and self.guarded[-1].isnan().all())


def _random(shape: Sequence[int], dtype: Any, device: str, generator: Any) -> Tensor:
    import torch

    return torch.randn(tuple(shape), device=device, generator=generator).to(dtype)


def make_pages(ask: Ask, pages: int, width: int, device: str, generator: Any) -> Tensor:
    """Float32 (pages, page, kv_heads, width) with the memory order of the layout."""
    import torch

    if ask.layout == "NHD":
        return _random((pages, ask.page_size, ask.kv_heads, width), torch.float32, device, generator)
    return _random((pages, ask.kv_heads, ask.page_size, width), torch.float32, device, generator).transpose(1, 2)


def make_inputs(ask: Ask, device: str, seed: int) -> Inputs:
    """Inputs for a request. Pages are scattered; unused pages and the rows after a request's end hold poison."""
    import torch

    generator = torch.Generator(device=device).manual_seed(seed)
    counts = [-(-length // ask.page_size) for length in ask.lens]
    used, spare = sum(counts), 3
    order = torch.randperm(used + spare, generator=torch.Generator().manual_seed(seed)).to(torch.int32)
    table = torch.full((len(counts), max(counts)), int(order[-1]), dtype=torch.int32)
    start = 0
    for row, count in enumerate(counts):
        table[row, :count] = order[start : start + count]
        start += count
    k = make_pages(ask, used + spare, ask.head_dim, device, generator)
    v = make_pages(ask, used + spare, ask.head_dim_v, device, generator)
    scales = FP8_SCALES if is_fp8(ask.kv_dtype) else (1.0, 1.0)
    for pages in (k, v):
        _poison_unused(pages, ask, table, [int(p) for p in order[used:]])
    k, v = (pages.to(torch_dtype(ask.kv_dtype)) for pages in (k, v))  # poisoned before: few operations know fp8
    q_lens = ask.q_lens()
    q = _random((sum(q_lens), ask.q_heads, ask.head_dim), torch_dtype(ask.dtype), device, generator)
    sinks = None if ask.sinks is None else _random((ask.q_heads,), torch_dtype(ask.sinks), device, generator)
    lens = torch.tensor(ask.lens, dtype=torch.int32)
    batch = Batch(table.to(device), lens.to(device), ask.lens, None if ask.q_len else q_lens)
    guarded = torch.empty((q.shape[0] + 2, ask.q_heads, ask.head_dim_v), dtype=torch_dtype(ask.dtype), device=device)
    inputs = Inputs(q, KVPages(k, v, *scales), batch, sinks, guarded)
    inputs.poison()
    return inputs


def _poison_unused(pages: Tensor, ask: Ask, table: Tensor, spare: list[int]) -> None:
    for page in spare:
        pages[page] = POISON
    for row, length in enumerate(ask.lens):
        tail = (length - 1) % ask.page_size + 1
        if tail < ask.page_size:
            pages[int(table[row, -(-length // ask.page_size) - 1]), tail:] = POISON


def refresh(inputs: Inputs, ask: Ask, seed: int) -> None:
    """New numbers, lengths and pages in the same tensors, for the replay of a captured graph."""
    other = make_inputs(ask, str(inputs.q.device), seed)
    inputs.q.copy_(other.q)
    for held, new in ((inputs.kv.k, other.kv.k), (inputs.kv.v, other.kv.v)):
        held.copy_(new)
    inputs.batch.block_table.copy_(other.batch.block_table)
    inputs.batch.seq_lens.copy_(other.batch.seq_lens)
    inputs.batch = replace(inputs.batch, lens=other.batch.lens, q_lens=other.batch.q_lens)
    if inputs.sinks is not None:
        inputs.sinks.copy_(other.sinks)
    inputs.poison()
