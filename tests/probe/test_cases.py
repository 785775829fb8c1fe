"""Cases come from what rows declare: edges, insides, one step outside, holes and traps."""

import pytest

pytest.importorskip("torch")

from attnroute.probe.case import Ask, Case
from attnroute.probe.cases import cases_for, rank, uncovered
from attnroute.probe.sampling import ANY_PAGES, head_samples, int_samples
from attnroute.registry.build import build_table
from attnroute.registry.headdims import HeadDims
from attnroute.registry.sets import IntSet

from .fakes import CATALOGUE, PACKAGES, ROW, TABLE, table


@pytest.fixture(scope="module")
def cases():
    return cases_for(table(), PACKAGES, tiles={"alpha": {64: (128,)}})


def values(cases, name):
    return {getattr(c.ask, name) for c in cases}


def test_each_request_stands_once_with_all_its_reasons(cases):
    assert len({c.id for c in cases}) == len(cases)
    typical = next(c for c in cases if any(w.endswith("typical") for w in c.why))
    assert len(typical.why) > 3
    assert typical.calls == ("warm-up",)


def test_every_head_dim_inside_the_edges_and_one_step_beyond(cases):
    assert {32, 48, 64, 80, 96} <= values(cases, "head_dim")
    assert {16, 112} <= values(cases, "head_dim")


def test_pages_ratios_dtypes_features_layouts(cases):
    assert {16, 32, 8, 64, 128} <= values(cases, "page_size")
    assert {1, 5, 6, 8, 12, 64} <= {c.ask.ratio for c in cases}
    assert {("bf16", "bf16"), ("bf16", "fp8_e4m3"), ("fp16", "fp16"), ("fp16", "bf16"), ("bf16", "fp8_e5m2")} <= {
        (c.ask.q_dtype, c.ask.kv_dtype) for c in cases
    }
    assert {"window", "softcap", "lse", "sinks"} <= {f for c in cases for f in c.ask.features()}
    assert values(cases, "layout") == {"NHD", "HND"}
    assert True in values(cases, "graph")
    assert any(c.ask.kv_heads == 1 for c in cases)


def test_holes_and_traps_are_asked(cases):
    reasons = {w.partition(":")[0]: c for c in cases for w in c.why if "#" in w or "page-8" in w}
    assert any(c.ask.ratio in (5, 6) for c in reasons.values())
    assert any(c.ask.page_size == 8 for c in reasons.values())


def test_a_page_of_one_key_tile_is_asked(cases):
    assert any("key tile" in w for c in cases for w in c.why)


def test_claims_come_before_steps_between(cases):
    ranks = [rank(c) for c in cases]
    assert ranks == sorted(ranks)


def test_lengths_cover_the_shortest_a_full_page_and_a_split():
    for case in cases_for(table(), PACKAGES):
        lens = case.ask.lens
        assert min(lens) >= max(case.ask.q_len, 1)
        assert max(lens) > 2 * case.ask.page_size
        assert case.ask.page_size in lens or case.ask.q_len > case.ask.page_size


def test_a_row_is_asked_in_each_of_its_phases():
    both = {**ROW, "dims": {**ROW["dims"], "phase": ["decode", "verify", "prefill"], "q_len": "1..8"}}
    found = cases_for(build_table({**TABLE, "rows": [both]}, CATALOGUE), PACKAGES)
    prefill = [c.ask for c in found if c.ask.phase == "prefill"]
    assert all(ask.q_len == 0 and len(set(ask.q_lens())) > 1 for ask in prefill)
    assert {("bf16", "bf16"), ("bf16", "fp8_e4m3"), ("fp16", "fp16")} == {(a.q_dtype, a.kv_dtype) for a in prefill}
    assert {32, 96} <= {a.head_dim for a in prefill}
    assert any(a.window for a in prefill)
    assert any(not a.causal for a in prefill)
    assert {a.layout for a in prefill} == {"NHD", "HND"}
    assert any(a.lse for a in prefill)
    assert any(c.ask.phase == "verify" and c.ask.q_len == 4 for c in found)


def test_packages_that_are_not_here_give_no_case():
    assert cases_for(table(), {}) == []
    assert cases_for(table(), {"alpha-dist": "0.9"}) == []
    assert uncovered(table(), {}) == [("sm00/alpha/decode", "alpha-dist is not installed")]
    assert "outside" in uncovered(table(), {"alpha-dist": "0.9"})[0][1]


def test_cases_survive_json(cases):
    for case in cases:
        again = Case.from_json(case.to_json())
        assert (again.id, again.ask, again.calls, again.why) == (case.id, case.ask, case.calls, case.why)
    assert Ask.from_json(cases[0].ask.to_json()) == cases[0].ask


def test_samples_of_open_and_free_sets():
    assert [s.value[0] for s in int_samples(IntSet.parse("any"), ANY_PAGES)] == [
        *sorted(ANY_PAGES)[:1],
        64,
        16,
        48,
        128,
        832,
    ]
    opened = int_samples(IntSet.parse("2.."), (1, 2, 4))
    assert {s.value[0] for s in opened if s.reason == "outside"} == {1}
    assert max(s.value[0] for s in opened) < 4096
    pairs = head_samples(HeadDims.parse("8..256/8x8..256/8"))
    assert {(64, 128), (192, 128), (8, 8), (256, 256)} <= {s.value for s in pairs if s.reason != "outside"}
    assert {(264, 264)} <= {s.value for s in pairs if s.reason == "outside"}
    listed = head_samples(HeadDims.parse([64, 128, 256]))
    assert {(96, 96), (192, 192), (32, 32), (320, 320)} <= {s.value for s in listed if s.reason == "outside"}
