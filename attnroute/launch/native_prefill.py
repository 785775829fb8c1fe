"""FlashInfer's paged prefill wrappers, plain and with attention sinks, shared by the launchers that use them."""

from __future__ import annotations

from typing import Any, ClassVar

from attnroute.launch.base import Launcher, as_layout, window_left
from attnroute.launch.dtypes import torch_dtype
from attnroute.launch.flashinfer_pages import page_index, q_indptr
from attnroute.launch.native_decode import FLOAT_WORKSPACE, INT_WORKSPACE, kept, natural, run_wrapper
from attnroute.launch.packages import jit_module, load
from attnroute.launch.problem import AttentionOut, Batch, KVPages, Limits, Module, Tensor


def _graph_buffers(owner: Launcher, batch: int) -> dict[str, Any]:
    import torch

    if not owner.limits.cuda_graph or owner.problem.q_len == 0:
        return {}
    pages = batch * owner.limits.max_pages(owner.problem.page_size)
    sizes = {
        "qo_indptr_buf": batch + 1,
        "paged_kv_indptr_buf": batch + 1,
        "paged_kv_indices_buf": pages,
        "paged_kv_last_page_len_buf": batch,
    }
    buffers: dict[str, Any] = {
        n: torch.zeros(s, dtype=torch.int32, device=owner.limits.device) for n, s in sizes.items()
    }
    return {"use_cuda_graph": True, **buffers}


def _plan_wrapper(wrapper: Any, owner: Launcher, batch: Batch) -> None:
    p = owner.problem
    index = page_index(batch, p.page_size)
    wrapper.plan(
        q_indptr(batch, p.q_len),
        index.indptr,
        index.indices,
        index.last,
        p.num_q_heads,
        p.num_kv_heads,
        p.head_dim,
        p.page_size,
        head_dim_vo=p.head_dim_v,
        causal=p.causal and (p.q_len != 1 or p.phase == "prefill"),
        sm_scale=p.softmax_scale,
        window_left=window_left(p),
        logits_soft_cap=p.softcap or 0.0,
        q_data_type=torch_dtype(p.q_dtype),
        kv_data_type=torch_dtype(p.kv_dtype),
        o_data_type=torch_dtype(p.dtype),
    )


def prefill_modules(owner: Launcher, template: str) -> tuple[Module, ...]:
    """The module of a prefill template (fa2, fa3) for the owner's dtypes, head dims, window and softcap."""
    import torch

    p = owner.problem
    home = load("flashinfer.jit.attention.modules", owner.provider)
    # What the wrappers load, where that differs from the public generator: FA2 for K and V of equal strides (0.7.2 on).
    primary = getattr(home, "_gen_batch_prefill_primary_module", None) if template == "fa2" else None
    gen = primary or home.gen_batch_prefill_module
    q, kv, out = torch_dtype(p.q_dtype), torch_dtype(p.kv_dtype), torch_dtype(p.dtype)
    window, softcap = p.window is not None, bool(p.softcap)
    return (jit_module(gen(template, q, kv, out, torch.int32, p.head_dim, p.head_dim_v, 0, window, softcap, False)),)


