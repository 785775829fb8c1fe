"""`engine="vllm"`: the numbers of facts/problem.md, the comparison with the engine as shipped, and the checks on it."""

from __future__ import annotations

import json

import pytest

from attnroute import KVGroup, Plan, UnservedError, UsageError, plan
from attnroute.engines.result import EngineOptions
from attnroute.planning.in_engine import in_engine
from attnroute.registry.registry import default_registry
from tests.planning.models import model

QWEN, DRAFTER = "qwen3.8-27b", "qwen3.8-27b-dflash2"


def qwen(**options: object) -> Plan:
    target = model(QWEN, num_speculative_tokens=7)
    drafter = model(DRAFTER, role="draft", first_layer=64)
    return plan(
        target.groups,
        "sm100",
        draft=drafter.groups,
        state=target.state,
        num_speculative_tokens=7,
        engine="vllm",
        **options,  # type: ignore[arg-type]
    )


def test_both_columns_of_the_founding_table() -> None:
    """832 / 1.7115 % against 896 / 9.5355 %, 605k against 578k tokens (ratio 1.047 at 16,384)."""
    made = qwen(compare="model-wide", kv_memory=int(104.9 * 2**30), max_model_len=16384, max_num_batched_tokens=2048)
    other = made.compare
    assert other is not None
    assert made.mamba is not None
    assert made.kv is not None
    assert (made.block_size, other["block_size"]) == (832, 896)
    assert made.mamba["padding_percent"] == pytest.approx(1.7115, abs=5e-5)
    assert other["mamba"]["padding_percent"] == pytest.approx(9.5355, abs=5e-5)
    assert round(made.kv["tokens"], -3) == 605_000
    assert round(other["tokens"], -3) == 578_000
    assert made.kv["tokens"] / other["tokens"] == pytest.approx(1.0467, abs=0.0018)


def test_an_asked_block_throws_the_drafter_off_only_model_wide() -> None:
    made = qwen(compare="model-wide", block_size=64)
    draft = made.group("draft")
    assert draft.phases["draft"] is not None
    assert (draft.backend, draft.phases["draft"].kernel) == ("FLASH_ATTN", "fa4")
    assert made.compare is not None
    (other,) = [g for g in made.compare["groups"] if g["name"] == "draft"]
    assert other["backend"] == "FLASHINFER"
    assert "block_size not supported" in other["rejected"]["FLASH_ATTN"]
    assert made.compare["graph_level"] == "uniform1"
    assert made.graph_level == "uniform"


def test_a_head_256_drafter_makes_the_block_a_multiple_of_128() -> None:
    target = KVGroup("full", 128, 32, 8, layers=tuple(f"t{i}" for i in range(8)))
    drafter = KVGroup("draft", 256, 16, 4, role="draft", causal=False, layers=("d0",))
    made = plan([target], "sm100", draft=[drafter], num_speculative_tokens=7, engine="vllm")
    group = made.group("draft")
    assert group.backend == "FLASH_ATTN"
    assert group.phases["draft"] is not None
    assert group.phases["draft"].kernel == "fa4"
    assert made.block_size is not None
    assert made.block_size % 128 == 0


def test_engine_plans_go_round_as_json() -> None:
    made = qwen(compare="model-wide", kv_memory=100 << 30, max_model_len=16384)
    again = Plan.from_json(json.dumps(made.to_json()))
    assert again == made
    assert again.digest == made.digest


def test_rows_of_the_tables_back_what_the_engine_runs() -> None:
    made = qwen()
    for group in made.groups:
        for use in group.phases.values():
            assert use is None or str(use.row).startswith("sm100/")
    assert not any("engine-unsound" in w for w in made.warnings)


def test_what_the_tables_refuse_is_said() -> None:
    """0.33.0 admits head 512 on FLASH_ATTN on SM100 and would run FA2, whose maximum is 256."""
    group = KVGroup("full", 512, 16, 2, layers=("l",))
    made = plan([group], "sm100", engine="vllm", engine_options={"backend": "FLASH_ATTN"})
    assert any("engine-unsound" in w and "fa2" in w for w in made.warnings)


def test_too_little_memory_is_the_engine_s_own_error() -> None:
    with pytest.raises(UnservedError, match=r"vllm 0\.33\.0 would not start"):
        qwen(kv_memory=1 << 30, max_model_len=16384)


def test_refused_words() -> None:
    with pytest.raises(UsageError, match="engine vllm follows its own rules"):
        qwen(force="xqa")
    with pytest.raises(UsageError, match="only model-wide"):
        qwen(compare="modelwide")
    with pytest.raises(UsageError, match="name it with engine"):
        plan([KVGroup("g", 128, 8, 8)], "sm90", compare="model-wide")


def test_flags_that_come_nearest_to_a_plan() -> None:
    """Issue 2's plan, in vLLM: FlashInfer, which on SM120 is taken only if it is asked for, and without images."""
    groups = model("gemma-4-26b-a4b", kv_dtype="fp8_e4m3").groups
    made = plan(groups, "sm120", {"flashinfer-python": "0.6.16.post3"})
    options = EngineOptions(kv_cache_dtype="fp8", model_type="gemma4")
    found = in_engine(default_registry(), made, groups, (), options)
    assert found["default"][0] == "TRITON_ATTN (triton) on all layers"
    assert found["flags"][:2] == ["--attention-backend FLASHINFER", "--kv-cache-dtype fp8"]
    assert "--language-model-only" in found["flags"]
    assert found["differs"] == []
    assert found["pins"] == {"flashinfer-python": "0.7.2.post1"}
