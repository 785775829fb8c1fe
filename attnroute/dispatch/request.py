"""A question as the tables understand it: one value per dimension, None where the asker left it free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from attnroute.errors import UsageError, unknown_name
from attnroute.registry.dims import (
    DTYPES,
    ENV_KEYS,
    FEATURE_NAMES,
    GRAPH_LEVELS,
    KINDS,
    LAYOUTS,
    MLA_KINDS,
    PHASES,
    STORAGES,
    STRENGTHS,
)
from attnroute.registry.versions import VersionSyntaxError, parse_version

from .group import KVGroup


@dataclass(frozen=True, slots=True)
class Request:
    """One phase of one group, or a projection over whatever is None.

    Counts are per rank after tensor parallelism; `head_dim` is the pair (qk, v) in elements; `features` maps each
    feature asked for to True or to the dtype the caller holds (sinks). `dcp` above 1 asks for LSE. `batch_size` and
    `context_len` (requests, tokens) weigh measured preferences only, and so does `window`, the tokens that a sliding
    layer sees of its context.
    """

    arch: str
    kind: str = "gqa"
    phase: str = "decode"
    storage: str | None = None
    dtype: str | None = None
    kv_dtype: str | None = None
    head_dim: tuple[int, int] | None = None
    latent: int | None = None
    rope: int | None = None
    nope: int | None = None
    q_len: int | None = 1
    dcp: int = 1
    group_ratio: int | None = None
    q_heads: int | None = None
    topk: int | None = None
    features: tuple[tuple[str, Any], ...] = ()
    layout: str | None = None
    cuda_graph: str | None = None
    page: int | None = None
    batch_size: int | None = None
    context_len: int | None = None
    window: int | None = None
    min_evidence: str | None = None
    allow_unknown: bool = False
    strict_versions: bool = False
    environment: tuple[tuple[str, Any], ...] = ()
    cannot: tuple[str, ...] = field(default=())

    @property
    def q_heads_gathered(self) -> int | None:
        """Query heads after the all-gather of decode-context parallelism."""
        return None if self.q_heads is None else self.q_heads * self.dcp

    @property
    def asked(self) -> dict[str, Any]:
        """The features asked for, with the LSE that decode-context parallelism needs."""
        return {"lse": True, **dict(self.features)} if self.dcp > 1 else dict(self.features)

    @property
    def kv_heads(self) -> int | None:
        if self.q_heads is None or self.group_ratio is None:
            return None
        return self.q_heads // self.group_ratio

    def to_json(self) -> dict[str, Any]:
        """What was asked, free dimensions left out."""
        shown: dict[str, Any] = {"kind": self.kind} if self.kind != "gqa" else {}
        for name in ("storage", "dtype", "kv_dtype", "latent", "rope", "nope", "q_len", "group_ratio", "q_heads",
                     "topk",
                     "layout", "cuda_graph", "batch_size", "context_len", "min_evidence"):  # fmt: skip
            value = getattr(self, name)
            if value is not None:
                shown[name] = value
        if self.head_dim is not None:
            shown["head_dim"], shown["head_dim_v"] = self.head_dim
        if self.kv_heads is not None:
            shown["kv_heads"] = self.kv_heads
        if self.page is not None:
            shown["page_size"] = self.page
        if self.dcp != 1:
            shown["dcp"] = self.dcp
        for name in ("allow_unknown", "strict_versions"):
            if getattr(self, name):
                shown[name] = True
        if self.environment:
            shown["environment"] = dict(self.environment)
        if self.cannot:
            shown["cannot"] = list(self.cannot)
        shown["features"] = dict(self.features)
        return shown


def check_name(what: str, value: str | None, choices: tuple[str, ...]) -> None:
    """Raises UsageError with a near miss unless `value` is None or one of `choices`."""
    if value is not None and value not in choices:
        raise UsageError(unknown_name(what, value, choices), code="unknown-name")


def check_request(request: Request) -> Request:
    """The request itself, or UsageError naming the field that no request can have."""
    check_name("phase", request.phase, PHASES)
    check_name("attention kind", request.kind, KINDS)
    check_name("storage", request.storage, STORAGES)
    check_name("dtype", request.dtype, DTYPES)
    check_name("KV dtype", request.kv_dtype, ("auto", *DTYPES))
    check_name("layout", request.layout, LAYOUTS)
    check_name("CUDA-graph level", request.cuda_graph, GRAPH_LEVELS)
    check_name("evidence strength", request.min_evidence, STRENGTHS)
    for name, value in (("q_len", request.q_len), ("dcp", request.dcp), ("page size", request.page),
                        ("batch size", request.batch_size), ("context length", request.context_len)):  # fmt: skip
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise UsageError(f"{name} is {value!r}; it must be a whole number of 1 or more", code="bad-field")
    for key, value in request.environment:
        check_name("environment key", key, ENV_KEYS)
        if key == "cuda":
            _check_version(value)
        elif not isinstance(value, bool):
            raise UsageError(f"environment {key} is {value!r}; it must be true or false", code="bad-field")
    if request.phase == "decode" and request.q_len is not None and request.q_len > 1:
        raise UsageError(
            f"phase decode has one query token a request, asked q_len {request.q_len}; name the phase verify or draft",
            code="bad-field",
        )
    return request


def _check_version(value: object) -> None:
    try:
        parse_version(str(value))
    except VersionSyntaxError as error:
        raise UsageError(f"environment cuda: {error}", code="bad-version") from None


def features_of(group: KVGroup, lse: bool) -> tuple[tuple[str, Any], ...]:
    """What the group asks of a kernel besides plain causal attention, by feature name."""
    asked: dict[str, Any] = {"lse": True} if lse else {}
    if group.sliding_window is not None:
        asked["window"] = True
    if group.softcap is not None:
        asked["softcap"] = True
    if not group.causal or group.attn_type != "decoder":
        asked["noncausal"] = True
    if group.sinks:
        asked["sinks"] = group.sinks
    asked.update({trait: True for trait in group.traits if trait in FEATURE_NAMES})
    return tuple(sorted(asked.items()))


def request_for(
    group: KVGroup,
    arch: str,
    *,
    phase: str = "decode",
    q_len: int | None = 1,
    page_size: int | None = None,
    storage: str | None = None,
    batch_size: int | None = None,
    context_len: int | None = None,
    dcp: int = 1,
    lse: bool = False,
    layout: str | None = None,
    cuda_graph: str | None = None,
    min_evidence: str | None = None,
    allow_unknown: bool = False,
    strict_versions: bool = False,
    environment: Mapping[str, Any] | None = None,
    cannot: tuple[str, ...] = (),
) -> Request:
    """The request that `route` evaluates for a group. Storage is paged, or free if the phase is prefill."""
    if phase == "prefill" and q_len == 1:
        q_len = None  # a prompt has no fixed number of query tokens
    return check_request(
        Request(
            arch=arch,
            kind=group.kind,
            phase=phase,
            storage=storage or (None if phase == "prefill" else "paged"),
            dtype=group.dtype,
            kv_dtype=group.kv,
            head_dim=None if group.kind in MLA_KINDS else (group.head_dim, group.v_dim),
            latent=group.latent,
            rope=group.rope,
            nope=group.nope,
            q_len=q_len,
            dcp=dcp,
            group_ratio=group.group_ratio,
            q_heads=group.num_q_heads,
            topk=group.topk,
            features=features_of(group, lse),
            layout=layout,
            cuda_graph=cuda_graph,
            page=page_size,
            batch_size=batch_size,
            context_len=context_len,
            window=group.sliding_window,
            min_evidence=min_evidence,
            allow_unknown=allow_unknown,
            strict_versions=strict_versions,
            environment=tuple(sorted((environment or {}).items())),
            cannot=tuple(cannot),
        )
    )
