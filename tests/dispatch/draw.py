"""Questions drawn around the tables: a row or box is picked, values are taken inside it, then a few are changed.

Everything comes from one seed, so that a disagreement can be repeated. A question is what second_evaluator.py answers
(`ask`), the architecture and the packages; `request_of` and `route_arguments` say it in attnroute's words.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any

from attnroute.dispatch.group import KVGroup
from attnroute.dispatch.packages import Packages
from attnroute.dispatch.request import Request
from tests.second_evaluator import FEATURES, LEVELS, STEPS, STRENGTHS, Tables, public

DTYPES = ("fp16", "bf16", "fp32", "fp8_e4m3", "fp8_e5m2", "nvfp4", "int8")
POOLS: dict[str, tuple[Any, ...]] = {
    "kind": ("gqa", "gqa", "gqa", "mla", "mla_sparse"),
    "phase": ("prefill", "decode", "verify", "draft"),
    "storage": ("paged", "ragged", "contiguous"),
    "head_dim": (
        *((d, d) for d in (8, 16, 40, 64, 72, 80, 96, 112, 128, 160, 192, 256, 264, 320, 512, 576)),
        *((192, 128), (128, 64), (64, 256), (64, 512), (128, 96)),
    ),
    "q_len": (1, 2, 3, 4, 5, 7, 8, 9, 16, 64),
    "group_ratio": (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 17, 20, 24, 25, 32, 33, 48, 57, 64, 65, 96, 128),
    "page": (1, 8, 15, 16, 24, 32, 64, 80, 96, 112, 128, 144, 256, 512, 1024, 2048),
    "layout": ("NHD", "HND"),
    "cuda_graph": LEVELS,
    "kv": DTYPES,
    "q": ("bf16", "bf16", "fp16", "fp32", "fp8_e4m3"),
    "latent": (256, 512, 576),
    "rope": (32, 64),
    "nope": (64, 128, 192),
    "topk": (512, 2048),
    "dcp": (2, 4, 8),
}


@dataclass(frozen=True)
class Question:
    """One question; `complete` says that a package not named is known to be absent."""

    arch: str
    ask: dict[str, Any]
    packages: dict[str, str]
    complete: bool


def questions(tables: Tables, seed: int, count: int) -> Iterator[Question]:
    """`count` questions; every row of every architecture is a starting point in turn."""
    random = Random(seed)
    rows = [(arch, row) for arch in tables.rows for row in tables.rows[arch]]
    random.shuffle(rows)
    for number in range(count):
        arch, row = rows[number % len(rows)]
        yield _question(random, tables, arch, row)


def _question(random: Random, tables: Tables, arch: str, row: dict[str, Any]) -> Question:
    ask = inside(random, row)
    provider = next(iter(row["package"]))
    if random.random() < 0.2:
        into_box(random, tables, arch, row, ask)
    for dim in random.sample(sorted(POOLS), random.choice((0, 0, 0, 1, 1, 2))):
        change(random, ask, dim)
    for dim in random.sample(
        ("head_dim", "group_ratio", "page", "kv", "q", "q_len"), random.choice((0, 0, 0, 0, 1, 2))
    ):
        ask[dim] = None
    settle(random, ask)
    packages = {name: random.choice(versions(tables, name)) for name in providers(tables) if random.random() < 0.6}
    seen = [public(v) for v in row["seen"]]
    packages[provider] = random.choice(seen) if random.random() < 0.6 else random.choice(versions(tables, provider))
    if random.random() < 0.2:
        boxes = [box for box in tables.traps[arch] if provider in box["package"]] + row["holes"]
        edges = [end for box in boxes for end in box["versions"].split("..")]
        packages[provider] = random.choice([e for e in edges if e] or seen)
    if random.random() < 0.03:
        del packages[provider]
    return Question(arch, ask, packages, random.random() < 0.05)


@cache
def providers(tables: Tables) -> list[str]:
    return sorted({name for entry in tables.kernels.values() for name in entry["providers"]})


@cache
def versions(tables: Tables, provider: str) -> tuple[str, ...]:
    """Versions looked at, and some between, below and above them, a local build, a commit."""
    rows = [r for arch in tables.rows for r in tables.rows[arch] if provider in r["package"]]
    seen = sorted({public(v) for r in rows for v in r["seen"]})
    edges = sorted({e for r in rows for e in r["package"][provider].split("..") if e})
    odd = {"flashinfer-python": ("0.6.17", "0.6.19", "0.7.0", "0.7.3", "0.6.18rc5"), "vllm": ("0.32.0",)}
    near = [f"{v}.dev1" for v in seen if "post" not in v and "b" not in v]
    return (*seen * 3, *edges, *odd.get(provider, ()), *near, "0.5.0", "9.0", f"{seen[-1]}+cu130", "git+" + "ab" * 20)


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


@cache
def ordered(found: frozenset[Any]) -> tuple[list[Any], list[Any]]:
    """The members of a set ascending, and those of them that are not huge."""
    whole = sorted(found)
    return whole, [v for v in whole if not isinstance(v, int) or v <= 1024] or whole


def pick(random: Random, held: frozenset[Any]) -> Any:
    """A member of a set: often its ends, else any that is not huge."""
    found, small = ordered(held)
    return random.choice((found[0], small[-1], random.choice(small), random.choice(small[:4])))


def inside(random: Random, row: dict[str, Any]) -> dict[str, Any]:
    """A question that the row holds."""
    kinds = listed(row.get("kind", "gqa"))
    ask: dict[str, Any] = dict.fromkeys(STEPS) | {"dcp": 1, "features": {}, "env": {}, "cannot": ()}
    ask["kind"] = random.choice(kinds)
    ask["phase"], ask["storage"] = random.choice(listed(row["phase"])), random.choice(listed(row["storage"]))
    reads = random.choice(sorted(row["dtypes"]))
    ask["kv"] = random.choice(row["dtypes"][reads])
    ask["q"] = random.choice(("bf16", "fp16", reads)) if reads.startswith("fp8") else reads
    for dim in ("head_dim", "latent", "rope", "nope", "group_ratio", "page"):
        ask[dim] = pick(random, row["sets"][dim]) if dim in row else None
    if ask["page"] is not None and row["page"] == "any":
        ask["page"] = random.choice(POOLS["page"])
    if row["group_ratio"] == "any":
        ask["group_ratio"] = random.choice(POOLS["group_ratio"])
    lengths = ordered(row["sets"]["q_len"])[0][:8]
    wanted = [n for n in lengths if (n == 1) == (ask["phase"] == "decode")] or lengths
    ask["q_len"] = None if ask["phase"] == "prefill" and random.random() < 0.8 else random.choice(wanted)
    if random.random() < 0.4:
        ask["page"] = None
    if random.random() < 0.3 and row.get("layout"):
        ask["layout"] = random.choice(listed(row["layout"]))
    if random.random() < 0.3 and row.get("cuda_graph") in LEVELS:
        ask["cuda_graph"] = random.choice(LEVELS[: LEVELS.index(row["cuda_graph"]) + 1])
    for name in FEATURES:
        has = row["features"].get(name, "unknown")
        odds = 0.02 if has in ("unknown", False) else 0.5 if has == "required" else 0.15
        if random.random() < odds:
            ask["features"][name] = random.choice((*has, True)) if isinstance(has, list) else True
    if row["features"].get("lse") is True and random.random() < 0.1:
        ask["dcp"] = random.choice(POOLS["dcp"])
    return ask


def into_box(random: Random, tables: Tables, arch: str, row: dict[str, Any], ask: dict[str, Any]) -> None:
    """Moves a question into an exclusion of the row or a trap of its kernel."""
    traps = [t for t in tables.traps[arch] if (t["kernel"], *t["package"]) == (row["kernel"], *row["package"])]
    if not (boxes := row["holes"] + traps):
        return
    box = random.choice(boxes)
    for dim, value in box["where"].items():
        if dim == "features":
            ask["features"] |= {name: True for name, asked in value.items() if asked}
        elif dim == "dtypes":
            ask["q"] = random.choice(sorted(value))
            ask["kv"] = random.choice(value[ask["q"]])
        else:
            ask[dim] = pick(random, box["sets"][dim])


def change(random: Random, ask: dict[str, Any], dim: str) -> None:
    """Another value for one dimension, one step beside the present one now and then."""
    value = ask.get(dim)
    if isinstance(value, int) and dim not in ("dcp", "topk") and random.random() < 0.4:
        ask[dim] = max(1, value + random.choice((-16, -1, 1, 8, 16)))
    else:
        ask[dim] = random.choice(POOLS[dim])
    extra = random.choice((*FEATURES, *[None] * 12))
    if extra:
        ask["features"][extra] = random.choice((True, "bf16", "fp32", "fp16")) if extra == "sinks" else True


def settle(random: Random, ask: dict[str, Any]) -> None:
    """Makes the parts of a question fit each other, and adds options now and then."""
    if ask["kind"] == "gqa":
        for dim in ("latent", "rope", "nope"):
            ask[dim] = None
    else:
        ask["head_dim"] = None
    ask["dcp"] = min(ask["dcp"], 8)
    if ask["phase"] == "decode" and ask["q_len"] is not None:
        ask["q_len"] = 1
    ratio = ask["group_ratio"] = ask["group_ratio"] and min(ask["group_ratio"], 128)
    ask["q_heads"] = ratio and ratio * (
        random.choice([n for n in (1, 1, 2, 4, 8) if ratio * n <= 512]) if ask["kind"] == "gqa" else 1
    )
    ask["allow_unknown"], ask["strict_versions"] = random.random() < 0.15, random.random() < 0.1
    ask["evidence"] = random.choice(STRENGTHS) if random.random() < 0.08 else None
    if random.random() < 0.08:
        key = random.choice(("nvcc", "cubins", "network", "driver_jit", "cuda"))
        ask["env"] = {key: random.choice(("12.3", "12.8", "13.0")) if key == "cuda" else random.random() < 0.3}
    if random.random() < 0.06:
        ask["cannot"] = (random.choice(("cast-q", "draft-mask", "zeroed-workspace", "warm-up", "plan-on-host")),)
    if ask["storage"] != "paged" and ask["phase"] == "prefill" and random.random() < 0.3:
        ask["storage"] = None


def request_of(question: Question) -> Request:
    """The question as the dispatcher's Request."""
    ask = question.ask
    same = ("kind", "phase", "storage", "head_dim", "latent", "rope", "nope", "q_len", "dcp", "group_ratio", "q_heads")
    same += ("topk", "layout", "cuda_graph", "page", "allow_unknown", "strict_versions", "cannot")
    return Request(
        arch=question.arch,
        **{name: ask[name] for name in same if name in ask},
        dtype=ask["q"],
        kv_dtype=ask["kv"],
        features=tuple(sorted(ask["features"].items())),
        min_evidence=ask["evidence"],
        environment=tuple(sorted(ask["env"].items())),
    )


