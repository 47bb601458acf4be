"""The sink topic as a processor reads it, on a broker that librdkafka plays itself."""

import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, Producer

from consumers.processors.sink_source import (
    KafkaSource,
    SinkHistoryLostError,
    SinkRecord,
    SinkTopicMissingError,
    SinkTopicUnavailableError,
    read_record,
)
from edges.kafka.access import KafkaAccess
from schemas.ids import Ts
from schemas.sink.fence import NO_FENCE, Fence
from schemas.sink.position import POSITION_HEADER, Position, PositionClass
from schemas.sink.topic import PARTITIONS
from sorters.core.records.order import OUTPUT_SCHEMA
from sorters.cut.sink_writer import SinkWriter

TOPIC = "topic"
Places = list[tuple[int, int]]
"""Partition and offset."""


class Broker:
    """One broker and one topic."""

    def __init__(self) -> None:
        self._producer = Producer({"bootstrap.servers": "played", "test.mock.num.brokers": 1})
        (broker,) = self._producer.list_topics(timeout=30).brokers.values()
        self.address = f"{broker.host}:{broker.port}"

    def put(self, partition: int, count: int) -> None:
        position = Position(Ts(5), PositionClass.WATERMARK).encode()
        for _ in range(count):
            self._producer.produce(TOPIC, b"{}", partition=partition, headers=[(POSITION_HEADER, position)])
        assert self._producer.flush(30) == 0

    def put_stray(self, partition: int) -> None:
        self._producer.produce(TOPIC, b"hello, wrong topic", partition=partition)
        assert self._producer.flush(30) == 0


class _Listing:
    """A consumer that is asked for topics."""

    def __init__(self, topics: dict[str, SimpleNamespace]) -> None:
        self._topics = topics

    def list_topics(self, topic: str, timeout: float) -> Any:
        return SimpleNamespace(topics=self._topics)


@pytest.fixture
def broker() -> Broker:
    return Broker()


@pytest.fixture
def source(broker: Broker) -> Iterator[KafkaSource]:
    source = KafkaSource(KafkaAccess(broker.address), TOPIC, "group")
    yield source
    source.close()


def _read(source: KafkaSource, count: int) -> Places:
    polled: Places = []
    deadline = time.monotonic() + 60
    while len(polled) < count and time.monotonic() < deadline:
        polled += [(record.partition, record.offset) for record in source.poll(0.1)]
    return sorted(polled)


def test_source_reads_partitions_that_come_go_and_are_read_anew(broker: Broker, source: KafkaSource) -> None:
    broker.put(0, 5)
    broker.put(1, 5)
    source.begin({0: 0, 1: 2})
    assert _read(source, 8) == [(0, at) for at in range(5)] + [(1, at) for at in range(2, 5)]
    source.pause(0)
    broker.put(0, 2)
    broker.put(1, 1)
    assert _read(source, 1) == [(1, 5)]
    source.begin({0: 3})  # though it was paused
    assert _read(source, 4) == [(0, at) for at in range(3, 7)]
    source.end(1)
    source.end(1)
    broker.put(1, 2)
    broker.put(0, 1)
    assert _read(source, 1) == [(0, 7)]
    source.begin({1: 0})
    assert _read(source, 8) == [(1, at) for at in range(8)]
    source.begin({1: 6})
    assert _read(source, 2) == [(1, 6), (1, 7)]


def test_source_passes_over_what_no_sorter_has_written(
    broker: Broker, source: KafkaSource, caplog: pytest.LogCaptureFixture
) -> None:
    broker.put(0, 1)
    broker.put_stray(0)
    broker.put(0, 1)
    source.begin({0: 0})
    assert _read(source, 2) == [(0, 0), (0, 2)]
    said = [vars(record) for record in caplog.records]
    assert [(line["topic"], line["partition"], line["offset"]) for line in said] == [(TOPIC, 0, 1)]


