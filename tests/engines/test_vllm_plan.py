"""Whole models: the founding numbers, each layer's own head size against 0.33.0 as shipped, properties."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from attnroute.dispatch.group import KVGroup
from attnroute.engines.data import load_engine
from attnroute.engines.result import EngineOptions, EngineResult
from attnroute.engines.vllm import plan_groups
from attnroute.engines.vllm_flags import differences, flags_for
from attnroute.errors import UsageError
from attnroute.models import Model, read_model

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def target() -> Model:
    return read_model(EXAMPLES / "qwen3.8-27b", num_speculative_tokens=7)


@pytest.fixture(scope="module")
def drafter() -> Model:
    return read_model(EXAMPLES / "qwen3.8-27b-dflash2", role="draft", first_layer=64)


def ask(target: Model, drafter: Model | None, arch: str = "sm100", **options: object) -> EngineResult:
    given = EngineOptions(**{"num_speculative_tokens": 7, "max_model_len": 16384, **options})  # type: ignore[arg-type]
    draft = drafter.groups if drafter else ()
    return plan_groups(target.groups, arch, draft=draft, state=target.state, options=given)


@pytest.mark.parametrize(
    ("head_size", "block", "padding", "page"), [("per-layer", 832, 1.7115, 64), ("as-shipped", 896, 9.5355, 128)]
)
def test_founding_numbers(target: Model, drafter: Model, head_size: str, block: int, padding: float, page: int) -> None:
    found = ask(target, drafter, head_size=head_size)
    assert not found.errors
    assert found.block_size == block
    assert found.state is not None
    assert round(found.state.padding_percent, 4) == padding
    full = found.group("full")
    assert (full.backend, full.kernel_page, full.padding_percent) == ("FLASHINFER", page, 0.0)
    draft = found.group("draft") if any(g.name == "draft" for g in found.groups) else found.groups[-1]
    assert (draft.backend, draft.fa_version, draft.graph_level) == ("FLASH_ATTN", 4, "always")
    assert [g.kind for g in found.groups_made].count("mamba") == 10


def test_capacity_ratio(target: Model, drafter: Model) -> None:
    # With prefix caching, the drafter's window and 4,096 tokens in flight: R = 179 and 174 blocks a request.
    one, two = (
        ask(
            target,
            drafter,
            head_size=h,
            kv_memory=int(104.9 * 2**30),
            max_in_flight_tokens=4096,
            checkpoint_alignment=0,
        )
        for h in ("per-layer", "as-shipped")
    )
    assert one.capacity is not None
    assert two.capacity is not None
    assert (one.capacity.blocks_per_request, two.capacity.blocks_per_request) == (179, 174)
    assert round(one.capacity.tokens / 1000) == 605
    assert round(two.capacity.tokens / 1000) == 578
    assert round(one.capacity.tokens / two.capacity.tokens, 3) == 1.047


def test_block_size_64_keeps_the_drafter_on_flash_attention(target: Model, drafter: Model) -> None:
    own, shipped = (ask(target, drafter, head_size=h, block_size=64) for h in ("per-layer", "as-shipped"))
    mine, theirs = own.groups[-1], shipped.groups[-1]
    assert mine.backend == "FLASH_ATTN"
    assert mine.phases["draft"] is not None
    assert mine.phases["draft"].kernel == "fa4"
    assert theirs.backend == "FLASHINFER"
    assert theirs.precluded == ("FLASH_ATTN",)
    assert theirs.rejected["FLASH_ATTN"] == ("block_size not supported",)
    assert "--block-size 64 precluded higher-priority backend(s) FLASH_ATTN" in shipped.warnings[0]
    assert theirs.phases["draft"] is not None
    assert theirs.phases["draft"].kernel == "native_fa2"
    assert shipped.graph_level == "uniform1"
    assert own.block_size == shipped.block_size == 832


@pytest.mark.parametrize("kv", ["fp8", "fp8_e4m3"])
def test_fp8_cache(target: Model, kv: str) -> None:
    model = read_model(EXAMPLES / "qwen3.8-27b", num_speculative_tokens=7, kv_dtype=kv)
    assert ask(model, None, "sm100").block_size == 1648
    assert ask(model, None, "sm100", block_size=64).block_size == 1664


def test_head_256_drafter_behind_a_head_128_target() -> None:
    target = [KVGroup("full", 128, 32, 8, layers=[f"model.layers.{n}.attn" for n in range(4)])]
    drafter = [KVGroup("draft", 256, 16, 4, causal=False, role="draft", layers=["model.layers.4.attn"])]
    own = plan_groups(target, "sm100", draft=drafter, options=EngineOptions(num_speculative_tokens=7))
    shipped = plan_groups(
        target, "sm100", draft=drafter, options=EngineOptions(num_speculative_tokens=7, head_size="as-shipped")
    )
    assert own.block_size % 128 == 0
    assert own.group("draft").fa_version == 4
    assert own.group("draft").kernel_page == 128
    assert shipped.block_size == 16  # the model's head size is 128, so nothing asks for the drafter's pages
    assert shipped.errors or shipped.group("draft").kernel_page != 128


def test_gemma_4_with_flashinfer_on_sm120() -> None:
    model = read_model(EXAMPLES / "gemma-4-26b-a4b")
    groups = []
    for g in model.groups:
        fields = {n: getattr(g, n) for n in KVGroup.__dataclass_fields__ if n not in ("_hash", "traits")}
        groups.append(KVGroup(**fields))
    options = EngineOptions(model_type="gemma4", backend="FLASHINFER", num_speculative_tokens=3)
    found = plan_groups(groups, "sm120", options=options)
    sliding, wide = found.group("sliding"), found.group("global")
    assert sliding.phases["decode"] is not None
    assert wide.phases["decode"] is not None
    assert (sliding.phases["decode"].kernel, wide.phases["decode"].kernel) == ("xqa", "native_tc")
    assert (sliding.graph_level, wide.graph_level, found.graph_level) == ("uniform", "uniform1", "uniform1")
    assert (sliding.reorder_threshold, wide.reorder_threshold, found.reorder_threshold) == (4, 1, 1)


def test_too_little_memory_names_the_longest_context(target: Model, drafter: Model) -> None:
    found = ask(target, drafter, kv_memory=2 * 2**30, max_model_len=262144)
    assert "estimated maximum model length is" in found.errors[0]
    assert found.block_size == 832


def test_no_backend_says_every_reason() -> None:
    group = KVGroup("full", 64, 8, 8, kv_dtype="nvfp4")
    found = plan_groups([group], "sm120")
    assert found.errors[0].startswith("No valid attention backend found")
    assert found.groups[0].rejected["FLASHINFER"] == ("fa2 prefill misreads an NVFP4 KV cache at head_size 64",)


def test_options_are_checked(target: Model) -> None:
    with pytest.raises(UsageError, match="per-layer or as-shipped"):
        ask(target, None, head_size="model")
    with pytest.raises(UsageError, match="did you mean 'fp8_e4m3'"):
        ask(target, None, kv_cache_dtype="fp8_e4m")
    with pytest.raises(UsageError, match="no target group"):
        plan_groups([], "sm90")


def test_order_of_groups_changes_nothing(target: Model, drafter: Model) -> None:
    wide = [
        KVGroup(
            "a",
            128,
            16,
            8,
            sliding_window=1024,
            layers=["model.layers.0.attn", "model.layers.2.attn", "model.layers.10.attn"],
        ),
        KVGroup("b", 128, 16, 8, layers=["model.layers.1.attn", "model.layers.3.attn"]),
    ]
    one = plan_groups(wide, "sm90")
    shuffled = [replace_layers(g) for g in reversed(wide)]
    two = plan_groups(shuffled, "sm90")
    assert {g.name: (g.backend, g.block, g.kernel_page, g.page_bytes) for g in one.groups} == {
        g.name: (g.backend, g.block, g.kernel_page, g.page_bytes) for g in two.groups
    }
    assert [(m.kind, sorted(m.layers), m.block) for m in one.groups_made] == [
        (m.kind, sorted(m.layers), m.block) for m in two.groups_made
    ]


def replace_layers(group: KVGroup) -> KVGroup:
    fields = {n: getattr(group, n) for n in KVGroup.__dataclass_fields__ if n != "_hash"}
    return KVGroup(**fields)


def test_padding_is_never_negative_and_pages_divide_blocks() -> None:
    rng = random.Random(7)
    for _ in range(150):
        heads = rng.choice([1, 2, 4, 8])
        groups = [
            KVGroup(
                f"g{n}",
                rng.choice([64, 128, 256, 512]),
                heads * rng.choice([1, 4, 8]),
                heads,
                sliding_window=rng.choice([None, None, 1024]),
                layers=[f"model.layers.{n * 10 + k}.attn" for k in range(rng.randrange(1, 5))],
                sinks=rng.random() < 0.1,
                kv_dtype=rng.choice(["auto", "auto", "fp8_e4m3"]),
            )
            for n in range(rng.randrange(1, 4))
        ]
        for head_size in ("per-layer", "as-shipped"):
            options = EngineOptions(head_size=head_size, max_model_len=8192, kv_memory=rng.randrange(1 << 28, 1 << 36))
            found = plan_groups(groups, rng.choice(["sm90", "sm100", "sm120"]), options=options)
            if found.errors:
                continue
            assert all(g.padding_percent >= 0 for g in found.groups)
            assert all(g.block % g.kernel_page == 0 for g in found.groups)
            more = plan_groups(groups, found.arch, options=replace(options, kv_memory=(options.kv_memory or 0) * 2))
            assert more.capacity is not None
            assert found.capacity is not None
            assert more.capacity.tokens >= found.capacity.tokens


def test_flags(target: Model, drafter: Model) -> None:
    own = ask(target, drafter, block_size=64)

    def again(options: EngineOptions) -> EngineResult:
        return plan_groups(target.groups, "sm100", draft=drafter.groups, state=target.state, options=options)

    flags = flags_for(own, again)
    assert "--max-model-len 16384" in flags.type_this
    assert any("#58630" in line for line in flags.unreachable)
    assert flags.default[0].startswith("block size 896")
    shipped = ask(target, drafter, head_size="as-shipped")
    assert flags_for(shipped, again).unreachable == ()
    assert differences(shipped, shipped) == ()


def test_flags_that_reach_it() -> None:
    # A head-256 model on SM100: FlashAttention instead of FlashInfer is one flag away.
    group = KVGroup("full", 128, 32, 8, layers=["model.layers.0.attn"])
    found = plan_groups([group], "sm100", options=EngineOptions(backend="FLASH_ATTN", layout="HND"))
    flags = flags_for(found, lambda options: plan_groups([group], "sm100", options=options))
    assert flags.command == "VLLM_KV_CACHE_LAYOUT=HND vllm serve MODEL --attention-backend FLASH_ATTN"
    assert flags.unreachable == ()


@pytest.mark.parametrize("name", ["MLA", "DEEPSEEK_V4_INDEXER", "FLASH_ATTN@composite", "FLASH_ATN"])
def test_only_what_vllm_offers_can_be_asked_for(name: str) -> None:
    engine = load_engine("vllm")
    with pytest.raises(UsageError, match="unknown attention backend") as refusal:
        engine.selectable(name)
    assert " MLA " not in str(refusal.value)
    assert engine.selectable("FLASH_ATTN").name == "FLASH_ATTN"
