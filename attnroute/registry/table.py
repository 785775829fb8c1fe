"""One architecture's rows, indexed so that a request is answered by a handful of bit operations.

Bit i of a mask stands for row i (or box i). For each dimension and asked value the index keeps two masks of rows:
those that may serve (declared or unknown) and those that declare it. A request is the AND over dimensions; nothing is
formatted until somebody asks why.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from .dims import DIMENSIONS, FEATURE_NAMES, GRAPH_LEVELS, MODEL_DTYPES, STRENGTHS
from .headdims import HeadDims
from .sets import IntSet
from .versions import VersionRange, is_commit, parse_version

Masks = tuple[int, int]
ALL_FEATURES = ("lse", *FEATURE_NAMES)
#: The dimensions of a request in the order of explanation; `page` and `cuda_graph` last, as in dims.py.
SCALARS = tuple(d for d in DIMENSIONS if d.kind != "features" and d.name != "dtypes")


@dataclass(frozen=True, slots=True)
class Row:
    """One box of a kernel from one provider: what it accepts and what the caller must do for it."""

    arch: str
    kernel: str
    provider: str
    name: str
    versions: VersionRange
    seen: tuple[str, ...]
    strength: str
    dims: Mapping[str, Any]
    features: Mapping[str, Any]
    calls: tuple[str, ...]
    env: Mapping[str, Any]
    id: str  # `sm120/xqa/head-to-256`: unique in the whole registry

    @property
    def page(self) -> IntSet:
        return IntSet.parse(self.dims["page"])

    @property
    def graph_level(self) -> str | None:
        level = self.dims.get("cuda_graph")
        return None if level is None else str(level)

    @property
    def layouts(self) -> tuple[str, ...] | None:
        """Layouts declared; None where nobody looked."""
        value = self.dims.get("layout")
        return None if value is None else tuple(names(value))


@dataclass(frozen=True, slots=True)
class Box:
    """A hole inside a row (`row` is its index) or a trap of a kernel (`row` None)."""

    id: str
    kernel: str
    provider: str
    row: int | None
    versions: VersionRange
    where: Mapping[str, Any]
    outcome: str
    code: str | None
    why: str
    sometimes: bool = False  # a right answer to a request inside proves nothing


@dataclass(frozen=True, slots=True)
class Candidate:
    """A kernel as one package provides it: the unit that is chosen or refused."""

    kernel: str
    provider: str
    rows: int
    traps: int
    seen: tuple[str, ...]  # release versions ascending, then commits


def names(value: Any) -> list[str]:
    """The members of a name set: a string or a list of strings."""
    return [str(v) for v in value] if isinstance(value, (list, tuple)) else [str(value)]


def model_pairs(model: str | None, kv: str) -> tuple[tuple[str, str], ...]:
    """(model dtype, KV dtype) that a request ranges over; KV dtype `auto` is the model's own, whichever that is."""
    models = MODEL_DTYPES if model is None else (model,)
    return tuple((m, m if kv == "auto" else kv) for m in models)


