"""Indexes one compiled architecture, so that requests are answered by bit operations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .table import ALL_FEATURES, SCALARS, ArchTable, Box, Candidate, DimIndex, FeatureIndex, Row, bits
from .versions import VersionRange, ascending


def _row(arch: str, data: Mapping[str, Any]) -> Row:
    dims = dict(data["dims"])
    if data.get("cuda_graph") is not None:
        dims["cuda_graph"] = data["cuda_graph"]
    return Row(
        arch=arch,
        kernel=data["kernel"],
        provider=data["provider"],
        name=data["row"],
        versions=VersionRange.of(data["versions"]),
        seen=tuple(data["seen"]),
        strength=data["strength"],
        dims=dims,
        features=data["features"],
        calls=tuple(data["call"]),
        env=data["env"],
        id=f"{arch}/{data['kernel']}/{data['row']}",
    )


def _box(
    name: str, kernel: str, provider: str, row: int | None, versions: VersionRange, data: Mapping[str, Any]
) -> Box:
    sometimes = bool(data.get("sometimes"))
    where, outcome, code = data["where"], data["outcome"], data.get("code")
    return Box(name, kernel, provider, row, versions, where, outcome, code, data["why"], sometimes)


def _omitted(index: DimIndex, default: object, bit: int) -> None:
    """What a row that does not state a dimension means, by the table of dimensions."""
    if default == "unknown":
        index.unknown |= bit
    elif default in ("any", "required", "follows lse"):
        index.silent |= bit  # `required` is checked by the schema; here only MLA rows lack a head dim and vice versa
    elif default == "none":
        pass
    else:
        index.add(default, bit)


def build_table(data: Mapping[str, Any], catalogue: Mapping[str, Any]) -> ArchTable:
    """Index one compiled architecture (the form compile.py writes). Sets are parsed when a request first needs them."""
    arch = data["arch"]
    rows = tuple(_row(arch, r) for r in data["rows"])
    boxes: list[Box] = []
    holes: dict[int, int] = {}
    for i, (row, raw) in enumerate(zip(rows, data["rows"], strict=True)):
        for hole in raw["exclusions"]:
            holes[i] = holes.get(i, 0) | 1 << len(boxes)
            span = VersionRange.of(hole["versions"]) if hole.get("versions") else row.versions
            number = hole["id"].rpartition("#")[2]
            boxes.append(_box(f"{row.id}#{number}", row.kernel, row.provider, i, span, hole))
    boxes += [
        _box(f"{arch}/{t['kernel']}/{t['trap']}", t["kernel"], t["provider"], None, VersionRange.of(t["versions"]), t)
        for t in data["traps"]
    ]
    calls = catalogue["calls"]
    casts = [
        (name, source, to)
        for name, call in calls.items()
        for cast in [(call.get("meets") or {}).get("q_dtype")]
        if cast
        for source in cast["from"]
        for to in cast["to"]
    ]
    supplied = {f: name for name, call in calls.items() if (f := (call.get("meets") or {}).get("feature"))}
    order = {phase: tuple(kernels) for phase, kernels in (data.get("default_order") or {}).items()}
    return ArchTable(
        arch=arch,
        name=data.get("name") or arch,
        compute_capability=data["compute_capability"],
        mirrors=data.get("mirrors"),
        default_order={phase: tuple(k) for phase, k in catalogue["default_order"].items()} | order,
        rows=rows,
        boxes=tuple(boxes),
        candidates=_candidates(rows, boxes, catalogue, data.get("releases") or {}),
        preference=tuple(data.get("preference") or ()),
        casts=tuple(casts),
        row_dims=_row_dims(rows),
        box_dims=_box_dims(boxes, catalogue),
        features=_features(rows),
        box_features=_box_features(boxes),
        holes=holes,
        supplied=supplied,
        call_when={name: tuple(call["when"]) for name, call in calls.items() if call.get("when")},
    )


def _candidates(
    rows: tuple[Row, ...], boxes: list[Box], catalogue: Mapping[str, Any], releases: Mapping[str, list[str]]
) -> tuple[Candidate, ...]:
    """Kernels by provider; `releases` has each provider's versions in order, so that none need be parsed here."""
    found = []
    for kernel, entry in catalogue["kernels"].items():
        for provider in entry["providers"]:
            mine = sum(1 << i for i, r in enumerate(rows) if r.kernel == kernel and r.provider == provider)
            traps = sum(
                1 << i for i, b in enumerate(boxes) if b.row is None and b.kernel == kernel and b.provider == provider
            )
            versions = {v for i in bits(mine) for v in rows[i].seen}
            ordered = releases.get(provider) or ascending(versions)
            found.append(Candidate(kernel, provider, mine, traps, tuple(v for v in ordered if v in versions)))
    return tuple(found)


def _row_dims(rows: tuple[Row, ...]) -> dict[str, DimIndex]:
    indices = {}
    for dimension in SCALARS:
        index = indices[dimension.name] = DimIndex("ints" if dimension.kind == "dcp" else dimension.kind)
        for i, row in enumerate(rows):
            value = row.dims.get(dimension.name)
            if value is None:
                _omitted(index, dimension.omitted, 1 << i)
            else:
                index.add(value, 1 << i)
    return indices


def _box_dims(boxes: list[Box], catalogue: Mapping[str, Any]) -> dict[str, DimIndex]:
    """A box that names no attention kind is about those of its kernel; any other silence holds every value."""
    indices = {}
    for dimension in SCALARS:
        index = indices[dimension.name] = DimIndex(
            {"dcp": "ints", "level": "names"}.get(dimension.kind, dimension.kind)
        )
        for i, box in enumerate(boxes):
            if dimension.name in box.where:
                index.add(box.where[dimension.name], 1 << i)
            elif dimension.name == "kind":
                index.add(list(catalogue["kernels"][box.kernel]["kinds"]), 1 << i)
            else:
                index.silent |= 1 << i
    return indices


def _features(rows: tuple[Row, ...]) -> dict[str, FeatureIndex]:
    indices = {name: FeatureIndex() for name in ALL_FEATURES}
    for i, row in enumerate(rows):
        for name, index in indices.items():
            value = row.features.get(name, "unknown")
            if value == "unknown":
                index.unknown |= 1 << i
            elif value == "required":
                index.required |= 1 << i
                index.declared |= 1 << i
            elif isinstance(value, (list, tuple)):
                index.by_dtype.append((tuple(value), 1 << i))
            elif value:
                index.declared |= 1 << i
    return indices


def _box_features(boxes: list[Box]) -> dict[str, tuple[int, int]]:
    found = {}
    for name in ALL_FEATURES:
        stated = [
            (i, box.where["features"][name]) for i, box in enumerate(boxes) if name in box.where.get("features", {})
        ]
        if stated:
            silent = (1 << len(boxes)) - 1 & ~sum(1 << i for i, _ in stated)
            asked = silent | sum(1 << i for i, value in stated if value)
            found[name] = (asked, silent | sum(1 << i for i, value in stated if not value))
    return found
