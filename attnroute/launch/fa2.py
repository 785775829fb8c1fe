"""FlashAttention 2: from flash-attn, or as vLLM's wheel ships it."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from attnroute.launch.fa3 import Launch as VllmFlashAttention
from attnroute.launch.flash_attention import as_result
from attnroute.launch.packages import load

if TYPE_CHECKING:
    from attnroute.launch.problem import AttentionOut, KVPages, Tensor


class Launch(VllmFlashAttention):
    """`flash_attn_varlen_func` with a block table. flash-attn's own returns its log-sum-exp only as a testing aid."""

    expresses: ClassVar[frozenset[str]] = VllmFlashAttention.expresses - {"sinks", "head_dim_v", "cast-q"}
    version: ClassVar[int] = 2

    def splits(self) -> int:
        """vLLM's call can be told not to cut keys; flash-attn's cuts them by itself."""
        return super().splits() if self.provider == "vllm" else 0

    def _run(self, q: Tensor, kv: KVPages, sinks: Tensor | None, out: Tensor, lse: Tensor | None) -> AttentionOut:
        if self.provider == "vllm":
            return super()._run(q, kv, sinks, out, lse)
        import torch

        p = self.problem
        offsets = torch.nn.functional.pad(self._fixed["lens"].cumsum(0, dtype=torch.int32), (1, 0))
        made = load("flash_attn", self.provider).flash_attn_varlen_func(
            q,
            kv.k,
            kv.v,
            self._fixed["q_indptr"],
            offsets,
            self._max_q,
            self._max_k,
            softmax_scale=p.softmax_scale,
            causal=p.causal,
            window_size=self._window(),
            softcap=p.softcap or 0.0,
            block_table=self._fixed["table"],
            return_attn_probs=p.lse,
        )
        return as_result(out, made[0], made[1]) if p.lse else as_result(out, made, None)
