"""The schema of an engine's data file: facts, derived facts, resolve tables, backends and numbers."""

from __future__ import annotations

from typing import Any

from attnroute.registry.dims import DTYPES, GRAPH_LEVELS
from attnroute.registry.schema_defs import (
    DISTRIBUTION,
    ITEM_NAME,
    KERNEL_ID,
    VERSION,
    Schema,
    listing,
    mapping,
    table_of,
    text,
)

FACT = r"[a-z][a-z0-9_]*"
BACKEND = r"[A-Z][A-Z0-9_]*(@[a-z]+)?"
_SIMPLE = ["null", "boolean", "integer", "string"]
CONDITION: Schema = {"$ref": "#/$defs/condition"}
_BACKEND_WORDS = "is no backend, such as FLASH_ATTN"
#: Where the engine says what stands under the key before it.
SOURCES = "^(?!kv_dtypes)[a-z]+(_[a-z]+)*_source$"
#: What a backend declares about itself and checks look at.
PROPERTIES = (
    *("is_mla", "is_not_mla", "is_sparse", "is_not_sparse", "head", "dtype", "kv", "compute", "attn_type", "mm_prefix"),
    *("sinks", "per_head_scales", "window", "rswa", "non_causal", "non_causal_dcp", "batch_invariance", "kv_connector"),
    *("pcp", "dcp", "query_lens_mismatch", "block"),
)


def engine() -> Schema:
    """capabilities/engines/NAME.yaml."""
    properties = {
        "engine": text("Id of the engine; the same as the file's stem.", KERNEL_ID, "is no id, such as vllm"),
        "name": text("What people call it."),
        "distribution": text("The distribution.", DISTRIBUTION, "is no distribution name"),
        "version": text("The version that the file describes.", VERSION, "is no version, such as 0.33.0"),
        "about": text("One or two sentences for people."),
        "facts": _facts("Facts that conditions may test, and what they mean.", text("What the fact means.")),
        "derived": _facts("Facts made of others.", _derived()),
        "resolve": _facts("Tables that find a value step by step.", _resolve()),
        "kv_dtypes": _facts("Names of KV dtypes that the engine knows.", _kv_dtype()),
        "element_bytes": _facts("Bytes of one stored element by its type.", _number("Bytes.")),
        "kv_dtypes_source": listing("Where the engine says so.", source()),
        "indexers": _facts("Kinds of attention that bring an indexer's cache, and its backend.", _backend_name()),
        "own_packing": _facts("KV dtypes whose packing a hybrid model takes from one backend.", _backend_name()),
        "packs": table_of("How backends pack a cache.", ITEM_NAME, "is no name of a packing", _pack()),
        "priority": _array("Orders in which backends are tried; the first that matches counts.", _priority(True)),
        "checks": _array("Checks of every backend, in order.", _check()),
        "defaults": _backend("What a backend declares unless it says otherwise."),
        "backends": table_of("Backends by name.", BACKEND, _BACKEND_WORDS, _backend("What one backend declares.")),
        "internal_backends": listing(
            "Backends that nobody can ask for: shared parts, and caches of indexers.", _backend_name("A backend.")
        ),
        "constants": _facts("Numbers that the block-size and memory algorithms use.", _constant()),
        "spec_kinds": _facts("Kinds of caches.", _spec_kind()),
        "state_backends": _facts("State layers by kind.", _state_backend()),
        "layouts": _layouts(),
        "graph_levels": listing("CUDA-graph levels, ascending.", _level()),
    }
    required = ("engine", "distribution", "version")
    found = mapping("What an engine adds to its kernels.", properties, required, patternProperties={SOURCES: source()})
    return found | {"$defs": {"condition": _condition()}}


def _facts(about: str, item: Schema) -> Schema:
    return table_of(about, FACT, "is no name, such as head_v", item)


def _array(about: str, item: Schema) -> Schema:
    return {"description": about, "type": "array", "items": item}


def _condition() -> Schema:
    simple: Schema = {"description": "A value of the fact.", "type": _SIMPLE}
    value: Schema = {"description": "The value, one of a list, or a set of integers.", "type": [*_SIMPLE, "array"]}
    condition = mapping(
        "All of these hold.",
        {"any": _array("One of these holds.", CONDITION) | {"minItems": 1}, "not": CONDITION},
        minProperties=1,
    )
    condition["patternProperties"] = {f"^(?!(?:any|not)$){FACT}$": value | {"items": simple, "minItems": 1}}
    return condition | {"patternErrorMessage": "is no fact"}


def source() -> Schema:
    """A place in the engine's own files."""
    properties = {
        "path": text("File with line.", r"[^\s:]+:[1-9][0-9]*", "is no place in a file; write path/to/file.py:123"),
        "match": text("Text within three lines of that line."),
    }
    return mapping("Where the engine says so.", properties, ("path", "match"))


