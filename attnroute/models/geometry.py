"""One attention layer's cache geometry on one tensor-parallel rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnroute.models.families import ALIASES
from attnroute.models.family import CHUNKED, CROSS, FULL, SLIDING, Family

if TYPE_CHECKING:
    from attnroute.models.source import Fields

HEAD_FIELDS = ("num_attention_heads", "num_key_value_heads", "head_dim", "v_head_dim")


@dataclass(frozen=True, slots=True)
class Geometry:
    """All that makes two layers share a KV-cache group. Heads are per rank; None where the field does not apply."""

    kind: str
    q_heads: int
    kv_heads: int
    head_dim: int
    head_dim_v: int | None = None
    kv_kind: str = "gqa"
    window: int | None = None
    chunk: int | None = None
    softcap: float | None = None
    sinks: bool = False
    causal: bool = True
    attn_type: str = "decoder"
    kv_dtype: str = "bf16"
    traits: tuple[str, ...] = ()
    latent: int | None = None
    rope: int | None = None
    nope: int | None = None
    topk: int | None = None


@dataclass(frozen=True, slots=True)
class Heads:
    """Heads of one layer before tensor parallelism, and the fields that state them."""

    q: int
    kv: int
    dim: int
    dim_v: int | None
    q_field: str
    kv_field: str


class HeadReader:
    """Reads head counts and sizes layer by layer: per-layer entries first, then the kind's own fields, then the
    common ones.
    """

    def __init__(self, fields: Fields, family: Family) -> None:
        self.fields = fields
        self.family = family
        self.per_layer = fields.mapping("per_layer_config")
        self.ratios = _block_ratios(fields)
        self.mha = not self.ratios and not any(fields.raw(name) is not None for name in ALIASES["num_key_value_heads"])
        self.one_kv = bool(fields.raw("multi_query")) and fields.raw("new_decoder_architecture") is not True
        self.cache: dict[tuple[object, ...], Heads] = {}

    def of(self, index: int, kind: str) -> Heads:
        """Heads of layer `index` of `kind`; UsageError for numbers that no layer can have."""
        key = (kind, index if self._varies(index) else -1)
        if key not in self.cache:
            self.cache[key] = self._read(index, kind)
        return self.cache[key]

    def _varies(self, index: int) -> bool:
        return (
            index in self.ratios
            or str(index) in self.per_layer
            or any(
                isinstance(self.fields.raw(name), list)
                for alias in HEAD_FIELDS
                for name in ALIASES.get(alias, (alias,))
            )
        )

    def _read(self, index: int, kind: str) -> Heads:
        q_field, q = self._field("num_attention_heads", index, kind)
        if q is None:
            raise self.fields.error("num_attention_heads", "missing, and it is needed")
        kv_field, kv = self._field("num_key_value_heads", index, kind)
        if index in self.ratios:
            if q % self.ratios[index]:
                raise self.fields.error(
                    "block_configs", f"layer {index}: {q} heads are no groups of {self.ratios[index]}"
                )
            kv_field, kv = "block_configs", q // self.ratios[index]
        if kv is None:
            kv_field, kv = (q_field, 1) if self.one_kv else (q_field, q)
        if q % kv:
            raise self.fields.error(
                q_field,
                f"{q} query heads do not divide among {kv} KV heads ({kv_field}), each KV head needs the same number",
            )
        _, dim = self._field("head_dim", index, kind)
        if dim is None:
            hidden = self.fields.require(*ALIASES["hidden_size"])
            if hidden % q:
                raise self.fields.error(
                    "hidden_size", f"{hidden} does not divide among {q} heads ({q_field}), and there is no head_dim"
                )
            dim = hidden // q
        _, dim_v = self._field("v_head_dim", index, kind)
        return Heads(q, kv, dim, None if dim_v == dim else dim_v, q_field, kv_field)

    def _field(self, name: str, index: int, kind: str) -> tuple[str, int | None]:
        own = self.per_layer.get(str(index))
        if isinstance(own, dict) and own.get(name) is not None:
            path = f"per_layer_config.{index}.{name}"
            return path, self.fields.as_integer(path, own[name])
        special = self.family.per_kind.get(kind, {}).get(name)
        gated = name == "num_key_value_heads" and self.family.per_kind_if
        if special and not (gated and not self.fields.flag(gated)):
            value = self.fields.integer(special)
            if value is not None:
                return special, value
        for alias in ALIASES.get(name, (name,)):
            raw: Any = self.fields.raw(alias)
            if isinstance(raw, list):
                if index >= len(raw):
                    raise self.fields.error(alias, f"{len(raw)} entries, layer {index} has none")
                raw = raw[index]
            if raw is not None:
                return alias, self.fields.as_integer(alias, raw)
        return name, None


def _block_ratios(fields: Fields) -> dict[int, int]:
    """Query heads per KV head of each layer, where `block_configs` states it (Nemotron-NAS)."""
    out: dict[int, int] = {}
    for index, block in enumerate(fields.items("block_configs") or []):
        attention = block.get("attention") if isinstance(block, dict) else None
        ratio = attention.get("n_heads_in_group") if isinstance(attention, dict) else None
        checked = fields.as_integer("block_configs", ratio)
        if checked is not None:
            out[index] = checked
    return out


def attention_geometry(
    fields: Fields,
    family: Family,
    heads: Heads,
    kind: str,
    *,
    tp: int,
    causal: bool,
    window: int | None,
    sinks: bool,
    kv_dtype: str,
    traits: tuple[str, ...],
) -> Geometry:
    """Geometry of one layer that keeps ordinary keys and values."""
    softcap = fields.number("attn_logit_softcapping")
    flag = family.sinks.get(kind)
    if window is None and kind == SLIDING:
        window = fields.require("sliding_window") + family.window_plus
    return Geometry(
        kind=kind,
        q_heads=heads.q // tp,
        kv_heads=max(1, heads.kv // tp),
        head_dim=heads.dim,
        head_dim_v=heads.dim_v,
        window=window if kind == SLIDING else None,
        chunk=fields.require("attention_chunk_size") if kind == CHUNKED else None,
        softcap=softcap,
        sinks=sinks or flag == "always" or bool(flag and fields.flag(flag)),
        causal=causal and kind != CROSS,
        attn_type="encoder_decoder" if kind == CROSS else family.attn_type,
        kv_dtype=kv_dtype,
        traits=traits,
    )


def mla_geometry(fields: Fields, *, tp: int, kv_dtype: str, traits: tuple[str, ...]) -> Geometry:
    """Geometry of a multi-head latent attention layer: one latent for all heads, on every rank."""
    latent = fields.require("kv_lora_rank")
    rope = fields.integer("qk_rope_head_dim", least=0)
    topk = fields.integer("index_topk")
    if rope is None:
        raise fields.error("qk_rope_head_dim", "missing, and multi-head latent attention needs it")
    return Geometry(
        kind=FULL,
        q_heads=fields.require(*ALIASES["num_attention_heads"]) // tp,
        kv_heads=1,
        head_dim=latent + rope,
        head_dim_v=latent,
        kv_kind="mla" if topk is None else "mla_sparse",
        kv_dtype=kv_dtype,
        traits=traits,
        latent=latent,
        rope=rope,
        nope=fields.require("qk_nope_head_dim"),
        topk=topk,
    )
