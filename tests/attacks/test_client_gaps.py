"""A reader of the change stream stops where records are gone: it never goes on behind a gap as if nothing were."""

import time
from collections.abc import Callable

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from compose.stack.local import Addresses
from consumers.client import ChangeStream
from consumers.client.core.partition import PartitionKey, PartitionReader, RecordsLostError, StreamRecord
from schemas.errors import Action
from schemas.ids import Ts
from schemas.sink.position import POSITION_HEADER, Position, PositionClass
from tests.support.rawlog.raw_log import create_topic

KEY = PartitionKey("orders", 0)
DEADLINE_S = 60.0


def watermark(ts: int, offset: int = 0) -> StreamRecord:
    return StreamRecord(KEY, offset, None, b"{}", Position(Ts(ts), PositionClass.WATERMARK).encode())


def test_reader_stops_at_a_gap_and_takes_nothing_behind_it() -> None:
    reader = PartitionReader(Ts(0), 4)
    reader.take(watermark(5, 4))
    with pytest.raises(RecordsLostError) as caught:
        reader.take(watermark(7, 6))
    assert caught.value.fields == {"topic": "orders", "partition": 0, "next_offset": 5, "offset": 6}
    assert caught.value.action is Action.STOP_CHANGEFEED
    assert (reader.watermark_ts, reader.next_offset) == (5, 5)
    reader.take(watermark(5, 4))  # Kafka may bring a record again
    reader.take(watermark(6, 5))
    assert (reader.watermark_ts, reader.next_offset) == (6, 6)


def test_reader_without_a_past_begins_with_whatever_stands_first() -> None:
    reader = PartitionReader(Ts(0), -1)
    reader.take(watermark(5, 17))
    assert reader.next_offset == 18


def write(kafka: str, topic: str, first_ts: int, count: int) -> None:
    producer = Producer({"bootstrap.servers": kafka, "linger.ms": 5, "enable.idempotence": True})
    for ts in range(first_ts, first_ts + count):
        producer.produce(topic, b"{}", None, 0, headers=[(POSITION_HEADER, watermark(ts).position)])
    assert producer.flush(30) == 0


def delete_before(kafka: str, topic: str, offset: int) -> None:
    admin = AdminClient({"bootstrap.servers": kafka})  # has to live until it has been answered
    (done,) = admin.delete_records([TopicPartition(topic, 0, offset)]).values()
    assert done.result(30).low_watermark == offset


def read_to(stream: ChangeStream, ts: int) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        batch = stream.poll(1.0)
        if batch is not None:
            stream.commit(batch)
            if batch.watermark_ts >= ts:
                return
    pytest.fail(f"{ts} was not reached")


@pytest.mark.parametrize("reset", ["earliest", "latest", "error"])
def test_group_whose_place_has_been_deleted_stops_whatever_the_settings_say(
    stack: Addresses, fresh_name: Callable[[str], str], reset: str
) -> None:
    topic = fresh_name("sink")
    create_topic(stack.kafka, topic, 1)
    write(stack.kafka, topic, 1, 10)
    settings = {"auto.offset.reset": reset}
    with ChangeStream(stack.kafka, [topic], group=f"{topic}-group", kafka=settings) as stream:
        read_to(stream, 10)
    write(stack.kafka, topic, 11, 10)
    delete_before(stack.kafka, topic, 15)
    with (
        ChangeStream(stack.kafka, [topic], group=f"{topic}-group", kafka=settings) as stream,
        pytest.raises(RecordsLostError) as caught,
    ):
        read_to(stream, 20)
    assert (caught.value.fields["topic"], caught.value.fields["partition"]) == (topic, 0)
