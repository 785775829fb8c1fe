"""FlashInfer's decode on tensor cores: the FA2 prefill template under the decode wrapper, or its sink wrapper."""

from __future__ import annotations

from typing import Any, ClassVar

from attnroute.launch.dtypes import is_fp8
from attnroute.launch.native_decode import DecodeWrapper
from attnroute.launch.native_prefill import SinkPrefill, prefill_modules, prefill_workspace
from attnroute.launch.problem import AttentionOut, Batch, KVPages, Limits, Module, Tensor


class Launch(DecodeWrapper):
    """One or more query tokens a request. Sinks need a variant of the kernel that the plain wrapper lacks."""

    expresses: ClassVar[frozenset[str]] = frozenset(
        {"window", "softcap", "lse", "noncausal", "sinks", "q_len", "cast-q"}
    )
    tensor_cores: ClassVar[bool] = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._sinks = SinkPrefill(self, "fa2") if self.problem.sinks is not None else None

    def modules(self) -> tuple[Module, ...]:
        """One module for dtypes, head dim, window and softcap, or the variant with sinks."""
        if self._sinks is not None:
            return self._sinks.modules()
        return prefill_modules(self, "fa3" if is_fp8(self.problem.q_dtype) else "fa2")

    def workspace_bytes(self, limits: Limits | None = None) -> int:
        """As the decode wrapper, or with sinks as the prefill wrapper, whose plan may take more."""
        limits = limits or self.limits
        if self._sinks is not None:
            return prefill_workspace(self, limits)
        return super().workspace_bytes(limits)

    def _plan(self, batch: Batch) -> None:
        if self._sinks is not None:
            self._sinks.plan(batch)
        else:
            super()._plan(batch)

    def _run(self, q: Tensor, kv: KVPages, sinks: Tensor | None, out: Tensor, lse: Tensor | None) -> AttentionOut:
        if self._sinks is not None:
            return self._sinks.run(q, kv, sinks, out, lse)
        return super()._run(q, kv, sinks, out, lse)
