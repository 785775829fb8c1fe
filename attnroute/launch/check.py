"""Checks before any launch: shapes, dtypes, devices and strides against what a launcher is bound to.

Only what the caller got wrong is refused here. What a kernel cannot do stands in the tables, never in these checks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnroute.launch.dtypes import dtype_name
from attnroute.launch.errors import LaunchError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from attnroute.launch.calls import Settings
    from attnroute.launch.problem import Batch, KVPages, Limits, Problem, Tensor


def _shape(name: str, tensor: Tensor, expected: tuple[int | None, ...], axes: str) -> None:
    shape = tuple(tensor.shape)
    if len(shape) != len(expected) or any(e is not None and s != e for s, e in zip(shape, expected, strict=True)):
        wanted = ", ".join("*" if e is None else str(e) for e in expected)
        raise LaunchError(f"{name} has shape {shape}; this launcher is bound to ({wanted}) = ({axes})", code="shape")


def _dtype(name: str, tensor: Tensor, allowed: str) -> None:
    found = dtype_name(tensor.dtype)
    if found != allowed:
        raise LaunchError(f"{name} is {found}; this launcher is bound to {allowed}", code="dtype")


def _device(name: str, tensor: Tensor, device: str) -> None:
    found = tensor.device
    if found.type != device.partition(":")[0] or (":" in device and str(found) != device):
        raise LaunchError(f"{name} is on {found}; this launcher runs on {device}", code="device")


def check_q(problem: Problem, q: Tensor, tokens: int, device: str) -> None:
    """q (tokens, q_heads, head_dim) in the model's dtype or already in the one the kernel reads."""
    _shape("q", q, (tokens, problem.num_q_heads, problem.head_dim), "tokens, q_heads, head_dim")
    if dtype_name(q.dtype) != problem.q_dtype:
        _dtype("q", q, problem.dtype)
    _device("q", q, device)
    if q.stride(-1) != 1:
        raise LaunchError(f"q has stride {q.stride(-1)} in its last axis; it must be 1", code="stride")


def check_kv(problem: Problem, kv: KVPages, device: str, settings: Settings) -> None:
    """k and v (pages, page, kv_heads, head_dim): dtype, device, unit stride inside a head, order of the layout."""
    axes = "pages, page, kv_heads, head_dim"
    for name, tensor, width in (("k", kv.k, problem.head_dim), ("v", kv.v, problem.head_dim_v)):
        stored = width // 2 if problem.kv_dtype == "nvfp4" else width
        _shape(name, tensor, (None, problem.page_size, problem.num_kv_heads, stored), axes)
        if problem.kv_dtype == "nvfp4":
            if dtype_name(tensor.dtype) not in ("nvfp4", "uint8"):
                raise LaunchError(
                    f"{name} is {dtype_name(tensor.dtype)}; an NVFP4 cache is held as uint8", code="dtype"
                )
        else:
            _dtype(name, tensor, problem.kv_dtype)
        _device(name, tensor, device)
        if tensor.stride(-1) != 1:
            raise LaunchError(f"{name} has stride {tensor.stride(-1)} in its last axis; it must be 1", code="stride")
        _check_layout(name, tensor, problem)
        if settings.aligned_strides:
            _check_aligned(name, tensor)
    if kv.k.shape[0] != kv.v.shape[0]:
        raise LaunchError(
            f"k has {kv.k.shape[0]} pages and v {kv.v.shape[0]}; they share one block table", code="shape"
        )
    if settings.equal_kv_strides and tuple(kv.k.stride()) != tuple(kv.v.stride()):
        raise LaunchError(
            f"k has strides {tuple(kv.k.stride())} and v {tuple(kv.v.stride())}; the kernel reads those of k for both",
            code="stride",
        )


def _check_aligned(name: str, tensor: Tensor) -> None:
    """Address and every stride in multiples of 16 bytes, axes of size one included."""
    size = tensor.element_size()
    odd = [axis for axis, stride in enumerate(tensor.stride()[:-1]) if stride * size % 16]
    if odd or tensor.data_ptr() % 16:
        what = f"strides {tuple(tensor.stride())} of {size} bytes" if odd else f"address {tensor.data_ptr():#x}"
        raise LaunchError(f"{name} has {what}; the kernel needs multiples of 16 bytes", code="alignment")


