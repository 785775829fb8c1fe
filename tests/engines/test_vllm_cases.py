"""The cases of tests/cases/vllm_*.yaml."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from attnroute.dispatch.group import KVGroup
from attnroute.dispatch.route import route
from attnroute.engines import align, capacity
from attnroute.engines.blocks import declared_sizes
from attnroute.engines.data import Engine, load_engine
from attnroute.engines.facts import World, model_size_facts, world_facts
from attnroute.engines.groups import CacheGroup, Layers, make_groups
from attnroute.engines.result import EngineOptions
from attnroute.engines.spec import Limits, request_pages
from attnroute.engines.vllm import plan_groups
from attnroute.engines.vllm_args import parse
from attnroute.errors import AttnrouteError
from attnroute.models import read_model
from tests.engines import inputs, replay_blocks, vectors
from tests.vectors import load

ROOT = Path(__file__).parents[2]


CASES = [
    pytest.param(case, id=f"{case['id']}")
    for path in sorted((ROOT / "tests" / "cases").glob("vllm_*.yaml"))
    for case in yaml.safe_load(path.read_text())
]


def fa_impl(engine: Engine, w: dict[str, Any]) -> Any:
    cc = tuple(map(int, w.pop("cc").split(".")))
    facts = world_facts(engine, World(cc=cc), hd256_aware=True, **w)  # type: ignore[arg-type]
    return {"version": engine.tables["flash_attention_impl"].answer(facts).value}


def rows(_engine: Engine, w: dict[str, Any]) -> Any:
    kernel, _, provider = w["kernel"].partition("@")
    decision = route(KVGroup("g", w["head_dim"], 8, 8), w["arch"], phase=w["phase"], engine="vllm")
    candidate = decision.candidate(kernel, provider)
    return {"accepted": candidate is not None and candidate.accepted}


def rejects_kv(engine: Engine, w: dict[str, Any]) -> Any:
    defaults = load.document("validate_configuration")["defaults"]
    every = [replay_blocks.validate_configuration(engine, {**defaults, **w, "kv": kv})["reasons"] for kv in w["kv"]]
    return {"rejected": "all" if all(every) else every}


def hybrid(engine: Engine, w: dict[str, Any]) -> Any:
    token = w["per_token"]
    name = token.get("backend")
    backend = engine.backend(name) if name else engine.made("B", {"block_sizes": [{"sizes": w["sizes"]}]})
    facts = model_size_facts(engine, World(cc=(10, 0)))
    size = 0
    for *shape, dtype in w["state"]:
        product = {"bf16": 2, "fp32": 4}[dtype]
        for n in shape:
            product *= n
        size += product
    cache = align.ModelCache(
        asked=((backend, facts),),
        kv=token.get("kv", "auto"),
        dtype="bf16",
        head=token["head"],
        kv_heads=token["heads"],
        hybrid=True,
        state_bytes=size,
    )
    assert declared_sizes(backend, facts)
    found = align.align_hybrid(engine, cache, align.BlockState(w["block"]))
    page = found.mamba_page_padded or size
    return {"block": found.block_size, "padding": round(100 * (page - size) / size, 4)}


def longest(engine: Engine, w: dict[str, Any]) -> Any:
    specs = [inputs.spec_of(engine, s) for s in w["specs"]]
    groups = make_groups(engine, Layers(tuple(specs), (0,) * w["layers"]), "LBNHC")
    per_block = capacity.bytes_per_block(groups, "LBNHC")
    return {"longest": capacity.longest(engine, groups, per_block, w["memory"], Limits(w["max_model_len"], 8192))}


def pages(engine: Engine, w: dict[str, Any]) -> Any:
    spec = inputs.spec_of(engine, w["spec"])
    return {"pages": request_pages(engine, spec, Limits(w["max_model_len"], w["in_flight"]))}


def scheduler_block(engine: Engine, w: dict[str, Any]) -> Any:
    spec = inputs.spec_of(engine, {})
    groups = [CacheGroup((n,), (replace(spec, block=b),)) for n, b in enumerate(w["blocks"])]
    return {"scheduler": capacity.block_sizes(groups, 1, w["blocks"][0], hashing=False, connector=False, unit=None)[0]}


def arguments(_engine: Engine, w: dict[str, Any]) -> Any:
    options = parse(w["command"]).options
    return {name: getattr(options, name) for name in EngineOptions.__dataclass_fields__}


def plan(_engine: Engine, w: dict[str, Any]) -> Any:
    tokens = w.get("num_speculative_tokens", 0)
    model = read_model(
        ROOT / "examples" / w.pop("example"),
        tp=w.get("tp", 1),
        kv_dtype=w.pop("kv_dtype", "auto"),
        num_speculative_tokens=tokens,
    )
    groups = model.groups
    if w.pop("text_only", False):
        groups = tuple(replace_traits(g) for g in groups)
    found = plan_groups(groups, w.pop("arch"), state=model.state, options=EngineOptions(**w))
    said: dict[str, Any] = {
        name: getattr(found, name) for name in ("block_size", "layout", "graph_level", "flash_attn_version")
    }
    said["errors"] = list(found.errors)
    said["groups"] = {}
    for g in found.groups:
        decode = g.phases.get("decode")
        said["groups"][g.name] = {
            "backend": g.backend,
            "fa_version": g.fa_version,
            "block": g.block,
            "kernel_page": g.kernel_page,
            "decode": decode.kernel if decode else None,
            "note": " ".join(g.notes),
            "prefill": g.phases["prefill"].name if g.phases.get("prefill") else None,
        }
    return said


def replace_traits(group: KVGroup) -> KVGroup:
    fields = {n: getattr(group, n) for n in KVGroup.__dataclass_fields__ if n != "_hash"}
    return KVGroup(**{**fields, "traits": tuple(t for t in group.traits if t != "mm_prefix")})


OWN = {
    "fa_impl": fa_impl,
    "rows": rows,
    "rejects_kv": rejects_kv,
    "hybrid": hybrid,
    "longest": longest,
    "request_pages": pages,
    "scheduler_block": scheduler_block,
    "arguments": arguments,
    "plan": plan,
}


def answer(case: dict[str, Any]) -> Any:
    engine, given = load_engine("vllm"), dict(case.get("with", {}))
    if case["ask"] in OWN:
        try:
            return OWN[case["ask"]](engine, given)
        except AttnrouteError as error:
            return {"raises": str(error)}
    how = {"per_layer": True} if case.get("per_layer") else {}
    found = vectors.answer(engine, case["ask"], {**load.document(case["ask"])["defaults"], **given}, **how)
    if case["ask"] == "grouping":
        found["sizes"] = [len(g["layers"]) for g in found["groups"]]
    return found


def holds(expected: Any, found: Any) -> bool:
    """Whether all that is expected is found: mappings by their keys, notes and raised texts by a part of them."""
    if isinstance(expected, dict):
        return isinstance(found, dict) and all(
            k in found and (v in found[k] if k in ("note", "raises") else holds(v, found[k]))
            for k, v in expected.items()
        )
    return bool(expected == found)


@pytest.mark.parametrize("case", CASES)
def test_case(case: dict[str, Any]) -> None:
    assert case["source"]
    if case["ask"] == "nothing":
        assert case["differs"]
        return
    found = answer(case)
    assert holds(case["expect"], found), f"expected {case['expect']}\nfound {found}"


def test_ids_are_unique() -> None:
    ids = [param.values[0]["id"] for param in CASES]  # type: ignore[index]
    assert len(ids) == len(set(ids))
