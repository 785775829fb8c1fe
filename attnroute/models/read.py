"""config.json -> Model: the one entry point of this room."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnroute.errors import UsageError, unknown_name
from attnroute.models.drafter import drafter_layers, is_block_drafter
from attnroute.models.dtypes import compute_dtype
from attnroute.models.dtypes import kv_dtype as kv_name
from attnroute.models.families import ALIASES, GENERIC, family_of
from attnroute.models.family import CROSS, LINEAR, SLIDING, Family
from attnroute.models.geometry import Geometry, HeadReader, attention_geometry, mla_geometry
from attnroute.models.grouping import group_names, make_group
from attnroute.models.model import Layer, Model, StateSpec
from attnroute.models.parallel import Limit, check_tp
from attnroute.models.quant import declared_kv
from attnroute.models.schedule import Kinds, layer_kinds, shared_layers
from attnroute.models.source import ConfigFile, config_path, parts, read_file
from attnroute.models.state import recurrent_dtype, state_tensors, tp_limits

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from attnroute.dispatch.group import KVGroup

ROLES = ("target", "draft")


def read_model(
    path: str | Path,
    *,
    tp: int = 1,
    kv_dtype: str = "auto",
    dtype: str | None = None,
    role: str = "target",
    num_speculative_tokens: int = 0,
    skip_layers: Sequence[str | int] = (),
    state_dtype: str = "auto",
    first_layer: int | None = None,
) -> Model:
    """Read a Hugging Face config.json, or the folder that holds it, as one of `tp` ranks sees it.

    `kv_dtype`: "auto" honours what the checkpoint declares, else the model's dtype; vLLM's spellings are understood
    ("fp8" is fp8_e4m3, "int8_per_token_head" is int8 with the trait per_token_head_scales). `dtype` replaces the
    checkpoint's. `role` is "target" or "draft". `num_speculative_tokens` lengthens the convolution state of linear
    layers. `skip_layers` keep the model's dtype in their cache: layer numbers, or "sliding_window" for all sliding
    ones. `state_dtype` replaces the dtype of the recurrent state. `first_layer` numbers a drafter's layers in their
    names (default: `num_target_layers` of its config, else 0).

    Raises UsageError for a file that cannot be read, a missing or contradictory field (with file, line and field), an
    impossible `tp` (with the possible sizes) or an unknown dtype.
    """
    if role not in ROLES:
        raise UsageError(f"role: {unknown_name('role', role, ROLES)}")
    if num_speculative_tokens < 0:
        raise UsageError(f"num_speculative_tokens {num_speculative_tokens!r}: a whole number of at least 0 is needed")
    file = read_file(config_path(path))
    reader = _Reader(file, tp=tp, role=role)
    reader.choose_dtypes(dtype, kv_dtype, skip_layers)
    reader.plan_layers(0 if first_layer is None and role == "target" else first_layer)
    reader.check_parallel()
    groups, layers = reader.attention()
    state = reader.state(num_speculative_tokens, state_dtype)
    windows = [g.sliding_window for g in groups if g.sliding_window]
    return Model(
        name=_name(file.path),
        model_type=reader.model_type,
        role=role,
        dtype=reader.dtype,
        kv_dtype=reader.kv,
        kv_dtype_from=reader.kv_from,
        tp=tp,
        groups=groups,
        layers=layers,
        state=state,
        max_model_len=reader.text.first_integer(*ALIASES["max_position_embeddings"]),
        max_source_len=reader.text.integer("max_source_positions"),
        window=min(windows, default=None),
        notes=tuple(reader.all_notes()),
        warnings=tuple(reader.warnings),
    )


def _name(path: Path) -> str:
    return path.resolve().parent.name if path.name == "config.json" else path.stem


@dataclass(frozen=True, slots=True)
class _Planned:
    """One layer before its geometry is known."""

    index: int
    kinds: Kinds
    causal: bool


class _Reader:
    """The steps of reading one file; each leaves what the next one needs."""

    def __init__(self, file: ConfigFile, *, tp: int, role: str) -> None:
        self.file, self.tp, self.role = file, tp, role
        self.root, self.text = parts(file)
        self.notes: list[str] = []
        self.warnings: list[str] = []
        self.family = self._family()
        self.text.defaults = self.family.defaults
        self.heads = HeadReader(self.text, self.family)
        self.dtype = self.kv = "bf16"
        self.kv_from = ""
        self.skip: tuple[str, ...] = ()
        self.kv_traits: tuple[str, ...] = ()
        self.planned: list[_Planned] = []
        self.first = 0
        self.window: int | None = None
        self.sinks = False

    def _family(self) -> Family:
        inner, outer = self.text.text("model_type"), self.root.text("model_type")
        self.model_type = outer or inner or "unknown"
        for name in (inner, outer):
            family = family_of(name) if name else None
            if family is not None:
                if family.refuse:
                    raise self.text.error("model_type", f"{name} cannot be read: {family.refuse}")
                self.notes.extend(family.notes)
                return family
        stated = inner or outer
        what = f"model type {stated!r} unknown" if stated else "no model_type in the file"
        self.notes.append(f"{what}: read by its generic fields")
        return GENERIC

    def choose_dtypes(self, dtype: str | None, kv_dtype: str, skip_layers: Sequence[str | int]) -> None:
        """Resolve the model's dtype and the cache's."""
        self.dtype = compute_dtype(dtype) if dtype is not None else self._own_dtype()
        skip = [str(entry) for entry in skip_layers]
        if kv_dtype == "auto":
            declared = declared_kv(self.root, self.text)
            self.warnings.extend(declared.warnings)
            self.kv = declared.dtype or self.dtype
            self.kv_from = declared.field if declared.dtype else "model dtype"
            skip.extend(declared.skip)
        else:
            self.kv, self.kv_traits = kv_name(kv_dtype)
            self.kv_from = "asked"
        self.skip = tuple(dict.fromkeys(skip))

    def _own_dtype(self) -> str:
        for fields in (self.text, self.root):
            for name in ("dtype", "torch_dtype"):
                own = fields.dtype(name)
                if own is not None:
                    if own != "fp32":
                        return own
                    self.notes.append(
                        "float32 checkpoint, read as bf16, which is how engines serve it (dtype fp32 keeps it)"
                    )
                    return "bf16"
        self.notes.append("no dtype in the file: bf16 assumed")
        return "bf16"

    def plan_layers(self, first: int | None) -> None:
        """Decide the kinds of all layers, their causality, and how they are numbered."""
        self.first = first if first is not None else (self.text.integer("num_target_layers", least=0) or 0)
        kinds = layer_kinds(self.text, self.family)
        both_ways = self.text.raw("use_bidirectional_attention") in (True, "all")
        causal = [self.family.causal and not both_ways] * len(kinds)
        if is_block_drafter(self.root, self.text):
            draft = drafter_layers(self.root, self.text, kinds)
            kinds, causal, self.window, self.sinks = draft.kinds, draft.causal, draft.window, draft.sinks
            if self.role == "target":
                self.warnings.append("this is a drafter's config, read as a target model")
        if both_ways and self.text.raw("sliding_window"):
            self.window = self.text.require("sliding_window") // 2 + 1
            self.notes.append("bidirectional attention: a window reaches half its size to each side")
        self.planned = [_Planned(i, k, c) for i, (k, c) in enumerate(zip(kinds, causal, strict=True))]
        self._check_skip()

    def _check_skip(self) -> None:
        numbers = range(self.first, self.first + len(self.planned))
        for entry in self.skip:
            if entry != "sliding_window" and not (entry.isdecimal() and int(entry) in numbers):
                raise UsageError(
                    f"skip_layers: {entry!r} is neither 'sliding_window' nor a layer of {self.file.path}"
                    f" ({numbers.start}..{numbers.stop - 1})"
                )

    def check_parallel(self) -> None:
        """Refuse a tensor-parallel size that the heads or the state cannot be divided by."""
        limits: list[Limit] = []
        attention = [(p.index, kind) for p in self.planned for kind in p.kinds if kind != LINEAR]
        if self.family.mla and attention:
            limits.append(Limit("num_attention_heads", self.text.require(*ALIASES["num_attention_heads"])))
        elif attention:
            for heads in dict.fromkeys(self.heads.of(index, kind) for index, kind in attention):
                limits += [Limit(heads.q_field, heads.q), Limit(heads.kv_field, heads.kv, replicates=True)]
        if self.family.state and any(LINEAR in p.kinds for p in self.planned):
            limits += [Limit(name, number) for name, number in tp_limits(self.text, self.family.state)]
        check_tp(str(self.file.path), self.tp, limits or [Limit("layers", 1, replicates=True)])

    def attention(self) -> tuple[tuple[KVGroup, ...], tuple[Layer, ...]]:
        """Groups and per-layer records."""
        traits = (*self._traits(), *self.kv_traits)
        found: list[tuple[_Planned, str, Geometry | None]] = []
        for p in self.planned:
            found += [(p, kind, None if kind == LINEAR else self._geometry(p, kind, traits)) for kind in p.kinds]
        names = group_names([g for _, _, g in found if g is not None], self.family, self.role)
        source = shared_layers(self.text, [p.kinds for p in self.planned])
        layers: list[Layer] = []
        holders: dict[Geometry, list[str]] = {g: [] for g in names}
        for planned, kind, geometry in found:
            name = self._layer_name(planned.index, kind)
            if geometry is None:
                layers.append(
                    Layer(name, planned.index, LINEAR, self.family.state.kind if self.family.state else LINEAR)
                )
            elif planned.index in source:
                target = self._layer_name(source[planned.index], kind)
                layers.append(Layer(name, planned.index, "shared", names[geometry], target))
            else:
                holders[geometry].append(name)
                layers.append(Layer(name, planned.index, kind, names[geometry]))
        groups = tuple(
            make_group(names[g], g, holders[g], dtype=self.dtype, role=self.role) for g in names if holders[g]
        )
        return groups, tuple(layers)

    def _geometry(self, planned: _Planned, kind: str, traits: tuple[str, ...]) -> Geometry:
        skipped = str(planned.index + self.first) in self.skip or (kind == SLIDING and "sliding_window" in self.skip)
        cache = self.dtype if skipped else self.kv
        kept = tuple(t for t in traits if not (skipped and t in self.kv_traits))
        if self.family.mla:
            return mla_geometry(self.text, tp=self.tp, kv_dtype=cache, traits=kept)
        heads = self.heads.of(planned.index, kind)
        return attention_geometry(
            self.text,
            self.family,
            heads,
            kind,
            tp=self.tp,
            causal=planned.causal,
            window=self.window,
            sinks=self.sinks,
            kv_dtype=cache,
            traits=kept,
        )

    def _traits(self) -> tuple[str, ...]:
        when = self.family.mm_prefix
        stated = self.text.raw("use_bidirectional_attention")
        multimodal = self.root.has("vision_config") and when and (when == "always" or stated == when)
        return ("mm_prefix",) if multimodal else ()

    def _layer_name(self, index: int, kind: str) -> str:
        prefix = self.family.prefix
        if self.text.path and self.text.path[-1] != "transformer_layer_config":
            prefix = f"language_model.{prefix}"
        tail = {LINEAR: self.family.linear, CROSS: "encoder_attn.attn"}.get(kind, self.family.attn)
        return f"{prefix}.{index + self.first}.{tail}"

    def state(self, speculative: int, asked: str) -> tuple[StateSpec, ...]:
        """The recurrent state of the linear layers, all of one geometry."""
        names = tuple(self._layer_name(p.index, LINEAR) for p in self.planned if LINEAR in p.kinds)
        spec = self.family.state
        if not names:
            return ()
        if spec is None:
            self.warnings.append(f"{len(names)} linear-attention layers of an unknown kind: their state is not counted")
            return ()
        recurrent, _ = recurrent_dtype(self.text, spec, self.dtype, asked)
        tensors = state_tensors(
            self.text, spec, tp=self.tp, dtype=self.dtype, recurrent=recurrent, speculative=speculative
        )
        return (StateSpec(spec.kind, spec.kind, names, tensors),)

    def all_notes(self) -> list[str]:
        """What was assumed, for a person to check."""
        notes = list(self.notes)
        if self.family.mla:
            notes.append("MLA tables are not complete")
            if self.text.integer("index_topk") is not None:
                size = self.text.integer("index_head_dim")
                notes.append(f"the indexer's own key cache (index_head_dim {size}) is not counted")
        elif self.heads.mha and not self.family.always:
            notes.append("no num_key_value_heads in the file: one KV head for each query head")
        ahead = self.text.first_integer("mtp_num_hidden_layers", "num_nextn_predict_layers", least=0)
        if ahead and self.role == "target":
            notes.append(f"multi-token-prediction layers are not counted: {ahead}")
        for field, value in self.text.defaulted.items():
            notes.append(f"{field} {value}: not in the file, the default of this model type")
        return notes
