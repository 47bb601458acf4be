"""Statistics of a producer as librdkafka itself makes them: what the sink's writer has sent to its own broker."""

import json
import logging
import random
import time
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from edges.kafka.producer_meter import BATCH_HEAD_BYTES, STATISTICS, WITH_STATISTICS, ProducerMeter
from schemas.producer_figures import NO_PRODUCER, BrokerFigures, ProducerFigures
from sorters.core.records.order import OUTPUT_SCHEMA
from sorters.cut.record_writer import NOWHERE, record_writer
from sorters.cut.sink_writer import SinkWriter
from sorters.cut.worker import TOPICS_COUNTED_MAX, FeedProgram, writer_options

INTERVAL_MS = 50
WAIT_S = 60.0
ROWS = 5_000
VALUE_BYTES = 600


def writer_with(**config: Any) -> SinkWriter:
    plain = {"bootstrap.servers": "", "test.mock.num.brokers": 2, "acks": -1, "enable.idempotence": True}
    return SinkWriter({**plain, STATISTICS: INTERVAL_MS, **config})


def records(value: bytes) -> pa.Table:
    """Return rows dealt out over two partitions of two topics, with their numbers as keys and positions."""
    numbers = [number.to_bytes(8, "big") for number in range(ROWS)]
    columns = [
        ["first" if number % 2 else "second" for number in range(ROWS)],
        [number // 2 % 2 for number in range(ROWS)],
        *(numbers, [value] * ROWS, numbers),
    ]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, OUTPUT_SCHEMA, strict=True)]
    return pa.table(arrays, schema=OUTPUT_SCHEMA)


def heard_of(writer: SinkWriter) -> ProducerFigures:
    """Return what is heard of a writer until statistics tell of all rows, and of no response that is to come."""
    heard, deadline = NO_PRODUCER, time.monotonic() + WAIT_S

    # librdkafka does not read its counters at one moment: a response may be counted in the statistics after.
    while heard.records < ROWS or any(each.in_flight or each.requests != each.responses for each in heard.brokers):
        assert time.monotonic() < deadline, heard
        writer.tend()
        heard = heard.then(writer.figures())
        time.sleep(INTERVAL_MS / 1000)
    return heard


def test_statistics_tell_of_each_broker_what_was_sent_and_how_long_it_took() -> None:
    writer = writer_with(**{"test.mock.broker.rtt": 30})
    writer.write(records(bytes(VALUE_BYTES)))
    writer.finish()
    heard = heard_of(writer)
    assert [broker.broker for broker in heard.brokers] == [1, 2]
    assert heard.records == ROWS and 4 <= heard.batches <= ROWS / 10
    assert heard.batch_bytes > ROWS * VALUE_BYTES
    assert 1 <= heard.records / heard.batches <= heard.batch_p99s / heard.batches <= ROWS
    sent_bytes = sum(broker.sent_bytes for broker in heard.brokers)
    assert heard.batch_bytes < sent_bytes < 1.1 * heard.batch_bytes
    leaders = [broker for broker in heard.brokers if broker.requests]
    assert leaders, "partitions are dealt out at random: one broker may lead all four"
    for broker in leaders:
        assert broker.requests == broker.responses >= 2
        assert 0.025 < broker.trips_us / broker.trips / 1e6 < WAIT_S and broker.trip_p99s_us >= broker.trips_us
        assert (broker.throttles, broker.throttle_p99s_ms) == (0, 0)
    assert sum(broker.requests for broker in heard.brokers) >= heard.batches
    assert (heard.retries, heard.errors) == (0, 0)
    assert heard.waits and heard.waits_us
    assert heard.plain_bytes == heard.packed_bytes == heard.batch_bytes - BATCH_HEAD_BYTES * heard.batches
    assert writer.figures().records == 0, "they are told once"


