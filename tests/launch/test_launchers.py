"""What each launcher says before start-up, and the host side of its plans. No kernel package is needed."""

# ruff: noqa: E402 - without torch there is nothing to import

import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from attnroute.launch.bind import bind, launcher_for
from attnroute.launch.errors import LaunchError, NotInstalledError
from attnroute.launch.flashinfer_pages import page_index, q_indptr
from attnroute.launch.problem import Batch, KVPages, Limits, Problem
from attnroute.launch.xqa import SEMAPHORES, draft_mask

PROBLEM = Problem(8, 2, 64, 64, 16)
LIMITS = Limits(4, 256, cuda_graph=False, device="cpu")
NAMES = ["xqa", "native_tc", "native_cc", "native_fa2", "native_fa3", "fa2", "fa3", "fa4", "trtllm_gen"]
PROVIDER = {"fa2": "vllm", "fa3": "vllm", "fa4": "vllm"}


def batch():
    table = torch.tensor([[5, 0, 0], [1, 2, 3]], dtype=torch.int32)
    return Batch(table, torch.tensor([3, 40], dtype=torch.int32), (3, 40))


@pytest.mark.parametrize("name", NAMES)
def test_each_launcher_binds_and_names_its_memory(name):
    launcher = launcher_for(name, PROVIDER.get(name, "flashinfer-python"), PROBLEM, LIMITS)
    assert launcher.workspace_bytes() >= 0
    assert launcher.workspace_bytes(Limits(512, 1 << 17)) >= launcher.workspace_bytes()


def test_a_package_that_is_not_here_is_said_to_be_missing():
    if "flashinfer" in sys.modules:
        pytest.skip("flashinfer is here")
    with pytest.raises(NotInstalledError, match="install flashinfer-python"):
        launcher_for("xqa", "flashinfer-python", PROBLEM, LIMITS).modules()


def test_triton_has_no_launcher():
    with pytest.raises(LaunchError, match="no launcher"):
        launcher_for("triton", "vllm", PROBLEM, LIMITS)


def test_xqa_workspace_grows_with_heads_and_rows():
    def size(problem, limits):
        return launcher_for("xqa", "flashinfer-python", problem, limits).workspace_bytes()

    assert size(PROBLEM, LIMITS) > SEMAPHORES
    big = replace(PROBLEM, num_q_heads=64, num_kv_heads=8, head_dim=256, head_dim_v=256)
    assert size(big, Limits(1024, 4096)) > size(big, Limits(8, 4096))


