"""Wrong shapes, dtypes, devices and layouts are refused before anything is launched."""

# ruff: noqa: E402 - without torch there is nothing to import

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from attnroute.launch.base import Launcher
from attnroute.launch.calls import Settings
from attnroute.launch.check import check_batch, check_kv, check_out, check_q, check_sinks
from attnroute.launch.errors import LaunchError
from attnroute.launch.problem import AttentionOut, Batch, KVPages, Limits, Problem

PROBLEM = Problem(8, 2, 64, 64, 16)
LIMITS = Limits(4, 256, device="cpu")


def pages(count=6, *, dtype=torch.bfloat16, dim=64, layout="NHD"):
    if layout == "HND":
        return torch.zeros((count, 2, 16, dim), dtype=dtype).transpose(1, 2)
    return torch.zeros((count, 16, 2, dim), dtype=dtype)


def batch(lens=(3, 40), width=3, **more):
    table = torch.zeros((len(lens), width), dtype=torch.int32)
    return Batch(table, torch.tensor(lens, dtype=torch.int32), tuple(lens), **more)


def code(call, *args):
    with pytest.raises(LaunchError) as caught:
        call(*args)
    return caught.value.code


def test_fitting_inputs_pass():
    check_q(PROBLEM, torch.zeros((2, 8, 64), dtype=torch.bfloat16), 2, "cpu")
    check_kv(PROBLEM, KVPages(pages(), pages()), "cpu", Settings(equal_kv_strides=True, aligned_strides=True))
    check_batch(PROBLEM, LIMITS, batch())


def test_q():
    good = torch.zeros((2, 8, 64), dtype=torch.bfloat16)
    assert code(check_q, PROBLEM, good[:, :4], 2, "cpu") == "shape"
    assert code(check_q, PROBLEM, good, 3, "cpu") == "shape"
    assert code(check_q, PROBLEM, good.float(), 2, "cpu") == "dtype"
    assert code(check_q, PROBLEM, good, 2, "cuda") == "device"
    assert code(check_q, PROBLEM, good.transpose(1, 2).contiguous().transpose(1, 2), 2, "cpu") == "stride"


def test_kv():
    plain = Settings()
    assert code(check_kv, PROBLEM, KVPages(pages(dim=32), pages()), "cpu", plain) == "shape"
    assert code(check_kv, PROBLEM, KVPages(pages(), pages(dtype=torch.float16)), "cpu", plain) == "dtype"
    assert code(check_kv, PROBLEM, KVPages(pages(), pages(count=5)), "cpu", plain) == "shape"
    hnd = KVPages(pages(layout="HND"), pages(layout="HND"))
    assert code(check_kv, PROBLEM, hnd, "cpu", plain) == "layout"
    check_kv(replace(PROBLEM, layout="HND"), hnd, "cpu", plain)
    wide = torch.zeros((6, 16, 2, 72), dtype=torch.bfloat16)[..., :64]
    assert code(check_kv, PROBLEM, KVPages(wide, pages()), "cpu", Settings(equal_kv_strides=True)) == "stride"
    odd = torch.zeros((6, 16, 2, 65), dtype=torch.bfloat16)[..., :64]
    assert code(check_kv, PROBLEM, KVPages(odd, odd), "cpu", Settings(aligned_strides=True)) == "alignment"
    check_kv(PROBLEM, KVPages(wide, pages()), "cpu", plain)


def test_batch():
    assert code(check_batch, PROBLEM, LIMITS, batch((1,) * 5)) == "batch"
    assert code(check_batch, PROBLEM, LIMITS, batch((1, 0))) == "context"
    assert code(check_batch, PROBLEM, LIMITS, batch((1, 257), 17)) == "context"
    assert code(check_batch, PROBLEM, LIMITS, batch((1, 100))) == "shape"
    assert code(check_batch, replace(PROBLEM, q_len=0), LIMITS, batch()) == "batch"
    assert code(check_batch, replace(PROBLEM, q_len=4), LIMITS, batch((3, 40))) == "batch"
    check_batch(replace(PROBLEM, q_len=4, causal=False), LIMITS, batch((3, 40)))
    wrong = replace(batch(), block_table=torch.zeros((2, 3), dtype=torch.int64))
    assert code(check_batch, PROBLEM, LIMITS, wrong) == "dtype"


