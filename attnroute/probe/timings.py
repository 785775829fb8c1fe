"""Timings of captures as the fit reads them: one shape, each kernel's time in each of two independent passes."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, fsum, log
from typing import TYPE_CHECKING, Any

from attnroute.probe.grid import held_out, is_swept

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Kernel = tuple[str, str]  # (kernel, provider)
#: Relative difference of outputs above which a timing is one of a wrong answer.
WRONG = 0.15


@dataclass(frozen=True, slots=True, eq=False)
class Timed:
    """One shape. `times[pass][kernel]` are microseconds; `context` counts the tokens in the cache per request.

    `window` counts those that a step reads if fewer, else 0; `streams` requests times KV heads: what there is to spread
    over the GPU before a context is cut.
    """

    key: str
    model: str
    kv_dtype: str
    head_dim: int
    ratio: int
    batch: int
    streams: int
    context: int
    page: int
    window: int
    held_out: bool
    floor_us: float
    times: tuple[Mapping[Kernel, float], Mapping[Kernel, float]]

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """Kernels timed in both passes."""
        return tuple(k for k in self.times[0] if k in self.times[1])

    @property
    def group(self) -> tuple[str, str, int]:
        """What an engine that cannot switch decides once for: the layers of a model, a cache dtype, a page."""
        return self.model, self.kv_dtype, self.page

    def best(self, number: int) -> Kernel:
        """The fastest kernel in one pass."""
        return min(self.kernels, key=lambda k: self.times[number][k])

    def loss(self, kernel: Kernel) -> float:
        """Time of a pick over that of the best, the best found in one pass and both timed in the other; 1 is none.

        The geometric mean of both ways round, so that noise can flatter neither.
        """
        ways = [log(self.times[1 - n][kernel] / self.times[1 - n][self.best(n)]) for n in (0, 1)]
        return exp(sum(ways) / 2)

    def relative(self, kernel: Kernel) -> float:
        """Geometric mean over the passes of the kernel's time over the fastest's."""
        return exp(sum(log(t[kernel] / min(t[k] for k in self.kernels)) for t in self.times) / 2)


def read_timings(captures: Iterable[Mapping[str, Any]]) -> list[Timed]:
    """Shapes with at least two kernels timed in two passes. Wrong and failed timings are left out.

    A shape of the sweep was timed in one pass only, which counts as both: it is fitted, and nothing is judged by it.
    """
    found: dict[str, tuple[dict[str, Any], tuple[dict[Kernel, float], dict[Kernel, float]]]] = {}
    for capture in captures:
        for t in capture["timings"]:
            if t.get("median_us") is None or t.get("failed") or not t.get("off", 0.0) <= WRONG:
                continue  # not timed, or a wrong answer
            _, times = found.setdefault(shape_key(t), (t, ({}, {})))
            times[int(t["pass"]) - 1][t["kernel"], t["provider"]] = float(t["median_us"])
    shapes = [_timed(entry, times) for entry, times in found.values()]
    return [s for s in shapes if len(s.kernels) > 1]


def shape_key(entry: Mapping[str, Any]) -> str:
    """What two timings of one shape have in common."""
    request = entry["request"]
    return f"{request['model']}/{entry['batch']}/{entry['context']}/{request['page_size']}/{request['kv_dtype']}"


def _timed(entry: Mapping[str, Any], times: tuple[Mapping[Kernel, float], Mapping[Kernel, float]]) -> Timed:
    request = entry["request"]
    window = request.get("window")
    if is_swept(request["model"]):
        once = times[0] or times[1]
        times = (once, once)
    return Timed(
        key=shape_key(entry),
        model=request["model"],
        kv_dtype=request["kv_dtype"],
        head_dim=request["head_dim"],
        ratio=request["q_heads"] // request["kv_heads"],
        batch=entry["batch"],
        streams=entry["batch"] * request["kv_heads"],
        context=entry["context"],
        page=request["page_size"],
        window=window if window is not None and window < entry["context"] else 0,
        held_out=held_out(request, entry["context"]),
        floor_us=float(entry.get("floor_us") or 0.0),
        times=times,
    )


def geometric(values: Iterable[float]) -> float:
    """Geometric mean; 1 of nothing."""
    logs = [log(v) for v in values]
    return exp(fsum(logs) / len(logs)) if logs else 1.0
