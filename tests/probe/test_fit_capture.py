"""The committed bands of SM90: refitting gives them back, and they lose what docs/preference.md says."""

import json
import re
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import pytest
import yaml

from attnroute.probe.fit import CHOSEN, fit
from attnroute.probe.grid import part_of
from attnroute.probe.judge import BASELINES, first_of, judged, losses
from attnroute.probe.timings import geometric, read_timings
from attnroute.registry.registry import default_registry

ROOT = Path(__file__).parents[2]
#: Those whose timings the bands rest on; the second also holds the second and third held-out sets.
CAPTURES = [ROOT / f"capabilities/captures/h200-sm90-2026-11-30-{n}.json" for n in (3, 5)]
DOC = (ROOT / "docs/preference.md").read_text(encoding="utf-8")
TABLE = yaml.safe_load((ROOT / "capabilities/arch/sm90.yaml").read_text(encoding="utf-8"))["preference"]


@pytest.fixture(scope="module")
def timed():
    return read_timings(json.loads(path.read_text(encoding="utf-8")) for path in CAPTURES)


def grid(timed):
    return [s for s in timed if s.held_out and part_of(s.model) == "grid"]


def second(timed):
    return [s for s in timed if part_of(s.model) == "second"]


def third(timed):
    return [s for s in timed if part_of(s.model) == "third"]


def rules(timed, held):
    bands = fit(timed)
    fallback = first_of(*default_registry().table("sm90").default_order["decode"], otherwise=())
    return judged(bands, held, fallback)


def test_the_captures_hold_enough_shapes_fitted_and_held_out(timed):
    assert len(timed) >= 80
    held = [s for s in timed if s.held_out]
    assert len(held) > 40
    assert {s.head_dim for s in held} == {s.head_dim for s in timed} == {64, 128, 256, 512}


def test_refitting_gives_the_committed_bands():
    script = ROOT / "scripts/fit_bands.py"
    done = subprocess.run(
        [sys.executable, script, *CAPTURES, "--yaml-only"], capture_output=True, text=True, check=True, timeout=120
    )
    assert yaml.safe_load(done.stdout)["preference"] == TABLE


def test_bands_rest_on_enough_shapes_and_rank_all_providers(timed):
    for band in fit(timed):
        assert band.shapes >= CHOSEN.least
        assert band.order[0][1] == 1.0
    listed = {(e["kernel"], e["provider"]) for band in TABLE for e in band["order"]}
    assert {("fa3", "vllm"), ("fa4", "vllm"), ("fa4", "flash-attn-4"), ("xqa", "flashinfer-python")} <= listed


def test_each_timed_shape_lies_in_at_most_one_band(timed):
    bands = fit(timed)
    for shape in timed:
        assert sum(band.holds(shape) for band in bands) <= 1
    assert not any(a["band"] == b["band"] for a, b in combinations(TABLE, 2))


@pytest.mark.parametrize(("part", "column"), [(grid, 0), (second, 2), (third, 4)])
def test_what_is_lost_on_held_out_shapes_is_what_the_page_says(timed, part, column):
    held = part(timed)
    number = r" (-?[\d.]+) % \|"
    lines = re.findall(rf"^\| ([^|]+?) +\|{number * 6}$", DOC, re.MULTILINE)
    stated = {name: [float(n) for n in numbers[column : column + 2]] for name, *numbers in lines}
    for name, rule in rules(timed, held).items():
        found = losses(rule, held)
        assert len(found) == len(held)
        mean, worst = stated[name]
        assert (geometric(e[0] for e in found) - 1) * 100 == pytest.approx(mean, abs=0.05), name
        assert (found[0][0] - 1) * 100 == pytest.approx(worst, abs=0.1), name


def test_choosing_by_bands_keeps_the_promise_and_loses_less_than_every_rule_of_thumb(timed):
    held = grid(timed)
    every = rules(timed, held)
    found = losses(every["bands, per request"], held)
    assert geometric(e[0] for e in found) <= 1.005
    assert found[0][0] <= 1.05
    for name in BASELINES:
        other = losses(every[name], held)
        assert geometric(e[0] for e in other) > geometric(e[0] for e in losses(every["bands, static"], held)), name
        assert other[0][0] > found[0][0], name


@pytest.mark.parametrize("part", [second, third])
def test_bands_lose_less_than_every_rule_of_thumb_on_the_other_sets_too(timed, part):
    held = part(timed)
    every = rules(timed, held)
    for name in BASELINES:
        mean = geometric(e[0] for e in losses(every[name], held))
        assert mean > geometric(e[0] for e in losses(every["bands, per request"], held)), name


def test_no_choice_that_cannot_switch_could_lose_so_little(timed):
    """What docs/preference.md says of the static target: even known afterwards, one kernel a group loses more."""
    held = grid(timed)
    every = rules(timed, held)
    assert geometric(e[0] for e in losses(every["hindsight, static"], held)) > 1.01
    assert losses(every["hindsight, static, least worst"], held)[0][0] > 1.08
