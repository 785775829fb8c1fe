"""`plan` on real models: issue 3's numbers, its errors, and the choices that couple groups."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from attnroute import KVGroup, UnservedError, UsageError, load_registry, plan
from attnroute.planning.plan import Plan, Workload
from tests.planning.models import FLASHINFER, OLD, model

QWEN, DRAFTER = "qwen3.8-27b", "qwen3.8-27b-dflash2"
BOTH = {**FLASHINFER, "vllm": "0.33.0"}


def qwen(*, kv_dtype: str = "auto", state_dtype: str = "auto", tokens: int = 7, **options: object) -> Plan:
    target = model(QWEN, kv_dtype=kv_dtype, state_dtype=state_dtype, num_speculative_tokens=tokens)
    return plan(
        target.groups,
        "sm100",
        BOTH,
        state=target.state,
        num_speculative_tokens=tokens,
        **options,  # type: ignore[arg-type]
    )


def kernels(made: Plan, phase: str) -> dict[str, str | None]:
    return {g.name: None if (use := g.phases[phase]) is None else use.kernel for g in made.groups}


def test_each_group_gets_its_own_kernel_and_one_warning() -> None:
    """Issue 2: vLLM PR #53111's model and package."""
    made = plan(model("gemma-4-26b-a4b").groups, "sm120", OLD)
    assert kernels(made, "decode") == {"sliding": "xqa", "global": "native_tc"}
    (warning,) = made.warnings
    assert warning.startswith("global cannot use xqa: head dim 512, declared 16..256 step 16")
    assert "flashinfer-python 0.6.18" in warning
    assert warning.endswith("[head-dim]")
    assert made.served


def test_a_newer_package_serves_both_groups() -> None:
    made = plan(model("gemma-4-26b-a4b").groups, "sm120", FLASHINFER)
    assert kernels(made, "decode") == {"sliding": "xqa", "global": "xqa"}
    assert made.warnings == ()
    assert made.notes.runner_up is not None
    assert made.notes.runner_up["kernel"] == "native_tc"
    assert made.notes.runner_up["measured"] is False


def test_groups_share_bytes_and_blocks_divide() -> None:
    made = plan(model("gemma-4-26b-a4b").groups, "sm120", FLASHINFER)
    assert {g.name: g.block_size for g in made.groups} == {"sliding": 16, "global": 32}
    assert {g.page_bytes for g in made.groups} == {131072}
    assert all(g.padding_percent == 0 for g in made.groups)


@pytest.mark.parametrize(
    ("options", "block", "padding"),
    [
        ({}, 832, 1.7115),
        ({"kv_dtype": "int8_per_token_head", "state_dtype": "bf16"}, 864, 1.09),
        ({"state_dtype": "bf16", "tokens": 15}, 480, 1.27),
        ({"kv_dtype": "fp8"}, 1648, 0.73),
    ],
)
def test_state_sets_the_block(options: dict[str, object], block: int, padding: float) -> None:
    """facts/vllm_semantics.md 4.6; generic reaches vLLM's numbers wherever vLLM's kernels take pages of 16."""
    made = qwen(**options)  # type: ignore[arg-type]
    assert made.block_size == block
    assert made.mamba is not None
    assert made.mamba["padding_percent"] == pytest.approx(padding, abs=0.005)


def test_an_asked_block_is_kept_in_multiples() -> None:
    made = qwen(block_size=64)
    assert made.block_size == 832
    assert qwen(block_size=128).block_size == 896


def test_a_kernel_with_large_pages_makes_the_block_a_multiple() -> None:
    """FA4 at head 256 on SM100 takes pages of 128: a drafter of that head behind a smaller target."""
    target = KVGroup("full", 128, 32, 8, layers=("t",))
    drafter = KVGroup("draft", 256, 16, 4, role="draft", causal=False, layers=("d",))
    made = plan([target, drafter], "sm100", {"vllm": "0.33.0"}, num_speculative_tokens=7, force="draft:draft=fa4")
    group = made.group("draft")
    assert group.phases["draft"] is not None
    assert group.phases["draft"].page_size == 128
    assert group.block_size is not None
    assert group.block_size % 128 == 0
    alone = plan([target, drafter], "sm100", {"vllm": "0.33.0"}, num_speculative_tokens=7)
    assert alone.group("full").block_size is not None


