"""State shapes agree with the real functions of vLLM 0.33.0, replayed from tests/vectors/."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

from attnroute.models.family import State
from attnroute.models.source import ConfigFile, Fields
from attnroute.models.state import state_tensors

VECTORS = Path(__file__).resolve().parents[1] / "vectors" / "mamba_state_shapes.json.gz"
#: vLLM's function -> (our kind, our argument -> vLLM's). What is not in the table is a layer that no family here has.
FUNCTIONS: dict[str, tuple[str, dict[str, str]]] = {
    "gated_delta_net_state_shape": ("gdn", {"k_heads": "num_k_heads", "v_heads": "num_v_heads", "k_dim": "head_k_dim",
                                            "v_dim": "head_v_dim", "kernel": "conv_kernel_size"}),
    "mamba2_state_shape": ("mamba2", {"heads": "num_heads", "head_dim": "head_dim", "state": "state_size",
                                      "groups": "n_groups", "kernel": "conv_kernel", "inner": "intermediate_size"}),
    "mamba1_state_shape": ("mamba1", {"state": "state_size", "kernel": "conv_kernel", "inner": "intermediate_size"}),
    "short_conv_state_shape": ("short_conv", {"kernel": "conv_kernel", "inner": "intermediate_size"}),
    "kda_state_shape": ("kda", {"heads": "num_heads", "head_dim": "head_dim", "kernel": "conv_kernel_size"}),
}  # fmt: skip


def ours(kind: str, names: dict[str, str], arguments: dict[str, Any], tp: int) -> list[list[int]]:
    fields = Fields(ConfigFile(Path("config.json"), "", {}), (), arguments)
    state = State(kind, {argument: (field,) for argument, field in names.items()})
    tensors = state_tensors(
        fields, state, tp=tp, dtype="bf16", recurrent="bf16", speculative=arguments.get("num_spec", 0)
    )
    return [list(tensor.shape) for tensor in tensors]


def test_shapes_are_vllms() -> None:
    whole = json.loads(gzip.decompress(VECTORS.read_bytes()))
    seen: Counter[str] = Counter()
    for given, expected in whole["cases"]:
        case = {**whole["defaults"], **given}
        kind, names = FUNCTIONS.get(case["function"], ("", {}))
        arguments = case["arguments"]
        if not kind or "shapes" not in expected:
            continue
        if kind == "short_conv" and arguments.get("num_spec"):
            continue  # vLLM's LFM2 passes no speculative tokens
        if kind == "kda" and 3 * arguments["num_heads"] * arguments["head_dim"] != kda_channels(arguments):
            continue  # vLLM's Kimi models have as many key heads as value heads
        assert ours(kind, names, arguments, case["tp"]) == expected["shapes"], case
        seen[kind] += 1
    assert set(seen) == {kind for kind, _ in FUNCTIONS.values()}
    assert min(seen.values()) >= 10
    assert seen["gdn"] > 1000


def kda_channels(arguments: dict[str, Any]) -> int:
    heads = arguments["num_k_heads"] or arguments["num_heads"]
    dim = arguments["head_k_dim"] or arguments["head_dim"]
    return int(arguments["num_heads"] * arguments["head_dim"] + 2 * heads * dim)