class SinkPrefill:
    """`BatchAttentionWithAttentionSinkWrapper`: sinks are compiled in; float32 sinks and the scale go to run()."""

    def __init__(self, owner: Launcher, backend: str) -> None:
        self.owner, self.backend = owner, backend
        self._wrappers: dict[int, Any] = {}
        self._wrapper: Any = None

    def modules(self) -> tuple[Module, ...]:
        """One module for dtypes, head dims, window and softcap."""
        import torch

        p = self.owner.problem
        core = load("flashinfer.attention._core", self.owner.provider)
        name = f"attention_sink_{p.q_dtype}_{p.kv_dtype}_{p.head_dim}_{p.window is not None}_{self.backend}"
        arguments = getattr(core.BatchAttentionWithAttentionSinkWrapper, "_sink_jit_args", None)
        if arguments is None:  # older releases build it in the constructor, which needs a device
            return (Module(name, lambda: self._make(1)),)
        backend, jit, more = arguments(
            torch.device("cuda"),
            self.backend,
            torch_dtype(p.q_dtype),
            torch_dtype(p.kv_dtype),
            p.head_dim,
            p.head_dim_v,
            window_left(p),
        )
        gen = load("flashinfer.jit.attention", self.owner.provider).gen_customize_batch_prefill_module
        spec = gen(backend, *jit, **more)
        return (jit_module(spec),)

    def _make(self, batch: int) -> Any:
        p, owner = self.owner.problem, self.owner
        make = load("flashinfer", owner.provider).BatchAttentionWithAttentionSinkWrapper
        return make(
            owner._workspace(FLOAT_WORKSPACE, zeroed=True),
            p.layout,
            backend=self.backend,
            q_data_type=torch_dtype(p.q_dtype),
            kv_data_type=torch_dtype(p.kv_dtype),
            head_dim_qk=p.head_dim,
            head_dim_vo=p.head_dim_v,
            window_left=window_left(p),
            **_graph_buffers(owner, batch),
        )

    def plan(self, batch: Batch) -> None:
        """Plans one step; each batch size has a wrapper of its own."""
        wrapper = kept(self._wrappers, batch.size, self._make)
        _plan_wrapper(wrapper, self.owner, batch)
        self._wrapper = wrapper

    def run(self, q: Tensor, kv: KVPages, sinks: Tensor | None, out: Tensor, lse: Tensor | None) -> AttentionOut:
        """Runs the planned step; the scale of k goes into the softmax scale."""
        p = self.owner.problem
        scale = p.softmax_scale * kv.k_scale
        more = {"v_scale": kv.v_scale} if kv.v_scale != 1.0 else {}
        self._wrapper.run(
            q.contiguous(), as_layout(p, kv), sinks, scale, out=out, lse=lse, return_lse=lse is not None, **more
        )
        return AttentionOut(out, natural(lse))


class PrefillWrapper(Launcher):
    """`BatchPrefillWithPagedKVCacheWrapper` with a fixed backend."""

    expresses: ClassVar[frozenset[str]] = frozenset(
        {"window", "softcap", "lse", "noncausal", "sinks", "q_len", "head_dim_v", "prefill", "cast-q"}
    )
    backend: ClassVar[str]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._sinks = SinkPrefill(self, self.backend) if self.problem.sinks is not None else None
        self._wrappers: dict[int, Any] = {}
        self._wrapper: Any = None

    def modules(self) -> tuple[Module, ...]:
        """One module for dtypes, head dims, window and softcap."""
        if self._sinks is not None:
            return self._sinks.modules()
        return prefill_modules(self, self.backend)

    def workspace_bytes(self, limits: Limits | None = None) -> int:  # noqa: ARG002
        """128 MiB for partial results and, for each batch size, 8 MiB of plan (as much is pinned on the host)."""
        return FLOAT_WORKSPACE + INT_WORKSPACE

    def _make(self, batch: int) -> Any:
        make = load("flashinfer", self.provider).BatchPrefillWithPagedKVCacheWrapper
        workspace = self._workspace(FLOAT_WORKSPACE, zeroed=True)
        return make(workspace, self.problem.layout, backend=self.backend, **_graph_buffers(self, batch))

    def _plan(self, batch: Batch) -> None:
        if self._sinks is not None:
            self._sinks.plan(batch)
            return
        self._wrapper = kept(self._wrappers, batch.size, self._make)
        _plan_wrapper(self._wrapper, self, batch)

    def _run(self, q: Tensor, kv: KVPages, sinks: Tensor | None, out: Tensor, lse: Tensor | None) -> AttentionOut:
        if self._sinks is not None:
            return self._sinks.run(q, kv, sinks, out, lse)
        return run_wrapper(self._wrapper, self.problem, q, kv, out, lse)
