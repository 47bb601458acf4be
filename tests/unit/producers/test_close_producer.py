"""A producer of the raw log ends while a record of it is in flight."""

import json
from pathlib import Path
from typing import cast

import pytest
from confluent_kafka import KafkaError

from edges.kafka.access import KafkaAccess
from producers.pull.landing.raw_producer import close_producer, raw_log_producer

ANSWER_MS = 500
TASKS = Path("/proc/self/task")


@pytest.mark.parametrize("is_gapless", [False, True])
def test_close_with_a_record_in_flight_then_it_is_given_up_and_nothing_is_raised(is_gapless: bool) -> None:
    in_flight = -1

    def see(statistics: str) -> None:
        nonlocal in_flight
        in_flight = sum(broker["waitresp_msg_cnt"] for broker in json.loads(statistics)["brokers"].values())

    slow = {"test.mock.num.brokers": 1, "test.mock.broker.rtt": ANSWER_MS, "statistics.interval.ms": 20}
    kafka = KafkaAccess("localhost:1", cast("dict[str, str]", {**slow, "stats_cb": see}))
    outcomes: list[str | None] = []
    threads = {task.name for task in TASKS.iterdir()}
    producer = raw_log_producer(kafka, "none", lambda _: None, is_gapless=is_gapless)

    def reported(error: KafkaError | None, _: object) -> None:
        outcomes.append(None if error is None else error.name())

    producer.produce("t", value=b"first", partition=0, on_delivery=reported)
    while outcomes != [None] or in_flight != 0:
        producer.poll(0.01)
    producer.produce("t", value=b"second", partition=0, on_delivery=reported)
    while in_flight != 1:
        producer.poll(0.01)
    close_producer(producer)
    assert outcomes == [None, "_PURGE_INFLIGHT"]
    assert {task.name for task in TASKS.iterdir()} <= threads, "others' may have ended meanwhile"


def test_close_with_time_to_flush_then_the_record_is_acknowledged() -> None:
    kafka = KafkaAccess("localhost:1", cast("dict[str, str]", {"test.mock.num.brokers": 1}))
    outcomes: list[KafkaError | None] = []
    producer = raw_log_producer(kafka, "none", lambda _: None, is_gapless=True)
    producer.produce("t", value=b"only", partition=0, on_delivery=lambda error, _: outcomes.append(error))
    close_producer(producer, 30)
    assert outcomes == [None]
