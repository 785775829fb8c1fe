"""FlashInfer's paged prefill wrappers, plain and with attention sinks, shared by the launchers that use them."""

from __future__ import annotations

from typing import Any, ClassVar

from attnroute.launch.base import Launcher, as_layout, window_left
from attnroute.launch.dtypes import torch_dtype
from attnroute.launch.flashinfer_pages import page_index, q_indptr
from attnroute.launch.native_decode import INT_WORKSPACE, float_buffer, float_workspace, kept, natural, run_wrapper
from attnroute.launch.packages import jit_module, load
from attnroute.launch.problem import AttentionOut, Batch, KVPages, Limits, Module, Tensor


def _graph_buffers(owner: Launcher, batch: int) -> dict[str, Any]:
    import torch

    if not owner.captures:
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


def prefill_workspace(owner: Launcher, limits: Limits) -> int:
    """Bytes that a prefill wrapper, plain or with sinks, takes for partial results and one plan."""
    return float_workspace(owner, limits, uniform=False) + INT_WORKSPACE


class SinkPrefill:
    """What `BatchAttentionWithAttentionSinkWrapper` does: sinks compiled in; float32 sinks and scale go to run()."""

    def __init__(self, owner: Launcher, backend: str) -> None:
        self.owner, self.backend = owner, backend
        self._wrappers: dict[int, Any] = {}
        self._wrapper: Any = None

    def modules(self) -> tuple[Module, ...]:
        """One module for dtypes, head dims, window and softcap."""
        import torch

        p = self.owner.problem
        own = getattr(self._wrapper_with_sinks(), "_sink_jit_args", None)
        if own is None:
            backend, (jit, more) = self.backend, self._own_variant()
        else:
            dtypes = torch_dtype(p.q_dtype), torch_dtype(p.kv_dtype)
            backend, jit, more = own(
                torch.device("cuda"), self.backend, *dtypes, p.head_dim, p.head_dim_v, window_left(p)
            )
        gen = load("flashinfer.jit.attention", self.owner.provider).gen_customize_batch_prefill_module
        return (jit_module(gen(backend, *jit, **more)),)

    def _wrapper_with_sinks(self) -> Any:
        return load("flashinfer.attention._core", self.owner.provider).BatchAttentionWithAttentionSinkWrapper

    def _own_variant(self) -> tuple[list[Any], dict[str, Any]]:
        """What the wrapper with sinks compiles, under a name of its own for each head dim and cache dtype.

        Before 0.7.4 the wrapper names its module by the query's dtype and the window alone, so that a second head dim
        or cache dtype in a process would run the first one's kernel.
        """
        import torch

        p = self.owner.problem
        name = f"{p.q_dtype}_{p.kv_dtype}_{p.head_dim}_{p.head_dim_v}_swa_{p.window is not None}_{self.backend}"
        source = load("flashinfer.jit.attention.variants", self.owner.provider).attention_sink_decl[self.backend]
        dtypes = [torch_dtype(p.q_dtype), torch_dtype(p.kv_dtype), torch_dtype(p.q_dtype), torch.int32]
        tensors, scalars = (["sink"], ["float"]), (["sm_scale"], ["double"])
        jit = ["batch_prefill_attention_sink_" + name, *dtypes, p.head_dim, p.head_dim_v, *tensors, *scalars]
        return [*jit, "AttentionSink", source], {"use_sliding_window": p.window is not None}

    def _make(self, batch: int) -> Any:
        p, owner = self.owner.problem, self.owner
        workspace, buffers = float_buffer(owner, uniform=False), _graph_buffers(owner, batch)
        make = self._wrapper_with_sinks()
        if not hasattr(make, "_sink_jit_args"):
            jit, more = self._own_variant()
            plain = load("flashinfer", owner.provider).BatchPrefillWithPagedKVCacheWrapper
            return plain(workspace, p.layout, backend=self.backend, jit_args=jit, jit_kwargs=more, **buffers)
        return make(
            workspace,
            p.layout,
            backend=self.backend,
            q_data_type=torch_dtype(p.q_dtype),
            kv_data_type=torch_dtype(p.kv_dtype),
            head_dim_qk=p.head_dim,
            head_dim_vo=p.head_dim_v,
            window_left=window_left(p),
            **buffers,
        )

    def plan(self, batch: Batch) -> None:
        """Plans one step."""
        wrapper = kept(self.owner, self._wrappers, batch.size, self._make)
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

    def workspace_bytes(self, limits: Limits | None = None) -> int:
        """128 MiB or more for partial results, and 8 MiB of plan for each captured batch size (as much on the host).

        Counted for one batch size.
        """
        return prefill_workspace(self, limits or self.limits)

    def _make(self, batch: int) -> Any:
        make = load("flashinfer", self.provider).BatchPrefillWithPagedKVCacheWrapper
        workspace = float_buffer(self, uniform=False)
        return make(workspace, self.problem.layout, backend=self.backend, **_graph_buffers(self, batch))

    def _plan(self, batch: Batch) -> None:
        if self._sinks is not None:
            self._sinks.plan(batch)
            return
        self._wrapper = kept(self, self._wrappers, batch.size, self._make)
        _plan_wrapper(self._wrapper, self, batch)

    def _run(self, q: Tensor, kv: KVPages, sinks: Tensor | None, out: Tensor, lse: Tensor | None) -> AttentionOut:
        if self._sinks is not None:
            return self._sinks.run(q, kv, sinks, out, lse)
        return run_wrapper(self._wrapper, self.problem, q, kv, out, lse)
