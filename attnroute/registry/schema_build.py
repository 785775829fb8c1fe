"""Builds the JSON Schemas (draft 2020-12) of all table files. `scripts/build_schema.py` writes them for editors."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from attnroute.registry import schema_defs as d
from attnroute.registry import schema_probe
from attnroute.registry.dims import DIMENSIONS, DTYPES, FEATURE_WORDS, KINDS, PHASES
from attnroute.registry.schema_engine import engine

Schema = dict[str, Any]
NAMES = ("arch", "kernels", "packages", "reasons", "calls", "engine", "lint", "capture", "tolerances", "untestable")
_KERNEL = "is no kernel id, such as native_tc"
_DISTRIBUTION = "is no distribution name, such as flashinfer-python"


@lru_cache(maxsize=16)
def schema(name: str) -> Schema:
    """The schema of one kind of file; `name` is one of NAMES."""
    builders = {
        "arch": arch,
        "kernels": kernels,
        "packages": packages,
        "reasons": reasons,
        "calls": calls,
        "engine": engine,
        "lint": lint,
        "capture": capture,
        "tolerances": schema_probe.tolerances,
        "untestable": schema_probe.untestable,
    }
    built: Schema = builders[name]()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"attnroute {name}"} | built


def rendered(name: str) -> str:
    """The schema as the text of its file."""
    return json.dumps(schema(name), indent=1, ensure_ascii=False) + "\n"


def default_order() -> Schema:
    """Kernel ids by phase."""
    one = d.text("A kernel id.", d.KERNEL_ID, _KERNEL)
    phases = {p: d.listing(f"Order of kernels for {p} where nothing is measured.", one) for p in PHASES}
    return d.mapping(
        "Order of kernels by phase, used where nothing is measured. It claims nothing about speed.", phases
    )


def arch() -> Schema:
    """capabilities/arch/NAME.yaml."""
    rows = {"description": "Rows of this kernel: it serves the union of them.", "type": "array", "items": d.row()}
    traps = {"description": "Traps of this kernel.", "type": "array", "items": d.trap()}
    properties = {
        "arch": d.text("Id of the architecture; the same as the file's stem.", d.ARCH_ID, "is no id, such as sm90"),
        "name": d.text("What people call it."),
        "compute_capability": d.text(
            'CUDA compute capability in quotes: "12.0".', r"[0-9]+\.[0-9]+", 'is not like "12.0"'
        ),
        "mirrors": d.text(
            "Architecture whose table this one copies; rows and traps here override by name.", d.ARCH_ID, "?"
        ),
        "default_order": default_order(),
        "kernels": d.table_of("Rows by kernel id.", d.KERNEL_ID, _KERNEL, rows),
        "traps": d.table_of("Traps by kernel id.", d.KERNEL_ID, _KERNEL, traps),
        "preference": {"description": "Measured order in disjoint bands.", "type": "array", "items": band()},
    }
    properties["mirrors"]["patternErrorMessage"] = "is no id of an architecture, such as sm100"
    return d.mapping("What each kernel serves on one architecture.", properties, ("arch",))


def band() -> Schema:
    """One band of a preference."""
    ranged = "Half-open range lo..hi; left out means all."
    choice = {
        "kernel": d.text("A kernel id.", d.KERNEL_ID, _KERNEL),
        "provider": d.text("The distribution that ships it.", d.DISTRIBUTION, _DISTRIBUTION),
        "versions": d.version_range("Versions of the provider that were measured."),
        "time": {"description": "Time relative to the fastest, which has 1.", "type": "number", "minimum": 1},
    }
    half_open = r"([0-9]{1,7})?\.\.([0-9]{1,7})?"
    edge = "is no half-open range, such as 1..9"
    properties: dict[str, Schema] = {
        "band": d.text("Name of the band, unique here.", d.NAME, d.ROW_NAME),
        "phase": {"description": "The phase.", "enum": list(PHASES)},
        "kind": {"description": "The attention kind. Left out: gqa.", "enum": list(KINDS)},
        "dtypes": d.dtypes("Query dtype to KV dtypes."),
        "head_dim": d.pair_set("Head dims."),
        "q_len": d.int_set("Query tokens per request."),
        "group_ratio": d.text(f"Query heads per KV head. {ranged}", half_open, edge),
        "batch": d.text(f"Requests in a step. {ranged}", half_open, edge),
        "batch_kv_heads": d.text(f"Requests in a step times KV heads. {ranged}", half_open, edge),
        "context": d.text(f"Tokens in the cache per request. {ranged}", half_open, edge),
        "page_size": d.text(f"Tokens per page. {ranged}", half_open, edge),
        "window": d.text(
            "Tokens that a layer sees of a longer context: the band is for such layers. Half-open range lo..hi. "
            "Left out: layers that see the whole context, and those whose window no band names.",
            half_open,
            edge,
        ),
        "shapes": {
            "description": "Timed shapes that it rests on; its weight where several bands are open. Left out: 1.",
            "type": "integer",
            "minimum": 1,
        },
        "order": {
            "description": "Kernels, fastest first.",
            "type": "array",
            "minItems": 1,
            "items": d.mapping("One kernel and its time.", choice, ("kernel", "provider", "versions", "time")),
        },
        "evidence": d.evidence("The captures that timed it."),
    }
    return d.mapping(
        "One band of shapes and the kernels' order in it.",
        properties,
        ("band", "phase", "dtypes", "head_dim", "order", "evidence"),
    )


def kernels() -> Schema:
    """capabilities/kernels.yaml."""
    kind = {"description": "An attention kind.", "enum": list(KINDS)}
    provider = {
        "module": d.text(
            "Module whose presence shows that the kernel is installed.", r"[A-Za-z_][\w.]*", "is no module"
        ),
        "launcher": d.text("Module of attnroute.launch that runs it.", d.KERNEL_ID, "is no launcher, such as xqa"),
    }
    entry = {
        "name": d.text("What people call it."),
        "family": d.text("Family of kernels that it belongs to.", d.NAME, "is no family, such as flashinfer"),
        "about": d.text("One or two sentences for people."),
        "kinds": d.listing("Attention kinds that it serves.", kind, 1),
        "providers": d.table_of(
            "Distributions that ship it.",
            d.DISTRIBUTION,
            _DISTRIBUTION,
            d.mapping("How this distribution ships the kernel.", provider, ("module",)),
            1,
        ),
        "compiles": d.listing(
            "What a compiled module depends on: one module for each combination in use.",
            d.text("A dimension or feature, q_dtype or kv_dtype.", r"[a-z][a-z_]*", "is no dimension or feature"),
        ),
        "workspace_bytes": d.text("Bytes of workspace, as a formula.", r"[\w\s.()+*/-]+", "is no formula of + - * /"),
        "rows": {"description": "Templates that architectures share.", "type": "array", "items": d.row(template=True)},
    }
    required = ("name", "family", "about", "kinds", "providers")
    properties = {
        "default_order": default_order(),
        "kernels": d.table_of("Kernels by id.", d.KERNEL_ID, _KERNEL, d.mapping("One kernel.", entry, required)),
    }
    return d.mapping("The catalogue of kernels.", properties, ("kernels",))


def packages() -> Schema:
    """capabilities/packages.yaml."""
    pin = d.text("The exact version that this release pins.", d.VERSION, "is no version, such as 0.7.4")
    release = {
        "pins": d.table_of("Distributions pinned exactly.", d.DISTRIBUTION, _DISTRIBUTION, pin),
        "date": d.text("When it was published, YYYY-MM-DD, in quotes.", r"[0-9]{4}-[0-9]{2}-[0-9]{2}", "is no date"),
        "note": d.text("Free text for people."),
    }
    versions = d.table_of(
        "Releases that the tables know.",
        d.VERSION,
        "is no version, such as 0.7.4",
        d.mapping("One release.", release),
        1,
    )
    entry = {
        "module": d.text("Module that shows that it is installed.", r"[A-Za-z_][\w.]*", "is no module name"),
        "about": d.text("One or two sentences for people."),
        "releases": versions,
    }
    item = d.mapping("One distribution.", entry, ("module", "about", "releases"))
    properties = {"packages": d.table_of("Distributions by name.", d.DISTRIBUTION, _DISTRIBUTION, item)}
    return d.mapping("The distributions that ship kernels.", properties, ("packages",))


def reasons() -> Schema:
    """capabilities/reasons.yaml."""
    names = [dim.name for dim in DIMENSIONS] + [name for name in FEATURE_WORDS if name != "lse"] + ["env"]
    entry = {
        "meaning": d.text("What the code says about the kernel."),
        "do": d.text("What the person who asked can change."),
        "dimension": {"description": "The dimension or feature that it speaks about.", "enum": names},
    }
    item = d.mapping("One reason.", entry, ("meaning", "do"))
    return d.mapping(
        "The reason codes.", {"reasons": d.table_of("Reasons by code.", d.NAME, d.CODE, item)}, ("reasons",)
    )


def calls() -> Schema:
    """capabilities/calls.yaml."""
    feature = {"description": "A feature.", "enum": list(FEATURE_WORDS)}
    dtype = d.listing("Dtypes.", {"description": "A dtype.", "enum": list(DTYPES)}, 1)
    cast = {"from": dtype | {"description": "Dtypes of the model."}, "to": dtype | {"description": "Dtypes after it."}}
    meets = {
        "feature": feature | {"description": "The feature that a row may require."},
        "q_dtype": d.mapping("The cast of the query that it makes.", cast, ("from", "to")),
    }
    entry = {
        "meaning": d.text("What the caller has to do."),
        "meets": d.mapping("What the obligation makes acceptable.", meets, minProperties=1, maxProperties=1),
        "when": d.listing("It matters only if one of these features is asked for.", feature, 1),
    }
    item = d.mapping("One obligation.", entry, ("meaning",))
    found = d.table_of("Obligations by id.", d.NAME, "is no id, such as zeroed-workspace", item)
    return d.mapping("What a caller may have to do.", {"calls": found}, ("calls",))


def lint() -> Schema:
    """capabilities/lint.yaml."""
    entry = {
        "rule": d.text("The lint rule that is excepted.", d.NAME, "is no rule, such as overlap"),
        "at": d.text(
            "What it is excepted for: ARCH/KERNEL/ROW, or KERNEL/ROW for a template.", r"[\w./#-]+", "is no id"
        ),
        "why": d.text("Why the rule does not hold here."),
    }
    listing: Schema = {"description": "Exceptions; one that matches nothing is an error.", "type": "array"}
    listing |= {"items": d.mapping("One exception.", entry, ("rule", "at", "why"))}
    return d.mapping("Exceptions from lint rules.", {"exceptions": listing}, ("exceptions",))


def capture() -> Schema:
    """capabilities/captures/*.json."""
    number: Schema = {"type": "number", "minimum": 0}
    request = {"description": "The request, as `explain` repeats it.", "type": "object"}
    case = {
        "kernel": d.text("A kernel id.", d.KERNEL_ID, _KERNEL),
        "provider": d.text("The distribution.", d.DISTRIBUTION, _DISTRIBUTION),
        "request": request,
        "outcome": d.text("What happened.", d.NAME, "is no outcome, such as ok"),
        "error": {"description": "Largest error against the float32 reference.", "type": ["number", "null"]},
        "message": {"description": "What the package said.", "type": ["string", "null"]},
    }
    timing = {key: case[key] for key in ("kernel", "provider", "request")} | {
        "batch": {"description": "Requests in the step.", "type": "integer", "minimum": 1},
        "context": {"description": "Tokens in the cache per request.", "type": "integer", "minimum": 0},
        "median_us": number | {"description": "Median time in microseconds."},
        "runs": {"description": "Measured runs.", "type": "integer", "minimum": 1},
        "mode": d.text("How it was launched: graph or eager."),
        "floor_us": {"description": "The time that memory bandwidth allows.", "type": ["number", "null"]},
    }
    words: dict[str, Schema] = {
        key: {"description": about, "type": ["string", "null"]} for key, about in _MACHINE.items()
    }
    properties = words | {
        "schema": {"description": "Version of this format.", "type": "integer", "minimum": 1},
        "arch": d.text("The architecture's id.", d.ARCH_ID, "is no id, such as sm90"),
        "packages": {"description": "Distributions and versions.", "type": "object"},
        "bandwidth_gbs": {"description": "Memory bandwidth in GB/s.", "type": ["number", "null"]},
        "cases": {
            "description": "Experiments.",
            "type": "array",
            "items": {"description": "One.", "type": "object", "properties": case},
        },
        "timings": {
            "description": "Times.",
            "type": "array",
            "items": {"description": "One.", "type": "object", "properties": timing},
        },
    }
    found = {"description": "What one GPU answered.", "type": "object", "properties": properties}
    return found | {"required": ["schema", "gpu", "arch", "packages", "date", "cases"]}


_MACHINE = {
    "gpu": "Name of the GPU.",
    "driver": "Driver version.",
    "cuda": "CUDA version.",
    "torch": "PyTorch version.",
    "date": "Day of the run, YYYY-MM-DD.",
}
