"""TensorRT-LLM's generated kernels through FlashInfer, written to the documented call. Unproven: no GPU has run it."""

from __future__ import annotations

from typing import ClassVar

from attnroute.launch.base import MIB, Launcher, as_layout, window_left
from attnroute.launch.native_decode import natural
from attnroute.launch.packages import load
from attnroute.launch.problem import AttentionOut, Batch, KVPages, Limits, Module, Tensor


class Launch(Launcher):
    """`trtllm_batch_decode_with_kv_cache(backend="trtllm-gen")`. Its kernels are fetched, not compiled."""

    expresses: ClassVar[frozenset[str]] = frozenset({"window", "sinks", "lse", "q_len", "cast-q"})
    proven: ClassVar[bool] = False
    compiles_in_process: ClassVar[bool] = True  # it fetches them in the first call

    def modules(self) -> tuple[Module, ...]:
        """Nothing is compiled; the kernels are fetched at the first call."""
        return ()

    def workspace_bytes(self, limits: Limits | None = None) -> int:  # noqa: ARG002
        """FlashInfer documents 128 MiB; the head holds counters that must start at zero."""
        return 128 * MIB

    def _plan(self, batch: Batch) -> None:
        self._keep("table", batch.block_table)
        self._keep("lens", batch.seq_lens)

    def _run(self, q: Tensor, kv: KVPages, sinks: Tensor | None, out: Tensor, lse: Tensor | None) -> AttentionOut:
        p = self.problem
        more = {"lse": lse, "return_lse": True} if lse is not None else {}
        load("flashinfer.decode", self.provider).trtllm_batch_decode_with_kv_cache(
            query=q.contiguous(),
            kv_cache=as_layout(p, kv),
            workspace_buffer=self._workspace(self.workspace_bytes(), zeroed=True),
            block_tables=self._fixed["table"],
            seq_lens=self._fixed["lens"],
            max_seq_len=self._fixed["table"].shape[1] * p.page_size,
            bmm1_scale=p.softmax_scale * kv.k_scale,
            bmm2_scale=kv.v_scale,
            window_left=window_left(p),
            out=out,
            sinks=sinks,
            kv_layout=p.layout,
            backend="trtllm-gen",
            q_len_per_req=p.q_len,
            **more,
        )
        return AttentionOut(out, natural(lse))
