#!/usr/bin/env python3
"""A decode step of a model with two KV-cache groups, planned, bound and captured: `python scripts/decode_step.py`.

Gemma-4-like: layers of head dim 256 that see a window of 1024 tokens, and layers of head dim 512 that see everything.
`plan` chooses the kernels and pages, `launch.bind` makes them callable, and the attention of all layers is captured in
one CUDA graph, replayed on new numbers, lengths and pages, and compared with float32. Each layer of an fp8 cache has
scales of its own. Exit 0 if right, 1 if not, 2 without a GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from attnroute.dispatch.group import KVGroup
from attnroute.errors import AttnrouteError
from attnroute.launch.bind import bind
from attnroute.launch.dtypes import is_fp8
from attnroute.launch.problem import Limits
from attnroute.planning.plan import plan
from attnroute.probe import machine
from attnroute.probe.case import Ask
from attnroute.probe.data import Inputs, make_inputs, refresh
from attnroute.probe.main import named_packages
from attnroute.probe.reference import reference, split_by_request, worst_error
from attnroute.probe.tolerance import load_tolerances
from attnroute.registry.registry import load_registry

PATTERN = ("sliding",) * 5 + ("global",)
LENS = (1, 17, 1023, 1500, 4099, 700, 64, 2048)  # of the step that is captured; then the other way round


def groups(kv_dtype: str, layers: int) -> list[KVGroup]:
    """The two groups of a Gemma-4-26B-like decoder on one GPU."""
    names = [PATTERN[n % len(PATTERN)] for n in range(layers)]
    at = {kind: tuple(n for n, name in enumerate(names) if name == kind) for kind in PATTERN}
    return [
        KVGroup("sliding", 256, 16, 8, sliding_window=1024, kv_dtype=kv_dtype, layers=at["sliding"]),
        KVGroup("global", 512, 16, 2, kv_dtype=kv_dtype, layers=at["global"]),
    ]


def ask_of(group: KVGroup, page: int, q_dtype: str, layout: str) -> Ask:
    """The request that each layer of a group poses in this step."""
    return Ask("decode", 1, group.dtype, q_dtype, group.kv, group.head_dim, group.v_dim, page, group.num_q_heads,
               group.num_kv_heads, LENS, layout=layout, window=group.sliding_window)  # fmt: skip


def step(args: argparse.Namespace) -> dict[str, Any]:
    """Plans, binds, captures, replays and compares; returns what a person would want to know."""
    registry = load_registry()
    here = machine.this_machine()
    arch = machine.arch_of(here.compute_capability, registry.catalogue["archs"])
    packages = machine.installed(registry.catalogue["packages"], named_packages(args.package))
    import torch

    made = groups(args.kv_dtype, args.layers)
    chosen = plan(made, arch, packages, registry=registry)
    layers: list[tuple[str, Ask, Any, Inputs]] = []
    for group in made:
        use = chosen.group(group.name).phases["decode"]
        if use is None or use.page_size is None:
            raise AttnrouteError(f"nothing serves the decode of {group.name}: {chosen.warnings}")
        layout = chosen.layout or "NHD"
        ask = ask_of(group, use.page_size, use.q_dtype or group.dtype, layout)
        limits = Limits(len(LENS), max(LENS), cuda_graph=True)
        kernel = bind(use, group, page_size=use.page_size, limits=limits, layout=layout)
        kernel.warmup()
        first = make_inputs(ask, "cuda", 1)
        for layer in group.layers:  # one launcher and one block table a group, pages and queries of their own a layer
            own = make_inputs(ask, "cuda", 100 + int(layer))
            if is_fp8(group.kv):
                own.kv = own.kv._replace(k_scale=0.5 + 0.125 * int(layer), v_scale=2.0 - 0.125 * int(layer))
            layers.append((group.name, ask, kernel, own))
        kernel.plan(first.batch)
        print(
            f"{group.name}: {use.kernel}@{use.provider}, page {use.page_size}, {len(group.layers)} layers ({use.row})"
        )

    def attention() -> None:
        for _, _, kernel, own in layers:
            kernel.run(own.q, own.kv, out=own.out)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        attention()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        attention()
    layers = _next_step(layers)
    graph.replay()
    torch.cuda.synchronize()
    rules, errors, bounds = load_tolerances(), {}, {}
    for number, (name, ask, _, own) in enumerate(layers):
        errors[f"{number}:{name}"] = worst_error(split_by_request(own.out, ask), reference(ask, own)[0])
        kernel = chosen.group(name).phases["decode"].kernel
        bounds[f"{number}:{name}"] = rules.error(kernel, ask)
    return {"gpu": here.gpu, "packages": packages, "kv_dtype": args.kv_dtype, "errors": errors, "tolerances": bounds,
            "kernels": {g.name: f"{(u := chosen.group(g.name).phases['decode']).kernel}@{u.provider}" for g in made},
            "page_sizes": {g.name: chosen.group(g.name).phases["decode"].page_size for g in made}}  # fmt: skip


def _next_step(layers: list[tuple[str, Ask, Any, Inputs]]) -> list[tuple[str, Ask, Any, Inputs]]:
    """Other lengths and pages for each group, other numbers for each layer, all where the graph reads them."""
    steps: dict[str, tuple[Ask, Any]] = {}
    for name, ask, kernel, _ in layers:
        if name not in steps:
            later = replace(ask, lens=ask.lens[::-1])
            steps[name] = later, make_inputs(later, "cuda", 2).batch
            kernel.plan(steps[name][1])
    moved = []
    for number, (name, _, kernel, own) in enumerate(layers):
        later, batch = steps[name]
        refresh(own, later, 1000 + number)
        own.batch = batch
        moved.append((name, later, kernel, own))
    _fill_shared(moved)
    return moved


def _fill_shared(layers: list[tuple[str, Ask, Any, Inputs]]) -> None:
    """Random numbers in every page: the layers share one block table, so poison laid out for another one must go."""
    import torch

    for _, ask, _, own in layers:
        for pages in (own.kv.k, own.kv.v):
            pages.copy_(
                torch.randn(ask.page_size * pages.shape[0] * ask.kv_heads * pages.shape[-1], device="cuda").view(
                    pages.shape
                )
            )


def main() -> int:
    """Exit 0 if every layer is right within its tolerance."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--kv-dtype", default="bf16")
    parser.add_argument("--package", action="append", default=[], metavar="NAME==VERSION")
    parser.add_argument("--out", type=Path, metavar="FILE")
    args = parser.parse_args()
    try:
        result = step(args)
    except AttnrouteError as error:
        print(f"decode_step: {error}", file=sys.stderr)
        return 2
    errors, bounds = result["errors"], result["tolerances"]
    result["right"] = all(errors[layer] <= bounds[layer] for layer in errors)
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    worst = max(errors, key=lambda layer: errors[layer] / bounds[layer])
    print(
        f"{len(errors)} layers in one CUDA graph, worst relative error {errors[worst]:.4f} in {worst} "
        f"(tolerance {bounds[worst]})"
    )
    return 0 if result["right"] else 1


if __name__ == "__main__":
    sys.exit(main())
