"""Schema fragments of rows, sets and evidence, made from the one table of dimensions.

Ids (kernels, packages, architectures, codes) are patterns here: which of them exist is checked against the catalogues.
No fragment uses `oneOf`: a value's type decides what applies to it, so that every fault has one message.
"""

from __future__ import annotations

from typing import Any

from attnroute.registry.dims import (
    BY_NAME,
    DIMENSIONS,
    DTYPES,
    FEATURE_WORDS,
    GRAPH_LEVELS,
    KINDS,
    LAYOUTS,
    OUTCOMES,
    PHASES,
    STORAGES,
    Dimension,
)

Schema = dict[str, Any]

_NUMBER = r"(0|[1-9][0-9]{0,6})"
_STEP = r"[1-9][0-9]{0,3}"
_SPAN = rf"{_NUMBER}(\.\.{_NUMBER}?(/{_STEP})?)?"
VERSION = r"[0-9]+(\.[0-9]+)*((a|b|rc)[0-9]+)?(\.post[0-9]+)?(\.dev[0-9]+)?(\+[a-z0-9.]+)?"
COMMIT = r"git\+[0-9a-f]{7,40}"
KERNEL_ID = r"[a-z][a-z0-9]*(_[a-z0-9]+)*"
DISTRIBUTION = r"[a-z0-9]([a-z0-9-]*[a-z0-9])?"
NAME = r"[a-z0-9]+(-[a-z0-9]+)*"
ITEM_NAME = r"[a-z0-9]+([.-][a-z0-9]+)*"
ARCH_ID = r"[a-z]+[0-9]+[a-z]?"
_INDEX: Schema = {"description": "A case's place in the capture.", "type": "integer", "minimum": 0}
ENUMS = {"kind": KINDS, "phase": PHASES, "storage": STORAGES, "layout": LAYOUTS}


def text(about: str, pattern: str | None = None, expected: str | None = None) -> Schema:
    """A piece of text; `expected` is the message when the pattern does not match."""
    found: Schema = {"description": about, "type": "string", "minLength": 1}
    if pattern is not None:
        found |= {"pattern": f"^(?:{pattern})$", "patternErrorMessage": expected or "is not spelt as it must be"}
    return found


def listing(about: str, items: Schema, least: int = 0) -> Schema:
    """A list without repetitions."""
    return {"description": about, "type": "array", "items": items, "minItems": least, "uniqueItems": True}


def mapping(about: str, properties: dict[str, Schema], required: tuple[str, ...] = (), **more: Any) -> Schema:
    """A mapping with these keys and no others."""
    found: Schema = {"description": about, "type": "object", "properties": properties, "additionalProperties": False}
    return found | ({"required": list(required)} if required else {}) | more


def table_of(about: str, pattern: str, expected: str, item: Schema, least: int = 0) -> Schema:
    """A mapping from ids to items."""
    found: Schema = {"description": about, "type": "object", "patternProperties": {f"^(?:{pattern})$": item}}
    return found | {"additionalProperties": False, "minProperties": least, "patternErrorMessage": expected}


def int_set(about: str) -> Schema:
    """A set of integers: 64, [64, 128], 16..256/16, 16.., any."""
    expected = "is no set of numbers; write 64, [64, 128], 16..256/16, 16.. or any"
    item: Schema = {"type": ["integer", "string"], "minimum": 0, "maximum": 9_999_999, "pattern": f"^{_SPAN}$"}
    item |= {"description": "One number or range.", "patternErrorMessage": "is no number or range, such as 64 or 1..8"}
    found: Schema = {"description": about, "type": ["integer", "string", "array"], "minimum": 0, "maximum": 9_999_999}
    return found | {"pattern": f"^(any|{_SPAN})$", "patternErrorMessage": expected, "items": item, "minItems": 1}


def pair_set(about: str) -> Schema:
    """A set of head dims: 128, 16..256/16, 192x128, 8..128/8x8..128/8, any."""
    expected = "is no set of head dims; write 128, 16..256/16, 192x128, 8..128/8x8..128/8 or any"
    pair = f"{_SPAN}(x{_SPAN})?"
    item: Schema = {"type": ["integer", "string"], "minimum": 1, "maximum": 9_999_999, "pattern": f"^{pair}$"}
    item |= {
        "description": "One head dim, range or pair.",
        "patternErrorMessage": "is no head dim, such as 64 or 192x128",
    }
    found: Schema = {"description": about, "type": ["integer", "string", "array"], "minimum": 1, "maximum": 9_999_999}
    return found | {"pattern": f"^(any|{pair})$", "patternErrorMessage": expected, "items": item, "minItems": 1}


