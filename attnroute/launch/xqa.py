"""XQA as FlashInfer ships it: `flashinfer.decode.xqa_batch_decode_with_kv_cache`, one module compiled per shape."""

from __future__ import annotations

from typing import ClassVar

from attnroute.launch.base import MIB, Launcher, window_left
from attnroute.launch.dtypes import torch_dtype
from attnroute.launch.packages import jit_module, load
from attnroute.launch.problem import AttentionOut, Batch, KVPages, Limits, Module, Tensor

#: The first part of the workspace holds the semaphores; the function cuts it off by itself.
SEMAPHORES = 8 * MIB


class Launch(Launcher):
    """One query token a request, or a block of drafts with a bit mask. The cache is read through the strides of k."""

    expresses: ClassVar[frozenset[str]] = frozenset({"window", "sinks", "noncausal", "q_len"})

    def modules(self) -> tuple[Module, ...]:
        """One module for dtypes, page, head dim, group ratio, window and query tokens."""
        p = self.problem
        gen = load("flashinfer.jit.xqa", self.provider).gen_xqa_module
        q, kv = torch_dtype(p.q_dtype), torch_dtype(p.kv_dtype)
        spec = gen(q, kv, p.page_size, p.head_dim, p.group_ratio, p.window is not None, q, p.q_len)
        return (jit_module(spec),)

    def workspace_bytes(self, limits: Limits | None = None) -> int:
        """Semaphores, and one partial result for each part that a request is split into (parts fill the device once).

        The kernel does not check the size, so rows, head dim and parts are rounded up.
        """
        limits, p = limits or self.limits, self.problem
        parts = max(limits.sm_count, limits.max_batch * p.num_kv_heads)
        rows = -(-p.group_ratio * p.q_len // 32) * 32
        padded = next((size for size in (64, 128, 256) if p.head_dim <= size), 512)
        return SEMAPHORES + max(64 * MIB, 2 * parts * rows * (padded * 2 + 64))

    def _plan(self, batch: Batch) -> None:
        used = -(-max(batch.lens) // self.problem.page_size)
        # The width of the table, not the length argument, sizes grid and scratch; a graph keeps the captured width.
        width = used if self.settings.cut_block_table and not self.limits.cuda_graph else batch.block_table.shape[1]
        self._keep("table", batch.block_table[:, :width])
        self._keep("lens", batch.seq_lens)
        if self.problem.q_len > 1:
            self._keep("mask", draft_mask(batch.size, self.problem.q_len, causal=self.problem.causal))

    def _run(self, q: Tensor, kv: KVPages, sinks: Tensor | None, out: Tensor, lse: Tensor | None) -> AttentionOut:
        p = self.problem
        call = load("flashinfer.decode", self.provider).xqa_batch_decode_with_kv_cache
        size = self._planned().size
        shaped = out if p.q_len == 1 else out.view(size, p.q_len, *out.shape[1:])
        call(
            query=q.contiguous(),
            kv_cache=(kv.k, kv.v),
            workspace_buffer=self._workspace(self.workspace_bytes(), zeroed=True),
            block_tables=self._fixed["table"],
            seq_lens=self._fixed["lens"],
            max_seq_len=self._fixed["table"].shape[1] * p.page_size,
            bmm1_scale=p.softmax_scale * kv.k_scale,
            bmm2_scale=kv.v_scale,
            window_left=window_left(p),
            out=shaped,
            sinks=sinks,
            kv_layout="NHD",
            q_len_per_req=p.q_len,
            mask=self._fixed.get("mask"),
        )
        return AttentionOut(out, lse)


def draft_mask(batch: int, q_len: int, *, causal: bool) -> Tensor:
    """Which draft tokens see which: uint16 (batch, q_len, 2 * ceil(q_len / 32)), bit k of row i set if i sees k."""
    import torch

    words = -(-q_len // 32)
    sees = torch.zeros((q_len, words * 32), dtype=torch.int64)
    block = torch.ones((q_len, q_len), dtype=torch.int64)
    sees[:, :q_len] = block.tril() if causal else block
    packed = (sees.view(q_len, words * 2, 16) << torch.arange(16)).sum(-1).to(torch.int32)
    packed = torch.where(packed >= 1 << 15, packed - (1 << 16), packed).to(torch.int16).view(torch.uint16)
    return packed.expand(batch, q_len, words * 2).contiguous()