def test_drafts_and_cuda_graphs_of_the_whole_model() -> None:
    """XQA takes head 512 for one token only (flashinfer 0.7.4), so verify steps need another kernel in those groups."""
    groups = model("gemma-4-26b-a4b").groups
    free = plan(groups, "sm120", FLASHINFER, num_speculative_tokens=4)
    assert kernels(free, "decode") == {"sliding": "xqa", "global": "xqa"}
    assert kernels(free, "verify") == {"sliding": "xqa", "global": "native_tc"}
    assert free.graph_level == "uniform"
    one = free.notes.graphs["one_kernel"]
    assert one["level"] == "uniform1"
    assert [(limit["group"], limit["kernel"], limit["keeps"]) for limit in one["limited_by"]] == [
        ("global", "xqa", "native_tc")
    ]
    shared = plan(groups, "sm120", FLASHINFER, num_speculative_tokens=4, one_kernel=True)
    assert kernels(shared, "decode") == {"sliding": "xqa", "global": "native_tc"}
    assert shared.graph_level == "uniform"
    forced = plan(groups, "sm120", FLASHINFER, num_speculative_tokens=4, one_kernel=True, force="global:xqa")
    assert kernels(forced, "verify")["global"] is None
    assert forced.graph_level == "uniform1"  # what remains is the graph of single tokens, in all 30 layers
    assert any("drafts are verified as prefill" in w for w in forced.warnings)


def test_without_drafts_the_plan_says_what_drafts_would_cost() -> None:
    made = plan(model("gemma-4-26b-a4b").groups, "sm120", FLASHINFER)
    assert made.graph_level == "uniform1"
    assert made.notes.graphs["with_drafts"]["level"] == "uniform"


def test_unserved_phases_are_null_and_named() -> None:
    made = plan(model("gemma-4-26b-a4b").groups, "sm110", FLASHINFER, min_evidence="measured")
    assert not made.served
    assert made.to_json()["groups"][0]["phases"]["decode"] is None
    assert any("nothing serves decode" in w for w in made.warnings)


def test_a_phase_without_any_kernel_says_so_in_the_group() -> None:
    made = plan(model("deepseek-v3").groups, "sm100")
    assert made.groups[0].phases["prefill"] is None
    (entry,) = made.to_json()["groups"][0]["why_not"]
    assert (entry["phase"], entry["kernel"], entry["code"]) == ("prefill", None, "arch")


def test_too_little_memory_names_the_longest_context() -> None:
    groups = model("qwen3-8b").groups
    with pytest.raises(UnservedError, match=r"longest context that fits is (\d+) tokens") as caught:
        plan(groups, "sm90", FLASHINFER, kv_memory=2 << 30, max_model_len=40960)
    longest = int(str(caught.value).split("--max-model-len ")[1].rstrip(")"))
    assert plan(groups, "sm90", FLASHINFER, kv_memory=2 << 30, max_model_len=longest).kv["max_concurrency"] >= 1  # type: ignore[index]
    with pytest.raises(UnservedError):
        plan(groups, "sm90", FLASHINFER, kv_memory=2 << 30, max_model_len=longest + 1)


def test_no_common_block_names_groups_and_nearest_blocks() -> None:
    target = KVGroup("full", 128, 32, 8)
    with pytest.raises(UnservedError, match=r"block size 24 .* full in decode \(.*\) would take 16 or 32"):
        plan([target], "sm120", FLASHINFER, block_size=24, force="xqa")


def test_a_block_that_costs_a_better_kernel_is_a_warning() -> None:
    made = plan(model("gemma-4-26b-a4b").groups, "sm120", FLASHINFER, block_size=24)
    assert kernels(made, "decode") == {"sliding": "native_tc", "global": "native_tc"}
    (warning,) = made.warnings
    assert "block 24 (asked)" in warning
    assert "nearest 16 or 32" in warning


def test_force_and_prefer() -> None:
    groups = model("gemma-4-26b-a4b").groups
    forced = plan(groups, "sm120", FLASHINFER, force=["sliding:native_tc"])
    assert kernels(forced, "decode") == {"sliding": "native_tc", "global": "xqa"}
    with pytest.raises(UnservedError, match="forced kernel xqa cannot serve"):
        plan(groups, "sm120", OLD, force="xqa")
    preferred = plan(groups, "sm120", OLD, prefer="xqa")
    assert kernels(preferred, "decode")["global"] == "native_tc"
    assert any(w.startswith("preferred xqa cannot serve global") for w in preferred.warnings)
    liked = plan(groups, "sm120", FLASHINFER, prefer="native_tc")
    assert set(kernels(liked, "decode").values()) == {"native_tc"}
    with pytest.raises(UsageError, match="unknown phase"):
        plan(groups, "sm120", FLASHINFER, force="decod=xqa")
    with pytest.raises(UsageError, match="unknown group 'globl': did you mean 'global'"):
        plan(groups, "sm120", FLASHINFER, prefer="globl:xqa")


