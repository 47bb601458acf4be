"""What processors count of their writes: buckets against plain counting, sums, and nodes that hold them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.sink_figures import BUCKETS_MAX, NO_FIGURES, SinkFigures, Spread, figures_json, read_figures

VALUES = st.lists(st.integers(0, 1 << 34), max_size=30)
LEASTS = st.sampled_from([1, 1_000, 10_000])


def spread(values: list[int], least: int) -> Spread:
    made = Spread()
    for value in values:
        made = made.of(value, least)
    return made


SPREADS = VALUES.map(lambda values: spread(values, 1_000))
FIGURES = st.builds(
    SinkFigures, SPREADS, SPREADS, SPREADS, SPREADS, SPREADS, st.integers(0, 99), st.integers(0, 1 << 50)
)


@given(VALUES, LEASTS, st.integers(1, BUCKETS_MAX))
def test_bounds_have_below_them_what_is_not_above(values: list[int], least: int, bounds: int) -> None:
    made = spread(values, least)
    assert (made.count, made.total) == (len(values), sum(values))
    expected = [sum(value <= least * 2**power for value in values) for power in range(bounds)]
    assert made.cumulative(bounds) == expected


@given(VALUES, VALUES)
def test_sum_of_two_is_what_one_would_have_counted(first: list[int], second: list[int]) -> None:
    assert spread(first, 1_000).plus(spread(second, 1_000)) == spread(first + second, 1_000)


@given(FIGURES)
def test_figures_come_back_from_a_node(figures: SinkFigures) -> None:
    assert read_figures(json.loads(json.dumps(figures_json(figures)))) == figures
    assert figures.plus(NO_FIGURES) == figures


@pytest.mark.parametrize(
    "raw", [{"files": -1}, {"flushes_us": 5}, {"flushes_us": [1, "2"]}, {"ddls_us": [1] * 30}, {"batch_rows": []}, 7]
)
def test_figures_that_cannot_be_are_refused(raw: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        read_figures(raw)


def test_node_without_figures_is_small() -> None:
    assert figures_json(NO_FIGURES) == {}
    assert read_figures({}) == NO_FIGURES
