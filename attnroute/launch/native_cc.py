"""FlashInfer's decode on CUDA cores: `BatchDecodeWithPagedKVCacheWrapper(use_tensor_cores=False)`."""

from __future__ import annotations

from typing import ClassVar

from attnroute.launch.dtypes import torch_dtype
from attnroute.launch.native_decode import DecodeWrapper
from attnroute.launch.packages import jit_module, load
from attnroute.launch.problem import Module


class Launch(DecodeWrapper):
    """One query token a request."""

    expresses: ClassVar[frozenset[str]] = frozenset({"window", "softcap", "lse", "noncausal", "cast-q"})
    tensor_cores: ClassVar[bool] = False

    def modules(self) -> tuple[Module, ...]:
        """One module for dtypes, head dim, window and softcap."""
        import torch

        p = self.problem
        gen = load("flashinfer.jit.attention", self.provider).gen_batch_decode_module
        q, kv, out = torch_dtype(p.q_dtype), torch_dtype(p.kv_dtype), torch_dtype(p.dtype)
        spec = gen(q, kv, out, torch.int32, p.head_dim, p.head_dim, 0, p.window is not None, bool(p.softcap))
        return (jit_module(spec),)
