"""Figures of producers: rates of a steady flow, sums of several producers, and nodes that hold them."""

import json
from dataclasses import fields

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from schemas.producer_figures import (
    BROKERS_MAX,
    FADE_S,
    NO_PRODUCER,
    BrokerFigures,
    ProducerFigures,
    producer_json,
    read_producer,
)

TENTHS = st.integers(0, 9_999).map(lambda tenths: tenths / 10) | st.integers(0, 1 << 50)
BROKERS = st.dictionaries(st.integers(0, 1 << 31), st.lists(TENTHS, min_size=10, max_size=10), max_size=BROKERS_MAX)
SOME = st.builds(
    lambda numbers, brokers: ProducerFigures(
        numbers[0], tuple(BrokerFigures(number, *brokers[number]) for number in sorted(brokers)), *numbers[1:]
    ),
    st.lists(TENTHS, min_size=11, max_size=11),
    BROKERS,
)


@given(SOME)
def test_figures_come_back_from_a_node(figures: ProducerFigures) -> None:
    assert read_producer(json.loads(json.dumps(producer_json(figures)))) == figures


def test_node_tells_of_the_brokers_with_the_most_requests() -> None:
    brokers = tuple(BrokerFigures(number, requests=number % 40) for number in range(100))
    assert [each.broker for each in read_producer(producer_json(ProducerFigures(brokers=brokers))).brokers] == [
        *range(32, 40),
        *range(72, 80),
    ]
    assert producer_json(NO_PRODUCER) == {} and read_producer({}) == NO_PRODUCER


@pytest.mark.parametrize(
    "raw",
    [
        7,
        {"all": [0] * 10, "brokers": []},
        {"all": [0] * 11, "brokers": [[1] * 10]},
        {"all": [0] * 11, "brokers": [[1] * 11] * (BROKERS_MAX + 1)},
        *({"all": [value] * 11, "brokers": []} for value in (-1, "1", True, None, float("nan"), float("inf"))),
    ],
)
def test_figures_that_cannot_be_are_refused(raw: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        read_producer(raw)


@given(SOME, SOME)
def test_what_two_did_at_once_is_the_sum_but_for_the_time(first: ProducerFigures, second: ProducerFigures) -> None:
    both = first.plus(second)
    assert both == second.plus(first) and first.plus(NO_PRODUCER) == first
    for name in {field.name for field in fields(ProducerFigures)} - {"brokers"}:
        values = getattr(first, name), getattr(second, name)
        assert getattr(both, name) == (max(values) if name == "seconds" else sum(values)), name
    known = [{each.broker: each for each in figures.brokers} for figures in (first, second)]
    assert [each.broker for each in both.brokers] == sorted(known[0].keys() | known[1].keys())
    for broker in both.brokers:
        parts = [each[broker.broker] for each in known if broker.broker in each]
        assert broker.requests == sum(part.requests for part in parts)
        assert broker.in_flight == sum(part.in_flight for part in parts)


@given(st.floats(0.1, 1e6), st.lists(st.floats(0.05, 300), min_size=1, max_size=60))
def test_rate_of_a_steady_flow_is_its_own_from_the_first_second_on(a_second: float, seconds: list[float]) -> None:
    figures = NO_PRODUCER
    for span in seconds:
        trips = a_second * span
        broker = BrokerFigures(1, requests=trips, trips=trips, trips_us=trips * 7, trip_p99s_us=trips * 9)
        figures = figures.then(ProducerFigures(seconds=span, brokers=(broker,), retries=1))
        (seen,) = figures.brokers
        assert seen.requests / figures.seconds == pytest.approx(a_second)
        assert (seen.trips_us / seen.trips, seen.trip_p99s_us / seen.trips) == pytest.approx((7, 9))
    assert figures.retries == len(seconds), "what has failed does not fade"


@given(st.floats(1, 1e6), st.floats(1, 50))
def test_flow_that_ends_is_half_gone_in_a_time_that_does_not_hang_on_the_steps(total: float, steps: float) -> None:
    begun = NO_PRODUCER.then(
        ProducerFigures(seconds=FADE_S, brokers=(BrokerFigures(1, requests=total),), batches=total)
    )
    later = begun
    for _ in range(int(steps)):
        later = later.then(ProducerFigures(seconds=0.693147 * FADE_S / int(steps)))
    assert later.brokers[0].requests == pytest.approx(total / 2, rel=1e-4)
    assert later.batches == pytest.approx(total / 2, rel=1e-4)


@given(SOME, SOME)
def test_requests_in_flight_are_those_of_the_last_statistics(first: ProducerFigures, second: ProducerFigures) -> None:
    assume(first.brokers)
    silent, idle = (
        first.then(ProducerFigures(seconds=second.seconds, brokers=brokers))
        for brokers in ((), tuple(BrokerFigures(each.broker) for each in first.brokers))
    )
    assert [each.in_flight for each in silent.brokers] == [each.in_flight for each in first.brokers]
    assert [each.in_flight for each in idle.brokers] == [0] * len(first.brokers)