def bits(mask: int) -> Iterator[int]:
    """Indices of the set bits, ascending."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def _contains(kind: str, value: Any, asked: Any) -> bool:
    """Whether the set written as `value` holds the asked value."""
    if value == "any":
        return True
    if kind == "names":
        return asked in names(value)
    if kind == "pairs":
        return asked in HeadDims.parse(value)
    if kind == "level":
        return GRAPH_LEVELS.index(value) >= GRAPH_LEVELS.index(asked)
    return asked in IntSet.parse(value)


@dataclass(slots=True)
class DimIndex:
    """Masks of the items (rows or boxes) that hold a value of one dimension, remembered per asked value."""

    kind: str
    groups: list[tuple[Any, int]] = field(default_factory=list)
    silent: int = 0  # items that do not state the dimension and thereby hold every value
    unknown: int = 0  # rows for which nobody looked
    stated: int = 0
    memo: dict[Any, Masks] = field(default_factory=dict)

    def add(self, value: Any, bit: int) -> None:
        self.stated |= bit
        for i, (known, mask) in enumerate(self.groups):
            if known == value:
                self.groups[i] = (known, mask | bit)
                return
        self.groups.append((value, bit))

    def masks(self, asked: Any) -> Masks:
        """(may serve, declares) for one asked value."""
        found = self.memo.get(asked)
        if found is None:
            declared = self.silent
            for value, mask in self.groups:
                if _contains(self.kind, value, asked):
                    declared |= mask
            found = self.memo[asked] = (declared | self.unknown, declared)
        return found


@dataclass(slots=True)
class FeatureIndex:
    """For one feature: rows that may serve it, that declare it, and that require it."""

    declared: int = 0
    unknown: int = 0
    required: int = 0
    by_dtype: list[tuple[tuple[str, ...], int]] = field(default_factory=list)

    def masks(self, asked: Any) -> Masks:
        """`asked` is True or the dtype that the caller has (a list of dtypes in a row says what the kernel reads)."""
        declared = self.declared
        for dtypes, mask in self.by_dtype:
            if asked is True or asked in dtypes:
                declared |= mask
        return declared | self.unknown, declared


@dataclass(slots=True)
class ArchTable:
    """The indexed table of one architecture. Built once by build.py; treat as read-only."""

    arch: str
    name: str
    compute_capability: str
    mirrors: str | None
    default_order: Mapping[str, tuple[str, ...]]
    rows: tuple[Row, ...]
    boxes: tuple[Box, ...]
    candidates: tuple[Candidate, ...]
    preference: tuple[Mapping[str, Any], ...]
    casts: tuple[tuple[str, str, str], ...]  # call id, model dtype, query dtype it gives
    row_dims: dict[str, DimIndex]
    box_dims: dict[str, DimIndex]
    features: dict[str, FeatureIndex]
    box_features: dict[str, tuple[int, int]]  # boxes met when asked, when not asked (both hold the silent ones)
    holes: dict[int, int]  # row index -> mask of its boxes
    supplied: Mapping[str, str]  # feature that a call obligation lets the caller supply -> the call
    call_when: Mapping[str, tuple[str, ...]]  # calls that matter only if one of these features is asked
    dtype_memo: dict[Any, tuple[int, int, int]] = field(default_factory=dict)
    version_memo: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)
    memo: dict[Any, Any] = field(default_factory=dict)  # what the dispatcher derives from the table alone

    def reads(self, model: str | None, cannot: tuple[str, ...] = ()) -> tuple[str, ...]:
        """Query dtypes a kernel may be given for a model dtype: its own first, then those a cast reaches."""
        key = ("reads", model, cannot)
        found: tuple[str, ...] | None = self.memo.get(key)
        if found is None:
            own = MODEL_DTYPES if model is None else (model,)
            reached = (to for call, source, to in self.casts if source in own and call not in cannot)
            found = self.memo[key] = tuple(dict.fromkeys((*own, *reached)))
        return found

    def seen_around(self, candidate: Candidate, version: str) -> tuple[str | None, str | None]:
        """The nearest versions looked at on both sides of one that was not (None where there is none)."""
        if is_commit(version):
            return None, None
        parsed = parse_version(version)
        releases = [v for v in candidate.seen if not is_commit(v)]
        below = [v for v in releases if parse_version(v) < parsed]
        above = [v for v in releases if parse_version(v) > parsed]
        return below[-1] if below else None, above[0] if above else None

    def used_q_dtype(self, row: Row, model: str | None, kv: str | None, cannot: tuple[str, ...] = ()) -> str | None:
        """The query dtype that `row` would read for this request; None if it is still open or not served."""
        table = row.dims["dtypes"]
        if kv is None:
            return model if model in table else next(iter(table)) if len(table) == 1 else None
        fits = [q for m, own in model_pairs(model, kv) for q in self.reads(m, cannot) if own in table.get(q, ())]
        return fits[0] if fits and (model is not None or len(set(fits)) == 1) else None

    def dtype_masks(self, model: str | None, kv: str | None, cannot: tuple[str, ...] = ()) -> tuple[int, int, int]:
        """(rows that know the KV dtype with any query dtype, rows that serve the pair, boxes that hold the pair)."""
        key = (model, kv, cannot)
        found = self.dtype_memo.get(key)
        if found is None:
            found = self.dtype_memo[key] = self._dtype_masks(model, kv, cannot)
        return found

    def _dtype_masks(self, model: str | None, kv: str | None, cannot: tuple[str, ...]) -> tuple[int, int, int]:
        known = served = 0
        for i, row in enumerate(self.rows):
            table = row.dims["dtypes"]
            if kv is None:
                known |= 1 << i
                served |= (1 << i) if model is None or any(q in table for q in self.reads(model, cannot)) else 0
                continue
            pairs = model_pairs(model, kv)
            known |= (1 << i) if any(own in kvs for _, own in pairs for kvs in table.values()) else 0
            served |= (1 << i) if any(own in table.get(q, ()) for m, own in pairs for q in self.reads(m, cannot)) else 0
        held = 0
        for i, box in enumerate(self.boxes):
            table = box.where.get("dtypes")
            if table is None or self._box_holds(box, table, model, kv, cannot):
                held |= 1 << i
        return known, served, held

    def _box_holds(
        self, box: Box, table: Mapping[str, Any], model: str | None, kv: str | None, cannot: tuple[str, ...]
    ) -> bool:
        """A box is met by the query dtype the kernel would read; with a free model dtype, by all of them."""
        if kv is None:
            return False
        if box.row is not None:
            rows = [self.rows[box.row]]
        else:
            rows = [r for r in self.rows if r.kernel == box.kernel and r.provider == box.provider]
        for source, own in model_pairs(model, kv):
            fits = [q for q in self.reads(source, cannot) if any(own in r.dims["dtypes"].get(q, ()) for r in rows)]
            if own not in table.get(fits[0] if fits else source, ()):
                return False
        return True

    def version_masks(self, provider: str, version: str) -> tuple[int, int]:
        """(rows, boxes) of this provider whose version range holds the version."""
        key = (provider, version)
        found = self.version_memo.get(key)
        if found is None:
            rows = sum(1 << i for i, r in enumerate(self.rows) if r.provider == provider and version in r.versions)
            boxes = sum(1 << i for i, b in enumerate(self.boxes) if b.provider == provider and version in b.versions)
            found = self.version_memo[key] = (rows, boxes)
        return found

    def strength_mask(self, minimum: str) -> int:
        """Rows whose evidence is at least as strong as `minimum`."""
        allowed = STRENGTHS[: STRENGTHS.index(minimum) + 1]
        return sum(1 << i for i, row in enumerate(self.rows) if row.strength in allowed)


__all__ = [
    "ALL_FEATURES",
    "ArchTable",
    "Box",
    "Candidate",
    "DimIndex",
    "FeatureIndex",
    "Row",
    "bits",
    "model_pairs",
    "names",
]
