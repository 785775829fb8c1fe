"""What holds for every model: division, replication, sharing, and state shapes as vLLM computes them."""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnroute.errors import UsageError
from attnroute.models import read_model

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NAMES = sorted(p.parent.name for p in EXAMPLES.glob("*/config.json"))
LAYER_TYPES = st.sampled_from(["full_attention", "sliding_attention", "chunked_attention"])


def read(config: dict[str, Any], **options: Any) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(config), encoding="utf-8")
        return read_model(path, **options)


@given(name=st.sampled_from(NAMES), tp=st.integers(1, 64))
@settings(deadline=None, max_examples=200)
def test_tensor_parallel_divides_or_is_refused(name: str, tp: int) -> None:
    """Query heads divide exactly; KV heads divide, or every rank holds one. Else the error lists the possible sizes."""
    role = "draft" if "dflash" in name else "target"
    whole = read_model(EXAMPLES / name, role=role)
    try:
        rank = read_model(EXAMPLES / name, role=role, tp=tp)
    except UsageError as error:
        possible = [int(word) for word in str(error).rsplit(": ", 1)[1].split()]
        assert tp not in possible
        assert 1 in possible
        return
    assert [g.layers for g in rank.groups] == [g.layers for g in whole.groups]
    for one, all_of_it in zip(rank.groups, whole.groups, strict=True):
        assert one.num_q_heads * tp == all_of_it.num_q_heads
        if one.kind == "gqa":
            assert one.num_kv_heads == max(1, all_of_it.num_kv_heads // tp)
            assert one.num_kv_heads * tp in (all_of_it.num_kv_heads, tp)
        else:
            assert one.num_kv_heads == 1
    for part, total in zip(rank.state, whole.state, strict=True):
        assert part.bytes * tp >= total.bytes >= part.bytes


@pytest.mark.parametrize("name", NAMES)
def test_the_sizes_an_error_lists_are_the_possible_ones(name: str) -> None:
    role = "draft" if "dflash" in name else "target"
    with pytest.raises(UsageError) as caught:
        read_model(EXAMPLES / name, role=role, tp=997)
    listed = [int(word) for word in str(caught.value).rsplit(": ", 1)[1].split()]
    worked = []
    for tp in range(1, max(listed) + 3):
        try:
            read_model(EXAMPLES / name, role=role, tp=tp)
        except UsageError:
            continue
        worked.append(tp)
    assert worked == listed


@given(
    types=st.lists(LAYER_TYPES, min_size=1, max_size=12),
    kv=st.integers(1, 8),
    ratio=st.integers(1, 8),
    head=st.integers(1, 64).map(lambda n: 8 * n),
    window=st.integers(1, 10_000),
    data=st.data(),
)
@settings(deadline=None, max_examples=100)
def test_groups_partition_the_layers(types: list[str], kv: int, ratio: int, head: int, window: int, data: Any) -> None:
    """Each layer is in one group, equal layers are in the same one, and the order of layers changes nothing."""
    config = {"model_type": "foo", "dtype": "bfloat16", "hidden_size": 64, "num_hidden_layers": len(types),
              "head_dim": head, "num_attention_heads": kv * ratio, "num_key_value_heads": kv, "layer_types": types,
              "sliding_window": window, "attention_chunk_size": window}  # fmt: skip
    model = read(config)
    assert sorted(n for g in model.groups for n in g.layers) == sorted(layer.name for layer in model.layers)
    assert len(model.groups) == len(set(types))
    assert all(g.group_ratio == ratio and g.head_dim == head for g in model.groups)
    shuffled = read({**config, "layer_types": data.draw(st.permutations(types))})

    def sizes(m: Any) -> dict[str, int]:
        return {g.name: len(g.layers) for g in m.groups}

    assert sizes(shuffled) == sizes(model)


@given(count=st.integers(2, 20), shared=st.integers(0, 18), data=st.data())
@settings(deadline=None, max_examples=80)
def test_shared_layers_point_at_their_own_kind(count: int, shared: int, data: Any) -> None:
    types = data.draw(st.lists(LAYER_TYPES, min_size=count, max_size=count))
    config = {"model_type": "foo", "dtype": "bfloat16", "hidden_size": 64, "num_hidden_layers": count, "head_dim": 64,
              "num_attention_heads": 4, "num_key_value_heads": 2, "layer_types": types, "sliding_window": 8,
              "attention_chunk_size": 8, "num_kv_shared_layers": shared}  # fmt: skip
    first = count - shared
    if first < 1 or not set(types[first:]) <= set(types[:first]):
        with pytest.raises(UsageError, match="num_kv_shared_layers"):
            read(config)
        return
    model = read(config)
    index = {layer.name: layer.index for layer in model.layers}
    for layer in model.layers:
        assert (layer.kind == "shared") == (layer.index >= first)
        if layer.shares_with is not None:
            target = index[layer.shares_with]
            assert target < first
            assert types[target] == types[layer.index]
            assert types[layer.index] not in types[target + 1 : first]
    assert sum(len(g.layers) for g in model.groups) == first


@given(spec=st.integers(0, 32), name=st.sampled_from(["qwen3.8-27b", "nemotron-3-nano-30b"]))
@settings(deadline=None, max_examples=40)
def test_speculation_lengthens_only_the_convolution(spec: int, name: str) -> None:
    plain, longer = (read_model(EXAMPLES / name, num_speculative_tokens=n).state[0].tensors for n in (0, spec))
    assert longer[0].shape == (plain[0].shape[0] + spec, plain[0].shape[1])
    assert longer[1] == plain[1]
    assert math.prod(longer[0].shape) * 2 == longer[0].bytes


JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 9), st.just(10**30), st.floats(), st.text(max_size=4),
    st.lists(st.integers(-2, 4), max_size=3), st.just({}), st.just({"attention": 3}), st.just([None, {"a": []}]),
)  # fmt: skip


@given(name=st.sampled_from(NAMES), data=st.data())
@settings(deadline=None, max_examples=400)
def test_a_spoilt_config_is_refused_in_words(name: str, data: Any) -> None:
    """One value replaced by junk, or one more field: the file reads, or a UsageError says why. Never a traceback."""
    config = json.loads((EXAMPLES / name / "config.json").read_text(encoding="utf-8"))
    inner = config.get("text_config", config)
    extra = ("per_layer_config", "block_configs", "quantization_config", "dflash_config", "layer_types", "multi_query",
             "num_kv_shared_layers", "kv_cache_dtype", "text_config", "attention_other_setting", "architectures",
             "linear_attn_config", "use_sliding_window", "is_causal", "index_topk", "v_head_dim")  # fmt: skip
    where = data.draw(st.sampled_from([config, inner]))
    where[data.draw(st.sampled_from([*inner, *extra]))] = data.draw(JUNK)
    try:
        model = read(config)
    except UsageError as error:
        message = str(error)
    else:
        message = "config.json"
        assert all(g.num_q_heads % g.num_kv_heads == 0 for g in model.groups)
    assert "config.json" in message
