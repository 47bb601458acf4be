"""The client's pauses over rebalances, on a consumer that keeps a partition paused until it is resumed, as librdkafka
does."""

from typing import Any

import pytest

from schemas.ids import Ts
from schemas.sink.position import Position, PositionClass
from tests.support.topics.group_consumer import GroupConsumer, stream_over


def test_partition_that_was_paused_and_comes_back_from_another_member_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    row, high = Position(Ts(5), PositionClass.ROW), Position(Ts(20), PositionClass.WATERMARK)
    consumer = GroupConsumer({0: [row, high], 1: []}, dealt=[[0, 1]])
    stream = stream_over(monkeypatch, consumer, pending_bytes_max=1)
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
    assert changes == ((0, 0, 5),)


def test_batch_says_of_images_what_its_protocols_decoder_makes_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = GroupConsumer({0: [Position(Ts(20), PositionClass.WATERMARK)]}, dealt=[[0]])
    batch = stream_over(monkeypatch, consumer).poll(0.0)
    assert batch is not None
    assert (batch.images_left, batch.whole, batch.waiting) == (0, (("d", "whole"),), (("d", "waiting"),))
