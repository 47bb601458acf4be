"""A consumer in memory that does to a client what confluent-kafka's does: rebalances, pauses that last, events."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from consumers.client import ChangeStream
from consumers.client import stream as client_stream
from consumers.client.core.partition import StreamRecord
from schemas.sink.image_note import ImageNote
from schemas.sink.position import POSITION_HEADER, Position

TOPIC = "orders"


@dataclass
class GroupConsumer:
    """Serves a log by partition; an item of ``dealt`` is what the group deals out next."""

    logs: dict[int, list[Position | None]]
    """None is a record that no changefeed wrote."""
    dealt: list[list[int]]
    at: dict[int, int] = field(default_factory=dict)
    paused: set[int] = field(default_factory=set)
    """librdkafka keeps a partition paused that goes and comes back."""
    group: dict[int, TopicPartition] = field(default_factory=dict)
    """What was committed."""
    events: list[Any] = field(default_factory=list)
    """They stand before the records of the next call."""
    answers: list[Any] = field(default_factory=list)
    """To the next questions of what was committed: an error, or one by partition."""
    on_assign: Any = None
    on_revoke: Any = None
    _held: list[int] = field(default_factory=list)
    """What the group has dealt out last, whether it was assigned or not."""
    _is_assigned: bool = False

    def subscribe(self, topics: Sequence[str], *, on_assign: Any, on_revoke: Any) -> None:
        assert topics == [TOPIC]
        self.on_assign, self.on_revoke = on_assign, on_revoke

    def consume(self, records: int, timeout_s: float) -> list[Any]:
        assert records > 0
        assert timeout_s >= 0
        if self.dealt:
            if self._held:
                self.on_revoke(self, [TopicPartition(TOPIC, number) for number in self._held])
            self._held = self.dealt.pop(0)
            self._deal([TopicPartition(TOPIC, number) for number in self._held])
        came, self.events = self.events, []
        for number in sorted(self.at.keys() - self.paused):
            came += [
                _record(number, at, self.logs[number][at]) for at in range(self.at[number], len(self.logs[number]))
            ]
            self.at[number] = len(self.logs[number])
        return came

    def committed(self, partitions: list[Any], timeout: float) -> list[Any]:
        assert timeout > 0
        answer = self.answers.pop(0) if self.answers else {}
        if isinstance(answer, KafkaException):
            raise answer
        if answer:
            return [answer[each.partition] for each in partitions]
        return [self.group.get(each.partition, TopicPartition(TOPIC, each.partition, -1001)) for each in partitions]

    def commit(self, *, offsets: list[TopicPartition], asynchronous: bool) -> None:
        assert not asynchronous
        self.group |= {each.partition: each for each in offsets}

    def _deal(self, partitions: list[TopicPartition]) -> None:
        self._is_assigned = False
        try:
            self.on_assign(self, partitions)
        finally:
            if not self._is_assigned:
                self.assign(partitions)  # confluent-kafka does it itself, and raises then

    def assign(self, partitions: list[Any]) -> None:
        self._is_assigned = True
        self.at = {each.partition: max(0, each.offset) for each in partitions}

    def unassign(self) -> None:
        self.at = {}

    def pause(self, partitions: list[Any]) -> None:
        self.paused |= {each.partition for each in partitions}

    def resume(self, partitions: list[Any]) -> None:
        self.paused -= {each.partition for each in partitions}


class Places:
    """Decodes a record into its partition, offset and ts, and what is said of images into two names."""

    def __call__(self, record: StreamRecord, position: Position) -> Any:
        return record.topic_partition.partition, record.offset, position.commit_ts

    def images(self, note: ImageNote) -> ImageNote:
        return ImageNote(note.left, (("d", "whole"),), (("d", "waiting"),))


def event(code: int, partition: int = -1) -> Any:
    """Return what librdkafka says among the records: of a partition, or below 0 of its topic."""
    return _message(KafkaError(code), partition)


def _record(partition: int, offset: int, position: Position | None) -> Any:
    headers = position and [(POSITION_HEADER, position.encode())]
    return _message(None, partition, offset=offset, key=None, value=b"{}", headers=headers)


def _message(error: KafkaError | None, partition: int, **parts: Any) -> Any:
    parts |= {"error": error, "topic": TOPIC, "partition": partition}
    return SimpleNamespace(**{name: lambda part=part: part for name, part in parts.items()})


def stream_over(monkeypatch: pytest.MonkeyPatch, consumer: GroupConsumer, **settings: Any) -> ChangeStream:
    """Return a stream that reads from ``consumer``, and whose changes are the partition, offset and ts of a record."""
    monkeypatch.setattr(client_stream, "kafka_consumer", lambda settings: consumer if settings else None)
    stream = ChangeStream("nowhere", [TOPIC], group="g", **settings)
    monkeypatch.setattr(stream, "_decode", Places())
    return stream