@pytest.mark.parametrize(
    "value", [bytes(VALUE_BYTES), random.Random(5).randbytes(VALUE_BYTES)[: VALUE_BYTES // 2] + bytes(VALUE_BYTES // 2)]
)
def test_compression_ratio_is_that_of_the_records_as_kafka_frames_them(value: bytes) -> None:
    plain = writer_with()
    plain.write(records(value))
    plain.finish()
    packed = writer_with(**{"compression.type": "gzip"})
    packed.write(records(value))
    packed.finish()
    framed, shown = heard_of(plain), heard_of(packed)
    assert shown.plain_bytes == pytest.approx(framed.packed_bytes, rel=0.01), "before compression"
    assert shown.packed_bytes < framed.packed_bytes / 1.5
    assert shown.packed_bytes == shown.batch_bytes - BATCH_HEAD_BYTES * shown.batches
    assert shown.plain_bytes / shown.packed_bytes > 1.5


def test_writer_that_waits_is_emptied_of_statistics() -> None:
    writer, deadline = writer_with(), time.monotonic() + WAIT_S
    while len(writer._producer) < 3:  # what waits for a poll: no message was ever queued
        assert time.monotonic() < deadline
        time.sleep(INTERVAL_MS / 1000)
    writer.tend()
    assert len(writer._producer) < 3
    assert writer.figures() != NO_PRODUCER


def test_writer_is_asked_for_no_statistics_unless_its_options_say_so() -> None:
    silent = SinkWriter({"bootstrap.servers": "", "test.mock.num.brokers": 1, "acks": -1, "enable.idempotence": True})
    silent.write(records(b"v"))
    silent.finish()
    assert silent.figures() == record_writer(NOWHERE).figures() == NO_PRODUCER
    options = {"bootstrap.servers": "h:1", **WITH_STATISTICS}
    for topics, counted in ((TOPICS_COUNTED_MAX, True), (TOPICS_COUNTED_MAX + 1, False)):
        feed = SimpleNamespace(topic_message_bytes={str(number): 1 for number in range(topics)})
        made = writer_options(options, cast("FeedProgram", SimpleNamespace(feed=feed)))
        assert made == (options if counted else {"bootstrap.servers": "h:1"})


def statistics(**broker: Any) -> str:
    spread = {"cnt": 0, "sum": 0, "p99": 0}
    plain = {
        "nodeid": 7,
        "source": "learned",
        "tx": 10,
        "rx": 9,
        "txbytes": 5_000,
        "txretries": 2,
        "txerrs": 1,
        "waitresp_cnt": 1,
        "int_latency": spread,
        "rtt": spread,
        "throttle": spread,
    }
    bootstrap, role = {**plain, "nodeid": -1, "source": "configured"}, {**plain, "nodeid": 7, "source": "logical"}
    return json.dumps({"brokers": {"b": bootstrap, "r": role, "h:1/7": plain | broker}, "topics": {}, "txmsg_bytes": 0})


def test_counters_are_told_as_what_they_have_grown_by_also_of_a_broker_that_was_forgotten() -> None:
    meter = ProducerMeter(is_compressed=False)
    meter.take(statistics())
    meter.take(statistics(tx=14, rx=14, waitresp_cnt=0, throttle={"cnt": 2, "sum": 90, "p99": 60}))
    figures = meter.figures()
    (broker,) = figures.brokers
    assert broker == BrokerFigures(
        7, requests=14, responses=14, sent_bytes=5_000, throttles=2, throttles_ms=90, throttle_p99s_ms=120, in_flight=0
    )
    assert (figures.retries, figures.errors) == (2, 1)
    meter.take(statistics(tx=3, rx=3, txbytes=100, txretries=0, txerrs=0))
    figures = meter.figures()
    assert (figures.brokers[0].requests, figures.brokers[0].sent_bytes, figures.retries) == (3, 100, 0)
    assert meter.figures() == NO_PRODUCER


@pytest.mark.parametrize(
    "document",
    ["", "{", "[]", statistics(tx="x"), statistics(rtt=None), '{"brokers": [], "txmsg_bytes": 0}'],
)
def test_statistics_that_do_not_decode_stop_nobody_and_are_told_once(
    document: str, caplog: pytest.LogCaptureFixture
) -> None:
    meter = ProducerMeter(is_compressed=True)
    with caplog.at_level(logging.WARNING):
        meter.take(document)
        meter.take(document)
    assert [record.message for record in caplog.records] == ["statistics of librdkafka do not decode"]
    assert meter.figures() == NO_PRODUCER
    meter.take(statistics())
    assert meter.figures().brokers[0].requests == 10