def _derived() -> Schema:
    given: Schema = {"description": "A value, or {fact: NAME}.", "type": [*_SIMPLE, "object"]}
    given |= {"properties": {"fact": _fact()}, "required": ["fact"], "additionalProperties": False}
    properties = {
        "when": CONDITION,
        "resolve": _fact("The resolve table that gives the value."),
        "with": _facts("Facts as the table is to see them.", given),
        "ratio": listing("The two facts whose quotient it is.", _fact(), 2),
        "source": source(),
    }
    return mapping("A fact made of others.", properties, minProperties=1)


def _fact(about: str = "A fact.") -> Schema:
    return text(about, FACT, "is no name of a fact")


def _resolve() -> Schema:
    use: Schema = {"description": "The value from here on, or {fact: NAME}.", "type": [*_SIMPLE, "object"]}
    rule = {
        "when": CONDITION,
        "use": use | {"properties": {"fact": _fact()}, "required": ["fact"], "additionalProperties": False},
        "why": text("What the engine says; {fact} is filled in."),
        "raises": text("The message of the error that the engine raises."),
        "error": text("The type of that error.", r"[A-Z]\w+", "is no exception, such as ValueError"),
    }
    step = {
        "step": text("Name of the step."),
        "source": source(),
        "rules": _array("The first that matches sets the value.", mapping("One rule.", rule, minProperties=1)),
    }
    steps = _array("Steps in order.", mapping("One step.", step, ("step", "rules")))
    return mapping("One table.", {"about": text("What it finds."), "steps": steps}, ("about", "steps"))


def _kv_dtype() -> Schema:
    properties: dict[str, Schema] = {
        "stored": _fact("Type of one stored element, of element_bytes; null: the model's.")
        | {"type": ["string", "null"]},
        "mode": text("Quantisation mode.", r"[A-Z][A-Z0-9_]*", "is no mode, such as NONE"),
        "dtype": {"description": "attnroute's name; null if it has none.", "enum": [*DTYPES, None]},
        "mla_bytes": {"description": "Bytes of an MLA entry for one token.", "type": "integer", "minimum": 1},
        "trait": text("A trait that groups with it have.", FACT, "is no trait"),
    }
    return mapping("One KV dtype.", properties, ("stored", "mode", "dtype"))


def _number(about: str) -> Schema:
    return {"description": about, "type": "integer", "minimum": 1}


def _pack() -> Schema:
    part = {
        "of": _fact("The size it is made of."),
        "times": _number("Multiplied by."),
        "over": _number("Divided by."),
        "round": {"description": "How the quotient is rounded.", "enum": ["up", "down"]},
    }
    properties = {
        "when": CONDITION,
        "slots": _number("Head slots for one KV head."),
        "parts": _array("Summed up.", mapping("One part.", part, ("of",))),
        "plus": _number("Bytes added."),
        "round_to": _number("Rounded up to a multiple of this."),
        "equal_heads": text("K and V must be of one size; the message otherwise."),
        "source": source(),
    }
    return mapping("One packing.", properties, ("when", "parts"))


def _backend_name(about: str = "A backend.") -> Schema:
    return text(about, BACKEND, _BACKEND_WORDS)


def _priority(first: bool) -> Schema:
    properties = {"when": CONDITION, "order": listing("Backends.", _backend_name(), 1), "source": source()}
    if first:
        properties["then"] = _array("Lists of which the first that matches is appended.", _priority(False))
    return mapping("One order.", properties, ("order",))


def _check() -> Schema:
    properties: dict[str, Schema] = {
        "property": {"description": "What the backend declares.", "enum": list(PROPERTIES)},
        "asked": CONDITION,
        "text": text("What the engine says when it fails."),
    }
    return mapping("One check.", properties, ("property", "text"))


def _declared(name: str) -> Schema:
    simple: Schema = {"description": "A value.", "type": _SIMPLE}
    found: Schema = {"description": f"{name}: true, false, a list of values, or a condition."}
    found |= {"type": ["boolean", "array", "object"], "items": simple, "minItems": 1}
    return found | {"if": {"type": "object"}, "then": CONDITION}


def _rules(about: str, use: Schema, **more: Schema) -> Schema:
    return _array(
        about, mapping("The first that matches counts.", {"when": CONDITION, "use": use, "source": source()} | more)
    )


