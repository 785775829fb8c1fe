"""FlashAttention 3 as vLLM's wheel ships it. Its library loads alone; nothing else of vLLM is called."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from attnroute.launch.dtypes import is_fp8
from attnroute.launch.errors import NotInstalledError
from attnroute.launch.flash_attention import FlashAttention, as_result
from attnroute.launch.packages import load

if TYPE_CHECKING:
    from attnroute.launch.problem import AttentionOut, KVPages, Tensor


class Launch(FlashAttention):
    """`flash_attn_varlen_func(fa_version=3)`: splits by its own heuristic, without vLLM's ahead-of-time schedule."""

    version: ClassVar[int] = 3

    def _run(self, q: Tensor, kv: KVPages, sinks: Tensor | None, out: Tensor, lse: Tensor | None) -> AttentionOut:  # noqa: ARG002
        p = self.problem
        home = load("vllm.vllm_flash_attn.flash_attn_interface", self.provider)
        if not getattr(home, f"FA{self.version}_AVAILABLE", True):
            reason = getattr(home, f"FA{self.version}_UNAVAILABLE_REASON", None)
            raise NotInstalledError(f"this {self.provider} has no FlashAttention {self.version} library ({reason})")
        q_scale, k_scale, v_scale = self._descale(kv) if is_fp8(p.kv_dtype) else (None, None, None)
        made = home.flash_attn_varlen_func(
            q,
            kv.k,
            kv.v,
            max_seqlen_q=self._max_q,
            cu_seqlens_q=self._fixed["q_indptr"],
            max_seqlen_k=self._max_k,
            seqused_k=self._fixed["lens"],
            softmax_scale=p.softmax_scale,
            causal=p.causal,
            window_size=list(self._window()),
            softcap=p.softcap or 0.0,
            block_table=self._fixed["table"],
            return_softmax_lse=p.lse,
            out=out,
            q_descale=q_scale,
            k_descale=k_scale,
            v_descale=v_scale,
            num_splits=self.splits(),
            fa_version=self.version,
            s_aux=sinks,
        )
        return as_result(out, *made) if p.lse else as_result(out, made, None)
