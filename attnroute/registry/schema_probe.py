"""Schemas of the probe's own data: tolerances and key tiles, and what no probe can decide or nobody has run."""

from __future__ import annotations

from typing import Any

from attnroute.registry import schema_defs as d
from attnroute.registry.dims import DTYPES, FEATURE_WORDS, PHASES

Schema = dict[str, Any]
_KERNEL = d.text("A kernel id.", d.KERNEL_ID, "is no kernel id, such as native_tc")
_DTYPE: Schema = {"description": "A dtype.", "enum": list(DTYPES)}


def tolerances() -> Schema:
    """capabilities/tolerances.yaml."""
    error: Schema = {"description": "Relative error, as a fraction.", "type": "number", "minimum": 0, "maximum": 1}
    rule = {
        "kernel": d.listing("Kernels that it is about. Left out: all.", _KERNEL, 1),
        "q": d.listing("Dtypes of the query as the kernel reads it. Left out: all.", _DTYPE, 1),
        "kv": d.listing("Dtypes of the cache. Left out: all.", _DTYPE, 1),
        "error": error,
        "why": d.text("Why a right answer may be this far off."),
    }
    page: Schema = {"description": "Tokens.", "type": "integer", "minimum": 1}
    tiles = d.table_of(
        "Key tiles by head dim.", "[1-9][0-9]{0,3}", "is no head dim", d.listing("Sizes in tokens.", page, 1), 1
    )
    properties: dict[str, Schema] = {
        "tolerances": {
            "description": "Rules; the first that fits a case holds.",
            "type": "array",
            "minItems": 1,
            "items": d.mapping("One rule.", rule, ("error", "why")),
        },
        "lse": error | {"description": "Largest absolute error of the log-sum-exp (natural logarithm)."},
        "key_tiles": d.table_of("Key tiles by kernel.", d.KERNEL_ID, "is no kernel id", tiles),
    }
    return d.mapping("How far from a float32 reference an answer may be.", properties, ("tolerances", "lse"))


def untestable() -> Schema:
    """capabilities/untestable.yaml."""
    undecidable = {
        "what": d.text("What cannot be decided by running a kernel."),
        "why": d.text("Why not."),
        "instead": d.text("What can decide it."),
        "features": d.listing(
            "Features that it is about.", {"description": "A feature.", "enum": list(FEATURE_WORDS)}, 1
        ),
        "phases": d.listing("Phases that it is about.", {"description": "A phase.", "enum": list(PHASES)}, 1),
    }
    not_run = {
        "kernel": _KERNEL,
        "provider": d.text("The distribution.", d.DISTRIBUTION, "is no distribution name, such as vllm"),
        "why": d.text("Why it has not been run."),
    }
    properties: dict[str, Schema] = {
        "undecidable": {
            "description": "What no probe can decide.",
            "type": "array",
            "items": d.mapping("One limit of probing.", undecidable, ("what", "why")),
        },
        "not_run": {
            "description": "Kernels that a probe could ask and none has.",
            "type": "array",
            "items": d.mapping("One kernel of one package.", not_run, ("kernel", "provider", "why")),
        },
    }
    return d.mapping("What probing leaves open.", properties, ("undecidable", "not_run"))
