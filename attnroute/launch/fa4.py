"""FlashAttention 4, from flash-attn-4 and from vLLM's copy: the same call of two different generations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from attnroute.launch.dtypes import is_fp8
from attnroute.launch.flash_attention import FlashAttention, as_result
from attnroute.launch.packages import load

if TYPE_CHECKING:
    from attnroute.launch.problem import AttentionOut, KVPages, Tensor

#: Where each distribution keeps the function, and how many parts it cuts keys into unless told (its own default).
HOMES = {"flash-attn-4": ("flash_attn.cute.interface", 1), "vllm": ("vllm.vllm_flash_attn.cute.interface", 0)}


class Launch(FlashAttention):
    """`_flash_attn_fwd`, which both packages' public functions call; it takes the output and the fp8 scales as well.

    Compiled by the CuTe DSL in the calling process, a few seconds for each new combination of dtypes, head dims and
    features (not for batch or context).
    """

    compiles_in_process: ClassVar[bool] = True

    def splits(self) -> int:
        """One part for flash-attn-4 and vLLM's own choice, unless a decision says otherwise."""
        return HOMES[self.provider][1] if self.settings.num_splits is None else self.settings.num_splits

    def _run(self, q: Tensor, kv: KVPages, sinks: Tensor | None, out: Tensor, lse: Tensor | None) -> AttentionOut:  # noqa: ARG002
        p = self.problem
        call = load(HOMES[self.provider][0], self.provider)._flash_attn_fwd
        left, right = self._window()
        more: dict[str, Any] = {}
        if is_fp8(p.kv_dtype):
            q_scale, k_scale, v_scale = self._descale(kv)
            dequantised = not is_fp8(p.q_dtype)  # a 16-bit query reads fp8 pages through an in-kernel dequantisation
            more = {"q_descale": None if dequantised else q_scale, "k_descale": k_scale, "v_descale": v_scale}
            if dequantised:
                more["fp8_kv_dequant"] = True
        made = call(
            q,
            kv.k,
            kv.v,
            cu_seqlens_q=self._fixed["q_indptr"],
            seqused_k=self._fixed["lens"],
            max_seqlen_q=self._max_q,
            max_seqlen_k=self._max_k,
            page_table=self._fixed["table"],
            softmax_scale=p.softmax_scale,
            causal=p.causal,
            softcap=p.softcap or None,
            window_size_left=left if left >= 0 else None,
            window_size_right=right if right >= 0 else None,
            learnable_sink=sinks,
            num_splits=self.splits(),
            return_lse=p.lse,
            out=out,
            **more,
        )
        return as_result(out, made[0], made[1] if p.lse else None)
