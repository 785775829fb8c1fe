"""Which bands a request lies in and what they say together, on made-up bands: half-open, window-bounded, weighed."""

from dataclasses import replace
from math import sqrt

import pytest

from attnroute.dispatch.preference import measured_bands, relative_times
from attnroute.dispatch.request import Request
from attnroute.registry.registry import default_registry

A, B = ("xqa", "flashinfer-python"), ("native_tc", "flashinfer-python")
INSTALLED = {A: "0.7.4", B: "0.7.4"}
TABLE = default_registry().table("sm90")


def band(a, b, *, shapes=1, versions="0.7.4..", **ranges):
    kernels = [{"kernel": k, "provider": p, "versions": versions, "time": t} for (k, p), t in ((A, a), (B, b))]
    return {"band": "x", "phase": "decode", "dtypes": {"bf16": ["bf16"]}, "head_dim": 128, "kernels": kernels,
            "shapes": shapes, **ranges}  # fmt: skip


def times(bands, **asked):
    request = Request("sm90", head_dim=(128, 128), dtype="bf16", kv_dtype="bf16", **asked)
    table = replace(TABLE, preference=tuple(bands), memo={})
    return relative_times(measured_bands(table, request), request, INSTALLED)


def test_each_axis_is_half_open():
    for axis, asked in (
        ("group_ratio", lambda n: {"group_ratio": n}),
        ("batch", lambda n: {"batch_size": n}),
        ("context", lambda n: {"context_len": n}),
        ("page_size", lambda n: {"page": n}),
        ("batch_kv_heads", lambda n: {"batch_size": n, "q_heads": 4, "group_ratio": 4}),
    ):
        bands = [band(1, 2, **{axis: "..8"}), band(3, 1, **{axis: "8.."})]
        assert [times(bands, **asked(n))[A] for n in (1, 7, 8, 9000)] == pytest.approx([1, 1, 3, 3]), axis


def test_streams_are_requests_times_kv_heads():
    bands = [band(1, 2, batch_kv_heads="..64"), band(3, 1, batch_kv_heads="64..")]
    assert times(bands, batch_size=8, q_heads=32, group_ratio=4)[A] == pytest.approx(3)
    assert times(bands, batch_size=8, q_heads=28, group_ratio=4)[A] == pytest.approx(1)
    assert times(bands, batch_size=8)[A] == pytest.approx(sqrt(3)), "without heads the product is free"


def test_what_is_free_is_a_mean_weighed_by_shapes():
    bands = [band(1, 2, batch="..8", shapes=3), band(4, 1, batch="8..")]
    assert times(bands)[A] == pytest.approx(4**0.25)
    assert times(bands)[B] == pytest.approx(2**0.75)


def test_a_window_bounds_the_context_whether_it_is_known_or_free():
    bands = [band(1, 2, context="..1000"), band(3, 1, context="1000..")]
    assert times(bands, context_len=9000, window=500)[A] == pytest.approx(1)
    assert times(bands, window=500)[A] == pytest.approx(1)
    assert times(bands, context_len=9000, window=5000)[A] == pytest.approx(3)


def test_a_kernel_that_an_open_band_does_not_time_is_not_ranked():
    lone = band(1, 2, batch="8..")
    lone["kernels"] = lone["kernels"][:1]
    assert set(times([band(1, 2, batch="..8"), lone])) == {A}
    assert times([band(1, 2, versions="0.8..")]) == {}
    assert times([]) == {}


def test_a_band_with_a_window_is_for_layers_whose_window_cuts_the_context():
    bands = [band(1, 2), band(3, 1, window="512..2048")]
    assert times(bands, context_len=9000)[A] == pytest.approx(1)
    assert times(bands, context_len=9000, window=1024)[A] == pytest.approx(3)
    assert times(bands, window=1024)[A] == pytest.approx(3)
    assert times(bands, features=(("window", True),))[A] == pytest.approx(3), "a window of unknown length"
    assert times(bands, context_len=1000, window=1024)[A] == pytest.approx(1)
    assert times(bands, context_len=9000, window=4096)[A] == pytest.approx(1), "no band names it"


def test_the_context_of_a_windowed_band_is_that_of_the_cache():
    bands = [
        band(1, 2),
        band(2, 1, window="512..2048", context="..9000"),
        band(4, 1, window="512..2048", context="9000.."),
    ]
    assert times(bands, context_len=8000, window=1024)[A] == pytest.approx(2)
    assert times(bands, context_len=9000, window=1024)[A] == pytest.approx(4)
