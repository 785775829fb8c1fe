#!/usr/bin/env python3
"""Reads captures and prints preference bands for an architecture's table, and what choosing by them loses.

usage: fit_bands.py CAPTURE... [--yaml-only | --report-only | --settings]

The bands go under `preference:` of the table, for a human to read and edit. The report shows losses on the shapes that
were held out of the fit, per request and static (one kernel per group), beside rules of thumb.
"""

from __future__ import annotations

import argparse
import json
import sys
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from attnroute.errors import AttnrouteError
from attnroute.probe.capture import read_capture
from attnroute.probe.fit import Band, Settings, fit
from attnroute.probe.grid import held_out, part_of
from attnroute.probe.judge import Rule, by_bands, first_of, folded, judged, left_out, losses
from attnroute.probe.timings import Timed, geometric, read_timings
from attnroute.registry.registry import default_registry

NAMES = {"ratio": "group_ratio", "streams": "batch_kv_heads", "context": "context", "page": "page_size"}


def range_name(field: str, span: str) -> str:
    """`context: "1024.."` as it goes into the name of a band, `context-1024-up`."""
    axis = next((axis for axis, name in NAMES.items() if name == field), field)
    low, _, high = span.partition("..")
    return "-".join([axis, *([low] if low else []), *(["to", high] if high else ["up"])])


def band_yaml(band: Band, versions: dict[str, str], captures: list[str]) -> list[str]:
    """One band as the tables write it."""
    spans = [(NAMES[a], f"{'' if lo is None else lo}..{'' if hi is None else hi}") for a, lo, hi in band.ranges]
    if band.window is not None:
        spans.insert(0, ("window", f"{band.window[0]}..{band.window[1]}"))
    tag = "-".join(range_name(name, span) for name, span in spans)
    kv = band.kv_dtype.replace("_", "-")
    lines = [f"  - band: decode-{kv}-head-{band.head_dim}" + (f"-{tag}" if tag else "")]
    lines.append(f"    # the first kernel loses at most {(band.worst - 1) * 100:.1f} % on its shapes")
    lines += ["    phase: decode", f"    dtypes: {{bf16: [{band.kv_dtype}]}}", f"    head_dim: {band.head_dim}"]
    lines += [f'    {name}: "{span}"' for name, span in spans]
    lines += [f"    shapes: {band.shapes}", "    order:"]
    for (kernel, provider), time in band.order:
        version = versions.get(provider, "")
        lines.append(
            f"      - {{kernel: {kernel}, provider: {provider}, versions: {version}.., time: {max(time, 1.0):g}}}"
        )
    lines.append(f"    evidence: [{', '.join('{capture: ' + c + '}' for c in captures)}]")
    return lines


def line(title: str, entries: list[tuple[float, Timed, tuple[str, str]]]) -> str:
    """Geometric mean and worst loss of a rule, with the shape of the worst."""
    if not entries:
        return f"{title:<42} no shape"
    mean, (worst, shape, kernel) = geometric(e[0] for e in entries), entries[0]
    where = f"{shape.model} b{shape.batch} c{shape.context} p{shape.page} {shape.kv_dtype}: {kernel[0]}@{kernel[1]}"
    return f"{title:<42}{(mean - 1) * 100:7.2f} %{(worst - 1) * 100:8.1f} %   {where}"


def default_order(arch: str) -> Rule:
    """What stands where no band does: the table's default order."""
    return first_of(*default_registry().table(arch).default_order["decode"], otherwise=())


