"""Block tables as FlashInfer's wrappers want them: index pointers, flat page indices, length of the last page."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from attnroute.launch.problem import Batch, Tensor


class PageIndex(NamedTuple):
    """`indptr` int32 (batch+1,) and `last` int32 (batch,) on the host, `indices` int32 on the block table's device."""

    indptr: Tensor
    indices: Tensor
    last: Tensor


def page_index(batch: Batch, page_size: int) -> PageIndex:
    """The pages that each request uses, one request after another."""
    import torch

    pages = [-(-length // page_size) for length in batch.lens]
    width = batch.block_table.shape[1]
    flat = torch.cat([torch.arange(n) + row * width for row, n in enumerate(pages)])
    indices = batch.block_table.reshape(-1)[flat.to(batch.block_table.device)]
    indptr = torch.tensor([0, *pages], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    last = torch.tensor([(n - 1) % page_size + 1 for n in batch.lens], dtype=torch.int32)
    return PageIndex(indptr, indices, last)


def q_indptr(batch: Batch, q_len: int) -> Tensor:
    """int32 (batch+1,) on the host: where each request's query tokens begin."""
    import torch

    counts = batch.q_lens if batch.q_lens is not None else (q_len,) * batch.size
    return torch.tensor([0, *counts], dtype=torch.int32).cumsum(0, dtype=torch.int32)
