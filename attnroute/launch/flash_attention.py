"""What the FlashAttention packages share: variable-length queries against a paged cache, lengths on the device."""

from __future__ import annotations

from typing import ClassVar

from attnroute.launch.base import Launcher, window_left
from attnroute.launch.flashinfer_pages import q_indptr
from attnroute.launch.problem import AttentionOut, Batch, KVPages, Limits, Module, Tensor

#: `num_splits_heuristic(..., 128)` in FA2, FA3 and vLLM's FA4; their smallest tile of keys and largest of queries.
MOST_PARTS, LEAST_TILE, MOST_ROWS = 128, 64, 192


class FlashAttention(Launcher):
    """Plans keep block table, lengths and query offsets at fixed addresses; nothing else happens on the host."""

    expresses: ClassVar[frozenset[str]] = frozenset(
        {"window", "softcap", "lse", "noncausal", "sinks", "q_len", "head_dim_v", "prefill", "cast-q"}
    )

    def modules(self) -> tuple[Module, ...]:
        """Nothing ahead of time: the package ships its kernels, or compiles them in the process that calls them."""
        return ()

    def workspace_bytes(self, limits: Limits | None = None) -> int:
        """The package allocates partial results by itself in each call; this bounds them.

        Float32, and where it splits as it likes up to 128 parts, one for each tile of 64 keys or more; causal prompts
        are split only while their queries fill fewer tiles than there are SMs.
        """
        limits, p = limits or self.limits, self.problem
        rows = limits.most_q_tokens(p.q_len) * p.num_q_heads
        if p.causal:
            rows = min(rows, limits.max_batch * limits.sm_count * MOST_ROWS)
        parts = self.splits() or min(MOST_PARTS, -(-limits.max_context // LEAST_TILE))
        return parts * rows * (-(-p.head_dim_v // 32) * 32 + 1) * 4 if parts > 1 else 0

    def splits(self) -> int:
        """Parts that the keys of a request may be cut into; 0 leaves it to the package."""
        return 0 if self.settings.num_splits is None else self.settings.num_splits

    def _plan(self, batch: Batch) -> None:
        width = batch.block_table.shape[1]
        if self.settings.exact_table:
            width = -(-max(batch.lens) // self.problem.page_size)
        self._keep("table", batch.block_table[:, :width])
        self._keep("lens", batch.seq_lens)
        self._keep("q_indptr", q_indptr(batch, self.problem.q_len))
        self._max_q = max(batch.q_lens) if batch.q_lens is not None else self.problem.q_len
        # A captured graph replays with longer requests later, so the bound is the table's, not the batch's.
        whole = self.limits.cuda_graph or self.settings.exact_table
        self._max_k = width * self.problem.page_size if whole else max(batch.lens)

    def _window(self) -> tuple[int, int]:
        """(left, right), -1 for unbounded; a causal query sees nothing to its right."""
        left = window_left(self.problem)
        return (left, -1 if left < 0 else (0 if self.problem.causal else left))

    def _descale(self, kv: KVPages) -> tuple[Tensor, Tensor, Tensor]:
        """Float32 (batch, kv_heads) factors of q, k and v; one buffer a value, since layers of a group differ."""
        import torch

        shape = (self._planned().size, self.problem.num_kv_heads)
        parts = []
        for value in (1.0, kv.k_scale, kv.v_scale):
            held = self._kept.get(("scale", value, shape))
            if held is None:
                held = torch.full(shape, value, dtype=torch.float32, device=self.limits.device)
                self._kept["scale", value, shape] = held
            parts.append(held)
        return parts[0], parts[1], parts[2]


def by_token(lse: Tensor | None) -> Tensor | None:
    """The packages give (q_heads, tokens), natural logarithm already."""
    return None if lse is None else lse.transpose(0, 1)


def as_result(out: Tensor, made: Tensor, lse: Tensor | None) -> AttentionOut:
    """The caller's tensor, copied into only where the package allocated its own."""
    if made.data_ptr() != out.data_ptr():
        out.copy_(made)
    return AttentionOut(out, by_token(lse))
