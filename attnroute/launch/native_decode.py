"""FlashInfer's decode wrapper, shared by its tensor-core and CUDA-core launchers."""

from __future__ import annotations

from collections.abc import Callable
from math import log
from typing import Any, ClassVar

from attnroute.launch.base import MIB, Launcher, as_layout, window_left
from attnroute.launch.dtypes import is_fp8, torch_dtype
from attnroute.launch.flashinfer_pages import page_index
from attnroute.launch.packages import at_least, load
from attnroute.launch.problem import AttentionOut, Batch, KVPages, Limits, Problem, Tensor

FLOAT_WORKSPACE, INT_WORKSPACE = 128 * MIB, 8 * MIB  # the first is what FlashInfer advises
LN2 = log(2.0)


class DecodeWrapper(Launcher):
    """`BatchDecodeWithPagedKVCacheWrapper`, one wrapper a batch size, with fixed buffers where graphs are captured."""

    tensor_cores: ClassVar[bool]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._wrappers: dict[int, Any] = {}
        self._wrapper: Any = None

    def workspace_bytes(self, limits: Limits | None = None) -> int:
        """128 MiB or more for partial results, and 8 MiB of plan for each captured batch size (as much on the host).

        Counted for one batch size, the largest.
        """
        limits = limits or self.limits
        return (
            float_workspace(self, limits, uniform=True)
            + INT_WORKSPACE
            + 4 * limits.max_batch * (limits.max_pages(self.problem.page_size) + 2)
        )

    def _make(self, batch: int) -> Any:
        import torch

        workspace = float_buffer(self, uniform=True)
        graph: dict[str, Any] = {}
        if self.captures:
            pages = batch * self.limits.max_pages(self.problem.page_size)
            sizes = {
                "paged_kv_indptr_buffer": batch + 1,
                "paged_kv_indices_buffer": pages,
                "paged_kv_last_page_len_buffer": batch,
            }
            graph = {name: torch.zeros(n, dtype=torch.int32, device=self.limits.device) for name, n in sizes.items()}
            graph["use_cuda_graph"] = True
        wrapper = load("flashinfer", self.provider).BatchDecodeWithPagedKVCacheWrapper
        return wrapper(
            workspace,
            self.problem.layout,
            use_tensor_cores=self.tensor_cores,
            backend=backend_for(self.problem),
            **graph,
        )

    def _plan(self, batch: Batch) -> None:
        p = self.problem
        wrapper = kept(self, self._wrappers, batch.size, self._make)
        index = page_index(batch, p.page_size)
        more: dict[str, Any] = {"q_len_per_req": p.q_len} if p.q_len > 1 else {}
        wrapper.plan(
            index.indptr,
            index.indices,
            index.last,
            p.num_q_heads,
            p.num_kv_heads,
            p.head_dim,
            p.page_size,
            q_data_type=torch_dtype(p.q_dtype),
            kv_data_type=torch_dtype(p.kv_dtype),
            o_data_type=torch_dtype(p.dtype),
            window_left=window_left(p),
            logits_soft_cap=p.softcap or 0.0,
            sm_scale=p.softmax_scale,
            **more,
        )
        self._wrapper = wrapper

    def _run(self, q: Tensor, kv: KVPages, sinks: Tensor | None, out: Tensor, lse: Tensor | None) -> AttentionOut:  # noqa: ARG002
        return run_wrapper(self._wrapper, self.problem, q, kv, out, lse)


def float_workspace(owner: Launcher, limits: Limits, *, uniform: bool) -> int:
    """Bytes for partial results: FlashInfer's advice, or what the plan of its FA2 template takes at most, if more.

    `uniform`: the plan is told that requests have equally many query tokens, else in a graph it sizes tiles for one
    that has nearly all (`scheduler.cuh`, PrefillSplitQOKVIndptr and PrefillPlan). Before 0.7.4 it reserves a row for
    each query head and row of a tile, the group ratio too often: ratio 48 does not fit the advice with four tokens.
    """
    p = owner.problem
    tokens = limits.most_q_tokens(p.q_len)
    longest = tokens - limits.max_batch + 1 if owner.captures and not uniform else p.q_len or tokens
    tile = _tile(longest * p.group_ratio, p.head_dim_v)
    blocks = 2 * limits.sm_count // p.num_kv_heads  # keys are split while there are fewer
    if owner.captures:
        blocks = max(blocks, -(-tokens * p.group_ratio // tile) + limits.max_batch - 1)
    shared = p.group_ratio if at_least(owner.provider, "0.7.4") else 1
    rows = p.num_q_heads * -(-blocks * tile // shared)
    return max(FLOAT_WORKSPACE, rows * (p.head_dim_v + 1) * 4 + MIB)


def float_buffer(owner: Launcher, *, uniform: bool) -> Tensor:
    """The launcher's buffer for partial results."""
    return owner._workspace(float_workspace(owner, owner.limits, uniform=uniform), zeroed=True)


def _tile(rows: int, head_dim_v: int) -> int:
    """Rows of a tile of queries at most: FA2DetermineCtaTileQ in `utils.cuh`."""
    if head_dim_v >= 256:
        return 64
    return next((size for size in (16, 64) if rows <= size), 128)


def backend_for(problem: Problem) -> str:
    """The FA2 template for 16-bit queries; for fp8 queries, which it does not take, the wrapper's own choice."""
    return "auto" if is_fp8(problem.q_dtype) else "fa2"


def kept(owner: Launcher, wrappers: dict[int, Any], size: int, make: Callable[[int], Any]) -> Any:
    """The wrapper of a batch size, made once: a captured graph replays from its buffers after later plans.

    Where nothing is captured one wrapper serves all sizes.
    """
    key = size if owner.captures else 0
    found = wrappers.get(key)
    if found is None:
        found = wrappers[key] = make(size)
    return found


def run_wrapper(
    wrapper: Any, problem: Problem, q: Tensor, kv: KVPages, out: Tensor, lse: Tensor | None
) -> AttentionOut:
    """One planned step of a FlashInfer wrapper, decode or prefill."""
    wrapper.run(
        q.contiguous(), as_layout(problem, kv), out=out, lse=lse, return_lse=lse is not None, **wrapper_scales(kv)
    )
    return AttentionOut(out, natural(lse))


def wrapper_scales(kv: KVPages) -> dict[str, float]:
    """Scales that differ from 1; FlashInfer multiplies by v_scale in a pass of its own."""
    named = {"k_scale": kv.k_scale, "v_scale": kv.v_scale}
    return {name: value for name, value in named.items() if value != 1.0}


def natural(lse: Tensor | None) -> Tensor | None:
    """FlashInfer's log-sum-exp has base 2; the launchers give the natural logarithm."""
    return None if lse is None else lse.mul_(LN2)
