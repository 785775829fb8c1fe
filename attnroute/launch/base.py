"""The one shape of a launcher: say what it allocates and compiles, plan a batch on the host, run it on the device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from attnroute.launch.check import check_batch, check_kv, check_out, check_q, check_sinks
from attnroute.launch.dtypes import is_fp8, torch_dtype
from attnroute.launch.errors import LaunchError
from attnroute.launch.problem import AttentionOut, Batch, KVPages

if TYPE_CHECKING:
    from attnroute.launch.calls import Settings
    from attnroute.launch.problem import Limits, Module, Problem, Tensor

MIB = 1 << 20
FIRST_TOKENS = 256  # of a prompt that only warms up


class Launcher(ABC):
    """A kernel of one package, bound to one geometry. `plan` then `run`; only `run` may be captured in a CUDA graph.

    `expresses` names the features that the kernel's call has a parameter for. That is what its signature says; whether
    the kernel then does it right is what the tables say.
    """

    expresses: ClassVar[frozenset[str]] = frozenset()
    proven: ClassVar[bool] = True
    compiles_in_process: ClassVar[bool] = False  # a first call of a new geometry compiles, whatever `modules` says

    def __init__(self, problem: Problem, limits: Limits, settings: Settings, provider: str) -> None:
        self.problem, self.limits, self.settings, self.provider = problem, limits, settings, provider
        self._batch: Batch | None = None
        self._fixed: dict[str, Tensor] = {}  # what run() passes on
        self._kept: dict[tuple[object, ...], Tensor] = {}
        self._refuse_unexpressed()

    def _refuse_unexpressed(self) -> None:
        """Raises LaunchError `no-parameter` for a feature that the call cannot even be asked for."""
        p = self.problem
        asked = {"window": p.window is not None, "softcap": bool(p.softcap), "sinks": p.sinks is not None, "lse": p.lse,
                 "noncausal": not p.causal, "q_len": p.q_len != 1, "head_dim_v": p.head_dim_v != p.head_dim,
                 "prefill": p.phase == "prefill", "cast-q": p.q_dtype != p.dtype}  # fmt: skip
        for feature, wanted in asked.items():
            if wanted and feature not in self.expresses:
                raise LaunchError(
                    f"{type(self).__module__.rpartition('.')[2]} ({self.provider}) has no parameter for {feature}; "
                    f"its call expresses {' '.join(sorted(self.expresses)) or 'none of the features'}",
                    code="no-parameter",
                )

    @abstractmethod
    def modules(self) -> tuple[Module, ...]:
        """What the first call would compile. Touches no device; empty where a package ships or compiles in-process."""

    @abstractmethod
    def workspace_bytes(self, limits: Limits | None = None) -> int:
        """Device bytes that the launcher allocates besides inputs and outputs, for these limits (default: its own)."""

    @abstractmethod
    def _plan(self, batch: Batch) -> None: ...

    @abstractmethod
    def _run(self, q: Tensor, kv: KVPages, sinks: Tensor | None, out: Tensor, lse: Tensor | None) -> AttentionOut: ...

    @property
    def captures(self) -> bool:
        """Whether steps may be captured in CUDA graphs: each batch size then needs buffers of its own."""
        return self.limits.cuda_graph and self.problem.q_len != 0

    def warmup(self) -> None:
        """Compiles or fetches what the first steps need. Raises what the package raises.

        A kernel that compiles in the calling process runs twice on the device, on numbers of no meaning: once as one
        request of the longest context, once as many short ones, since it is another kernel where keys are split.
        """
        for module in self.modules():
            if not module.ready():
                module.build()
        if self.compiles_in_process:
            most = self.limits.most_q_tokens(self.problem.q_len) // (self.problem.q_len or 1)
            for batch, context in ((1, self.limits.max_context), (self.limits.max_batch, self.problem.page_size)):
                self._first_call(max(1, min(batch, most)), min(context, self.limits.max_context))
            self._batch = None

    def _first_call(self, size: int, context: int) -> None:
        """One step of `size` requests that all read the same page."""
        import torch

        p, device = self.problem, self.limits.device
        step = p.q_len or max(1, min(context, FIRST_TOKENS, (self.limits.max_q_tokens or context) // size))
        context = max(context, step)
        table = torch.zeros((size, -(-context // p.page_size)), dtype=torch.int32, device=device)
        lens = torch.full((size,), context, dtype=torch.int32, device=device)
        shapes = [(1, p.page_size, p.num_kv_heads, width) for width in (p.head_dim, p.head_dim_v)]
        if p.layout == "HND":
            shapes = [(pages, heads, page, width) for pages, page, heads, width in shapes]
        k, v = (torch.zeros(s, dtype=torch_dtype(p.kv_dtype), device=device) for s in shapes)
        kv = KVPages(k, v) if p.layout == "NHD" else KVPages(k.transpose(1, 2), v.transpose(1, 2))
        q = torch.zeros((size * step, p.num_q_heads, p.head_dim), dtype=torch_dtype(p.dtype), device=device)
        sinks = None
        if p.sinks is not None:
            sinks = torch.zeros((p.num_q_heads,), dtype=torch_dtype(p.sinks), device=device)
        self.plan(Batch(table, lens, (context,) * size, None if p.q_len else (step,) * size))
        self.run(q, kv, sinks=sinks)

    def plan(self, batch: Batch) -> None:
        """Takes in one step's requests: host work, copies to fixed addresses. Never inside a capture.

        After a capture, plan again with the same batch size and table width: the tables change in place.
        """
        check_batch(self.problem, self.limits, batch)
        self._plan(batch)
        self._batch = batch

    def tokens(self) -> int:
        """Query tokens of the planned step."""
        batch = self._planned()
        return sum(batch.q_lens) if batch.q_lens is not None else batch.size * self.problem.q_len

    def run(self, q: Tensor, kv: KVPages, *, sinks: Tensor | None = None, out: Tensor | None = None) -> AttentionOut:
        """Attention of the planned step.

        q (tokens, q_heads, head_dim); kv as the problem says; sinks (q_heads,) if bound with them; out (tokens,
        q_heads, head_dim_v) in the model's dtype is written if given, else allocated. Raises LaunchError before any
        launch where a tensor does not fit, and what the package raises.
        """
        import torch

        self._planned()
        device = self.limits.device
        check_q(self.problem, q, self.tokens(), device)
        check_kv(self.problem, kv, device, self.settings)
        check_sinks(self.problem, sinks, device)
        p = self.problem
        if out is None:
            out = torch.empty((q.shape[0], p.num_q_heads, p.head_dim_v), dtype=torch_dtype(p.dtype), device=q.device)
        else:
            check_out(p, out, self.tokens(), device)
        lse = torch.empty((q.shape[0], p.num_q_heads), dtype=torch.float32, device=q.device) if p.lse else None
        if self.settings.out_dtype not in (None, p.dtype):  # the kernel writes another dtype than the model's
            made = self._run(
                self._cast(q), kv, sinks, out.new_empty(out.shape, dtype=torch_dtype(str(self.settings.out_dtype))), lse
            )
            return AttentionOut(out.copy_(made.out), made.lse)
        return self._run(self._cast(q), kv, sinks, out, lse)

    def _cast(self, q: Tensor) -> Tensor:
        """The query in the dtype that the kernel reads; fp8 with scale 1, saturating."""
        wanted = torch_dtype(self.problem.q_dtype)
        if q.dtype == wanted:
            return q
        if is_fp8(self.problem.q_dtype):
            import torch

            limit = torch.finfo(wanted).max
            q = q.clamp(-limit, limit)
        return q.to(wanted)

    def _planned(self) -> Batch:
        if self._batch is None:
            raise LaunchError("run() before plan(): the launcher has no batch", code="no-plan")
        return self._batch

    def _keep(self, name: str, tensor: Tensor) -> Tensor:
        """A contiguous copy at an address that later plans of the same shape write to, so that graphs see new values.

        Where graphs are captured each batch size has its own, which stays: the graph of another one replays from it.
        """
        key = (name, tensor.shape[0]) if self.captures else (name,)
        held = self._kept.get(key)
        if held is None or held.shape != tensor.shape or held.dtype != tensor.dtype:
            held = self._kept[key] = tensor.to(self.limits.device).clone().contiguous()
        else:
            held.copy_(tensor, non_blocking=tensor.device == held.device)
        self._fixed[name] = held
        return held

    def _workspace(self, size: int, *, zeroed: bool) -> Tensor:
        """Scratch of `size` bytes, kept for this launcher alone."""
        import torch

        held = self._fixed.get("workspace")
        if held is None or held.numel() < size:
            make = torch.zeros if zeroed else torch.empty
            held = self._fixed["workspace"] = make(size, dtype=torch.uint8, device=self.limits.device)
        return held


def window_left(problem: Problem) -> int:
    """Tokens to the left of a query that it still sees (-1: all): the packages' convention for `window` tokens."""
    return -1 if problem.window is None else problem.window - 1


def as_layout(problem: Problem, kv: KVPages) -> tuple[Tensor, Tensor]:
    """k and v with the axes in the order of the layout's name, as FlashInfer takes them; no copy."""
    if problem.layout == "NHD":
        return kv.k, kv.v
    return kv.k.transpose(1, 2), kv.v.transpose(1, 2)
