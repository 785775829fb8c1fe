"""The KV-cache group: layers that share one cache geometry, as one rank sees it."""

from __future__ import annotations

from dataclasses import dataclass, field

from attnroute.errors import UsageError, unknown_name
from attnroute.registry.dims import DTYPES, KINDS, MLA_KINDS

ATTN_TYPES = ("decoder", "encoder", "encoder_only", "encoder_decoder")
ROLES = ("target", "draft")


@dataclass(frozen=True, slots=True, eq=True)
class KVGroup:
    """Layers that share one cache geometry.

    Head counts are per rank, after tensor parallelism. `head_dim` is that of q and k in elements, `head_dim_v` that of
    v (None: the same). `dtype` is the model's, `kv_dtype` the cache's (`auto`: the model's). `sliding_window` and
    `chunk` count tokens, None for full attention; `softcap` is the cap of the logits. `sinks` is True, or the dtype in
    which the caller holds them. `layers` names the layers; `traits` holds further features that they ask for (`alibi`,
    `mask`, ...) and marks that only engines read (`mm_prefix`). MLA groups set `latent`, `rope`, `nope`: elements of
    the cached latent, of the rotary part and of a head's non-rotary part; `topk` the tokens a sparse layer selects.

    Raises UsageError naming the field for values that no model can have.
    """

    name: str
    head_dim: int
    num_q_heads: int
    num_kv_heads: int
    head_dim_v: int | None = field(default=None, kw_only=True)
    kind: str = field(default="gqa", kw_only=True)
    dtype: str = field(default="bf16", kw_only=True)
    kv_dtype: str = field(default="auto", kw_only=True)
    sliding_window: int | None = field(default=None, kw_only=True)
    chunk: int | None = field(default=None, kw_only=True)
    softcap: float | None = field(default=None, kw_only=True)
    sinks: bool | str = field(default=False, kw_only=True)
    causal: bool = field(default=True, kw_only=True)
    attn_type: str = field(default="decoder", kw_only=True)
    role: str = field(default="target", kw_only=True)
    layers: tuple[str, ...] = field(default=(), kw_only=True)
    traits: tuple[str, ...] = field(default=(), kw_only=True)
    latent: int | None = field(default=None, kw_only=True)
    rope: int | None = field(default=None, kw_only=True)
    nope: int | None = field(default=None, kw_only=True)
    topk: int | None = field(default=None, kw_only=True)
    _hash: int = field(default=0, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("layers", "traits"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        _check(self)
        object.__setattr__(self, "_hash", hash(tuple(getattr(self, n) for n in _COMPARED)))

    def __hash__(self) -> int:
        return self._hash

    @property
    def group_ratio(self) -> int:
        """Query heads per KV head (MLA: all query heads share the one latent)."""
        return self.num_q_heads // self.num_kv_heads

    @property
    def kv(self) -> str:
        """The cache's dtype with `auto` resolved."""
        return self.dtype if self.kv_dtype == "auto" else self.kv_dtype

    @property
    def v_dim(self) -> int:
        return self.head_dim if self.head_dim_v is None else self.head_dim_v


_COMPARED = tuple(name for name in KVGroup.__dataclass_fields__ if name != "_hash")


def _check(group: KVGroup) -> None:
    where = f"KVGroup {group.name!r}"
    for name in (
        "head_dim",
        "num_q_heads",
        "num_kv_heads",
        "head_dim_v",
        "sliding_window",
        "chunk",
        "latent",
        "nope",
        "topk",
    ):
        value = getattr(group, name)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise UsageError(f"{where}: {name} is {value!r}; it must be a whole number of 1 or more", code="bad-field")
    if group.num_q_heads % group.num_kv_heads:
        raise UsageError(
            f"{where}: {group.num_q_heads} query heads do not divide among {group.num_kv_heads} KV heads",
            code="bad-field",
        )
    for name, choices in (
        ("dtype", DTYPES),
        ("kv_dtype", ("auto", *DTYPES)),
        ("kind", KINDS),
        ("attn_type", ATTN_TYPES),
        ("role", ROLES),
    ):
        if getattr(group, name) not in choices:
            raise UsageError(f"{where}: {unknown_name(name, str(getattr(group, name)), choices)}", code="bad-field")
    if isinstance(group.sinks, str) and group.sinks not in DTYPES:
        raise UsageError(f"{where}: {unknown_name('dtype of sinks', group.sinks, DTYPES)}", code="bad-field")
    if group.kind in MLA_KINDS and (group.latent is None or group.rope is None):
        raise UsageError(f"{where}: kind {group.kind} needs latent and rope (elements)", code="bad-field")
