"""The one table of dimensions: what a row can say, in the order in which a refusal is explained.

A new dimension is one entry here plus its meaning for rows that do not state it. Schema fragments, command-line flags
and the checks on tables are generated from this table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["names", "ints", "pairs", "dtypes", "features", "level", "dcp"]


@dataclass(frozen=True, slots=True)
class Dimension:
    """One dimension of a row.

    `name` is the row's key, `kind` how its sets are written, `code` the reason code of a refusal by it, `omitted` what
    a row that does not state it means (`required`: it must; `unknown`: nobody looked), `flag` the command-line flag
    that asks for it, `noun` what messages call it, `about` its description in the schemas.
    """

    name: str
    kind: Kind
    code: str
    omitted: object
    flag: str | None
    noun: str
    about: str
    only_kinds: tuple[str, ...] = ()


#: Attention kinds whose cache holds one latent vector per token instead of K and V heads.
MLA_KINDS = ("mla", "mla_sparse")
KINDS = ("gqa", *MLA_KINDS)
PHASES = ("prefill", "decode", "verify", "draft")
STORAGES = ("paged", "ragged", "contiguous")
LAYOUTS = ("NHD", "HND")
#: CUDA-graph levels, ascending: one token a request; the same q_len for every request; any batch.
GRAPH_LEVELS = ("none", "uniform1", "uniform", "always")
DTYPES = ("fp16", "bf16", "fp32", "fp8_e4m3", "fp8_e5m2", "nvfp4", "int8")
#: What a request whose model dtype is free ranges over.
MODEL_DTYPES = ("bf16", "fp16")
OUTCOMES = ("raises", "faults", "wrong-numbers", "build-fails", "ignored", "unknown")
ENV_KEYS = ("nvcc", "cubins", "network", "driver_jit", "cuda")
#: Ranges of a preference band: query heads per KV head, requests in a step, requests times KV heads, tokens in the
#: cache per request, tokens per page, tokens that a layer sees of a longer context.
BAND_AXES = ("group_ratio", "batch", "batch_kv_heads", "context", "page_size", "window")
STRENGTHS = ("measured", "compiled", "source", "report", "claimed", "inferred")
#: Evidence kinds in the order of strength they give.
EVIDENCE_STRENGTH = {
    "capture": "measured",
    "compiled": "compiled",
    "source": "source",
    "report": "report",
    "claimed": "claimed",
    "inferred": "inferred",
}

DIMENSIONS: tuple[Dimension, ...] = (
    Dimension(
        "kind",
        "names",
        "kind",
        "gqa",
        "--kind",
        "attention kind",
        "Attention kinds served: gqa (K and V heads), mla (one latent a token), mla_sparse. Omitted: gqa.",
    ),
    Dimension(
        "phase",
        "names",
        "phase",
        "required",
        "--phase",
        "phase",
        "Phases served: prefill, decode (one query token), verify (1+k tokens), draft (a drafter's own step).",
    ),
    Dimension(
        "storage",
        "names",
        "storage",
        "required",
        "--storage",
        "storage",
        "Where K and V lie: paged (block table), ragged (packed, cu_seqlens), contiguous (one slab a request).",
    ),
    Dimension(
        "dtypes",
        "dtypes",
        "kv-dtype",
        "required",
        "--kv-dtype",
        "KV dtype",
        "Query dtype the kernel reads, mapped to the KV dtypes it reads with it: {bf16: [bf16, fp8_e4m3]}.",
    ),
    Dimension(
        "head_dim",
        "pairs",
        "head-dim",
        "required",
        "--head-dim",
        "head dim",
        "Head dims. A number or range means v equals qk; 192x128 is a pair; 8..128/8x8..128/8 a free mix.",
        ("gqa",),
    ),
    Dimension(
        "latent",
        "ints",
        "head-dim",
        "required",
        "--latent",
        "latent dim",
        "MLA: elements of the latent (kv_lora_rank), which is also the v head dim of the absorbed form.",
        MLA_KINDS,
    ),
    Dimension(
        "rope", "ints", "head-dim", "required", "--rope", "rope dim", "MLA: elements of the rotary part.", MLA_KINDS
    ),
    Dimension(
        "nope",
        "ints",
        "head-dim",
        "required",
        "--nope",
        "nope dim",
        "MLA: elements of the non-rotary part of a query head before absorption.",
        MLA_KINDS,
    ),
    Dimension(
        "q_len",
        "ints",
        "q-len",
        1,
        "--q-len",
        "q_len",
        "Query tokens per request in a step. Omitted: 1.",
    ),
    Dimension(
        "lse", "features", "lse", "unknown", "--lse", "LSE", "Whether the kernel returns the log-sum-exp of each row."
    ),
    Dimension(
        "dcp",
        "dcp",
        "dcp",
        "follows lse",
        "--dcp",
        "DCP size",
        "Decode-context-parallel sizes. Stated only where the kernel itself differs; else dcp above 1 asks for LSE.",
    ),
    Dimension(
        "group_ratio",
        "ints",
        "group-ratio",
        "required",
        "--q-heads",
        "group ratio",
        "Query heads per KV head, after tensor parallelism.",
    ),
    Dimension(
        "q_heads", "ints", "q-heads", "any", "--q-heads", "query heads", "Query heads on one rank. Omitted: any."
    ),
    Dimension(
        "q_heads_gathered",
        "ints",
        "q-heads",
        "any",
        None,
        "gathered query heads",
        "Query heads after the all-gather of decode-context parallelism. Omitted: any.",
    ),
    Dimension(
        "topk", "ints", "topk", "none", "--topk", "top-k", "Sparse attention: tokens selected per query. Omitted: none."
    ),
    Dimension(
        "features",
        "features",
        "",
        "unknown",
        None,
        "features",
        "What the kernel can do besides plain causal attention.",
    ),
    Dimension(
        "layout",
        "names",
        "layout",
        "unknown",
        "--layout",
        "KV layout",
        "Order inside a page: NHD (token, head, dim) or HND (head, token, dim). Omitted: unknown.",
    ),
    Dimension(
        "cuda_graph",
        "level",
        "cuda-graph",
        "unknown",
        "--cuda-graph",
        "CUDA-graph level",
        "Highest CUDA-graph level: none, uniform1 (one token a request), uniform (same q_len for all), always.",
    ),
    Dimension(
        "page",
        "ints",
        "page-size",
        "required",
        "--page-size",
        "page size",
        "Tokens the kernel reads as one unit. `any` where it does not matter or does not apply.",
    ),
)

#: Features in the order of explanation, `lse` apart: it has its own place before the group ratio.
FEATURES: tuple[tuple[str, str, str, str | None], ...] = (
    # name, reason code, what it is, flag
    ("window", "window", "sliding-window attention", "--sliding-window"),
    ("softcap", "softcap", "soft-capped logits (tanh)", "--softcap"),
    ("noncausal", "noncausal", "attention without a causal mask", "--non-causal"),
    ("alibi", "alibi", "ALiBi position bias", "--alibi"),
    ("mask", "mask", "a custom mask over the query block", "--mask"),
    ("sinks", "sinks", "attention sinks: one learned logit a head", "--sinks"),
    ("varlen", "varlen", "a different q_len for each request in one launch", "--varlen"),
    ("per_head_scales", "per-head-scales", "one quantisation scale per KV head", "--per-head-scales"),
    (
        "batch_invariance",
        "batch-invariance",
        "bitwise the same result whatever else is in the batch",
        "--batch-invariance",
    ),
)
FEATURE_NAMES = tuple(name for name, _, _, _ in FEATURES)
FEATURE_CODES = {name: code for name, code, _, _ in FEATURES} | {"lse": "lse"}
FEATURE_WORDS = {name: words for name, _, words, _ in FEATURES} | {"lse": "the log-sum-exp of each row"}
BY_NAME = {dimension.name: dimension for dimension in DIMENSIONS}
#: Row keys that hold a set (features and lse live under `features:`).
SET_KEYS = tuple(d.name for d in DIMENSIONS if d.kind not in ("features",))
