"""Times kernels on one shape: CUDA-graph replay, L2 flushed before each run, inputs rotated, medians of many runs."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any

from attnroute.launch.dtypes import torch_dtype
from attnroute.launch.problem import Batch, KVPages, Limits
from attnroute.probe.outcome import classify, words

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from attnroute.launch.base import Launcher
    from attnroute.probe.case import Ask
    from attnroute.probe.grid import Shape

Tensor = Any
RUNS = 21
NOT_FINITE = "NaN or infinity in the output"
FLUSH_BYTES = 256 << 20
ROTATE = 3
ROTATE_BYTES = 2 << 30  # caches larger than this are rotated between two sets only


@dataclass(frozen=True, slots=True)
class Entry:
    """A kernel to time on a shape."""

    kernel: str
    provider: str
    ask: Ask
    calls: tuple[str, ...]


def copy_bandwidth(device: str = "cuda") -> float:
    """Bytes read plus bytes written a second by a large device-to-device copy, in GB/s; the best of the middle runs."""
    import torch

    source = torch.randint(0, 255, (2 << 30,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    times = []
    for _ in range(12):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        target.copy_(source)
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return float(2 * source.numel() / (sorted(times)[len(times) // 2] * 1e-3) / 1e9)


class Sets:
    """Caches, queries and one block table for a shape; random numbers, scattered pages."""

    def __init__(self, shape: Shape, device: str, seed: int, count: int = 0) -> None:
        import torch

        generator = torch.Generator(device=device).manual_seed(seed)
        self.shape, self.device = shape, device
        self.count = count or (2 if shape.cache_bytes() > ROTATE_BYTES else ROTATE)
        layer = shape.layer
        per = -(-shape.context // shape.page_size)
        pages = per * shape.batch
        self.table = torch.randperm(pages, device=device, generator=generator).to(torch.int32).view(shape.batch, per)
        self.lens = torch.full((shape.batch,), shape.context, dtype=torch.int32, device=device)
        size = (pages, shape.page_size, layer.kv_heads, layer.head_dim)
        self.kv = [KVPages(self._fill(size, generator), self._fill(size, generator)) for _ in range(self.count)]
        heads = (shape.batch, layer.q_heads, layer.head_dim)
        self.q = [torch.randn(heads, device=device, generator=generator) for _ in range(self.count)]
        self.sinks = torch.randn((layer.q_heads,), device=device, generator=generator)

    def _fill(self, size: tuple[int, ...], generator: Any) -> Tensor:
        """Random pages; one block of random numbers repeated, since making them all would take longer than timing."""
        import torch

        total = size[0] * size[1] * size[2] * size[3]
        block = torch.randn((min(total, 1 << 25),), device=self.device, generator=generator)
        out = torch.empty((total,), dtype=torch_dtype(self.shape.kv_dtype), device=self.device)
        block = block.to(out.dtype)
        for start in range(0, total, block.numel()):
            part = out[start : start + block.numel()]
            part.copy_(block[: part.numel()])
        return out.view(size)

    def sinks_for(self, ask: Ask) -> Tensor:
        """The sinks in the dtype that a kernel wants; None if the layer has none."""
        return None if ask.sinks is None else self.sinks.to(torch_dtype(ask.sinks))

    def batch(self) -> Batch:
        """The step's requests."""
        return Batch(self.table, self.lens, (self.shape.context,) * self.shape.batch)


def time_shape(
    shape: Shape,
    entries: Sequence[Entry],
    make: Callable[[Entry, Limits], Launcher],
    *,
    flush: Tensor,
    device: str = "cuda",
    seed: int = 0,
    runs: int = RUNS,
) -> list[dict[str, Any]]:
    """One record for each kernel: median and quartiles in microseconds, or why there is none.

    `off` is the relative difference of its output from that of the first kernel: a timing of a wrong answer shows.
    """
    import torch

    sets = Sets(shape, device, seed)
    limits = Limits(shape.batch, shape.context, shape.batch, cuda_graph=True, device=device)
    first: Tensor = None
    records = []
    for entry in entries:
        record: dict[str, Any] = {"kernel": entry.kernel, "provider": entry.provider}
        try:
            times, out = _time(entry, make(entry, limits), sets, flush, runs)
            first = out if first is None else first
            record |= summary(times) | compared(out, first)
        except Exception as error:
            record |= {"failed": classify(error), "message": words(error)}
            if record["failed"] == "faults":
                records.append(record)
                raise TimingFaultError(records) from error
        records.append(record)
    torch.cuda.empty_cache()
    return records


def compared(out: Tensor, first: Tensor) -> dict[str, Any]:
    """`off`, the relative difference of an output from the first kernel's; one that is no number is a wrong answer."""
    off = float((out.float() - first.float()).norm() / first.float().norm())
    if isfinite(off):
        return {"off": float(f"{off:.3g}")}
    return {"off": None, "failed": "wrong-numbers", "message": NOT_FINITE}


class TimingFaultError(RuntimeError):
    """A kernel faulted: this process can time nothing more. `records` holds what came before."""

    def __init__(self, records: list[dict[str, Any]]) -> None:
        super().__init__("a kernel faulted while it was timed")
        self.records = records


def summary(times: Sequence[float]) -> dict[str, Any]:
    """Median and quartiles of milliseconds, as microseconds."""
    ordered = sorted(times)
    at = [ordered[min(len(ordered) - 1, int(len(ordered) * f))] * 1e3 for f in (0.25, 0.5, 0.75)]
    return {
        "median_us": round(at[1], 2),
        "quartiles_us": [round(at[0], 2), round(at[2], 2)],
        "runs": len(times),
        "mode": "graph",
    }


def _time(entry: Entry, launcher: Launcher, sets: Sets, flush: Tensor, runs: int) -> tuple[list[float], Tensor]:
    import torch

    ask = entry.ask
    q_dtype = torch_dtype(ask.q_dtype)
    queries = [q.to(q_dtype) for q in sets.q]
    sinks = sets.sinks_for(ask)
    launcher.plan(sets.batch())
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        out = launcher.run(queries[0], sets.kv[0], sinks=sinks).out.clone()
        launcher.run(queries[0], sets.kv[0], sinks=sinks)
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graphs = []
    for q, kv in zip(queries, sets.kv, strict=True):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            launcher.run(q, kv, sinks=sinks)
        graphs.append(graph)
    events = []
    for number in range(runs + 3):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        flush.fill_(number & 1)
        begin.record()
        graphs[number % len(graphs)].replay()
        end.record()
        events.append((begin, end))
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) for begin, end in events[3:]], out