def test_a_version_too_old_for_every_kernel_is_the_reason() -> None:
    made = plan([KVGroup("g", 128, 16, 8)], "sm120", {"flashinfer-python": "0.5.0"})
    assert not made.served
    assert any("would be accepted with flashinfer-python" in w and "[package-version]" in w for w in made.warnings)


def test_prompts_and_decoding_on_different_machines() -> None:
    made = plan(model("qwen3-8b").groups, "sm100", prefill_arch="sm90", decode_arch="sm100")
    assert (made.prefill_arch, made.arch) == ("sm90", "sm100")
    (group,) = made.groups
    assert group.phases["prefill"] is not None
    assert group.phases["decode"] is not None
    assert str(group.phases["prefill"].row).startswith("sm90/")
    assert str(group.phases["decode"].row).startswith("sm100/")
    assert group.block_size is not None
    for use in (group.phases["prefill"], group.phases["decode"]):
        assert use.page_size is not None
        assert group.block_size % use.page_size == 0


def test_different_machines_that_share_nothing_say_what_conflicts() -> None:
    """FA4 of vLLM at head 256 on SM100 wants pages of 128, XQA none that 48 holds."""
    target = KVGroup("full", 256, 16, 4)
    with pytest.raises(UnservedError, match=r"full in decode \(fa4\) would take 128"):
        plan([target], "sm100", {"vllm": "0.33.0"}, prefill_arch="sm90", block_size=48, force="fa4")


def test_different_machines_without_a_common_layout_name_both() -> None:
    registry = load_registry()
    for arch, layout in (("sm90", "NHD"), ("sm100", "HND")):
        table = registry.table(arch)
        table.rows = tuple(replace(row, dims={**row.dims, "layout": [layout]}) for row in table.rows)
    with pytest.raises(UnservedError) as caught:
        plan([KVGroup("full", 128, 16, 4)], "sm100", FLASHINFER, prefill_arch="sm90", registry=registry)
    assert caught.value.code == "no-common-layout"
    assert "full in decode on sm100 takes HND (trtllm_gen" in str(caught.value)
    assert "full in prefill on sm90 takes NHD (native_fa3" in str(caught.value)


def test_capacity_follows_prefix_caching_drafts_and_dcp() -> None:
    sizes = {"kv_memory": 100 << 30, "max_model_len": 16384}
    kept = qwen(**sizes)
    apart = qwen(**sizes, prefix_caching=False)
    assert kept.kv is not None
    assert apart.kv is not None
    assert apart.kv["tokens"] > kept.kv["tokens"]
    assert kept.kv["pages_per_request"] == 16 * 20 + 48 * 9
    assert apart.kv["pages_per_request"] == 16 * 20 + 48 * 8
    groups = model("qwen3-8b").groups
    one = plan(groups, "sm90", kv_memory=40 << 30, max_model_len=32768)
    two = plan(groups, "sm90", kv_memory=40 << 30, max_model_len=32768, dcp=2)
    assert one.kv is not None
    assert two.kv is not None
    assert two.kv["tokens"] == 2 * one.kv["tokens"]
    assert two.groups[0].phases["decode"] is not None
    assert one.groups[0].phases["decode"] is not None


def test_json_goes_round_and_digests_agree() -> None:
    target, drafter = model(QWEN, num_speculative_tokens=7), model(DRAFTER, role="draft")
    made = plan(
        target.groups, "sm100", BOTH, draft=drafter.groups, state=target.state, num_speculative_tokens=7,
        kv_memory=100 << 30, max_model_len=16384,
    )  # fmt: skip
    text = json.dumps(made.to_json())
    again = Plan.from_json(text)
    assert again == made
    assert again.digest == made.digest
    assert again.to_json() == made.to_json()
    other = plan(target.groups, "sm100", BOTH, draft=drafter.groups, state=target.state, num_speculative_tokens=7)
    assert other.digest != made.digest
    with pytest.raises(UsageError, match="no plan"):
        Plan.from_json({"arch": "sm90"})


