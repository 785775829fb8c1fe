"""Attention in float32 on the very numbers that the kernel was given, request by request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attnroute.launch.dtypes import is_fp8, torch_dtype

if TYPE_CHECKING:
    from collections.abc import Sequence

    from attnroute.probe.case import Ask
    from attnroute.probe.data import Inputs

Tensor = Any
TOKENS = 16


def as_read(q: Tensor, ask: Ask) -> Tensor:
    """The query as the kernel reads it (cast to fp8 where it wants that), in float32."""
    if not is_fp8(ask.q_dtype):
        return q.float()
    import torch

    wanted = torch_dtype(ask.q_dtype)
    limit = torch.finfo(wanted).max
    return q.float().clamp(-limit, limit).to(wanted).float()


def reference(ask: Ask, inputs: Inputs) -> tuple[list[Tensor], list[Tensor]]:
    """For each request its output (q_len, q_heads, head_dim_v) and log-sum-exp (q_len, q_heads), float32."""
    outs, lses, start = [], [], 0
    q = as_read(inputs.q, ask)
    for row, (length, count) in enumerate(zip(ask.lens, ask.q_lens(), strict=True)):
        out, lse = _one(ask, q[start : start + count], _keys(inputs, row, length, ask), inputs.sinks)
        outs.append(out)
        lses.append(lse)
        start += count
    return outs, lses


def _keys(inputs: Inputs, row: int, length: int, ask: Ask) -> tuple[Tensor, Tensor]:
    pages = inputs.batch.block_table[row, : -(-length // ask.page_size)].long()
    k, v = (_gather(tensor, pages).float().flatten(0, 1)[:length] for tensor in (inputs.kv.k, inputs.kv.v))
    return k * inputs.kv.k_scale, v * inputs.kv.v_scale


def _gather(tensor: Tensor, pages: Tensor) -> Tensor:
    """Pages by number; fp8 as plain bytes, since not every release of torch can index it."""
    import torch

    if tensor.element_size() > 1:
        return tensor[pages]
    return tensor.view(torch.uint8)[pages].view(tensor.dtype)


def _one(ask: Ask, q: Tensor, kv: tuple[Tensor, Tensor], sinks: Tensor | None) -> tuple[Tensor, Tensor]:
    import torch

    (k, v), count, length = kv, q.shape[0], kv[0].shape[0]
    grouped = q.view(count, ask.kv_heads, ask.ratio, ask.head_dim)
    scores = torch.einsum("qhgd,khd->hgqk", grouped, k) * ask.problem().softmax_scale
    if ask.softcap:
        scores = ask.softcap * torch.tanh(scores / ask.softcap)
    scores = scores.masked_fill(~visible(ask, count, length, q.device), float("-inf"))
    lse = torch.logsumexp(scores, dim=-1)
    if sinks is not None:
        lse = torch.logaddexp(lse, sinks.float().view(ask.kv_heads, ask.ratio, 1))
    out = torch.einsum("hgqk,khd->qhgd", torch.exp(scores - lse[..., None]), v)
    return out.reshape(count, ask.q_heads, ask.head_dim_v), lse.permute(2, 0, 1).reshape(count, ask.q_heads)


def visible(ask: Ask, count: int, length: int, device: Any) -> Tensor:
    """(count, length) bool: which keys each query token sees. The step's tokens are the last keys."""
    import torch

    place = torch.arange(length - count, length, device=device)[:, None]
    key = torch.arange(length, device=device)[None, :]
    seen = key <= place if ask.causal else torch.ones_like(key <= place)
    if ask.window is not None:
        seen = seen & (key > place - ask.window)
        if not ask.causal:
            seen = seen & (key < place + ask.window)
    return seen


def worst_error(made: Sequence[Tensor], wanted: Sequence[Tensor]) -> float:
    """The largest relative error ‖made − wanted‖ / ‖wanted‖ of a request; infinite if anything is not finite.

    Each request by itself, of a prompt each TOKENS query tokens: long requests have small outputs, which short ones of
    the batch would hide, and one wrong token is small beside hundreds of right ones.
    """
    worst = 0.0
    for a, b in zip(made, wanted, strict=True):
        if not bool(a.isfinite().all()):
            return float("inf")
        for part, right in zip(a.split(TOKENS), b.split(TOKENS), strict=True):
            worst = max(worst, float((part.float() - right).norm() / right.norm().clamp_min(1e-12)))
    return worst


def split_by_request(tensor: Tensor, ask: Ask) -> list[Tensor]:
    """(tokens, ...) as one tensor a request."""
    return list(tensor.split(list(ask.q_lens())))
