"""Bytes of a token, blocks of a request, units and pages, by hand and by vLLM 0.33.0's formulas where it has one."""

from __future__ import annotations

import pytest

from attnroute import KVGroup
from attnroute.planning.pages import Spans, bytes_per_token, fits, kernel_pages, largest_page, state_blocks, units
from attnroute.registry.sets import IntSet

PER_HEAD = ("per_token_head_scales",)


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        (KVGroup("g", 256, 24, 4), 4096),
        (KVGroup("g", 256, 24, 4, kv_dtype="fp8_e4m3"), 2048),
        (KVGroup("g", 192, 16, 4, head_dim_v=128), 4 * 320 * 2),
        (KVGroup("g", 256, 24, 4, kv_dtype="nvfp4"), 4 * 288),  # a half byte each, one scale for 16
        (KVGroup("g", 256, 24, 4, kv_dtype="int8", traits=PER_HEAD), 2080),  # 4 x (512 + 2 x 4)
        (KVGroup("g", 128, 8, 8, kv_dtype="fp8_e4m3", traits=PER_HEAD), 8 * 264),
        (KVGroup("g", 576, 128, 1, kind="mla", head_dim_v=512, latent=512, rope=64, nope=128), 1152),
        (KVGroup("g", 576, 128, 1, kind="mla", kv_dtype="fp8_e4m3", latent=512, rope=64, nope=128), 576),
    ],
)
def test_bytes_per_token(group: KVGroup, expected: int) -> None:
    assert bytes_per_token(group) == expected


def test_blocks_of_a_request() -> None:
    spans = Spans(in_flight=4096, dcp=1, source_len=1500)
    full = KVGroup("full", 128, 8, 8)
    sliding = KVGroup("sliding", 128, 8, 8, sliding_window=1024)
    chunked = KVGroup("chunked", 128, 8, 8, chunk=8192)
    cross = KVGroup("cross", 64, 8, 8, attn_type="encoder_decoder")
    assert spans.blocks(full, 16, 16384) == 1024
    assert spans.blocks(sliding, 16, 16384) == 321  # 1023 + 4096 tokens, and one for a window that starts within
    assert spans.blocks(sliding, 16, 1000) == 63  # never more than the whole context takes
    assert spans.blocks(chunked, 64, 100_000) == 192
    assert spans.blocks(cross, 16, 448) == 94
    assert spans.blocks(KVGroup("enc", 64, 8, 8, attn_type="encoder_only"), 16, 448) == 0
    assert Spans(dcp=4).blocks(full, 16, 16384) == 256
    assert Spans(4096, dcp=4).blocks(sliding, 16, 16384) == 321  # a window is not shared


def test_state_blocks() -> None:
    assert state_blocks(0, prefix_caching=False) == 1
    assert state_blocks(7, prefix_caching=False) == 8
    assert state_blocks(7, prefix_caching=True) == 9


@pytest.mark.parametrize(
    ("sets", "granule", "expected"),
    [
        (["any"], 16, (16,)),
        ([[16, 32, 64, 128]], 16, (16,)),
        ([128, "16../16"], 16, (128,)),
        ([[32, 48], "any"], 16, (32, 48)),
        ([[32, 48], 64], 16, (64, 192)[:1]),
        (["256../256"], 16, (256,)),
        ([1], 16, (16,)),
        (["any"], 24, (24,)),
    ],
)
def test_units(sets: list[object], granule: int, expected: tuple[int, ...]) -> None:
    assert units([IntSet.parse(s) for s in sets], granule) == expected


def test_pages_of_a_block() -> None:
    three = IntSet.parse([16, 32, 64])
    assert largest_page(three, 832) == 64
    assert largest_page(three, 48) == 16
    assert largest_page(IntSet.parse("16../16"), 832) == 832
    assert largest_page(IntSet.parse(128), 832) is None
    assert fits(IntSet.parse("any"), 7)
    assert not fits(three, 24)
    assert kernel_pages([three, IntSet.parse("any")], 832) == (64, 64)  # one table for both
    assert kernel_pages([IntSet.parse(128), IntSet.parse([64])], 128) == (128, 64)  # or the largest of each
    assert kernel_pages([None, three], 64) == (None, 64)
