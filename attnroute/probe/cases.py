"""From the rows of an architecture to experiments: declared edges, the middle, one step outside, holes and traps."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from attnroute.probe.asks import KV_DTYPES, MODEL_DTYPES, SOFTCAP, WINDOW, askable, base_ask, lens_for, paged, pairs
from attnroute.probe.boxes import box_asks
from attnroute.probe.case import Ask, Case
from attnroute.probe.sampling import (
    ANY_PAGES,
    RATIOS,
    head_samples,
    int_samples,
)
from attnroute.registry.headdims import HeadDims
from attnroute.registry.sets import IntSet
from attnroute.registry.table import ArchTable, Row, names

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_RANKS = {"typical": 0, "edge": 1, "outside": 2, "unknown": 2, "inside": 3, "between": 4}


def cases_for(table: ArchTable, packages: Mapping[str, str], *, tiles: Mapping[str, Any] | None = None) -> list[Case]:
    """All cases for the packages at hand, each request once with every reason for it.

    `packages` maps distributions to versions; `tiles` maps a kernel to its key tile for a head dim (a page of that size
    takes another path). Rows that no launcher of this probe can ask (other kinds, other storage) give none.
    """
    found: dict[tuple[str, str, Ask], Case] = {}
    met: set[tuple[str, ...]] = set()
    for row in table.rows:
        version = packages.get(row.provider)
        if version is None or version not in row.versions or not askable(row):
            continue
        base = base_ask(row)
        kin = (row.kernel, row.provider, base.phase, base.q_dtype, base.kv_dtype)
        asks = _row_asks(row, base, (tiles or {}).get(row.kernel, {})) if kin not in met else _edge_asks(row, base)
        met.add(kin)
        for ask, why in asks:
            _add(found, row, ask, f"{row.id}: {why}")
    for box in table.boxes:
        version = packages.get(box.provider)
        if version is not None and version in box.versions:
            for row, ask in box_asks(table, box, packages):
                _add(found, row, ask, f"{box.id}: {box.outcome}")
    return sorted(found.values(), key=rank)


def rank(case: Case) -> int:
    """How soon a case is run: what the tables claim and where it ends, then beyond, then the steps between."""
    return min(_RANKS.get(why.rpartition(" ")[2], 1) for why in case.why)


def uncovered(table: ArchTable, packages: Mapping[str, str]) -> list[tuple[str, str]]:
    """Rows that give no case, each with the reason."""
    out = []
    for row in table.rows:
        version = packages.get(row.provider)
        if version is None:
            out.append((row.id, f"{row.provider} is not installed"))
        elif version not in row.versions:
            out.append((row.id, f"{row.provider} {version} is outside {row.versions}"))
        elif not askable(row):
            out.append(
                (
                    row.id,
                    f"storage {row.dims['storage']}, kind {row.dims.get('kind', 'gqa')}: the launchers ask paged GQA",
                )
            )
    return out


def _add(found: dict[tuple[str, str, Ask], Case], row: Row, ask: Ask, why: str) -> None:
    key = (row.kernel, row.provider, ask)
    old = found.get(key)
    if old is None:
        found[key] = Case(row.kernel, row.provider, ask, row.calls, (why,))
    elif why not in old.why:
        found[key] = replace(old, why=(*old.why, why))


def _edge_asks(row: Row, base: Ask) -> Iterator[tuple[Ask, str]]:
    """Edges, and each head dim inside, for a row whose kin was asked everything else."""
    yield base, "typical"
    for other in _further_phases(row, base):
        yield other, f"phase {other.phase}, edge"
    for sample in head_samples(HeadDims.parse(row.dims["head_dim"])):
        if sample.reason in ("edge", "inside"):
            yield replace(base, head_dim=sample.value[0], head_dim_v=sample.value[1]), f"head_dim {sample.reason}"
    for sample in int_samples(IntSet.parse(row.dims["page"]), ANY_PAGES, every=8):
        if sample.reason == "edge":
            yield paged(base, sample.value[0]), "page edge"
    for sample in int_samples(IntSet.parse(row.dims["group_ratio"]), RATIOS, every=4):
        if sample.reason == "edge":
            yield replace(base, q_heads=sample.value[0] * base.kv_heads), "group_ratio edge"


def _row_asks(row: Row, base: Ask, tiles: Mapping[Any, Any]) -> Iterator[tuple[Ask, str]]:
    yield base, "typical"
    for dtype, q, kv in pairs(row):
        pair = replace(base, dtype=dtype, q_dtype=q, kv_dtype=kv)
        yield pair, f"dtypes {q}/{kv}"
        yield replace(pair, graph=True), f"dtypes {q}/{kv} captured, edge"
    yield from _other_dtypes(row, base)
    yield from _other_caches(row, base)
    for sample in head_samples(HeadDims.parse(row.dims["head_dim"])):
        yield replace(base, head_dim=sample.value[0], head_dim_v=sample.value[1]), f"head_dim {sample.reason}"
    for sample in int_samples(IntSet.parse(row.dims["page"]), ANY_PAGES, every=8):
        yield paged(base, sample.value[0]), f"page {sample.reason}"
    for head, pages in tiles.items():
        if (int(head), int(head)) in HeadDims.parse(row.dims["head_dim"]):
            for page in pages:
                yield paged(replace(base, head_dim=int(head), head_dim_v=int(head)), page), "page of one key tile"
    for sample in int_samples(IntSet.parse(row.dims["group_ratio"]), RATIOS, every=4):
        yield replace(base, q_heads=sample.value[0] * base.kv_heads), f"group_ratio {sample.reason}"
    yield from _q_lens(row, base)
    yield from _features(row, base)
    yield from _other_phases(row, base)
    for layout in ("NHD", "HND"):
        yield replace(base, layout=layout), f"layout {layout}"
    yield replace(base, kv_heads=1, q_heads=base.ratio), "one KV head"
    if "q_heads" in row.dims:
        for sample in int_samples(IntSet.parse(row.dims["q_heads"]), ()):
            if sample.value[0] % base.ratio == 0:
                yield (
                    replace(base, q_heads=sample.value[0], kv_heads=sample.value[0] // base.ratio),
                    f"q_heads {sample.reason}",
                )


def _other_dtypes(row: Row, base: Ask) -> Iterator[tuple[Ask, str]]:
    declared = {(q, kv) for _, q, kv in pairs(row)}
    tried = [(q, q, kv) for q in MODEL_DTYPES for kv in KV_DTYPES] + [("bf16", "fp8_e4m3", "fp8_e4m3")]
    for dtype, q, kv in tried:
        if (q, kv) not in declared:
            yield replace(base, dtype=dtype, q_dtype=q, kv_dtype=kv), f"dtypes {q}/{kv} outside"


def _other_caches(row: Row, base: Ask) -> Iterator[tuple[Ask, str]]:
    """Head dims and ratios again for each further KV dtype: it is often another kernel behind the same call."""
    seen = {base.kv_dtype}
    for dtype, q, kv in pairs(row):
        if kv in seen or kv == dtype:
            continue
        seen.add(kv)
        other = replace(base, dtype=dtype, q_dtype=q, kv_dtype=kv)
        for sample in head_samples(HeadDims.parse(row.dims["head_dim"])):
            if sample.reason == "edge" or (sample.reason == "inside" and sample.value[0] % 64 == 0):
                yield (
                    replace(other, head_dim=sample.value[0], head_dim_v=sample.value[1]),
                    f"{kv} head_dim {sample.reason}",
                )
        for sample in int_samples(IntSet.parse(row.dims["group_ratio"]), (1, 5, 8, 16, 17, 24, 32, 33), every=4):
            yield replace(other, q_heads=sample.value[0] * base.kv_heads), f"{kv} group_ratio {sample.reason}"
        if row.features.get("window") is True:
            yield replace(other, window=WINDOW), f"{kv} window inside"


def _q_lens(row: Row, base: Ask) -> Iterator[tuple[Ask, str]]:
    if base.q_len == 0:
        return
    declared = IntSet.parse(row.dims.get("q_len", 1))
    tried = (1, 2, 4, 7, 8, 17, 33) if base.phase != "decode" else (1,)
    for sample in int_samples(declared, tried, every=4):
        q_len = sample.value[0]
        phase = base.phase if base.phase != "decode" or q_len == 1 else "verify"
        if q_len <= 64:
            yield (
                replace(base, q_len=q_len, phase=phase, lens=lens_for(base.page_size, q_len)),
                f"q_len {sample.reason}",
            )
    if base.phase == "decode":
        asked = replace(base, q_len=4, phase="verify", lens=lens_for(base.page_size, 4))
        yield asked, f"q_len {'inside' if 4 in declared else 'outside'}"


def _further_phases(row: Row, base: Ask) -> Iterator[Ask]:
    for phase in ("verify", "prefill"):
        if phase != base.phase and phase in names(row.dims["phase"]):
            yield base_ask(row, phase)


def _other_phases(row: Row, base: Ask) -> Iterator[tuple[Ask, str]]:
    """Prefill and verify of a row that is probed as something else: dtypes, ends of head dims, features, layouts."""
    for other in _further_phases(row, base):
        phase = other.phase
        yield other, f"phase {phase}, edge"
        for dtype, q, kv in pairs(row):
            yield replace(other, dtype=dtype, q_dtype=q, kv_dtype=kv), f"{phase} {q}/{kv} edge"
        for sample in head_samples(HeadDims.parse(row.dims["head_dim"])):
            if sample.reason == "edge":
                qk, v = sample.value
                yield replace(other, head_dim=qk, head_dim_v=v), f"{phase} head_dim edge"
        yield from ((ask, f"{phase} {why}") for ask, why in _features(row, other))
        for layout in row.layouts or ():
            yield replace(other, layout=layout), f"{phase} layout {layout}"


def _features(row: Row, base: Ask) -> Iterator[tuple[Ask, str]]:
    sinks = row.features.get("sinks")
    dtype = names(sinks)[0] if isinstance(sinks, (list, tuple)) else "fp32"
    asks = {
        "window": replace(base, window=WINDOW),
        "softcap": replace(base, softcap=SOFTCAP),
        "lse": replace(base, lse=True),
        "sinks": replace(base, sinks=dtype),
    }
    if base.q_len != 1:
        asks["noncausal"] = replace(base, causal=False)
    for name, ask in asks.items():
        state = row.features.get(name, "unknown")
        yield (
            ask,
            f"{name} {'inside' if state not in (False, 'unknown') else 'outside' if state is False else 'unknown'}",
        )
    if row.features.get("window") is True:
        yield replace(base, window=1), "window of one token"
        if sinks not in (None, False, "unknown"):
            yield replace(base, window=WINDOW, sinks=dtype), "window and sinks"
        if row.features.get("lse") is True:
            yield replace(base, window=WINDOW, lse=True), "window and lse"
