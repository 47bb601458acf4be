"""Splitting of large tables: even, complete, and seldom anew."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.control.core.frontier.span_split import SplitSettings, resplit_table, span_count, split_table
from schemas.ids import TableId
from schemas.tidb.keys import row_key, table_span
from schemas.tidb.spans import TableSpan

TABLE = TableId(45)
ON = SplitSettings(enable_table_across_nodes=True, region_threshold=10)


def keys(count: int, step: int = 10) -> list[bytes]:
    return [row_key(TABLE, step * number) for number in range(1, count + 1)]


def regions_in(spans: tuple[TableSpan, ...], boundaries: list[bytes]) -> list[int]:
    return [1 + sum(span.start < key < span.end for key in boundaries) for span in spans]


@pytest.mark.parametrize(
    ("regions", "captures", "spans"),
    [
        (100_000, 1, 3), (100_000, 2, 6), (100_000, 3, 9), (100_000, 10, 90), (100_000, 20, 100),
        (1_000_000, 1, 20), (10_000_000, 3, 100), (2, 1, 2), (1, 5, 1),
    ],
)  # fmt: skip
def test_span_count_is_ticdcs(regions: int, captures: int, spans: int) -> None:
    """By hand from ``max(captures * max(captures - 1, 3), regions / 50,000)``, at most 100 and a region each."""
    assert span_count(regions, captures) == spans


@given(st.sets(st.integers(1, 10_000), min_size=9, max_size=200), st.integers(1, 12))
def test_split_table_covers_it_exactly_in_even_spans_between_regions(handles: set[int], captures: int) -> None:
    boundaries = [row_key(TABLE, handle) for handle in sorted(handles)]
    spans = split_table(TABLE, boundaries, captures, ON)
    assert (spans[0].start, spans[-1].end) == table_span(TABLE)
    assert all(lower.end == upper.start and lower.start < lower.end for lower, upper in pairwise(spans))
    assert {span.start for span in spans[1:]} <= set(boundaries)
    counts = regions_in(spans, boundaries)
    assert (len(spans), sum(counts)) == (span_count(len(boundaries) + 1, captures), len(boundaries) + 1)
    assert max(counts) - min(counts) <= 1
    assert resplit_table(spans, boundaries, captures, ON) is None


def test_split_table_below_the_threshold_or_switched_off_is_whole() -> None:
    whole = (TableSpan.of_table(TABLE),)
    assert split_table(TABLE, keys(8), 1, ON) == whole
    assert len(split_table(TABLE, keys(9), 1, ON)) == 3
    assert split_table(TABLE, keys(1_000), 1, SplitSettings(region_threshold=10)) == whole
    assert split_table(TABLE, [], 1, SplitSettings(enable_table_across_nodes=True, region_threshold=0)) == whole


def test_resplit_table_that_grew_over_the_threshold_is_split() -> None:
    whole = (TableSpan.of_table(TABLE),)
    assert resplit_table(whole, keys(8), 1, ON) is None
    assert resplit_table(whole, keys(9), 1, ON) == split_table(TABLE, keys(9), 1, ON)


def test_resplit_table_that_shrank_is_joined_only_far_below_the_threshold() -> None:
    spans = split_table(TABLE, keys(11), 1, ON)
    assert resplit_table(spans, keys(11)[::2], 1, ON) is None
    assert resplit_table(spans, keys(11)[::4], 1, ON) == (TableSpan.of_table(TABLE),)


def test_resplit_table_that_grew_at_its_end_is_split_anew_once_it_is_uneven() -> None:
    spans = split_table(TABLE, keys(11), 1, ON)
    sizes = [size for size in range(11, 200) if resplit_table(spans, keys(size), 1, ON) is not None]
    # Of 12 regions the last span had 4. With n more it has 4 + n of 12 + n: over twice a third at n = 13.
    assert sizes[0] == 11 + 13
    again = resplit_table(spans, keys(60), 1, ON)
    assert again is not None
    assert resplit_table(again, keys(60), 1, ON) is None


def test_resplit_table_when_captures_join_is_split_anew_at_twice_the_spans() -> None:
    boundaries = keys(99)
    spans = split_table(TABLE, boundaries, 1, ON)
    again = resplit_table(spans, boundaries, 2, ON)
    assert (len(spans), again and len(again)) == (3, 6)
    nine = split_table(TABLE, boundaries, 3, ON)
    assert resplit_table(nine, boundaries, 4, ON) is None, "12 spans for 9 are not worth a scan of all"
