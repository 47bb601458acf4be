"""Errors of a Kafka that is away say which one was asked."""

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from compose.operator.verify_topics import _cut_off
from edges.kafka.compacted import compacted_records
from edges.kafka.errors import KafkaUnreachableError
from edges.kafka.offsets import TopicReader
from sorters.log.failures import bus_error

CONFIG = {"bootstrap.servers": "k:1"}


class _Consumer:
    """Of a broker that refuses us, or that has ``records`` and hands none out."""

    def __init__(self, records: int | None) -> None:
        self._records = records

    def get_watermark_offsets(self, *_: object, **__: object) -> tuple[int, int]:
        if self._records is None:
            raise KafkaException(KafkaError(KafkaError._AUTHENTICATION))
        return 0, self._records

    list_topics = get_watermark_offsets

    def poll(self, _: float) -> None:
        return None

    def consume(self, *_: object, **__: object) -> list[Any]:
        return []

    def assign(self, _: object) -> None: ...

    def unassign(self) -> None: ...

    def close(self) -> None: ...


def _put(monkeypatch: pytest.MonkeyPatch, records: int | None) -> None:
    for module in ("edges.kafka.compacted", "edges.kafka.offsets", "compose.operator.verify_topics"):
        monkeypatch.setattr(f"{module}.kafka_consumer", lambda *_: _Consumer(records))


def test_compacted_topic_that_is_refused_or_silent_is_told_with_the_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    _put(monkeypatch, None)
    with pytest.raises(KafkaUnreachableError, match=r"topic is not readable.*address=k:1"):
        list(compacted_records(CONFIG, "t", 0.0))
    _put(monkeypatch, 3)
    with pytest.raises(KafkaUnreachableError, match=r"records did not come.*address=k:1"):
        list(compacted_records(CONFIG, "t", 0.0))


def test_topic_read_by_offset_that_is_refused_or_silent_is_told_with_the_brokers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _put(monkeypatch, None)
    with pytest.raises(KafkaUnreachableError, match=r"topic is not readable.*address=k:1"):
        TopicReader(CONFIG, "t").bounds()
    _put(monkeypatch, 3)
    with pytest.raises(KafkaUnreachableError, match=r"records did not come.*address=k:1"):
        list(TopicReader(CONFIG, "t", timeout_s=-1.0).read(0, 3))


def test_verify_whose_topics_are_refused_names_them_and_the_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    _put(monkeypatch, None)
    with pytest.raises(KafkaUnreachableError) as raised:
        _cut_off(CONFIG, {"b", "a"})
    assert (raised.value.fields["topics"], raised.value.fields["address"]) == (["a", "b"], "k:1")


def test_java_timeout_of_kafka_is_told_with_the_brokers_where_they_are_known() -> None:
    error = RuntimeError("org.apache.kafka.common.errors.TimeoutException: Timed out waiting for a node assignment.")
    known = bus_error(error, "k:1")
    assert isinstance(known, KafkaUnreachableError) and known.fields["address"] == "k:1"
