"""A small table and launchers that need no GPU: one right, others wrong in one way each."""

import os
import signal
import time

import torch

from attnroute.launch.base import Launcher
from attnroute.launch.calls import Settings
from attnroute.launch.problem import AttentionOut
from attnroute.registry.build import build_table

torch.set_num_threads(1)  # a forked child cannot use the thread pool of its parent

ROW = {
    "kernel": "alpha",
    "provider": "alpha-dist",
    "row": "decode",
    "versions": "1.0..",
    "seen": ["1.0", "1.2"],
    "strength": "source",
    "dims": {
        "phase": ["decode", "draft"],
        "storage": ["paged"],
        "head_dim": "32..96/16",
        "page": [16, 32],
        "dtypes": {"bf16": ["bf16", "fp8_e4m3"], "fp16": ["fp16"]},
        "group_ratio": "1..8",
        "layout": ["NHD", "HND"],
    },
    "features": {"window": True, "softcap": False, "lse": True, "sinks": ["fp32"]},
    "cuda_graph": "uniform1",
    "call": ["warm-up"],
    "env": {},
    "exclusions": [
        {
            "id": "decode#0",
            "where": {"group_ratio": "5..6", "dtypes": {"bf16": ["bf16"]}},
            "outcome": "wrong-numbers",
            "code": None,
            "versions": None,
            "why": "five and six are swapped",
        }
    ],
}
TRAP = {
    "kernel": "alpha",
    "provider": "alpha-dist",
    "trap": "page-8",
    "versions": "1.0..",
    "where": {"page": 8},
    "outcome": "faults",
    "why": "half a page is read past the end",
}
CATALOGUE = {
    "kernels": {"alpha": {"providers": {"alpha-dist": {"module": "alpha", "launcher": "alpha"}}, "kinds": ["gqa"]}},
    "packages": {"alpha-dist": {"module": "alpha", "releases": {"1.0": {}, "1.2": {}}}},
    "reasons": {},
    "calls": {"warm-up": {"meaning": "run once"}},
    "default_order": {"decode": ["alpha"], "verify": ["alpha"], "draft": ["alpha"], "prefill": []},
    "archs": {"sm00": {"name": "test", "compute_capability": "0.0"}},
}
TABLE = {
    "arch": "sm00",
    "name": "test",
    "compute_capability": "0.0",
    "mirrors": None,
    "default_order": {},
    "rows": [ROW],
    "traps": [TRAP],
    "preference": [],
}
PACKAGES = {"alpha-dist": "1.2"}


def table():
    return build_table(TABLE, CATALOGUE)


class Registry:
    """As much of a registry as routing needs."""

    def __init__(self):
        self.catalogue = CATALOGUE
        self.decisions = {}
        self.archs = ("sm00",)
        self.label = "test"
        self._table = table()

    def table(self, arch):
        return self._table

    def arch_id(self, arch):
        return arch

    def archs_with(self, kernel, provider):
        return self.archs

    def evidence(self, arch, row, provider=None):
        return []

    def is_local_arch(self, arch):
        return False

    def engine_pins(self, name):
        return {}


class Eager(Launcher):
    """Attention written down once more, token by token, in double precision."""

    expresses = frozenset(
        {"window", "softcap", "lse", "sinks", "noncausal", "q_len", "head_dim_v", "prefill", "cast-q"}
    )

    def modules(self):
        return ()

    def workspace_bytes(self, limits=None):
        return 0

    def _plan(self, batch):
        self._keep("table", batch.block_table)

    def _run(self, q, kv, sinks, out, lse):
        p, token = self.problem, 0
        batch = self._planned()
        for row, length in enumerate(batch.lens):
            count = batch.q_lens[row] if batch.q_lens else p.q_len
            for step in range(count):
                place = length - count + step
                first = 0 if p.window is None else max(0, place - p.window + 1)
                keys = range(first, place + 1 if p.causal else length)
                for head in range(p.num_q_heads):
                    pairs = [self._pair(kv, row, key, head // p.group_ratio) for key in keys]
                    k = torch.stack([a for a, _ in pairs]).double() * kv.k_scale
                    v = torch.stack([b for _, b in pairs]).double() * kv.v_scale
                    s = k @ q[token, head].double() * p.softmax_scale
                    if p.softcap:
                        s = p.softcap * torch.tanh(s / p.softcap)
                    extra = [] if sinks is None else [sinks[head].double().view(1)]
                    total = torch.logsumexp(torch.cat([s, *extra]), 0)
                    out[token, head] = (torch.exp(s - total) @ v).to(out.dtype)
                    if lse is not None:
                        lse[token, head] = total
                token += 1
        return AttentionOut(out, lse)

    def _pair(self, kv, row, key, head):
        page = int(self._fixed["table"][row, key // self.problem.page_size])
        return kv.k[page, key % self.problem.page_size, head], kv.v[page, key % self.problem.page_size, head]


class Wrong(Eager):
    def _run(self, q, kv, sinks, out, lse):
        made = super()._run(q, kv, sinks, out, lse)
        made.out[-1] *= 1.5
        return made


class Lazy(Eager):
    """Leaves the last token unwritten."""

    def _run(self, q, kv, sinks, out, lse):
        super()._run(q, kv, sinks, out, lse)
        out[-1] = float("nan")
        return AttentionOut(out, lse)


class Stray(Eager):
    """Writes one row past the end of its output."""

    def _run(self, q, kv, sinks, out, lse):
        torch.as_strided(out, (out.shape[0] + 1, *out.shape[1:]), out.stride(), out.storage_offset())[-1] = 0
        return super()._run(q, kv, sinks, out, lse)


class Deaf(Eager):
    """Takes sinks and drops them."""

    def _run(self, q, kv, sinks, out, lse):
        return super()._run(q, kv, None, out, lse)


class Rude(Eager):
    def _run(self, q, kv, sinks, out, lse):
        raise ValueError("Invalid head_dim: 40")


class Faulty(Eager):
    def _run(self, q, kv, sinks, out, lse):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")


class Crashing(Eager):
    def _run(self, q, kv, sinks, out, lse):
        os.kill(os.getpid(), signal.SIGSEGV)


class Hanging(Eager):
    def _run(self, q, kv, sinks, out, lse):
        time.sleep(60)


def making(kind):
    """A maker for `run_case` that always takes this class."""
    return lambda case, limits: kind(case.ask.problem(), limits, Settings(), case.provider)
