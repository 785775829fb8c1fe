"""Bands from made-up timings: found where they are, judged on shapes the fit never saw, by times of another pass."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from attnroute.probe.fit import Settings, fit
from attnroute.probe.grid import between, drawn, held_out, later, part_of, shapes, sweep
from attnroute.probe.judge import BASELINES, by_bands, folded, losses, static, two_line
from attnroute.probe.timing_run import passes_of
from attnroute.probe.timings import geometric, read_timings

SCRIPT = Path(__file__).parents[2] / "scripts/fit_bands.py"
A, B = ("xqa", "flashinfer-python"), ("native_tc", "flashinfer-python")


def made_up(noise=0.0, seed=1):
    """XQA takes twice as long at head 256 and more, and a third more where many streams read long contexts."""
    rng = random.Random(seed)
    timings = []
    for shape in (*shapes(), *sweep()):
        floor = shape.kv_bytes() / 4e6 + 5
        for number in passes_of(shape):
            for kernel in (A, B):
                time = floor
                if kernel == A:
                    seen = min(shape.context, shape.layer.window or shape.context)
                    slow = shape.batch * shape.layer.kv_heads >= 256 and seen > 4096
                    time *= 2.0 if shape.layer.head_dim >= 256 else 1.33 if slow else 0.8
                common = {
                    "request": shape.to_json(),
                    "batch": shape.batch,
                    "context": shape.context,
                    "floor_us": floor - 5,
                }
                time *= 1 + noise * rng.uniform(-1, 1)
                named = {"kernel": kernel[0], "provider": kernel[1], "pass": number, "off": 0.0}
                timings.append({**named, "median_us": time, **common})
    return {"schema": 1, "gpu": "x", "arch": "sm90", "driver": None, "cuda": None, "torch": None, "date": "2026-01-01",
            "bandwidth_gbs": 4000, "packages": {"flashinfer-python": "0.7.4"}, "cases": [],
            "timings": timings}  # fmt: skip


def test_the_grid_covers_what_it_has_to():
    grid = shapes()
    assert len(grid) >= 80
    assert not {s.id for s in sweep()} & {s.id for s in between()}
    models = {s.layer.model for s in grid}
    assert {"llama-3-8b", "qwen3-32b", "gpt-oss-120b", "llama-2-7b", "gemma-4-26b-global"} <= models
    assert {64, 128, 256, 512} == {s.layer.head_dim for s in grid}
    assert len({s.id for s in grid}) == len(grid)
    held = [s for s in grid if held_out(s.to_json(), s.context)]
    assert 0.15 < len(held) / len(grid) < 0.5
    for dim in (64, 128, 256, 512):
        assert {held_out(s.to_json(), s.context) for s in grid if s.layer.head_dim == dim} == {True, False}


@pytest.mark.parametrize("sweep", [sweep, between])
def test_a_sweep_shares_no_geometry_with_what_is_held_out_and_is_timed_once(sweep):
    swept = sweep()
    assert len({s.id for s in swept}) == len(swept) > 500
    assert not {(s.batch, s.context) for s in swept} & {(s.batch, s.context) for s in later()}
    assert not any(held_out(s.to_json(), s.context) for s in swept)
    models = [s.layer for s in shapes() if held_out(s.to_json(), 512)]
    kept = {(one.q_heads, one.kv_heads, one.head_dim) for one in models}
    assert not any((s.layer.q_heads, s.layer.kv_heads, s.layer.head_dim) in kept for s in swept)
    assert {s.layer.head_dim for s in swept} == {64, 128, 256, 512}
    assert {passes_of(s) for s in swept} == {(1,), (2,)}
    assert {passes_of(s) for s in shapes()} == {(1, 2)}


def test_the_drawn_set_is_held_out_whole_and_spreads_over_layers_batches_and_contexts():
    found = drawn()
    assert {part_of(s.layer.model) for s in found} == {"third"}
    assert all(held_out(s.to_json(), s.context) for s in found)
    assert {passes_of(s) for s in found} == {(1, 2)}
    assert len({s.id for s in found}) == len(found) >= 100
    assert len({s.layer.model for s in found}) == 25
    assert min(s.batch for s in found) == 1
    assert max(s.batch for s in found) > 128
    assert min(s.context for s in found) < 256 < 32768 < max(s.context for s in found)
    others = {(s.batch, s.context) for s in (*shapes(), *sweep(), *between(), *later())}
    assert not others & {(s.batch, s.context) for s in found}


def test_what_is_held_out_hangs_on_model_and_context_alone():
    for shape in shapes():
        other = {**shape.to_json(), "page_size": 1, "kv_dtype": "fp16"}
        assert held_out(other, shape.context) == held_out(shape.to_json(), shape.context)


def test_bands_find_the_crossings_and_lose_nothing_without_noise():
    timed = read_timings([made_up()])
    bands = fit(timed)
    rule = by_bands(bands, two_line)
    wide = [s for s in timed if not s.held_out and s.head_dim == 128]  # enough shapes on each side of the crossing
    assert geometric(v for v, _, _ in losses(rule, wide)) < 1.01
    assert geometric(v for v, _, _ in losses(rule, [s for s in timed if s.held_out])) < 1.01
    assert all(b.order[0][1] == 1.0 for b in bands)
    assert geometric(v for v, _, _ in losses(BASELINES["XQA whenever it can"], timed)) > 1.2


def test_bands_are_disjoint():
    timed = read_timings([made_up()])
    bands = fit(timed)
    for shape in timed:
        assert sum(b.holds(shape) for b in bands) == 1


def test_noise_flatters_neither_the_pick_nor_the_best():
    timed = read_timings([made_up(noise=0.05)])
    for shape, true in zip(timed, read_timings([made_up()]), strict=True):
        assert shape.loss(A) == pytest.approx(true.loss(A), rel=0.12)
    assert len(fit(timed)) < 60, "noise makes no crossings to speak of"


def test_static_keeps_one_kernel_for_a_group():
    timed = read_timings([made_up()])
    rule = static(fit(timed), timed, two_line)
    for group in {s.group for s in timed}:
        assert len({rule(s) for s in timed if s.group == group}) == 1


def test_wrong_failed_and_single_timings_are_left_out():
    capture = made_up()
    wrong = [{**t, "off": 0.9} if t["kernel"] == "xqa" else t for t in capture["timings"]]
    assert read_timings([{**capture, "timings": wrong}]) == []
    unclean = [{**t, "off": None, "failed": "wrong-numbers"} if t["kernel"] == "xqa" else t for t in capture["timings"]]
    assert read_timings([{**capture, "timings": unclean}]) == []
    failed = [{k: v for k, v in t.items() if k != "median_us"} for t in capture["timings"]]
    assert read_timings([{**capture, "timings": failed}]) == []


def test_the_script_prints_bands_that_a_table_can_hold(tmp_path):
    path = tmp_path / "x.json"
    path.write_text(json.dumps(made_up(noise=0.01)))
    done = subprocess.run(
        [sys.executable, SCRIPT, path, "--yaml-only"], capture_output=True, text=True, check=True, timeout=120
    )
    bands = yaml.safe_load(done.stdout)["preference"]
    assert len({b["band"] for b in bands}) == len(bands)
    assert {"band", "phase", "dtypes", "head_dim", "order", "evidence"} <= set(bands[0])
    done = subprocess.run(
        [sys.executable, SCRIPT, path, "--report-only"], capture_output=True, text=True, check=True, timeout=120
    )
    assert "HELD OUT" in done.stdout
    assert "bands, static" in done.stdout
    assert "vLLM's default" in done.stdout


def test_the_script_says_what_it_cannot_read(tmp_path):
    path = tmp_path / "x.json"
    path.write_text("{}")
    done = subprocess.run([sys.executable, SCRIPT, path], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert "not a capture" in done.stderr


def test_fifths_left_out_judge_settings_and_never_see_what_they_are_judged_by():
    shapes = [s for s in read_timings([made_up()]) if not s.held_out]
    fallback = two_line
    fine, none = (folded(shapes, fallback, s) for s in (Settings(), Settings(price=1e9)))
    assert len(fine) == len(none) == 2 * len(shapes)
    assert geometric(e[0] for e in fine) < geometric(e[0] for e in none)