def name_set(about: str, names: tuple[str, ...]) -> Schema:
    """A list of names from a closed vocabulary, or `any`."""
    item: Schema = {"description": f"One of {', '.join(names)}.", "enum": list(names)}
    found: Schema = {"description": about, "type": ["string", "array"], "pattern": "^any$", "items": item}
    expected = f"is no list; write any, or a list of {', '.join(names)}"
    return found | {"patternErrorMessage": expected, "minItems": 1, "uniqueItems": True}


def dtypes(about: str) -> Schema:
    """Query dtype to the KV dtypes that go with it."""
    kv = listing("KV dtypes that the kernel reads with it.", {"description": "A KV dtype.", "enum": list(DTYPES)}, 1)
    properties = {q: kv | {"description": f"KV dtypes that the kernel reads with a query in {q}."} for q in DTYPES}
    return mapping(about, properties, minProperties=1)


def features(about: str, asked: bool = False) -> Schema:
    """What is known of each feature; in a `where`, which of them are asked for."""
    properties: dict[str, Schema] = {}
    for name, words in FEATURE_WORDS.items():
        if asked:
            properties[name] = {"description": f"Whether this is asked for: {words}.", "type": "boolean"}
            continue
        meaning = f"{words}: true, false, required (must be asked for), unknown, or the dtypes the kernel reads."
        found: Schema = {"description": meaning[0].upper() + meaning[1:], "type": ["boolean", "string", "array"]}
        found |= {"pattern": "^(required|unknown)$", "items": {"description": "A dtype.", "enum": list(DTYPES)}}
        expected = "is no answer; write true, false, required, unknown or a list of dtypes"
        properties[name] = found | {"patternErrorMessage": expected, "minItems": 1, "uniqueItems": True}
    return mapping(about, properties, minProperties=1)


def dimension(dim: Dimension, in_where: bool = False) -> Schema:
    """The value of one dimension in a row or `where`."""
    if dim.kind == "names":
        return name_set(dim.about, ENUMS[dim.name])
    if dim.kind == "pairs":
        return pair_set(dim.about)
    if dim.kind == "dtypes":
        return dtypes(dim.about)
    if dim.kind == "level":
        if in_where:
            return listing("CUDA-graph levels.", {"description": "A level.", "enum": list(GRAPH_LEVELS)}, 1)
        return {"description": dim.about, "enum": [*GRAPH_LEVELS, "unknown"]}
    return int_set(dim.about)


def dimensions(in_where: bool = False) -> dict[str, Schema]:
    """All dimensions and `features`, in the order of explanation."""
    found = {d.name: dimension(d, in_where) for d in DIMENSIONS if d.kind != "features"}
    return found | {"features": features(BY_NAME["features"].about, in_where)}


def version_range(about: str) -> Schema:
    """A half-open range lo..hi, or one commit."""
    expected = "is no version range; write lo..hi (hi excluded), lo.., ..hi or git+<commit>"
    return text(about, rf"({VERSION})?\.\.({VERSION})?|{COMMIT}", expected)


def package(about: str) -> Schema:
    """Exactly one distribution and the versions of it."""
    item = version_range("Half-open version range lo..hi of this distribution; either end may be left open.")
    return table_of(about, DISTRIBUTION, "is no distribution name", item, 1) | {"maxProperties": 1}


def evidence(about: str, template: bool = False) -> Schema:
    """A list of evidence; which kinds an item mixes is a lint rule."""
    release = rf"{DISTRIBUTION} ({VERSION}|{COMMIT})"
    line = "is no place in a file; write path/to/file.py:123"
    properties = {
        "capture": text(
            "A capture in captures/: what a GPU answered.", r"[A-Za-z0-9._-]+\.json", "is no file NAME.json"
        ),
        "cases": listing("Cases of the capture that back this row, counted from 0.", _INDEX, 1),
        "compiled": text("The toolchain that compiled it, such as nvcc 13.0. Needs `of` and `what`."),
        "of": text("The package whose kernel was compiled: NAME VERSION.", release, "is no NAME VERSION of a package"),
        "what": text("What was compiled and how it ended."),
        "source": text("The package that was read: NAME VERSION.", release, "is no NAME VERSION of a package"),
        "path": text("The file inside the package, with the line.", r"[^\s:]+:[1-9][0-9]*", line),
        "match": text("Text within three lines of that line; `validate --sources` looks for it."),
        "report": text(
            "A public issue or pull request: owner/repo#number.", r"[\w.-]+/[\w.-]+#[0-9]+", "is no OWNER/REPO#N"
        ),
        "says": text("What the report or document says, in one sentence."),
        "claimed": text("The document that claims it."),
        "inferred": text(
            "The package NAME VERSION, or the repository with a commit, that the conclusion starts from.",
            rf"{release}|[\w.-]+(/[\w.-]+)? {COMMIT}",
            "is no NAME VERSION and no REPO git+<commit>",
        ),
        "because": text("How the conclusion follows."),
    }
    if template:
        words = "This holds on every architecture: rows that take the template with `like` keep it."
        properties["every_arch"] = {"description": words, "type": "boolean"}
    needs = {"compiled": ["of", "what"], "source": ["path", "match"], "report": ["says"], "claimed": ["says"]}
    needs |= {"inferred": ["because"], "path": ["match"], "match": ["path"], "cases": ["capture"]}
    item = mapping("One piece of evidence: exactly one kind and its details.", properties, dependentRequired=needs)
    return {"description": about, "type": "array", "items": item | {"minProperties": 1}}


