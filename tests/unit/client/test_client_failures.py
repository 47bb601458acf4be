"""What the client does where reading fails: nothing is lost, and nothing is passed over."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from consumers.client import ChangeBatch, ChangeStream
from consumers.client.core.partition import PartitionKey, PartitionReader, RecordsLostError, StreamRecord
from consumers.client.errors import MessageError, NoPositionError, StreamUnavailableError
from schemas.errors import BusError, CorruptDataError
from schemas.ids import Ts
from schemas.sink.position import Position, PositionClass, RowOp
from tests.support.topics.group_consumer import TOPIC, GroupConsumer, event, stream_over


def row(ts: int) -> Position:
    return Position(Ts(ts), PositionClass.ROW, Ts(ts - 1), RowOp.INSERT, b"k%d" % ts)


def watermark(ts: int) -> Position:
    return Position(Ts(ts), PositionClass.WATERMARK)


def polled(stream: ChangeStream) -> ChangeBatch:
    batch = stream.poll(0.0)
    assert batch is not None
    return batch


def changes(batch: ChangeBatch) -> list[Any]:
    return list(batch.changes)


def committed(consumer: GroupConsumer) -> dict[int, tuple[int, str | None]]:
    return {number: (each.offset, each.metadata) for number, each in consumer.group.items()}


def fail_decoding(monkeypatch: pytest.MonkeyPatch, stream: ChangeStream, error: BusError) -> Callable[[], None]:
    """Let no message be read until what is returned is called."""
    decode = stream._decode

    def failing(*_: object) -> Any:
        raise error

    monkeypatch.setattr(stream, "_decode", failing)
    return lambda: monkeypatch.setattr(stream, "_decode", decode)


def test_batch_while_the_registry_does_not_answer_comes_once_it_does_and_is_committed_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    consumer = GroupConsumer({0: [row(10), row(11), watermark(20)]}, dealt=[[0]])
    stream = stream_over(monkeypatch, consumer)
    go_on = fail_decoding(monkeypatch, stream, StreamUnavailableError("the schema registry does not give a schema"))
    for _ in range(3):
        with pytest.raises(StreamUnavailableError):
            stream.poll(0.0)
    assert consumer.paused == {0}, "what comes meanwhile waits in Kafka"
    consumer.logs[0] += [row(30), watermark(40)]
    go_on()
    batch = polled(stream)
    assert (batch.watermark_ts, changes(batch)) == (20, [(0, 0, 10), (0, 1, 11)])
    stream.commit(batch)
    assert committed(consumer) == {0: (3, '{"applied_ts": 20}')}
    assert consumer.paused == set()
    batch = polled(stream)
    assert (batch.watermark_ts, changes(batch)) == (40, [(0, 3, 30)])
    stream.commit(batch)
    assert committed(consumer) == {0: (5, '{"applied_ts": 40}')}


def test_batch_with_a_message_that_cannot_be_read_is_not_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = GroupConsumer({0: [row(10), watermark(20)]}, dealt=[[0]])
    stream = stream_over(monkeypatch, consumer)
    fail_decoding(monkeypatch, stream, MessageError("not a canal-json message"))
    with pytest.raises(MessageError):
        stream.poll(0.0)
    consumer.logs[0] += [row(30), watermark(40)]
    for _ in range(3):
        with pytest.raises(MessageError):
            stream.poll(0.0)


def test_partition_that_goes_while_a_batch_cannot_be_made_takes_its_rows_along(monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = GroupConsumer({0: [row(10), watermark(20)], 1: [row(11), watermark(20)]}, dealt=[[0, 1]])
    stream = stream_over(monkeypatch, consumer)
    go_on = fail_decoding(monkeypatch, stream, StreamUnavailableError("the schema registry does not give a schema"))
    with pytest.raises(StreamUnavailableError):
        stream.poll(0.0)
    consumer.dealt = [[1]]
    with pytest.raises(StreamUnavailableError):
        stream.poll(0.0)
    go_on()
    batch = polled(stream)
    assert changes(batch) == [(1, 0, 11)]
    stream.commit(batch)
    assert committed(consumer) == {1: (2, '{"applied_ts": 20}')}
    consumer.dealt = [[0, 1]]
    assert changes(polled(stream)) == [(0, 0, 10)], "nobody has committed it, so it comes to whoever has it next"


def test_partition_that_comes_back_while_a_batch_cannot_be_made_is_read_on(monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = GroupConsumer({0: [row(10), watermark(20)], 1: [row(11), watermark(20)]}, dealt=[[0, 1]])
    stream = stream_over(monkeypatch, consumer)
    go_on = fail_decoding(monkeypatch, stream, StreamUnavailableError("the schema registry does not give a schema"))
    with pytest.raises(StreamUnavailableError):
        stream.poll(0.0)
    consumer.dealt = [[0, 1]]
    with pytest.raises(StreamUnavailableError):
        stream.poll(0.0)
    assert consumer.at == {0: 2, 1: 2}
    consumer.group[0] = TopicPartition(TOPIC, 0, 2, metadata='{"applied_ts": 20}')
    consumer.dealt = [[0, 1]]
    go_on()
    assert changes(polled(stream)) == [(1, 0, 11)], "another member has applied the other's"


def test_records_that_come_with_an_event_are_taken_though_the_event_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = event(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    consumer = GroupConsumer({0: [row(10), watermark(20)]}, dealt=[[0]], events=[refused])
    stream = stream_over(monkeypatch, consumer)
    with pytest.raises(StreamUnavailableError, match="Topic authorization failed"):
        stream.poll(0.0)
    consumer.logs[0] += [row(30), watermark(40)]
    batch = polled(stream)
    assert changes(batch) == [(0, 0, 10), (0, 2, 30)]


def test_partition_whose_place_is_gone_is_said_at_each_poll_and_takes_no_other_partitions_records_along(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gone = event(KafkaError._AUTO_OFFSET_RESET, 0)
    consumer = GroupConsumer({0: [], 1: [row(11), watermark(20)]}, dealt=[[0, 1]], events=[gone])
    stream = stream_over(monkeypatch, consumer)
    for _ in range(3):
        with pytest.raises(RecordsLostError) as caught:
            stream.poll(0.0)
        assert caught.value.fields["partition"] == 0
    consumer.dealt = [[1]]
    batch = polled(stream)
    assert (batch.watermark_ts, changes(batch)) == (20, [(1, 0, 11)])


def test_record_that_is_none_of_a_changefeeds_holds_its_partition_until_that_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    consumer = GroupConsumer({0: [None, row(10), watermark(20)], 1: [row(11), watermark(20)]}, dealt=[[0, 1]])
    stream = stream_over(monkeypatch, consumer)
    for _ in range(3):
        with pytest.raises(NoPositionError, match="partition=0, offset=0"):
            stream.poll(0.0)
        consumer.logs[0] += [row(30), watermark(40)]
    consumer.dealt = [[1]]
    assert changes(polled(stream)) == [(1, 0, 11)]
    consumer.dealt = [[0, 1]]
    with pytest.raises(NoPositionError, match="partition=0, offset=0"):
        stream.poll(0.0)


def test_what_is_whole_before_a_record_that_cannot_be_read_is_handed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = GroupConsumer({0: [row(10), watermark(20), None, row(30), watermark(40)]}, dealt=[[0]])
    stream = stream_over(monkeypatch, consumer)
    with pytest.raises(NoPositionError):
        stream.poll(0.0)
    batch = polled(stream)
    assert (batch.watermark_ts, changes(batch)) == (20, [(0, 0, 10)])
    stream.commit(batch)
    assert committed(consumer) == {0: (2, '{"applied_ts": 20}')}
    with pytest.raises(NoPositionError):
        stream.poll(0.0)


def test_watermark_that_cannot_be_read_moves_nothing() -> None:
    reader = PartitionReader(Ts(0), 0)
    with pytest.raises(CorruptDataError):
        reader.take(StreamRecord(PartitionKey(TOPIC, 0), 0, None, b"", watermark(20).encode(), b"no note"))
    assert (reader.watermark_ts, reader.next_offset) == (0, 0)


def no_answer() -> KafkaException:
    return KafkaException(KafkaError(KafkaError._TIMED_OUT))


def answer_of(partition: int, offset: int, error: int | None = None) -> Any:
    problem = None if error is None else KafkaError(error)
    return SimpleNamespace(topic=TOPIC, partition=partition, offset=offset, metadata=None, error=problem)


def test_partitions_of_which_the_commits_are_not_told_at_once_are_read_once_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    consumer = GroupConsumer({0: [row(10), watermark(20)]}, dealt=[[0]], answers=[no_answer() for _ in range(4)])
    stream = stream_over(monkeypatch, consumer)
    for _ in range(3):
        with pytest.raises(StreamUnavailableError, match="committed"):
            stream.poll(0.0)
        assert consumer.at == {}, "where to begin is not known"
    batch = stream.poll(5.0)
    assert batch is not None
    assert changes(batch) == [(0, 0, 10)]
    stream.commit(batch)
    assert committed(consumer) == {0: (2, '{"applied_ts": 20}')}


def test_partition_of_which_the_commit_is_not_told_does_not_begin_at_the_topics_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    in_part = {0: answer_of(0, -1001, KafkaError.UNSTABLE_OFFSET_COMMIT), 1: answer_of(1, 2)}
    consumer = GroupConsumer(
        {0: [row(10), watermark(20), row(30), watermark(40)], 1: [row(11), watermark(20), watermark(40)]},
        dealt=[[0, 1]],
        group={0: TopicPartition(TOPIC, 0, 2, metadata='{"applied_ts": 20}')},
        answers=[in_part, in_part],
    )
    stream = stream_over(monkeypatch, consumer)
    with pytest.raises(StreamUnavailableError, match="committed"):
        stream.poll(0.0)
    assert consumer.at == {}
    consumer.group[1] = TopicPartition(TOPIC, 1, 2, metadata='{"applied_ts": 20}')
    batch = stream.poll(5.0)
    assert batch is not None
    assert changes(batch) == [(0, 2, 30)]


def test_partitions_that_go_before_their_commits_are_told_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = GroupConsumer(
        {0: [row(10), watermark(20)], 1: [row(11), watermark(20)]},
        dealt=[[0, 1], [1]],
        answers=[no_answer(), no_answer()],
    )
    stream = stream_over(monkeypatch, consumer)
    with pytest.raises(StreamUnavailableError):
        stream.poll(0.0)
    batch = polled(stream)
    assert changes(batch) == [(1, 0, 11)]
    assert consumer.at == {1: 2}
