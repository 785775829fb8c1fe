"""One case, from random numbers to an outcome, on the CPU."""

# ruff: noqa: E402 - without torch there is nothing to import

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from attnroute.launch.errors import NotInstalledError
from attnroute.probe.case import Ask, Case
from attnroute.probe.data import POISON, make_inputs, refresh
from attnroute.probe.outcome import build_line, classify
from attnroute.probe.reference import reference, visible, worst_error
from attnroute.probe.run_case import replace_sinks, run_case
from attnroute.probe.session import Session
from attnroute.probe.tolerance import load_tolerances
from attnroute.registry.registry import default_registry

from .fakes import Deaf, Eager, Faulty, Lazy, Rude, Stray, Wrong, making

BASE = {"phase": "decode", "q_len": 1, "dtype": "bf16", "q_dtype": "bf16", "kv_dtype": "bf16", "head_dim": 32,
        "head_dim_v": 32, "page_size": 4, "q_heads": 4, "kv_heads": 2, "lens": (1, 4, 11)}  # fmt: skip


def case(**more):
    return Case("alpha", "alpha-dist", Ask(**{**BASE, **more}))


def outcome(kind, **more):
    return run_case(case(**more), making(kind), load_tolerances(), device="cpu", seed=7)


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"layout": "HND"},
        {"kv_dtype": "fp8_e4m3"},
        {"q_dtype": "fp8_e4m3", "kv_dtype": "fp8_e4m3"},
        {"dtype": "fp16", "q_dtype": "fp16", "kv_dtype": "fp16"},
        {"head_dim": 48, "head_dim_v": 16},
        {"window": 3},
        {"window": 1},
        {"softcap": 5.0},
        {"sinks": "fp32"},
        {"sinks": "bf16", "window": 3},
        {"lse": True},
        {"q_len": 3, "lens": (3, 4, 11), "phase": "verify"},
        {"q_len": 3, "lens": (3, 4, 11), "phase": "verify", "causal": False},
        {"q_len": 3, "lens": (3, 4, 11), "phase": "verify", "window": 2},
        {"q_len": 0, "phase": "prefill", "lens": (1, 4, 11)},
        {"page_size": 1},
        {"kv_heads": 1},
    ],
)
def test_a_right_kernel_is_right(more):
    result = outcome(Eager, **more)
    assert result["outcome"] == "ok", result
    assert 0 <= result["error"] < result["tolerance"]


@pytest.mark.parametrize(
    ("kind", "expected", "text"),
    [
        (Wrong, "wrong-numbers", "relative error"),
        (Lazy, "wrong-numbers", "NaN"),
        (Stray, "wrong-numbers", "outside"),
        (Rude, "raises", "Invalid head_dim: 40"),
        (Faulty, "faults", "illegal memory access"),
    ],
)
def test_each_way_of_being_wrong_has_its_outcome(kind, expected, text):
    result = outcome(kind)
    assert result["outcome"] == expected
    assert text in result["message"]


def test_a_dropped_feature_is_called_ignored():
    result = outcome(Deaf, sinks="fp32")
    assert (result["outcome"], result["message"]) == ("ignored", "the answer is right without sinks")


def test_a_wrong_long_request_is_not_hidden_by_a_short_one():
    good = [torch.ones(1, 1, 4), torch.full((1, 1, 4), 0.01)]
    bad = [torch.ones(1, 1, 4), torch.full((1, 1, 4), 0.02)]
    assert worst_error(bad, good) == pytest.approx(1.0)


def test_a_wrong_token_is_not_hidden_by_a_long_prompt():
    good = [torch.ones(550, 2, 4)]
    bad = [good[0].clone()]
    bad[0][549] = 0
    assert worst_error(bad, good) > 0.2


def test_a_captured_case_replays_with_other_lengths():
    ask = case(graph=True).ask
    inputs = make_inputs(ask, "cpu", 3)
    lens, address = inputs.batch.seq_lens, inputs.batch.seq_lens.data_ptr()
    refresh(inputs, replace(ask, lens=ask.lens[::-1]), 4)
    assert lens.tolist() == list(inputs.batch.lens) == list(ask.lens[::-1])
    assert inputs.batch.seq_lens.data_ptr() == address