def test_source_checks_that_records_are_there(broker: Broker, source: KafkaSource) -> None:
    broker.put(0, 3)
    source.check({0: 3})
    with pytest.raises(SinkHistoryLostError) as caught:
        source.check({0: 4})
    assert (caught.value.fields["partition"], caught.value.fields["high"]) == (0, 3)


@pytest.mark.parametrize(("there", "used"), [(6, 6), (PARTITIONS, PARTITIONS), (PARTITIONS + 1, PARTITIONS)])
def test_source_has_no_partition_that_no_sorter_writes(source: KafkaSource, there: int, used: int) -> None:
    topics = {TOPIC: SimpleNamespace(error=None, partitions=range(there))}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source, "_consumer", _Listing(topics))
        assert source.partitions() == used
        topics.clear()
        with pytest.raises(SinkTopicMissingError):
            source.partitions()


@pytest.mark.parametrize("code", [KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError._AUTHENTICATION])
def test_source_that_may_not_read_says_so(source: KafkaSource, code: int) -> None:
    refused = SimpleNamespace(consume=lambda *_: [SimpleNamespace(error=lambda: KafkaError(code))])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source, "_consumer", refused)
        with pytest.raises(SinkTopicUnavailableError) as caught:
            source.poll(0.1)
    assert caught.value.fields["topic"] == TOPIC
    assert "uth" in str(caught.value.fields["reason"])


def test_source_passes_over_what_librdkafka_tries_again_by_itself(source: KafkaSource) -> None:
    passing = (KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT, KafkaError.GROUP_AUTHORIZATION_FAILED)
    messages = [SimpleNamespace(error=lambda code=code: KafkaError(code)) for code in passing]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source, "_consumer", SimpleNamespace(consume=lambda *_: messages))
        assert source.poll(0.1) == []


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, SinkTopicUnavailableError),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, SinkTopicMissingError),
        (KafkaError.LEADER_NOT_AVAILABLE, SinkTopicMissingError),
    ],
)
def test_topic_that_may_not_be_described_is_not_called_missing(
    source: KafkaSource, code: int, error: type[Exception]
) -> None:
    topics = {TOPIC: SimpleNamespace(error=KafkaError(code), partitions={})}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source, "_consumer", _Listing(topics))
        with pytest.raises(error):
            source.partitions()


def test_source_that_has_checked_reads_the_record_before_too_where_there_is_one(
    broker: Broker, source: KafkaSource
) -> None:
    for partition in range(3):
        broker.put(partition, 3)
    starts = {0: 2, 1: 0, 2: 3}
    source.check(starts)
    source.begin(starts)
    assert _read(source, 6) == [(0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (2, 2)]


def test_source_reads_whose_records_a_writer_says_they_are(broker: Broker, source: KafkaSource) -> None:
    writer = SinkWriter({"bootstrap.servers": broker.address, "acks": -1, "enable.idempotence": True})
    position, fence = Position(Ts(5), PositionClass.WATERMARK).encode(), Fence(7, 2).encode()
    columns = ([TOPIC], [0], [None], [b"{}"], [position])
    arrays = [pa.array(column, of.type) for column, of in zip(columns, OUTPUT_SCHEMA, strict=True)]
    records = pa.table(arrays, schema=OUTPUT_SCHEMA)
    writer.write(records, fence)
    writer.write(records)
    writer.finish()
    source.begin({0: 0})
    polled, deadline = list[SinkRecord](), time.monotonic() + 60
    while len(polled) < 2 and time.monotonic() < deadline:
        polled += source.poll(0.1)
    assert [(record.position, record.fence) for record in polled] == [(position, fence), (position, NO_FENCE)]


def test_record_is_read_where_it_stands(broker: Broker) -> None:
    broker.put(2, 3)
    record = read_record(KafkaAccess(broker.address), TOPIC, "group", 2, 1)
    assert (record.partition, record.offset, record.value) == (2, 1, b"{}")