def _failure() -> dict[str, Schema]:
    """What an exclusion and a trap say alike of what happens."""
    hangs = "It hangs on what no dimension tells (batch, chance), so that a right answer proves nothing."
    code = "With outcome raises: the reason code. Default: that of the only constrained dimension."
    return {
        "outcome": {"description": "What the package does with such a call.", "enum": list(OUTCOMES)},
        "sometimes": {"description": hangs, "type": "boolean"},
        "code": text(code, NAME, CODE),
    }


def exclusion() -> Schema:
    """A hole inside a row."""
    properties = {
        "where": mapping("The hole: dimensions left out are not constrained.", dimensions(True), minProperties=1),
        **_failure(),
        "versions": version_range("Affected versions of the row's provider. Default: those of the row."),
        "why": text("One plain sentence for the person who asked."),
        "evidence": evidence("What backs the exclusion.") | {"minItems": 1},
        "note": text("Free text for people who edit the table."),
    }
    return mapping("A hole inside the row.", properties, ("where", "outcome", "why", "evidence"))


CODE = "is no reason code, such as head-dim"
ROW_NAME = "is no name, such as decode-16bit"


def row(template: bool = False) -> Schema:
    """A row of an architecture, or a template of the catalogue (neither `package` nor `seen`)."""
    env = {
        "nvcc": {"description": "Whether nvcc is needed when the kernel is first used.", "type": "boolean"},
        "cubins": {"description": "Whether prebuilt kernels must be reachable.", "type": "boolean"},
        "network": {"description": "Whether the network is needed at first use.", "type": "boolean"},
        "driver_jit": {"description": "Whether the driver compiles PTX at first use.", "type": "boolean"},
        "cuda": version_range("CUDA versions that work, lo..hi with hi excluded."),
    }
    like = rf"({ARCH_ID}/)?{KERNEL_ID}/{ITEM_NAME}"
    head: dict[str, Schema] = {"row": text("Name of the row, unique for the kernel here.", ITEM_NAME, ROW_NAME)}
    head["like"] = text("Row to start from: KERNEL/ROW of kernels.yaml or ARCH/KERNEL/ROW.", like, "is no KERNEL/ROW")
    if not template:
        head["package"] = package(
            "The one distribution that ships the kernel, and its versions for which the row holds."
        )
        version = text("A version that was looked at.", rf"{VERSION}|{COMMIT}", "is no version, such as 0.7.4")
        head["seen"] = listing("Versions that were really looked at; each lies in the range.", version, 1)
    call = text("An id from calls.yaml.", NAME, "is no id of calls.yaml, such as zeroed-workspace")
    tail: dict[str, Schema] = {
        "call": listing("Obligations that the caller meets, from calls.yaml.", call),
        "env": mapping("What the machine must offer: true where it is needed.", env, minProperties=1),
        "exclusions": {"description": "Holes inside the row.", "type": "array", "items": exclusion()},
        "note": text("Free text for people who edit the table."),
        "evidence": evidence("What backs the row; a row needs some.", template),
    }
    about = "A template that rows take with `like`." if template else "One box: every combination inside it is served."
    return mapping(about, head | dimensions() | tail, ("row",))


def trap() -> Schema:
    """A box outside all rows that the package admits all the same."""
    properties = {
        "trap": text("Name of the trap, unique for the kernel here.", ITEM_NAME, ROW_NAME),
        "package": package("The distribution and its affected versions."),
        "where": mapping("The box: dimensions left out are not constrained.", dimensions(True), minProperties=1),
        **_failure(),
        "why": text("One plain sentence for the person who asked."),
        "evidence": evidence("What backs the trap.") | {"minItems": 1},
        "note": text("Free text for people who edit the table."),
    }
    return mapping("Shapes outside all rows that the package admits and gets wrong.", properties, ("trap",))