def test_unused_memory_is_poisoned_and_used_memory_is_random():
    ask = case().ask
    inputs = make_inputs(ask, "cpu", 3)
    assert inputs.out.isnan().all()
    used = {int(p) for row, n in enumerate(ask.lens) for p in inputs.batch.block_table[row, : -(-n // 4)]}
    for page in range(inputs.kv.k.shape[0]):
        assert bool(inputs.kv.k[page].eq(POISON).all()) == (page not in used)
    last = int(inputs.batch.block_table[2, 2])
    assert inputs.kv.v[last, 3:].eq(POISON).all()
    assert not inputs.kv.v[last, :3].eq(POISON).any()
    assert not torch.equal(make_inputs(ask, "cpu", 4).q, inputs.q)


def test_a_refresh_changes_numbers_and_table_in_place():
    ask = case().ask
    inputs = make_inputs(ask, "cpu", 3)
    before, address = reference(ask, inputs)[0][2].clone(), inputs.kv.k.data_ptr()
    refresh(inputs, ask, 4)
    assert inputs.kv.k.data_ptr() == address
    assert not torch.allclose(reference(ask, inputs)[0][2], before)


def test_the_window_counts_the_query_itself():
    assert visible(case(window=2).ask, 1, 5, "cpu").tolist() == [[False, False, False, True, True]]
    two = visible(case(q_len=2, lens=(5,), window=2).ask, 2, 5, "cpu")
    assert two.int().tolist() == [[0, 0, 1, 1, 0], [0, 0, 0, 1, 1]]


def test_exceptions_are_told_apart():
    assert classify(NotInstalledError("x")) == "not-installed"
    assert classify(RuntimeError("CUDA error: misaligned address")) == "faults"
    assert classify(RuntimeError("Ninja build failed. Ninja output: ...")) == "build-fails"
    assert classify(type("DSLRuntimeError", (Exception,), {})("x")) == "build-fails"
    assert classify(RuntimeError("Unsupported group_size: 5")) == "raises"
    for said in ("Could not find nvcc and default cuda_home='/usr/local/cuda'", "CUDA out of memory. Tried to",
                 "[Errno 2] No such file or directory: 'ninja'", "[Errno 28] No space left on device"):  # fmt: skip
        assert classify(RuntimeError(said)) == "not-installed", said
    assert classify(RuntimeError("out of resource: shared memory")) == "raises"
    log = "[1/2] nvcc ...\n/home/x/flashinfer/data/a.cu(3): error: static assertion failed\nmore"
    assert build_line(log) == "flashinfer/data/a.cu(3): error: static assertion failed"


def featured():
    """One case of each combination of features, phase and cache dtype that the tables of SM90 lead to."""
    packages = {"flashinfer-python": "0.7.4", "flash-attn-4": "4.0.0b36", "vllm": "0.33.0"}
    found = {}
    for case in Session(default_registry(), "sm90", packages, load_tolerances()).cases():
        ask = case.ask
        for name in set(ask.features()) & set(WITHOUT):
            key = (name, ask.window, ask.sinks, ask.softcap, ask.causal, ask.q_len, ask.q_dtype, ask.kv_dtype)
            if ask.head_dim == ask.head_dim_v == 128 and ask.q_heads <= 32:
                found.setdefault(key, (name, case))
    return list(found.values())


WITHOUT = {"window": {"window": None}, "softcap": {"softcap": None}, "sinks": {"sinks": None},
           "noncausal": {"causal": True}}  # fmt: skip


def test_no_answer_that_drops_a_feature_is_within_the_tolerance():
    tolerances = load_tolerances()
    asked = featured()
    assert {name for name, _ in asked} == set(WITHOUT)
    for name, case in asked:
        ask = case.ask
        inputs = make_inputs(ask, "cpu", 7)
        right, _ = reference(ask, inputs)
        plain = replace(ask, **WITHOUT[name])
        dropped, _ = reference(plain, replace_sinks(inputs, keep=plain.sinks is not None))
        assert worst_error(dropped, right) > 2 * tolerances.error(case.kernel, ask), (name, ask)
