"""Random models: specs that live together in one model, and the order of its layers."""

from __future__ import annotations

import random
from typing import Any

from . import specs


def draw_pattern(rng: random.Random, kinds: int) -> list[int]:
    """Layers in model order: a repeated pattern, a few drafter layers at the end, now and then any order."""
    if kinds == 1:
        return [0] * rng.randrange(1, 24)
    how = rng.random()
    if how < 0.6:
        period = [1] * rng.choice([1, 2, 3, 5, 6, 7]) + [0]
        order = period * rng.randrange(1, 9)
        order += [k for k in range(2, kinds) for _ in range(rng.choice([1, 1, 2, 5]))]
        if rng.random() < 0.3:
            order += [rng.choice([0, 1])] * rng.randrange(1, 4)
        return order[:60]
    if how < 0.85:
        return [k for k in range(kinds) for _ in range(rng.randrange(1, 13))]
    return [rng.randrange(kinds) for _ in range(rng.randrange(1, 40))]


Spec = dict[str, Any]
STORIES = {
    "full": 4,
    "full+window": 20,
    "gemma": 10,
    "full+mamba": 14,
    "full+mamba+draft": 14,
    "mla": 4,
    "mla+window": 8,
    "chunked": 8,
    "windows": 5,
    "indexer": 6,
    "mixed": 8,
    "any": 12,
}


def draw_family(rng: random.Random) -> list[Spec]:
    """Specs that live together in one model: usually one block size and one KV dtype, sometimes not."""
    block = rng.choice([16, 16, 32, 64, 128, 832])
    heads, head = rng.choice([1, 2, 4, 8, 16]), rng.choice([64, 128, 256])
    kv = rng.choice(["auto", "auto", "auto", "fp8", "nvfp4", "int8_per_token_head"])
    backend = specs.kernel_backend(kv, rng) if kv != "auto" else None
    base: Spec = {"block": block, "heads": heads, "head": head, "kv": kv, "backend": backend}
    mla: Spec = {"kind": "mla", "block": block, "heads": 1, "head": 576, "kv": rng.choice(["auto", "fp8_ds_mla"])}
    window = {**base, "kind": "window", "window": rng.choice([512, 1024, 2048, 4096])}
    draft = {**base, "heads": rng.choice([heads, 2, 8]), "head": rng.choice([head, 64, 128])}
    draft |= {"kv": "auto", "backend": None}
    story = rng.choices(list(STORIES), list(STORIES.values()))[0]
    plain = {
        "full": [base],
        "full+window": [base, window],
        "gemma": [{**base, "head": 512, "heads": max(1, heads // 4)}, {**window, "head": 256}],
        "mla": [mla],
        "mla+window": [mla, window],
        "indexer": [mla, {"kind": "mla", "block": block, "heads": 1, "head": 132, "dtype": "fp16"}],
        "chunked": [base, {**base, "kind": "chunked", "chunk": 8192}],
        "windows": [window, {**window, "window": rng.choice([256, 1024])}],
        "mixed": [base, {**base, "kv": "auto", "backend": None}],
    }
    third = {"indexer": window, "chunked": draft, "windows": base, "mixed": window}
    if story in plain:
        found = plain[story] + ([third[story]] if story in third and rng.random() < 0.35 else [])
    elif story == "any":
        pool = ("full", "window", "chunked", "mla", "window_mla", "sink", "rswa", "ring")
        found = [specs.draw_attention(rng, pool) for _ in range(rng.randrange(1, 4))]
        found += [specs.draw_mamba(rng)] if rng.random() < 0.2 else []
    else:
        found = _with_state(rng, base, draft if story.endswith("draft") else None)
    return [specs.lean(s) for s in _odd(rng, found)]


def _with_state(rng: random.Random, base: Spec, draft: Spec | None) -> list[Spec]:
    """A hybrid model: attention whose block often covers the state, as the alignment would make it."""
    block = base["block"]
    mamba = specs.draw_mamba(rng) | {"block": rng.choice([block, 16384])}
    if rng.random() < 0.7:
        token = page_of({**base, "block": 1})
        base = {**base, "block": 16 * -(-page_of(mamba) // (16 * token))}
        mamba["padded"] = page_of(base)
    if draft is None:
        return [base, mamba]
    draft = {**draft, "block": base["block"]}
    return [base, mamba, draft if rng.random() < 0.5 else {**draft, "kind": "window", "window": 2048}]


def _odd(rng: random.Random, found: list[Spec]) -> list[Spec]:
    """Now and then a hidden-state layer, a stride alignment, a cache that DCP does not shard."""
    if rng.random() < 0.08:
        head = rng.choice([2048, 4096, 5120, 16384])
        found = [
            *found,
            {"kind": "hidden", "block": found[0].get("block", 16), "heads": rng.choice([1, 3, 4]), "head": head},
        ]
    if rng.random() < 0.06:
        stride = rng.choice([1, 1024, 4096, 100000, "16../16", "64../64", "128../128"])
        found = [s if s.get("kind") in ("mamba", "hidden") else {**s, "stride": stride} for s in found]
    if rng.random() < 0.05 and found[-1].get("kind") != "mamba":
        found = [*found[:-1], {**found[-1], "dcp_sharded": False}]
    return found


def page_of(description: dict[str, Any]) -> int:
    """Bytes of that spec's page."""
    page: int = specs.make(description).page_size_bytes
    return page


def draw_model(rng: random.Random) -> dict[str, Any]:
    """A family and the order of its layers."""
    while True:
        try:
            family = draw_family(rng)
        except AssertionError:
            continue  # a spec that vLLM itself refuses (page_sizes has those)
        order = draw_pattern(rng, len(family))
        return {"specs": family, "order": order}