def packages_of(question: Question) -> Packages:
    return Packages(tuple(sorted(question.packages.items())), "named", question.complete)


def route_arguments(question: Question) -> tuple[KVGroup, dict[str, Any]] | None:
    """The question as a group and the keywords of `route`; None if it leaves free what a group cannot."""
    ask, features = question.ask, dict(question.ask["features"])
    fixed = ("q", "kv", "group_ratio", *(("head_dim",) if ask["kind"] == "gqa" else ("latent", "rope")))
    if any(ask.get(name) is None for name in fixed) or (ask["storage"] is None and ask["phase"] != "prefill"):
        return None
    if ask["phase"] == "prefill" and ask["q_len"] == 1:
        return None
    lse = features.pop("lse", False)
    head, v = ask.get("head_dim") or (ask["latent"], ask["latent"])
    group = KVGroup(
        "drawn", head, ask["q_heads"], ask["q_heads"] // ask["group_ratio"], head_dim_v=v, kind=ask["kind"],
        dtype=ask["q"],
        kv_dtype=ask["kv"], sliding_window=1024 if features.pop("window", None) else None,
        softcap=30.0 if features.pop("softcap", None) else None, sinks=features.pop("sinks", False),
        causal=not features.pop("noncausal", False), traits=tuple(features), topk=ask.get("topk"),
        latent=ask.get("latent"), rope=ask.get("rope"), nope=ask.get("nope"),
    )  # fmt: skip
    keywords = {name: ask[name] for name in ("phase", "q_len", "dcp", "storage", "allow_unknown", "strict_versions")}
    keywords |= {"lse": lse, "page_size": ask["page"], "layout": ask.get("layout"), "cuda_graph": ask.get("cuda_graph")}
    keywords |= {"min_evidence": ask["evidence"], "environment": ask["env"], "cannot": ask["cannot"]}
    return group, keywords