def report(shapes: list[Timed], bands: list[Band], arch: str, seen: frozenset[str] = frozenset()) -> str:
    """Losses on the held-out shapes, then on the fitted ones, and how near the floor the fastest kernels come."""
    fallback = default_order(arch)
    held = [s for s in shapes if s.held_out and part_of(s.model) == "grid"]
    unseen = [s for s in held if s.key not in seen]
    out = [f"{len(shapes)} shapes, {len(held)} held out; {len(bands)} bands", ""]
    parts = [("HELD OUT", held), ("FITTED", [s for s in shapes if not s.held_out])]
    for name in ("third", "second"):
        later = [s for s in shapes if part_of(s.model) == name]
        if later:
            parts.insert(1, (f"HELD OUT, {name.upper()} SET", later))
    if seen:
        parts.insert(1, (f"HELD OUT, {len(unseen)} NEW", unseen))
    for title, part in parts:
        out.append(f"{title:<42}   MEAN     WORST")
        out += [line(name, losses(rule, part)) for name, rule in judged(bands, part, fallback).items()]
        if title == "FITTED" and part:
            out.append(line("bands, each model and context left out", left_out(part, fallback)))
        out.append("")
    near = [s.floor_us / min(s.times[0][k] for k in s.kernels) for s in shapes if s.floor_us > 20]
    out.append(
        f"fastest kernel against the memory floor, floors above 20 us: {geometric(near) * 100:.0f} % of the bandwidth"
    )
    return "\n".join(out)


TRIED = [Settings(*s) for s in product((0.05, 0.1, 0.2, 0.4), (3, 4, 6), (5, 7, 9), (2.0, 4.0))]


def tried(shapes: list[Timed], arch: str) -> str:
    """What each combination of settings loses on fifths of the fitted shapes left out, the best first."""
    fitted, fallback = [s for s in shapes if not s.held_out], default_order(arch)
    rows = []
    for settings in TRIED:
        found = folded(fitted, fallback, settings)
        mean, worst = geometric(e[0] for e in found), max(e[0] for e in found)
        rows.append((mean, worst, len(fit(fitted, settings)), settings))
    lines = [
        f"{(mean - 1) * 100:7.2f} %{(worst - 1) * 100:8.1f} %{bands:6} bands   {settings}"
        for mean, worst, bands, settings in sorted(rows, key=lambda row: row[0])
    ]
    return "\n".join(["   MEAN     WORST", *lines])


def main() -> int:
    """Exit 0, or 2 with one line if a capture cannot be read or holds no timing."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("captures", nargs="+", type=Path, metavar="CAPTURE")
    parser.add_argument("--seen", action="append", default=[], type=Path, metavar="CAPTURE",
                        help="report also on the held-out shapes that this earlier capture did not time")  # fmt: skip
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--yaml-only", action="store_true", help="print the bands alone")
    which.add_argument("--report-only", action="store_true", help="print the losses alone")
    which.add_argument("--settings", action="store_true", help="print what other settings of the fit would lose")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the losses of each held-out shape here too")
    args = parser.parse_args()
    try:
        captures = [read_capture(path) for path in args.captures]
        earlier = [read_capture(path) for path in args.seen]
    except AttnrouteError as error:
        print(f"fit_bands: {error}", file=sys.stderr)
        return 2
    shapes = read_timings(captures)
    if not shapes:
        print("fit_bands: no shape of these captures was timed in two passes", file=sys.stderr)
        return 2
    if args.settings:
        print(tried(shapes, captures[0]["arch"]))
        return 0
    bands = fit(shapes)
    if not args.report_only:
        found = {item for c in captures if c["timings"] for item in c["packages"].items()}
        versions = dict(found)
        if len(versions) < len(found):
            print("fit_bands: the captures timed different versions of a package; fit them apart", file=sys.stderr)
            return 2
        fitted = [any(not held_out(t["request"], t["context"]) for t in c["timings"]) for c in captures]
        names = [path.name for path, used in zip(args.captures, fitted, strict=True) if used]
        print("preference:")
        print("\n".join(text for band in bands for text in band_yaml(band, versions, names)))
    if not args.yaml_only:
        seen = frozenset(s.key for s in read_timings(earlier))
        print(report(shapes, bands, captures[0]["arch"], seen))
    if args.json:
        entries = losses(by_bands(bands, default_order(captures[0]["arch"])), [s for s in shapes if s.held_out])
        rows = [
            {"model": s.model, "batch": s.batch, "context": s.context, "pick": "@".join(k), "loss": round(v, 4)}
            for v, s, k in entries
        ]
        args.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
