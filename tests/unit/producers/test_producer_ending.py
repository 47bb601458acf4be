"""A part of the producer fails once and tells once."""

import logging

import pytest
from confluent_kafka import KafkaError

from producers.ending import Ending
from producers.errors import DeliveryFailedError, HistoryGoneError, LandingHaltedError, RawTopicError
from schemas.errors import BusError


def test_ending_first_error_counts_and_is_told_once() -> None:
    errors: list[BusError] = []
    ending = Ending("part", errors.append)
    first = RawTopicError("first")
    ending.fail(first)
    ending.fail(RawTopicError("second"))
    assert errors == [first] == [ending.failure.result()]


@pytest.mark.parametrize(
    ("error", "level"),
    [(LandingHaltedError("the lease is over"), logging.WARNING), (HistoryGoneError("below it"), logging.ERROR)],
)
def test_ending_that_heals_by_itself_is_no_error_in_the_log(
    error: BusError, level: int, caplog: pytest.LogCaptureFixture
) -> None:
    Ending("part", lambda _: None).fail(error)
    assert [(record.levelno, vars(record)["code"]) for record in caplog.records] == [(level, error.code)]


def test_ending_kafka_trouble_that_heals_ends_nothing_and_a_fatal_one_does() -> None:
    errors: list[BusError] = []
    ending = Ending("part", errors.append)
    for fatal in (False, True):
        ending.kafka_error(KafkaError(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, "out of order", fatal=fatal))
    assert [type(error) for error in errors] == [DeliveryFailedError]
    assert "out of order" in str(errors[0])
