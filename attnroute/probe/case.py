"""One experiment: a kernel of one package, a request, and why it is worth asking."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from attnroute.launch.problem import Problem

if TYPE_CHECKING:
    from collections.abc import Mapping

#: What a case can end in. `ok` and the failures that the tables know, then those that say nothing about the tables.
OUTCOMES = ("ok", "raises", "faults", "wrong-numbers", "build-fails", "ignored", "timeout", "not-installed")
#: Outcomes after which nothing is known about the kernel.
SILENT = ("timeout", "not-installed")


@dataclass(frozen=True, slots=True)
class Ask:
    """The request of a case. Heads per rank, head dims in elements, page and lengths in tokens.

    `lens` are the keys of each request of the batch; `q_len` 0: query tokens vary (prefill: half of the keys).
    `window` counts visible tokens; `sinks` is their dtype. `graph` asks for capture and replay with new inputs.
    """

    phase: str
    q_len: int
    dtype: str
    q_dtype: str
    kv_dtype: str
    head_dim: int
    head_dim_v: int
    page_size: int
    q_heads: int
    kv_heads: int
    lens: tuple[int, ...]
    layout: str = "NHD"
    window: int | None = None
    softcap: float | None = None
    sinks: str | None = None
    lse: bool = False
    causal: bool = True
    graph: bool = False
    storage: str = "paged"

    @property
    def ratio(self) -> int:
        """Query heads per KV head."""
        return self.q_heads // self.kv_heads

    def to_json(self) -> dict[str, Any]:
        """Every field; lists for tuples."""
        shown = {name: getattr(self, name) for name in Ask.__dataclass_fields__}
        return {**shown, "lens": list(self.lens)}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Ask:
        """The inverse of `to_json`; unknown fields of newer captures are an error of the caller's."""
        return Ask(**{**data, "lens": tuple(data["lens"])})

    def problem(self) -> Problem:
        """What a launcher is bound to."""
        return Problem(
            num_q_heads=self.q_heads,
            num_kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            head_dim_v=self.head_dim_v,
            page_size=self.page_size,
            dtype=self.dtype,
            q_dtype=self.q_dtype,
            kv_dtype=self.kv_dtype,
            phase=self.phase,
            q_len=self.q_len,
            window=self.window,
            softcap=self.softcap,
            sinks=self.sinks,
            lse=self.lse,
            causal=self.causal,
            layout=self.layout,
        )

    def q_lens(self) -> tuple[int, ...]:
        """Query tokens of each request."""
        return tuple(self.q_len or -(-length // 2) for length in self.lens)

    def features(self) -> tuple[str, ...]:
        """Names of the features asked for."""
        asked = {"window": self.window is not None, "softcap": bool(self.softcap), "sinks": self.sinks is not None,
                 "lse": self.lse, "noncausal": not self.causal}  # fmt: skip
        return tuple(name for name, wanted in asked.items() if wanted)


@dataclass(frozen=True, slots=True)
class Case:
    """An experiment and what the tables say about it (`predicted`, filled in before the run)."""

    kernel: str
    provider: str
    ask: Ask
    calls: tuple[str, ...] = ()
    why: tuple[str, ...] = ()
    predicted: Mapping[str, Any] = field(default_factory=dict, compare=False, hash=False)

    @property
    def id(self) -> str:
        """Stable over runs and machines: kernel, provider and a digest of the request."""
        text = json.dumps(self.ask.to_json(), sort_keys=True)
        return f"{self.kernel}@{self.provider}/{hashlib.sha256(text.encode()).hexdigest()[:10]}"

    @property
    def label(self) -> str:
        """One line for people."""
        a = self.ask
        heads = str(a.head_dim) if a.head_dim == a.head_dim_v else f"{a.head_dim}x{a.head_dim_v}"
        more = " ".join(a.features()) + (" graph" if a.graph else "") + (f" q{a.q_len}" if a.q_len != 1 else "")
        return f"head {heads} ratio {a.ratio} page {a.page_size} {a.q_dtype}/{a.kv_dtype} {a.layout} {more}".rstrip()

    def with_prediction(self, predicted: Mapping[str, Any], calls: tuple[str, ...]) -> Case:
        """The case with what the tables say about it."""
        return replace(self, predicted=predicted, calls=calls or self.calls)

    def to_json(self) -> dict[str, Any]:
        """As predictions and captures hold it."""
        return {
            "id": self.id,
            "kernel": self.kernel,
            "provider": self.provider,
            "request": self.ask.to_json(),
            "calls": list(self.calls),
            "why": list(self.why),
            "predicted": dict(self.predicted),
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Case:
        """The inverse of `to_json`."""
        return Case(
            data["kernel"],
            data["provider"],
            Ask.from_json(data["request"]),
            tuple(data.get("calls", ())),
            tuple(data.get("why", ())),
            data.get("predicted", {}),
        )
