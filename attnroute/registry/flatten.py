"""The compiled form of one row, exclusion or trap: plain data, sets in their one canonical spelling."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attnroute.registry.dims import BY_NAME, EVIDENCE_STRENGTH, FEATURE_CODES, FEATURE_NAMES, SET_KEYS, STRENGTHS
from attnroute.registry.headdims import HeadDims
from attnroute.registry.positions import Map, where
from attnroute.registry.sets import IntSet
from attnroute.registry.versions import VersionRange, ascending, public

if TYPE_CHECKING:
    from attnroute.registry.expand import Row, Trap

FEATURE_KEYS = (*FEATURE_NAMES, "lse")


def set_value(name: str, value: Any) -> Any:
    """A dimension's set as an author would write it; raises SetSyntaxError."""
    kind = BY_NAME[name].kind
    if kind in ("ints", "dcp"):
        return "none" if value == "none" else IntSet.parse(value).to_yaml()
    if kind == "pairs":
        return HeadDims.parse(value).to_yaml()
    if kind == "dtypes":
        if not isinstance(value, dict) or not all(isinstance(kvs, list) for kvs in value.values()):
            raise TypeError(f"{name} maps query dtypes to lists of KV dtypes")
        return value
    if not isinstance(value, (str, list)):
        raise TypeError(f"{name} is a list of names or any")
    return [value] if isinstance(value, str) and value != "any" else value


def box(plain: dict[str, Any]) -> dict[str, Any]:
    """The stated dimensions of a row or `where`, in the order of explanation."""
    return {name: set_value(name, plain[name]) for name in SET_KEYS if name in plain and name != "cuda_graph"}


def where_box(plain: dict[str, Any]) -> dict[str, Any]:
    """A `where`: sets by dimension, `cuda_graph` and asked features included."""
    found = box(plain)
    if "cuda_graph" in plain:
        level = plain["cuda_graph"]
        found["cuda_graph"] = level if isinstance(level, list) else [level]
    if plain.get("features"):
        found["features"] = dict(plain["features"])
    return found


def package(plain: dict[str, Any]) -> tuple[str, str]:
    """(provider, version range) of the one entry under `package`."""
    ((provider, versions),) = plain["package"].items()
    return provider, str(VersionRange.parse(versions))


def releases(rows: list[dict[str, Any]]) -> dict[str, list[str]]:
    """By distribution: the versions that any row was checked against, ascending, commits last."""
    found: dict[str, set[str]] = {}
    for item in rows:
        found.setdefault(item["provider"], set()).update(item["seen"])
    return {name: ascending(seen) for name, seen in sorted(found.items())}


def strength(items: tuple[Map, ...], mirrored: bool) -> str:
    """The strongest kind among evidence items; a row without any of its own that is mirrored is inferred."""
    found = {EVIDENCE_STRENGTH[kind] for item in items for kind in EVIDENCE_STRENGTH if kind in item.entries}
    if not found and not mirrored:
        raise ValueError("a row needs evidence")
    return next((name for name in STRENGTHS if name in found), "inferred")


def default_code(constrained: dict[str, Any]) -> str | None:
    """The reason code of the only dimension a `where` constrains, None if there are several."""
    codes = [BY_NAME[name].code for name in constrained if name != "features"]
    codes += [FEATURE_CODES[name] for name in constrained.get("features", {})]
    return codes[0] if len(set(codes)) == 1 else None


def row(item: Row) -> dict[str, Any]:
    """The compiled row; raises KeyError, TypeError or ValueError where the table is invalid."""
    plain = item.node.plain
    provider, versions = package(plain)
    for needed in ("phase", "storage", "page", "dtypes", "group_ratio"):
        if needed not in plain:
            raise KeyError(needed)
    exclusions = [exclusion(item.name, n, e) for n, e in enumerate(plain.get("exclusions", ()), 1)]
    return {
        "kernel": item.kernel,
        "provider": provider,
        "row": item.name,
        "versions": versions,
        "seen": [public(version) for version in plain["seen"]],
        "strength": strength(item.evidence, bool(item.mirrored_evidence) or item.own is None),
        "dims": box(plain),
        "features": {name: plain["features"][name] for name in FEATURE_KEYS if name in plain.get("features", {})},
        "cuda_graph": None if plain.get("cuda_graph") == "unknown" else plain.get("cuda_graph"),
        "call": list(plain.get("call", ())),
        "env": dict(plain.get("env", {})),
        "exclusions": exclusions,
    }


def exclusion(row_name: str, number: int, plain: dict[str, Any]) -> dict[str, Any]:
    """The compiled exclusion; `number` counts from 1 in the expanded row."""
    constrained = where_box(plain["where"])
    versions = plain.get("versions")
    return {
        "id": f"{row_name}#{number}",
        "where": constrained,
        **_failure(plain, constrained),
        "versions": None if versions is None else str(VersionRange.parse(versions)),
    }


def trap(item: Trap) -> dict[str, Any]:
    """The compiled trap."""
    plain = item.node.plain
    provider, versions = package(plain)
    constrained = where_box(plain["where"])
    return {
        "kernel": item.kernel,
        "provider": provider,
        "trap": item.name,
        "versions": versions,
        "where": constrained,
        **_failure(plain, constrained),
    }


def band(item: Map) -> dict[str, Any]:
    """A preference band; its order of kernels is called `kernels` in the compiled form."""
    found = {key: value for key, value in item.plain.items() if key not in ("order", "evidence")}
    return found | {"kernels": list(item.plain.get("order") or ())}


def _failure(plain: dict[str, Any], constrained: dict[str, Any]) -> dict[str, Any]:
    """What an exclusion and a trap say alike."""
    sometimes = {"sometimes": True} if plain.get("sometimes") else {}
    return {"outcome": plain["outcome"], **sometimes, "code": _code(plain, constrained), "why": plain["why"]}


def _code(plain: dict[str, Any], constrained: dict[str, Any]) -> str | None:
    return plain.get("code") or (default_code(constrained) if plain["outcome"] == "raises" else None)


def evidence_items(items: tuple[Map, ...], **extra: Any) -> list[dict[str, Any]]:
    """Evidence as written, each with `at`: where it is written."""
    drop = ("every_arch",)
    return [{k: v for k, v in e.plain.items() if k not in drop} | extra | {"at": where(e)} for e in items]


def origins(item: Row) -> dict[str, str]:
    """Where each value of an expanded row is written: `head_dim`, `features.window`, ... to file:line:col."""
    found: dict[str, str] = {}
    for key, node in item.node.entries.items():
        if isinstance(node, Map) and key in ("features", "env"):
            found |= {f"{key}.{name}": where(value) for name, value in node.entries.items()}
        elif key not in ("exclusions", "evidence"):
            found[key] = where(node)
    return found