def _check_layout(name: str, tensor: Tensor, problem: Problem) -> None:
    if problem.page_size == 1 or problem.num_kv_heads == 1:
        return  # with one token or one head both orders are the same memory
    token, head = tensor.stride(1), tensor.stride(2)
    found = "NHD" if token > head else "HND"
    if found != problem.layout:
        raise LaunchError(
            f"{name} is laid out as {found} (strides {tuple(tensor.stride())}); bound to {problem.layout}",
            code="layout",
        )


def check_out(problem: Problem, out: Tensor, tokens: int, device: str) -> None:
    """out (tokens, q_heads, head_dim_v) in the model's dtype, contiguous: not every kernel reads its strides."""
    _shape("out", out, (tokens, problem.num_q_heads, problem.head_dim_v), "tokens, q_heads, head_dim_v")
    _dtype("out", out, problem.dtype)
    _device("out", out, device)
    if not out.is_contiguous():
        raise LaunchError(f"out has strides {tuple(out.stride())}; it must be contiguous", code="stride")


def check_batch(problem: Problem, limits: Limits, batch: Batch) -> None:
    """Block table, lengths and query tokens of one step against the limits and against each other."""
    size = batch.size
    if not 0 < size <= limits.max_batch:
        raise LaunchError(
            f"the batch has {size} requests; this launcher is bound to 1..{limits.max_batch}", code="batch"
        )
    for name, tensor, shape in (
        ("block_table", batch.block_table, (size, None)),
        ("seq_lens", batch.seq_lens, (size,)),
    ):
        _shape(name, tensor, shape, "batch, pages" if len(shape) == 2 else "batch")
        if str(tensor.dtype) != "torch.int32":
            raise LaunchError(f"{name} is {tensor.dtype}; it must be torch.int32", code="dtype")
        _device(name, tensor, limits.device)
    longest = max(batch.lens)
    if min(batch.lens) < 1 or longest > limits.max_context:
        raise LaunchError(
            f"a request has {min(batch.lens)}..{longest} keys; bound to 1..{limits.max_context}", code="context"
        )
    need = -(-longest // problem.page_size)
    if batch.block_table.shape[1] < need:
        raise LaunchError(
            f"the block table has {batch.block_table.shape[1]} pages a request; {longest} keys need {need}",
            code="shape",
        )
    if problem.q_len == 0 and batch.q_lens is None:
        raise LaunchError(
            "query tokens vary in this phase; the batch must say how many each request has (q_lens)", code="batch"
        )
    if batch.q_lens is not None and len(batch.q_lens) != size:
        raise LaunchError(f"q_lens names {len(batch.q_lens)} requests of {size}", code="batch")
    if problem.q_len and batch.q_lens is not None and set(batch.q_lens) != {problem.q_len}:
        raise LaunchError(
            f"q_lens is {_few(batch.q_lens)}; this launcher is bound to {problem.q_len} query tokens a request",
            code="batch",
        )
    q_lens = batch.q_lens or (problem.q_len,) * size
    if limits.max_q_tokens is not None and sum(q_lens) > limits.max_q_tokens:
        raise LaunchError(
            f"the batch has {sum(q_lens)} query tokens; this launcher is bound to 1..{limits.max_q_tokens}",
            code="batch",
        )
    for length, queries in zip(batch.lens, q_lens, strict=True):
        if queries < 1 or (problem.causal and queries > length):
            raise LaunchError(
                f"a request has {queries} query tokens and {length} keys; keys include the step's own", code="batch"
            )


def _few(values: Sequence[int]) -> str:
    return " ".join(map(str, values[:8])) + (" ..." if len(values) > 8 else "")


def check_sinks(problem: Problem, sinks: Tensor | None, device: str) -> None:
    """Sinks (q_heads,) in the dtype that the problem names, given if and only if it names one."""
    if problem.sinks is None:
        if sinks is not None:
            raise LaunchError("sinks were passed, but this launcher is bound without them", code="sinks")
        return
    if sinks is None:
        raise LaunchError("this launcher is bound with sinks; pass them to run()", code="sinks")
    _shape("sinks", sinks, (problem.num_q_heads,), "q_heads")
    if not sinks.is_contiguous():
        raise LaunchError(f"sinks have stride {sinks.stride(0)}; they must be contiguous", code="stride")
    _dtype("sinks", sinks, problem.sinks)
    _device("sinks", sinks, device)
