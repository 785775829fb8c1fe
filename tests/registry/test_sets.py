"""Sets against the plain sets of their members, and their spelling."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnroute.registry.boxes import Box
from attnroute.registry.headdims import HeadDims, PairSpan
from attnroute.registry.sets import ANY, IntSet, SetSyntaxError, Span
from attnroute.registry.versions import VersionRange, VersionSyntaxError

LIMIT = 400


def _span(lo: int, step: int, count: int | None) -> Span:
    if count is None:
        return Span(lo, None, step)
    return Span(lo, lo + step * count, step if count else 1)


spans = st.builds(
    _span, st.integers(0, 40), st.sampled_from([1, 2, 3, 8, 16]), st.one_of(st.none(), st.integers(0, 10))
)
sets = st.one_of(st.just(ANY), st.lists(spans, min_size=1, max_size=3, unique=True).map(lambda s: IntSet(tuple(s))))


def members(found: IntSet) -> set[int]:
    return set(found.values(LIMIT)) - {0}


@given(sets, sets)
def test_intersection(a: IntSet, b: IntSet) -> None:
    assert members(a.intersect(b)) == members(a) & members(b)


@given(sets, sets)
def test_difference(a: IntSet, b: IntSet) -> None:
    assert members(a.subtract(b)) == members(a) - members(b)


@given(sets, sets)
def test_subset_is_never_claimed_wrongly(a: IntSet, b: IntSet) -> None:
    if a.is_subset(b):
        assert members(a) <= members(b)


@given(sets)
def test_subset_of_itself_and_of_any(a: IntSet) -> None:
    assert a.is_subset(a)
    assert a.is_subset(ANY)


@given(sets, st.integers(1, LIMIT))
def test_membership(a: IntSet, value: int) -> None:
    assert (value in a) == (value in members(a))


@given(sets)
def test_printed_as_it_is_read(a: IntSet) -> None:
    assert IntSet.parse(a.to_yaml()) == a


pair_spans = st.builds(
    PairSpan,
    st.builds(_span, st.integers(1, 20), st.sampled_from([1, 2, 8]), st.integers(0, 4)),
    st.one_of(st.none(), st.builds(_span, st.integers(1, 20), st.sampled_from([1, 2, 8]), st.integers(0, 4))),
)
pairs = st.lists(pair_spans, min_size=1, max_size=3, unique=True).map(lambda s: HeadDims(tuple(s)))


@given(pairs, pairs)
def test_boxes_of_head_dims(a: HeadDims, b: HeadDims) -> None:
    mine, theirs = set(a.members()), set(b.members())
    met = Box({"head_dim": a}).meet(Box({"head_dim": b}))
    if met is None:
        assert not mine & theirs
    else:
        both = met.sets["head_dim"]
        assert isinstance(both, HeadDims)
        assert set(both.members()) == mine & theirs
    assert Box({"head_dim": a}).inside(Box({"head_dim": b})) == (mine <= theirs)


@pytest.mark.parametrize(
    "text", ["16..8", "16..40/16", "1..2/0", "x", "", "1...2", "-1", "1..2/", True, None, [], [1, 1], 1.5]
)
def test_refused(text: object) -> None:
    with pytest.raises(SetSyntaxError):
        IntSet.parse(text)


@pytest.mark.parametrize("text", ["0", "16..8", "16x", "x16", "1x2x3", [], ["8", 8], False])
def test_refused_head_dims(text: object) -> None:
    with pytest.raises(SetSyntaxError):
        HeadDims.parse(text)


@pytest.mark.parametrize("text", ["1.0", "2..1", "1..1", "a..b", "1.0...2.0", ""])
def test_refused_versions(text: str) -> None:
    with pytest.raises(VersionSyntaxError):
        VersionRange.parse(text)


def test_versions_are_in_plain_order() -> None:
    span = VersionRange.parse("0.6.16..0.6.18rc4")
    assert "0.6.16.post3" in span
    assert "0.6.18rc3" in span
    assert "0.6.18rc4" not in span
    assert "0.6.18" not in span
    assert "0.6.17+cu130" in span
