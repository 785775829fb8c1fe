"""Runs one piece: makes its inputs, asks vLLM, measures branches, writes the compressed vectors."""

from __future__ import annotations

import gzip
import inspect
import json
import random
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import world

SEED = 20250301
CAUGHT = (ValueError, NotImplementedError, AssertionError, KeyError, ZeroDivisionError)


@dataclass(frozen=True, slots=True)
class Piece:
    """One vector file.

    `functions` are the `module:qualname` whose branches are measured, `unreached` maps one to the reason why some of
    its branches cannot be taken without a GPU or another platform. `edges` gives inputs that must be there, `draw` one
    random input (only the keys that differ from a default), `run` answers full inputs with a JSON value.
    """

    name: str
    about: str
    functions: tuple[str, ...]
    run: Callable[[dict[str, Any]], Any]
    draw: Callable[[random.Random], dict[str, Any]]
    edges: Callable[[], Iterable[dict[str, Any]]] = lambda: ()
    defaults: dict[str, Any] = field(default_factory=dict)
    count: int = 5000
    unreached: dict[str, str] = field(default_factory=dict)


def answer(piece: Piece, inputs: dict[str, Any]) -> Any:
    """What vLLM says to `inputs`; an exception it raises on purpose is `{"error": type, "text": message}`."""
    full = world.use({**piece.defaults, **inputs})
    try:
        return piece.run(full)
    except CAUGHT as error:
        return {"error": type(error).__name__, "text": str(error)}
    except TypeError as error:
        # vLLM 0.33.0 cannot promote a sliding-window MLA spec; every other TypeError is a stand-in's and must be seen.
        if "bounded_replay" not in str(error):
            raise
        return {"error": "TypeError", "text": str(error)}


def inputs_of(piece: Piece, seed: int) -> list[dict[str, Any]]:
    """The edge inputs and then random ones, without repeats, `piece.count` or more."""
    rng = random.Random(f"{seed}:{piece.name}")
    known = {**world.DEFAULTS, **piece.defaults}
    kept: dict[str, dict[str, Any]] = {}

    def add(raw: dict[str, Any]) -> None:
        lean = {k: v for k, v in raw.items() if k not in known or known[k] != v}
        kept.setdefault(json.dumps(lean, sort_keys=True), lean)

    for raw in piece.edges():
        add(raw)
    tries = 0
    while len(kept) < piece.count:
        add(piece.draw(rng))
        tries += 1
        if tries > 40 * piece.count:
            raise SystemExit(f"{piece.name}: only {len(kept)} different inputs after {tries} draws")
    return list(kept.values())


def record(piece: Piece, out: Path, meta: dict[str, Any], seed: int = SEED) -> dict[str, Any]:
    """Writes `out/NAME.json.gz` and returns its metadata."""
    import coverage

    inputs = inputs_of(piece, seed)
    answer(piece, inputs[0])
    files = sorted({inspect.getfile(_code(f)) for f in piece.functions})
    cover = coverage.Coverage(branch=True, include=files, data_file=None, config_file=False)
    cover.start()
    try:
        cases = [[i, answer(piece, i)] for i in inputs]
    finally:
        cover.stop()
    with tempfile.NamedTemporaryFile(suffix=".json") as report:
        cover.json_report(outfile=report.name, ignore_errors=True)
        seen = json.loads(Path(report.name).read_text())["files"]
    branches = {
        f: _branches(f, piece.functions, {str(Path(k).resolve()): v for k, v in seen.items()}) for f in piece.functions
    }
    document = {
        "meta": {
            **meta,
            "name": piece.name,
            "about": piece.about,
            "seed": seed,
            "count": len(cases),
            "errors": sum(isinstance(o, dict) and "error" in o for _, o in cases),
            "functions": branches,
            "unreached": piece.unreached,
        },
        "defaults": {**world.DEFAULTS, **piece.defaults},
        "cases": cases,
    }
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    out.mkdir(parents=True, exist_ok=True)
    # No time stamp and no file name inside, so that the same vectors are the same bytes.
    packed = gzip.compress(text.encode(), compresslevel=9, mtime=0)
    (out / f"{piece.name}.json.gz").write_bytes(packed)
    return {**document["meta"], "bytes": len(packed)}


def _code(function: str) -> Any:
    found = inspect.unwrap(world.get(function))
    return getattr(found, "fget", None) or getattr(found, "__func__", found)


def _branches(function: str, wanted: tuple[str, ...], seen: dict[str, Any]) -> dict[str, Any]:
    """Branches of one function: how many, how many taken, which not (line to line; negative = it leaves)."""
    code = _code(function)
    lines, first = inspect.getsourcelines(code)
    last = first + len(lines) - 1
    entry = seen.get(str(Path(inspect.getfile(code)).resolve()))
    if entry is None:
        return {"file": _short(code), "lines": f"{first}-{last}", "branches": 0, "taken": 0, "run": False}
    # A body on the line of its `def` would start at `first`; the def line itself is no branch of the function.
    inside = [[a, b] for a, b in entry["executed_branches"] if first < abs(a) <= last]
    missed = [[a, b] for a, b in entry["missing_branches"] if first < abs(a) <= last]
    ran = any(first < n <= last for n in entry["executed_lines"])
    total = len(inside) + len(missed)
    return {
        "file": _short(code),
        "lines": f"{first}-{last}",
        "branches": total,
        "taken": len(inside),
        "missed": missed,
        "run": ran,
        "percent": round(100 * len(inside) / total, 1) if total else (100.0 if ran else 0.0),
    }


def _short(code: Any) -> str:
    path = inspect.getfile(code)
    return "vllm/" + path.rpartition("/vllm/")[2]