def test_out():
    out = torch.zeros((2, 8, 64), dtype=torch.bfloat16)
    check_out(PROBLEM, out, 2, "cpu")
    assert code(check_out, PROBLEM, out, 3, "cpu") == "shape"
    assert code(check_out, PROBLEM, out.float(), 2, "cpu") == "dtype"
    assert code(check_out, PROBLEM, out.to("meta"), 2, "cpu") == "device"
    wide = torch.zeros((2, 8, 128), dtype=torch.bfloat16)
    assert code(check_out, PROBLEM, wide[..., :64], 2, "cpu") == "stride"


def test_query_tokens_of_a_fixed_number_and_a_limit():
    made = Batch(torch.zeros((2, 4), dtype=torch.int32), torch.tensor([40, 50], dtype=torch.int32), (40, 50))
    limits = Limits(4, 64, 8, device="cpu")
    check_batch(PROBLEM, limits, replace(made, q_lens=(1, 1)))
    assert code(check_batch, PROBLEM, limits, replace(made, q_lens=(2, 3))) == "batch"
    many = replace(PROBLEM, phase="prefill", q_len=0)
    check_batch(many, limits, replace(made, q_lens=(3, 5)))
    assert code(check_batch, many, limits, replace(made, q_lens=(4, 5))) == "batch"


def test_sinks():
    sinks = torch.zeros(8)
    asked = replace(PROBLEM, sinks="fp32")
    check_sinks(asked, sinks, "cpu")
    assert code(check_sinks, PROBLEM, sinks, "cpu") == "sinks"
    assert code(check_sinks, asked, None, "cpu") == "sinks"
    assert code(check_sinks, asked, sinks[:4], "cpu") == "shape"
    assert code(check_sinks, asked, sinks.bfloat16(), "cpu") == "dtype"
    assert code(check_sinks, asked, torch.zeros(16)[::2], "cpu") == "stride"


class Recorder(Launcher):
    expresses = frozenset({"lse", "cast-q"})

    def modules(self):
        return ()

    def workspace_bytes(self, limits=None):
        return 0

    def _plan(self, batch):
        self.table = self._keep("table", batch.block_table)

    def _run(self, q, kv, sinks, out, lse):
        self.q = q
        return AttentionOut(out.fill_(1), lse)


def recorder(problem=PROBLEM, settings=Settings()):  # noqa: B008
    return Recorder(problem, LIMITS, settings, "none")


def test_run_needs_a_plan_and_writes_where_told():
    launcher = recorder()
    q, kv = torch.zeros((2, 8, 64), dtype=torch.bfloat16), KVPages(pages(), pages())
    assert code(launcher.run, q, kv) == "no-plan"
    launcher.plan(batch())
    out = torch.zeros((2, 8, 64), dtype=torch.bfloat16)
    assert launcher.run(q, kv, out=out).out is out
    with pytest.raises(LaunchError, match="out has shape"):
        launcher.run(q, kv, out=out[:1])
    assert launcher.run(q, kv).lse is None


def test_tables_keep_their_address_while_their_shape_stays():
    launcher = recorder()
    launcher.plan(batch())
    first = launcher.table.data_ptr()
    launcher.plan(replace(batch(), block_table=torch.ones((2, 3), dtype=torch.int32)))
    assert launcher.table.data_ptr() == first
    assert launcher.table.eq(1).all()


def test_the_query_is_cast_where_the_kernel_reads_fp8():
    launcher = recorder(replace(PROBLEM, q_dtype="fp8_e4m3"))
    launcher.plan(batch())
    launcher.run(torch.full((2, 8, 64), 1e4, dtype=torch.bfloat16), KVPages(pages(), pages()))
    assert launcher.q.dtype == torch.float8_e4m3fn
    assert launcher.q.float().eq(448).all()


def test_what_the_call_has_no_parameter_for_is_refused_at_once():
    with pytest.raises(LaunchError, match="no parameter for softcap") as caught:
        recorder(replace(PROBLEM, softcap=30.0))
    assert caught.value.code == "no-parameter"


def test_a_kernel_that_writes_bf16_serves_an_fp16_model():
    launcher = recorder(replace(PROBLEM, dtype="fp16", q_dtype="fp8_e4m3"), Settings(out_dtype="bf16"))
    launcher.plan(batch())
    made = launcher.run(torch.zeros((2, 8, 64), dtype=torch.float16), KVPages(pages(), pages()))
    assert made.out.dtype == torch.float16
    assert made.out.eq(1).all()
