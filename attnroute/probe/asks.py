"""The typical request of a row, from which the others are one step away."""

from __future__ import annotations

from dataclasses import replace

from attnroute.probe.case import Ask
from attnroute.probe.sampling import preferred, preferred_heads
from attnroute.registry.headdims import HeadDims
from attnroute.registry.sets import IntSet
from attnroute.registry.table import Row, names

KV_HEADS = 2
PHASES = ("decode", "verify", "draft", "prefill")  # a row is probed in the first that it serves, and briefly in others
MODEL_DTYPES = ("bf16", "fp16")
KV_DTYPES = ("bf16", "fp16", "fp8_e4m3", "fp8_e5m2")
#: Chosen so that a kernel which drops the feature is far outside the tolerance: the logits have a deviation of one, and
#: a window that looks both ways has to end before the few tokens after a query do.
WINDOW, SOFTCAP, TWO_SIDED = 100, 0.5, 2


def askable(row: Row) -> bool:
    """Whether the launchers can ask what the row declares: paged grouped-query attention with dtypes that torch has."""
    kv = {d for kvs in row.dims["dtypes"].values() for d in names(kvs)}
    known = "any" in names(row.dims["storage"]) or "paged" in names(row.dims["storage"])
    return row.dims.get("kind", "gqa") == "gqa" and "head_dim" in row.dims and known and bool(kv & set(KV_DTYPES))


def pairs(row: Row) -> list[tuple[str, str, str]]:
    """(model dtype, dtype the kernel reads, KV dtype) of every declared pair; a cast query comes from bf16."""
    out = []
    for q, kvs in row.dims["dtypes"].items():
        out += [(q if q in MODEL_DTYPES else "bf16", q, kv) for kv in names(kvs) if kv in KV_DTYPES]
    return sorted(out, key=lambda p: (p[0] != "bf16", p[2] != p[0]))


def lens_for(page: int, q_len: int) -> tuple[int, ...]:
    """Lengths of one batch: the shortest, a full page, a page and a bit, and one that is worth splitting."""
    least = max(q_len, 1)
    return tuple(max(n, least) for n in (1, page, page + 3, max(1100, 2 * page + 1)))


def base_ask(row: Row, phase: str = "") -> Ask:
    """A typical request inside the row, of the given phase or of the first that it serves."""
    phase = phase or next(p for p in PHASES if p in names(row.dims["phase"]))
    dtype, q_dtype, kv_dtype = pairs(row)[0]
    qk, v = preferred_heads(HeadDims.parse(row.dims["head_dim"]))
    page = preferred(IntSet.parse(row.dims["page"]), (16, 64, 128, 32))
    ratio = preferred(IntSet.parse(row.dims["group_ratio"]), (4, 8, 2, 1))
    declared = IntSet.parse(row.dims.get("q_len", 1))
    q_len = 0 if phase == "prefill" else 1 if phase == "decode" else preferred(declared, (4, 2, 1))
    heads = IntSet.parse(row.dims.get("q_heads", "any"))
    kv_heads = KV_HEADS if KV_HEADS * ratio in heads else max(1, heads.smallest() // ratio)
    needed = {name for name, state in row.features.items() if state == "required"}
    causal = "noncausal" not in needed
    sinks = str(names(row.features["sinks"])[0]) if row.features.get("sinks") == "required" else None
    layout = next((name for name in ("NHD", "HND") if name in names(row.dims.get("layout", "NHD"))), "NHD")
    return Ask(phase, q_len, dtype, q_dtype, kv_dtype, qk, v, page, kv_heads * ratio, kv_heads, lens_for(page, q_len),
               layout=layout, causal=causal, sinks=sinks, window=WINDOW if "window" in needed else None,
               softcap=SOFTCAP if "softcap" in needed else None, lse="lse" in needed)  # fmt: skip


def paged(ask: Ask, page: int) -> Ask:
    """The request with another page, and lengths that fit it."""
    return replace(ask, page_size=page, lens=lens_for(page, ask.q_len))