def test_the_contract_keys() -> None:
    data = plan(model("gemma-4-26b-a4b").groups, "sm120", OLD).to_json()
    top = {"arch", "engine", "packages", "block_size", "layout", "graph_level", "groups", "mamba", "kv", "warnings"}
    assert top <= set(data)
    group = data["groups"][1]
    keys = {"name", "role", "layers", "head_dim", "head_dim_v", "block_size", "page_bytes", "padding_percent", "phases"}
    assert keys | {"why_not"} <= set(group)
    assert set(group["phases"]) == {"decode", "prefill", "verify", "draft"}
    assert {"kernel", "provider", "page_size", "q_dtype", "row"} <= set(group["phases"]["decode"])
    assert any(w["code"] == "head-dim" and w["kernel"] == "xqa" for w in group["why_not"])


def test_a_drafter_has_its_kernel_under_draft() -> None:
    drafter = model(DRAFTER, role="draft")
    made = plan(model(QWEN).groups, "sm100", BOTH, draft=drafter.groups, num_speculative_tokens=7)
    (group,) = [g for g in made.groups if g.role == "draft"]
    assert group.phases["draft"] is not None
    assert group.phases["decode"] is None
    assert group.served


def test_what_the_tables_do_not_know_is_not_chosen() -> None:
    """fp8 with a scale per token and head: the tables know plain fp8 alone."""
    group = KVGroup("g", 128, 8, 8, kv_dtype="fp8_e4m3", traits=("per_token_head_scales",))
    made = plan([group], "sm100", FLASHINFER)
    assert not made.served
    assert any("scales per token and head" in w for w in made.warnings)
    assert plan([group], "sm100", FLASHINFER, allow_unknown=True).served
    packed = plan([KVGroup("g", 128, 32, 8, kv_dtype="nvfp4")], "sm100", FLASHINFER)
    assert packed.served
    assert packed.groups[0].page_bytes == (packed.block_size or 0) * 8 * (128 + 128 // 8)


def test_a_drafter_without_tokens_is_said() -> None:
    drafter = KVGroup("draft", 128, 8, 8, role="draft", causal=False)
    made = plan([KVGroup("full", 128, 8, 8), drafter], "sm100", FLASHINFER)
    assert any("planned for one token" in w for w in made.warnings)


def test_for_layer() -> None:
    made = plan(model("gemma-4-26b-a4b").groups, "sm120", OLD)
    layer = made.groups[1].layers[0]
    assert made.for_layer(layer).name == "global"
    with pytest.raises(UsageError, match=f"did you mean {layer!r}"):
        made.for_layer(layer + "x")


def test_refused_arguments() -> None:
    group = KVGroup("g", 128, 8, 8)
    for options, words in (
        ({"block_size": 0}, "block_size"),
        ({"num_speculative_tokens": -1}, "num_speculative_tokens"),
    ):
        with pytest.raises(UsageError, match=words):
            plan([group], "sm90", **options)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="no KV-cache groups"):
        plan([], "sm90")
    with pytest.raises(UsageError, match="two groups are called"):
        plan([group, group], "sm90")
    with pytest.raises(UsageError, match="batch_sizes"):
        Workload(batch_sizes=())
    with pytest.raises(UsageError, match="unknown engine"):
        plan([group], "sm90", engine="vlm")


def test_shares_of_the_workload_sum_to_one() -> None:
    load = Workload(prefill_share=0.3)
    assert load.share("decode", False) + load.share("prefill", False) == pytest.approx(1)
    assert sum(load.share(p, True) for p in ("decode", "verify", "prefill")) == pytest.approx(1)


def test_cross_attention_and_encoders() -> None:
    speech = model("whisper-large-v3")
    made = plan(speech.groups, "sm90", max_source_len=speech.max_source_len, max_model_len=448, kv_memory=10 << 30)
    assert made.served
    cross = made.group("cross")
    assert cross.blocks_per_request == -(-1500 // (cross.block_size or 1))
    encoder = plan([KVGroup("encoder", 64, 20, 20, attn_type="encoder_only", causal=False)], "sm90", BOTH)
    assert encoder.block_size is None
    assert encoder.kv is None
    assert encoder.groups[0].needed == ("prefill",)