def _backend(about: str) -> Schema:
    size: Schema = {"description": "Tokens, or multiples: 16../16.", "type": ["integer", "string"], "minimum": 1}
    size |= {"pattern": r"^[1-9][0-9]*\.\.(/[1-9][0-9]*|[1-9][0-9]*/[1-9][0-9]*)?$"}
    block = {
        "when": CONDITION,
        "sizes": listing("Kernel block sizes.", size, 1),
        "prefer": {"description": "How the size is preferred.", "enum": ["at-least"]},
        "if_both_accept": {"description": "Only if both parts of a composite accept.", "type": "boolean"},
        "intersect": {"description": "Sizes that both parts take.", "type": "boolean"},
        "source": source(),
    }
    graph = _rules("CUDA-graph level by rules, or the resolve table that gives it.", _level())
    graph |= {"type": ["array", "string"], "pattern": f"^{FACT}$"}
    yes: Schema = {"description": "Yes or no.", "type": "boolean"}
    reason: dict[str, Schema] = {"text": text("The reason.")}
    properties = {name: _declared(name) for name in PROPERTIES} | {
        "about": text("What it is."),
        "like": _backend_name("Backend that gives what is not said here."),
        "name": _backend_name("The engine's name for it."),
        "composite": mapping("Two backends in one.", {k: _backend_name() for k in ("general", "causal")}),
        "block_sizes": _array("Kernel block sizes; the first that matches.", mapping("One rule.", block)),
        "combination": _rules("Reasons found after all checks.", _backend_name("Backend to go on with."), **reason),
        "graph": graph,
        "threshold": {"description": "Longest query that counts as decode.", "type": ["integer", "null"], "minimum": 1},
        "spec": _rules("Whether speculative queries count as decode.", yes),
        "varlen_dcp": yes | {"description": "Whether query lengths may differ under DCP."},
        "layouts": _rules("Layouts it can read, most preferred first.", listing("Layouts.", _layout(), 1)),
        "packs": listing("Packings it uses.", text("A packing.", ITEM_NAME, "is no name of a packing")),
        "kernels": _kernels(),
        "source": source(),
    }
    return mapping(about, properties)


def _kernels() -> Schema:
    expected = "is no KERNEL@DISTRIBUTION"
    kernel = text("KERNEL@DISTRIBUTION.", rf"{KERNEL_ID}@{DISTRIBUTION}", expected)
    value = r"[a-z0-9]+(-[a-z0-9]+)*"
    properties: dict[str, Schema] = {
        "resolve": _fact("The table that chooses."),
        "by": table_of("Kernels by the table's value; null where there is no table.", value, "is no value", kernel, 1),
        "prefill": _rules("Kernel of prefill, where it is another one.", kernel),
        "non_causal_decode": listing(
            "Values of the table whose kernel takes non-causal steps.", text("A value.", value)
        ),
        "q_dtype": _fact("The table that finds the query's dtype."),
        "quantised_query": {"description": "Whether the query is cast with an FP8 cache.", "type": "boolean"},
        "decode_only": {"description": "Whether it serves decode alone.", "type": "boolean"},
    }
    return mapping("attnroute's kernels behind it.", properties, ("by",))


def _constant() -> Schema:
    value: Schema = {"description": "The number.", "type": "number", "minimum": 0}
    return mapping("A number.", {"value": value, "about": text("What it is."), "source": source()}, ("value", "about"))


def _spec_kind() -> Schema:
    names = {
        "vllm": "The engine's name.",
        "base": "Kinds with one base may share a group.",
        "blocks": "What blocks hold.",
    }
    properties = {key: _fact(about) for key, about in names.items()} | {"source": source()}
    return mapping("A kind of cache.", properties, ("base", "blocks"))


def _state_backend() -> Schema:
    properties: dict[str, Schema] = {
        "graph": _level(),
        "threshold": {"description": "Longest query that counts as decode.", "type": "integer", "minimum": 1},
        "spec": {"description": "Whether speculative queries count as decode.", "type": "boolean"},
        "checkpoint": _rules("Tokens on whose multiples prefill checkpoints fall.", _number("Tokens.")),
        "checkpoint_blocks": _number("State blocks kept besides."),
        "source": source(),
    }
    return mapping("State layers of one kind.", properties, ("graph",))


def _level() -> Schema:
    return {"description": "A CUDA-graph level.", "enum": list(GRAPH_LEVELS)}


def _layout(about: str = "Order of the axes.") -> Schema:
    return text(about, r"[BCHLN]{5}", "is no layout, such as LBNHC")


def _layouts() -> Schema:
    properties: dict[str, Any] = {
        "preference": listing("Most preferred first.", _layout(), 1),
        "order": listing("Order in which they are listed.", _layout(), 1),
        "aliases": mapping(
            "Names of layouts inside a layer.", {name: _layout(f"{name} is this.") for name in ("NHD", "HND")}
        ),
        "source": source(),
    }
    return mapping("KV-cache layouts by the order of their axes.", properties)