def flags_of(question: Question) -> list[str] | None:
    """The question as flags of `attnroute explain`; None if they cannot say it."""
    ask = question.ask
    if question.complete or not question.packages:
        return None
    if (ask["phase"] == "decode" and ask["q_len"] is None) or (ask["storage"] is None and ask["phase"] != "prefill"):
        return None
    head, v = ask.get("head_dim") or (None, None)
    ratio, heads = ask["group_ratio"], ask["q_heads"]
    given = {
        name: ask.get(name) for name in ("kind", "phase", "storage", "latent", "rope", "nope", "topk", "dcp", "layout")
    }
    given |= {"head_dim": head, "head_dim_v": v, "dtype": ask["q"], "kv_dtype": ask["kv"] or "any"}
    given |= {"q_len": ask["q_len"], "q_heads": heads, "kv_heads": heads and heads // ratio, "page_size": ask["page"]}
    given |= {"cuda_graph": ask.get("cuda_graph"), "min_evidence": ask["evidence"]}
    flags = ["--arch", question.arch]
    for name, value in given.items():
        flags += [] if value is None else [f"--{name.replace('_', '-')}", str(value)]
    names = {"window": "sliding-window", "noncausal": "non-causal"}
    for name, value in ask["features"].items():
        flags += [f"--{names.get(name, name.replace('_', '-'))}", *([] if value is True else [value])]
    flags += [f"--{name.replace('_', '-')}" for name in ("allow_unknown", "strict_versions") if ask[name]]
    for key, value in ask["env"].items():
        flags += ["--env", f"{key}={'yes' if value is True else value or 'no'}"]
    flags += [part for call in ask["cannot"] for part in ("--cannot", call)]
    return flags + [part for name, version in question.packages.items() for part in ("--package", f"{name}=={version}")]


def changed(question: Question, change: dict[str, Any]) -> Question:
    """The question after a fix."""
    names = {"page_size": "page", "min_evidence": "evidence"}
    plain = {names.get(key, key): value for key, value in change.items() if key not in ("package", "environment")}
    plain |= {"env": question.ask["env"] | change["environment"]} if "environment" in change else {}
    plain |= {"cannot": tuple(change["cannot"])} if "cannot" in change else {}
    packages = question.packages | change.get("package", {})
    return Question(question.arch, question.ask | plain, packages, question.complete)
