"""The sink's writer against a real broker: order, and that nothing is written behind a record that cannot be."""

from collections.abc import Callable

import pyarrow as pa
import pytest

from compose.stack.local import Addresses
from sorters.core.feed.large_messages import SinkMessageTooLargeError
from sorters.core.records.order import OUTPUT_SCHEMA
from sorters.cut import sink_writer
from sorters.cut.sink_writer import SinkWriter
from sorters.log.failures import KafkaUnreachableError
from tests.support.rawlog.raw_log import create_topic, read_topic
from tests.support.upstream.late_address import LateAddress

TOPIC_BYTES_MAX = 2_000


def _config(kafka: str) -> dict[str, str | int | bool]:
    return {"bootstrap.servers": kafka, "acks": -1, "enable.idempotence": True, "message.max.bytes": 1_000_000}


def _records(topic: str, values: list[bytes], partitions: int = 1) -> pa.Table:
    """Return a record for each value, its number as key and position, dealt out over partitions."""
    numbers = [number.to_bytes(8, "big") for number in range(len(values))]
    columns = [[topic] * len(values), [n % partitions for n in range(len(values))], numbers, values, numbers]
    return pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, OUTPUT_SCHEMA, strict=True)],
        schema=OUTPUT_SCHEMA,
    )


def test_sink_writer_with_more_than_its_queue_holds_writes_all_in_order(
    stack: Addresses, fresh_name: Callable[[str], str]
) -> None:
    topic = fresh_name("sink")
    create_topic(stack.kafka, topic, 2)
    count = 130_000  # librdkafka's own limit is 100,000 messages
    writer = SinkWriter(_config(stack.kafka))
    writer.write(_records(topic, [b"v"] * count, partitions=2))
    writer.finish()
    records = read_topic(stack.kafka, topic)
    for partition in range(2):
        numbers = [int.from_bytes(record.position, "big") for record in records if record.partition == partition]
        assert numbers == list(range(partition, count, 2))
    assert (records[0].key, records[0].value, records[0].offset) == (bytes(8), b"v", 0)


def test_sink_writer_when_topic_refuses_a_record_names_it_and_writes_nothing_behind_it(
    stack: Addresses, fresh_name: Callable[[str], str]
) -> None:
    topic, bad = fresh_name("sink"), 1_500
    create_topic(stack.kafka, topic, 1, {"max.message.bytes": str(TOPIC_BYTES_MAX)})
    values = [b"v" * 50] * 3_000
    values[bad] = b"v" * 2 * TOPIC_BYTES_MAX
    writer = SinkWriter(_config(stack.kafka), batch_bytes=TOPIC_BYTES_MAX)
    with pytest.raises(SinkMessageTooLargeError) as caught:
        writer.write(_records(topic, values))
        writer.finish()
    assert caught.value.fields["topic"] == topic
    assert caught.value.fields["key"] == bad.to_bytes(8, "big").hex()
    written = [int.from_bytes(record.position, "big") for record in read_topic(stack.kafka, topic)]
    assert written == list(range(len(written)))
    assert len(written) <= bad


def test_sink_writer_keeps_batches_within_what_the_topic_takes(
    stack: Addresses, fresh_name: Callable[[str], str]
) -> None:
    topic = fresh_name("sink")
    create_topic(stack.kafka, topic, 1, {"max.message.bytes": str(TOPIC_BYTES_MAX)})
    writer = SinkWriter(_config(stack.kafka), batch_bytes=TOPIC_BYTES_MAX)
    writer.write(_records(topic, [b"v" * 50] * 3_000))
    writer.finish()
    assert len(read_topic(stack.kafka, topic)) == 3_000


def test_sink_writer_on_a_broker_that_takes_nothing_fails_and_sends_nothing_later(
    stack: Addresses, fresh_name: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink_writer, "STALL_S", 1.0)
    topic, late = fresh_name("sink"), LateAddress()
    create_topic(stack.kafka, topic, 1)
    try:
        writer = SinkWriter(_config(late.address))
        writer.write(_records(topic, [b"v"] * 10))
        with pytest.raises(KafkaUnreachableError):
            writer.finish()
        late.open(stack.kafka)
        with pytest.raises(KafkaUnreachableError):
            writer.finish()
        assert read_topic(stack.kafka, topic) == []
    finally:
        late.close()


def test_sink_writer_that_is_stopped_gives_up(stack: Addresses, fresh_name: Callable[[str], str]) -> None:
    topic = fresh_name("sink")
    create_topic(stack.kafka, topic, 1)
    writer = SinkWriter(_config(stack.kafka), stopped=lambda: True)
    with pytest.raises(KafkaUnreachableError, match="stopped"):
        writer.write(_records(topic, [b"v"]))