@pytest.mark.parametrize("q_len", [1, 3, 17, 32, 33])
def test_draft_masks_hold_one_bit_a_key(q_len):
    for causal in (True, False):
        packed = draft_mask(2, q_len, causal=causal)
        words = -(-q_len // 32)
        assert tuple(packed.shape) == (2, q_len, 2 * words)
        bits = packed[1].view(torch.int16).to(torch.int64) & 0xFFFF
        for row in range(q_len):
            seen = [key for key in range(words * 32) if int(bits[row, key // 16]) >> (key % 16) & 1]
            assert seen == list(range(row + 1 if causal else q_len))


def test_page_index_names_the_pages_in_use():
    index = page_index(batch(), 16)
    assert index.indptr.tolist() == [0, 1, 4]
    assert index.indices.tolist() == [5, 1, 2, 3]
    assert index.last.tolist() == [3, 8]
    assert q_indptr(batch(), 4).tolist() == [0, 4, 8]
    assert q_indptr(replace(batch(), q_lens=(1, 20)), 0).tolist() == [0, 1, 21]


def test_bind_follows_the_decision(monkeypatch):
    group = SimpleNamespace(
        name="g", num_q_heads=8, num_kv_heads=2, head_dim=64, v_dim=64, dtype="bf16", kv="bf16",
        sliding_window=None, softcap=None, sinks=True, causal=True,
    )  # fmt: skip
    kernels = {"xqa": {"providers": {"flashinfer-python": {"launcher": "xqa"}}}}
    decision = SimpleNamespace(kernel="xqa", provider="flashinfer-python", q_dtype="bf16", calls=("equal-kv-strides",))
    launcher = bind(decision, group, page_size=16, limits=LIMITS, kernels=kernels)
    assert launcher.problem.sinks == "fp32"
    assert launcher.settings.equal_kv_strides
    decision.calls = ("sinks-bf16",)
    assert bind(decision, group, page_size=16, limits=LIMITS, kernels=kernels).problem.sinks == "bf16"
    group.sinks = False
    assert bind(decision, group, page_size=16, limits=LIMITS, kernels=kernels).problem.sinks is None
    with pytest.raises(LaunchError, match="no kernel serves"):
        bind(SimpleNamespace(kernel=None, provider=None, q_dtype=None, calls=()), group, page_size=16, limits=LIMITS)
    with pytest.raises(LaunchError, match="no launcher in the catalogue"):
        bind(decision, group, page_size=16, limits=LIMITS, kernels={"xqa": {"providers": {}}})


def recorded(monkeypatch, module, function):
    """A stand-in module whose function remembers its arguments."""
    seen = {}

    def call(*args, **kwargs):
        seen.update(kwargs, args=args)
        out = kwargs.get("out")
        return (out, out.new_zeros((8, 2)).float(), None, None) if function.startswith("_") else out

    parts = module.split(".")
    for n in range(1, len(parts) + 1):
        monkeypatch.setitem(sys.modules, ".".join(parts[:n]), ModuleType(".".join(parts[:n])))
    setattr(sys.modules[module], function, call)
    return seen


def run(launcher, **more):
    kv = torch.zeros((6, 16, 2, 64), dtype=torch.bfloat16)
    launcher.plan(batch())
    return launcher.run(torch.zeros((2, 8, 64), dtype=torch.bfloat16), KVPages(kv, kv), **more)


def test_xqa_passes_scales_window_and_shapes(monkeypatch):
    seen = recorded(monkeypatch, "flashinfer.decode", "xqa_batch_decode_with_kv_cache")
    launcher = launcher_for("xqa", "flashinfer-python", replace(PROBLEM, window=100), LIMITS, ["block-table-width"])
    run(launcher)
    assert seen["window_left"] == 99
    assert seen["bmm1_scale"] == pytest.approx(64**-0.5)
    assert seen["max_seq_len"] == 48
    assert seen["workspace_buffer"].eq(0).all()


def test_fa4_leaves_an_open_window_unset_and_splits_as_its_package_does(monkeypatch):
    seen = recorded(monkeypatch, "vllm.vllm_flash_attn.cute.interface", "_flash_attn_fwd")
    made = run(launcher_for("fa4", "vllm", replace(PROBLEM, lse=True), LIMITS))
    assert (seen["window_size_left"], seen["window_size_right"], seen["num_splits"]) == (None, None, 0)
    assert tuple(made.lse.shape) == (2, 8)
    run(launcher_for("fa4", "vllm", replace(PROBLEM, window=100), LIMITS, ["no-split-kv"]))
    assert (seen["window_size_left"], seen["window_size_right"], seen["num_splits"]) == (99, 0, 1)
    seen = recorded(monkeypatch, "flash_attn.cute.interface", "_flash_attn_fwd")
    run(launcher_for("fa4", "flash-attn-4", PROBLEM, LIMITS))
    assert seen["num_splits"] == 1


def test_fa3_is_asked_by_version(monkeypatch):
    seen = recorded(monkeypatch, "vllm.vllm_flash_attn.flash_attn_interface", "flash_attn_varlen_func")
    run(launcher_for("fa3", "vllm", PROBLEM, LIMITS))
    assert seen["fa_version"] == 3
    assert seen["window_size"] == [-1, -1]
    run(launcher_for("fa2", "vllm", PROBLEM, LIMITS))
    assert seen["fa_version"] == 2
    sys.modules["vllm.vllm_flash_attn.flash_attn_interface"].FA2_AVAILABLE = False
    with pytest.raises(NotInstalledError, match="no FlashAttention 2 library"):
        run(launcher_for("fa2", "vllm", PROBLEM, LIMITS))


def test_each_layer_of_a_group_keeps_its_own_fp8_scales(monkeypatch):
    seen = recorded(monkeypatch, "vllm.vllm_flash_attn.flash_attn_interface", "flash_attn_varlen_func")
    launcher = launcher_for("fa3", "vllm", replace(PROBLEM, q_dtype="fp8_e4m3", kv_dtype="fp8_e4m3"), LIMITS)
    launcher.plan(batch())
    pages = torch.zeros((6, 16, 2, 64)).to(torch.float8_e4m3fn)
    passed = []
    for k_scale, v_scale in ((0.5, 2.0), (0.125, 4.0), (0.5, 2.0)):
        launcher.run(torch.zeros((2, 8, 64), dtype=torch.bfloat16), KVPages(pages, pages, k_scale, v_scale))
        passed.append((seen["k_descale"], seen["v_descale"]))
        assert seen["k_descale"].eq(k_scale).all()
        assert seen["v_descale"].eq(v_scale).all()
    assert passed[0][0].data_ptr() == passed[2][0].data_ptr() != passed[1][0].data_ptr()


def test_each_captured_batch_size_keeps_its_own_table(monkeypatch):
    seen = recorded(monkeypatch, "vllm.vllm_flash_attn.flash_attn_interface", "flash_attn_varlen_func")
    for captured in (True, False):
        launcher = launcher_for("fa3", "vllm", PROBLEM, replace(LIMITS, cuda_graph=captured))
        run(launcher)
        first = seen["block_table"], seen["seqused_k"]
        one = Batch(batch().block_table[:1], batch().seq_lens[:1], batch().lens[:1])
        launcher.plan(one)
        later = replace(batch(), block_table=batch().block_table + 1)
        launcher.plan(later)
        assert first[0].equal(later.block_table) == captured


def test_one_fa2_part_if_the_obligation_says_so(monkeypatch):
    seen = recorded(monkeypatch, "vllm.vllm_flash_attn.flash_attn_interface", "flash_attn_varlen_func")
    run(launcher_for("fa2", "vllm", PROBLEM, LIMITS, ["num-splits-1"]))
    assert seen["num_splits"] == 1
    run(launcher_for("fa2", "vllm", PROBLEM, LIMITS))
    assert seen["num_splits"] == 0


def plan_takes(q_len, batch, problem, sms, *, graph, uniform, old):
    """Bytes that FlashInfer's plan reserves where it splits keys: PrefillSplitQOKVIndptr and PrefillPlan, by hand."""

    def tile(rows):
        if problem.head_dim_v >= 512 and not old:
            return 16 if rows <= 32 else 32
        if rows > 64 and problem.head_dim_v < 256:
            return 128
        return 64 if rows > 16 else 16

    ratio, split = problem.group_ratio, 2 * sms // problem.num_kv_heads
    if not graph:
        size, blocks = tile(q_len * ratio), split
    elif uniform:
        size = tile(q_len * ratio)
        blocks = max(split, batch * -(-q_len * ratio // size))
    else:
        size = tile((batch * q_len - batch + 1) * ratio)
        blocks = max(split, -(-batch * q_len * ratio // size) + batch - 1)
    rows = blocks * size if old else -(-blocks * size // ratio)
    return problem.num_q_heads * rows * (problem.head_dim_v + 1) * 4


@settings(max_examples=300, deadline=None)
@given(
    q_len=st.integers(1, 8), batch=st.integers(1, 256), kv_heads=st.sampled_from([1, 2, 8, 16, 32]),
    ratio=st.sampled_from([1, 2, 4, 8, 16, 48, 64]), head=st.sampled_from([64, 128, 256, 512]),
    graph=st.booleans(), old=st.booleans(), told=st.booleans(),
)  # fmt: skip
def test_flashinfers_workspace_holds_what_its_plan_takes_at_most(q_len, batch, kv_heads, ratio, head, graph, old, told):
    problem = Problem(kv_heads * ratio, kv_heads, head, head, 16, phase="verify" if q_len > 1 else "decode",
                      q_len=q_len)  # fmt: skip
    for sms, most in ((132, None), (132, batch * q_len), (148, None)):
        limits = Limits(batch, 4096, most, cuda_graph=graph, device="cpu", sm_count=sms)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("attnroute.launch.native_decode.at_least", lambda *_: not old)
            for name, uniform in (("native_tc", True), ("native_fa2", False)):
                held = launcher_for(name, "flashinfer-python", problem, limits).workspace_bytes() - (8 << 20)
                for size in (1, max(1, batch // 2), batch):
                    needed = plan_takes(q_len, size, problem, sms, graph=graph, uniform=uniform, old=old)
                    assert held >= needed, (name, size)
                if told:
                    asked = replace(problem, sinks="fp32")
                    sunk = launcher_for(name, "flashinfer-python", asked, limits).workspace_bytes() - (8 << 20)
                    assert sunk >= plan_takes(q_len, batch, problem, sms, graph=graph, uniform=False, old=old)


def test_flashinfers_workspace_is_the_advice_where_that_is_enough(monkeypatch):
    monkeypatch.setattr("attnroute.launch.native_decode.at_least", lambda *_: True)
    limits = Limits(64, 8192, cuda_graph=True, device="cpu", sm_count=132)
    wide = replace(PROBLEM, num_q_heads=64, num_kv_heads=1, head_dim=128, head_dim_v=128)
    assert launcher_for("native_tc", "flashinfer-python", wide, limits).workspace_bytes() < 137 << 20


def test_flashinfers_workspace_holds_what_its_plan_takes():
    wide = replace(PROBLEM, num_q_heads=96, head_dim=128, head_dim_v=128, phase="verify", q_len=4)
    limits = Limits(4, 1100, 16, cuda_graph=False, device="cpu", sm_count=132)
    asked = 150994944  # what a plan of 0.6.16.post3 asked for on an H200, and could not have of 128 MiB
    for name in ("native_tc", "native_fa2"):
        assert launcher_for(name, "flashinfer-python", wide, limits).workspace_bytes() > asked + (8 << 20)
        held = launcher_for(name, "flashinfer-python", PROBLEM, limits).workspace_bytes()
        assert held - (8 << 20) - (128 << 20) < 1 << 20


def test_partial_results_are_bounded_by_parts_tokens_and_heads():
    limits = Limits(4, 1 << 20, cuda_graph=False, device="cpu", sm_count=132)
    held = launcher_for("fa3", "vllm", PROBLEM, limits).workspace_bytes()
    assert held == 128 * 4 * 8 * 65 * 4
    prompts = replace(PROBLEM, phase="prefill", q_len=0)
    unbounded = launcher_for("fa3", "vllm", prompts, limits).workspace_bytes()
    assert unbounded == 128 * 4 * 132 * 192 * 65 * 4
    assert launcher_for("fa3", "vllm", prompts, replace(limits, max_q_tokens=64)).workspace_bytes() == held * 16
    assert launcher_for("fa3", "vllm", PROBLEM, replace(limits, max_context=640)).workspace_bytes() == held * 10 // 128
    assert launcher_for("fa3", "vllm", PROBLEM, limits, ["num-splits-1"]).workspace_bytes() == 0
    assert launcher_for("fa4", "flash-attn-4", PROBLEM, limits).workspace_bytes() == 0


def fa4_calls(monkeypatch):
    """The query and the named arguments of each call of FA4 from now on."""
    recorded(monkeypatch, "vllm.vllm_flash_attn.cute.interface", "_flash_attn_fwd")
    home = sys.modules["vllm.vllm_flash_attn.cute.interface"]
    calls, inner = [], home._flash_attn_fwd
    monkeypatch.setattr(home, "_flash_attn_fwd", lambda *a, **k: calls.append((a[0], k)) or inner(*a, **k))
    return calls


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize(("phase", "q_len", "tokens"), [("decode", 1, [1, 4]), ("prefill", 0, [64, 64])])
def test_warmup_runs_what_compiles_in_the_process_with_few_and_with_many_requests(
    monkeypatch, phase, q_len, tokens, layout
):
    calls = fa4_calls(monkeypatch)
    limits = Limits(4, 4096, 64, cuda_graph=False, device="cpu")
    problem = replace(PROBLEM, phase=phase, q_len=q_len, layout=layout, sinks="bf16")
    launcher = launcher_for("fa4", "vllm", problem, limits)
    launcher.warmup()
    assert [len(q) for q, _ in calls] == tokens
    assert [int(k["seqused_k"].max()) for _, k in calls] == [4096, 16]
    assert calls[-1][1]["learnable_sink"].shape == (8,)
    with pytest.raises(LaunchError, match="before plan"):
        run_unplanned(launcher)


@pytest.mark.parametrize(("phase", "q_len", "most", "tokens"), [
    ("verify", 4, 512, [4, 512]), ("prefill", 0, 128, [128, 128]), ("prefill", 0, None, [256, 256]),
    ("verify", 4, 2, None),
])  # fmt: skip
def test_warmup_stays_within_the_limits(monkeypatch, phase, q_len, most, tokens):
    calls = fa4_calls(monkeypatch)
    limits = Limits(256, 4096, most, cuda_graph=False, device="cpu")
    launcher = launcher_for("fa4", "vllm", replace(PROBLEM, phase=phase, q_len=q_len), limits)
    if tokens is None:
        with pytest.raises(LaunchError, match=r"query tokens; this launcher is bound to 1\.\.2"):
            launcher.warmup()
    else:
        launcher.warmup()
        assert [len(q) for q, _ in calls] == tokens


def run_unplanned(launcher):
    kv = torch.zeros((6, 16, 2, 64), dtype=torch.bfloat16)
    launcher.run(torch.zeros((2, 8, 64), dtype=torch.bfloat16), KVPages(kv, kv))


def wrappers_made(monkeypatch):
    """The buffers of each prefill wrapper that is made from now on; the wrappers do nothing."""
    made = []

    class Wrapper:
        def __init__(self, *_, **buffers):
            made.append(buffers)

        def plan(self, *_, **__):
            pass

    stand_in(monkeypatch, "flashinfer", BatchPrefillWithPagedKVCacheWrapper=Wrapper)
    return made


def test_prefill_of_many_batch_sizes_keeps_one_wrapper(monkeypatch):
    made = wrappers_made(monkeypatch)
    limits = Limits(4, 256, device="cpu")
    launcher = launcher_for("native_fa2", "flashinfer-python", replace(PROBLEM, phase="prefill", q_len=0), limits)
    launcher.plan(replace(batch(), q_lens=(3, 5)))
    launcher.plan(replace(batch(), block_table=batch().block_table[:1], seq_lens=batch().seq_lens[:1],
                          lens=batch().lens[:1], q_lens=(3,)))  # fmt: skip
    assert len(made) == 1
    assert not made[0].get("use_cuda_graph")


def stand_in(monkeypatch, name, **attributes):
    parts = name.split(".")
    for n in range(1, len(parts) + 1):
        if ".".join(parts[:n]) not in sys.modules:
            monkeypatch.setitem(sys.modules, ".".join(parts[:n]), ModuleType(".".join(parts[:n])))
    for key, value in attributes.items():
        monkeypatch.setattr(sys.modules[name], key, value, raising=False)


def test_the_module_compiled_ahead_is_the_one_the_wrapper_loads(monkeypatch):
    def spec(kind):
        return lambda template, *_: SimpleNamespace(
            name=f"{kind}-{template}", build=None, is_aot=False, is_compiled=False
        )

    home = "flashinfer.jit.attention.modules"
    stand_in(monkeypatch, home, gen_batch_prefill_module=spec("public"))
    names = [
        launcher_for(n, "flashinfer-python", PROBLEM, LIMITS).modules()[0].name for n in ("native_tc", "native_fa3")
    ]
    assert names == ["public-fa2", "public-fa3"]
    stand_in(monkeypatch, home, _gen_batch_prefill_primary_module=spec("primary"))
    names = [launcher_for(n, "flashinfer-python", PROBLEM, LIMITS).modules()[0].name for n in NAMES if "native_fa" in n]
    assert names == ["primary-fa2", "public-fa3"]


def test_a_later_plan_keeps_the_buffers_that_a_captured_graph_replays_from(monkeypatch):
    made = wrappers_made(monkeypatch)
    limits = Limits(4, 256, cuda_graph=True, device="cpu")
    launcher = launcher_for("native_fa2", "flashinfer-python", replace(PROBLEM, phase="verify", q_len=2), limits)
    launcher.plan(batch())
    launcher.plan(batch())
    assert len(made) == 1
    assert made[0]["use_cuda_graph"]
    assert made[0]["paged_kv_indices_buf"].numel() >= 2 * 16
