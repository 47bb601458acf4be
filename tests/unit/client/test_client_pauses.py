"""The client's pauses over rebalances, on a consumer that keeps a partition paused until it is resumed, as librdkafka
does."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from consumers.client import ChangeStream
from consumers.client import stream as client_stream
from consumers.client.core.partition import StreamRecord
from schemas.ids import Ts
from schemas.sink.image_note import ImageNote
from schemas.sink.position import POSITION_HEADER, Position, PositionClass

TOPIC = "orders"


@dataclass
class PausingConsumer:
    """Serves a log by partition; a call of ``dealt`` is what the group deals out next."""

    logs: dict[int, list[Position]]
    dealt: list[list[int]]
    at: dict[int, int] = field(default_factory=dict)
    paused: set[int] = field(default_factory=set)
    on_assign: Any = None
    on_revoke: Any = None

    def subscribe(self, topics: Sequence[str], *, on_assign: Any, on_revoke: Any) -> None:
        assert topics == [TOPIC]
        self.on_assign, self.on_revoke = on_assign, on_revoke

    def consume(self, records: int, timeout_s: float) -> list[Any]:
        assert records > 0
        assert timeout_s >= 0
        if self.dealt:
            if self.at:
                self.on_revoke(self, [TopicPartition(TOPIC, number) for number in self.at])
            self.on_assign(self, [TopicPartition(TOPIC, number) for number in self.dealt.pop(0)])
        came = []
        for number in self.at.keys() - self.paused:
            came += [
                _message(number, at, self.logs[number][at]) for at in range(self.at[number], len(self.logs[number]))
            ]
            self.at[number] = len(self.logs[number])
        return came

    def committed(self, partitions: list[Any], timeout: float) -> list[Any]:
        assert timeout > 0
        return [TopicPartition(each.topic, each.partition, -1001) for each in partitions]

    def assign(self, partitions: list[Any]) -> None:
        self.at = {each.partition: max(0, each.offset) for each in partitions}

    def unassign(self) -> None:
        self.at = {}

    def pause(self, partitions: list[Any]) -> None:
        self.paused |= {each.partition for each in partitions}

    def resume(self, partitions: list[Any]) -> None:
        self.paused -= {each.partition for each in partitions}


class Offsets:
    """Decodes a record into its offset and ts."""

    def __call__(self, record: StreamRecord, position: Position) -> Any:
        return record.offset, position.commit_ts

    def images(self, note: ImageNote) -> ImageNote:
        return ImageNote(note.left, (("d", "whole"),), (("d", "waiting"),))


def _message(partition: int, offset: int, position: Position) -> Any:
    parts: dict[str, Any] = {"error": None, "topic": TOPIC, "partition": partition, "offset": offset, "key": None}
    parts |= {"value": b"{}", "headers": [(POSITION_HEADER, position.encode())]}
    return SimpleNamespace(**{name: lambda part=part: part for name, part in parts.items()})


def test_partition_that_was_paused_and_comes_back_from_another_member_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    row, high = Position(Ts(5), PositionClass.ROW), Position(Ts(20), PositionClass.WATERMARK)
    consumer = PausingConsumer({0: [row, high], 1: []}, dealt=[[0, 1]])
    monkeypatch.setattr(client_stream, "kafka_consumer", lambda settings: consumer if settings else None)
    stream = ChangeStream("nowhere", [TOPIC], group="g", pending_bytes_max=1)
    monkeypatch.setattr(stream, "_decode", Offsets())
    assert stream.poll(0.0) is None
    assert consumer.paused == {0}, "its row waits for the other partition's watermark"
    consumer.dealt = [[1]]
    assert stream.poll(0.0) is None
    consumer.dealt = [[0, 1]]
    assert stream.poll(0.0) is None
    consumer.logs[1].append(high)
    batch = stream.poll(0.0)
    assert batch is not None
    assert batch.watermark_ts == 20
    changes: tuple[Any, ...] = batch.changes
    assert changes == ((0, 5),)


def test_batch_says_of_images_what_its_protocols_decoder_makes_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = PausingConsumer({0: [Position(Ts(20), PositionClass.WATERMARK)]}, dealt=[[0]])
    monkeypatch.setattr(client_stream, "kafka_consumer", lambda settings: consumer if settings else None)
    stream = ChangeStream("nowhere", [TOPIC], group="g")
    monkeypatch.setattr(stream, "_decode", Offsets())
    batch = stream.poll(0.0)
    assert batch is not None
    assert (batch.images_left, batch.whole, batch.waiting) == (0, (("d", "whole"),), (("d", "waiting"),))
