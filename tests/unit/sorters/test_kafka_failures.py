"""Errors of a Kafka that is away say which one was asked, and of what."""

from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException

from compose.operator.verify_topics import _cut_off
from edges.kafka.compacted import compacted_records
from edges.kafka.errors import KafkaUnreachableError
from edges.kafka.offsets import TopicReader
from edges.kafka.topic_state import seen_topics
from sorters.core.records.order import OUTPUT_SCHEMA
from sorters.cut import sink_writer
from sorters.cut.sink_writer import SinkWriter
from sorters.log.failures import bus_error

CONFIG = {"bootstrap.servers": "k:1"}


class _Message:
    """A record of partition 2 of topic ``t``."""

    def __init__(self, offset: int = 0) -> None:
        self._offset = offset

    def error(self) -> None:
        return None

    def topic(self) -> str:
        return "t"

    def partition(self) -> int:
        return 2

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes:
        return b"k"

    value = key


class _Consumer:
    """Of a broker that refuses us, or that has ``records`` and hands out ``first`` of them alone."""

    def __init__(self, records: int | None, first: _Message | None = None) -> None:
        self._records, self._first = records, first

    def get_watermark_offsets(self, *_: object, **__: object) -> tuple[int, int]:
        if self._records is None:
            raise KafkaException(KafkaError(KafkaError._AUTHENTICATION))
        return 0, self._records

    list_topics = get_watermark_offsets

    def poll(self, _: float) -> _Message | None:
        return self._first

    def consume(self, *_: object, **__: object) -> list[_Message]:
        return []

    def assign(self, _: object) -> None: ...

    def unassign(self) -> None: ...

    def close(self) -> None: ...


class _Producer:
    """Of a broker that takes nothing, or refuses the record by ``error``."""

    def __init__(self, config: dict[str, Any], error: KafkaError | None = None) -> None:
        self._config, self._error, self._queued = config, error, 0

    def __len__(self) -> int:
        return self._queued

    def produce(self, *_: object) -> None:
        self._queued += 1

    def poll(self, _: float = 0) -> int:
        if self._error is not None and self._queued:
            self._config["on_delivery"](self._error, _Message())
        return self._queued

    flush = poll

    def close(self) -> bool:
        return True

    def purge(self) -> None:
        self._queued = 0


def _put(monkeypatch: pytest.MonkeyPatch, records: int | None, first: _Message | None = None) -> None:
    for module in ("edges.kafka.compacted", "edges.kafka.offsets", "compose.operator.verify_topics"):
        monkeypatch.setattr(f"{module}.kafka_consumer", lambda *_: _Consumer(records, first))


def _record() -> pa.Table:
    row = ("t", 2, b"k", b"v", b"p")
    columns = [pa.array([value], field.type) for value, field in zip(row, OUTPUT_SCHEMA, strict=True)]
    return pa.table(columns, schema=OUTPUT_SCHEMA)


def test_compacted_topic_that_is_refused_or_silent_is_told_with_the_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    _put(monkeypatch, None)
    with pytest.raises(KafkaUnreachableError, match=r"topic is not readable.*address=k:1"):
        list(compacted_records(CONFIG, "t", 0.0))
    _put(monkeypatch, 3)
    with pytest.raises(KafkaUnreachableError, match=r"records did not come.*address=k:1"):
        list(compacted_records(CONFIG, "t", 0.0))


def test_compacted_topic_is_read_on_where_its_leader_does_not_know_its_end_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = _Consumer(2)
    early = _Message(1)
    early.error = lambda: KafkaError(KafkaError._PARTITION_EOF)  # type: ignore[method-assign,assignment]
    brought = [[_Message(0)], [early], [_Message(1)]]
    monkeypatch.setattr(consumer, "consume", lambda *_, **__: brought.pop(0))
    monkeypatch.setattr("edges.kafka.compacted.kafka_consumer", lambda *_: consumer)
    assert [offset for offset, _, _ in compacted_records(CONFIG, "t", 10.0)] == [0, 1]


def test_topic_read_by_offset_that_is_refused_or_silent_is_told_with_the_brokers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _put(monkeypatch, None)
    with pytest.raises(KafkaUnreachableError, match=r"topic is not readable.*address=k:1"):
        TopicReader(CONFIG, "t").bounds()
    _put(monkeypatch, 3)
    with pytest.raises(KafkaUnreachableError, match=r"records did not come.*address=k:1"):
        list(TopicReader(CONFIG, "t", timeout_s=-1.0).read(0, 3))


def test_topic_read_by_offset_whose_records_have_a_gap_is_told_with_the_brokers_and_both_offsets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _put(monkeypatch, 9, _Message(offset=7))
    with pytest.raises(
        KafkaUnreachableError, match=r"records were passed over.*topic=t, partition=2, address=k:1, at=3, next_offset=7"
    ):
        list(TopicReader(CONFIG, "t").read_all({2: (3, 9)}))


def test_sink_that_takes_nothing_is_told_with_the_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_writer, "STALL_S", -1.0)
    monkeypatch.setattr(sink_writer, "kafka_producer", _Producer)
    writer = SinkWriter(CONFIG)
    writer.write(_record())
    with pytest.raises(KafkaUnreachableError, match=r"kafka takes no records.*address=k:1"):
        writer.finish()


def test_sink_that_refuses_a_record_is_told_with_its_partition_and_the_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    monkeypatch.setattr(sink_writer, "kafka_producer", lambda config: _Producer(config, refused))
    with pytest.raises(
        KafkaUnreachableError, match=r"kafka did not take a record.*topic=t, partition=2, address=k:1, reason="
    ):
        SinkWriter(CONFIG).write(_record())


def test_topics_that_cannot_be_looked_at_are_told_with_the_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edges.kafka.topic_state.kafka_admin", lambda *_: _Consumer(None))
    with pytest.raises(KafkaUnreachableError, match=r"topics cannot be looked at.*address=k:1"):
        seen_topics(CONFIG, ["t"])


def test_verify_whose_topics_are_refused_names_them_and_the_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    _put(monkeypatch, None)
    with pytest.raises(KafkaUnreachableError) as raised:
        _cut_off(CONFIG, {"b", "a"})
    assert (raised.value.fields["topics"], raised.value.fields["address"]) == (["a", "b"], "k:1")


def test_java_timeout_of_kafka_is_told_with_the_brokers_where_they_are_known() -> None:
    error = RuntimeError("org.apache.kafka.common.errors.TimeoutException: Timed out waiting for a node assignment.")
    known = bus_error(error, "k:1")
    assert isinstance(known, KafkaUnreachableError) and known.fields["address"] == "k:1"
