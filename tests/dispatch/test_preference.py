"""Which times a request is ranked by: bands of SM90 as measured, windows and providers minded, nothing elsewhere."""

import pytest

from attnroute import KVGroup, plan, route
from attnroute.planning.workload import Workload
from attnroute.registry.registry import default_registry

ALL = {"flashinfer-python": "0.7.4", "vllm": "0.33.0", "flash-attn-4": "4.0.0b36"}
SMALL = KVGroup("g", 256, 32, 16)
BANDS = {b["band"]: b for b in default_registry().table("sm90").preference}


def order(decision):
    return [(c.kernel, c.provider) for c in decision.candidates if c.accepted]


def test_sm90_says_measured_with_the_relative_time():
    found = route(KVGroup("g", 256, 24, 4), "sm90", ALL, batch_size=1, context_len=4096)
    assert found.preference.measured
    assert found.preference.relative_time == 1.0
    assert found.preference.text == "measured on sm90, relative time 1.00"
    times = [c.preference.relative_time for c in found.candidates if c.accepted and c.preference.measured]
    assert times == sorted(times)
    assert len(times) > 3


@pytest.mark.parametrize("arch", ["sm100", "sm103", "sm110", "sm120", "sm121"])
def test_other_architectures_say_that_nothing_is_measured(arch):
    found = route(KVGroup("g", 128, 32, 8), arch, ALL, batch_size=1, context_len=4096)
    assert found.served
    assert not found.preference.measured
    assert found.preference.relative_time is None
    assert "not measured" in found.preference.text


def test_what_no_band_covers_says_so_on_sm90_too():
    for group in (KVGroup("g", 128, 32, 8, dtype="fp16"), KVGroup("g", 96, 32, 8)):
        found = route(group, "sm90", ALL)
        assert "not measured" in found.preference.text
    assert not route(KVGroup("g", 128, 32, 8), "sm90", ALL, phase="prefill").preference.measured


def test_the_rest_is_ranked_where_the_best_is_not_installed():
    first = order(route(SMALL, "sm90", ALL, batch_size=1))
    assert first[0] == ("fa4", "vllm")
    alone = route(SMALL, "sm90", {"flashinfer-python": "0.7.4"}, batch_size=1)
    assert order(alone) == [c for c in first if c[1] == "flashinfer-python"]
    assert alone.preference.measured
    assert alone.preference.relative_time > 1


def test_a_version_below_the_measured_one_is_not_ranked_by_measurement():
    old = route(SMALL, "sm90", {"flashinfer-python": "0.6.16.post3"}, batch_size=1)
    assert old.served
    assert not old.preference.measured


def times(group, **more):
    found = route(group, "sm90", ALL, **more)
    return {f"{c.kernel}@{c.provider}": c.preference.relative_time for c in found.candidates if c.accepted}


def test_a_windowed_layer_is_ranked_by_bands_of_its_window_only():
    plain = KVGroup("g", 128, 32, 16)
    windowed = KVGroup("g", 128, 32, 16, sliding_window=1024)
    asked = {"batch_size": 32, "context_len": 65536, "page_size": 16}
    assert times(windowed, **asked) != times(plain, **asked)
    # FlashInfer's CUDA-core kernel reads the whole context of a windowed layer
    assert times(windowed, **asked)["native_cc@flashinfer-python"] > 2
    short = {**asked, "context_len": 1024}
    assert times(windowed, **short) == times(plain, **short), "a window as long as the context cuts nothing"


def test_a_window_that_no_band_names_counts_as_the_context_that_is_read():
    group = KVGroup("g", 128, 64, 8, kv_dtype="fp8_e4m3", sliding_window=4096)
    whole = KVGroup("g", 128, 64, 8, kv_dtype="fp8_e4m3")
    assert times(group, batch_size=1, context_len=65536) == times(whole, batch_size=1, context_len=4096)
    assert times(whole, batch_size=1, context_len=4096) != times(whole, batch_size=1, context_len=65536)


def test_a_plan_weighs_windowed_layers_by_their_window():
    def kernel(window, context):
        group = KVGroup("g", 128, 64, 8, kv_dtype="fp8_e4m3", sliding_window=window, layers=(0,))
        load = Workload(batch_sizes=(1,), context_lens=(context,))
        return plan([group], "sm90", ALL, workload=load).to_json()["groups"][0]["phases"]["decode"]["kernel"]

    assert kernel(1024, 65536) == kernel(None, 1024) == "xqa"
    assert kernel(None, 65536) == "fa3"
