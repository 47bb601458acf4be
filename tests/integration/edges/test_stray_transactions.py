"""Topics of ours into which a stranger's transactions have written: Kafka puts records there that nobody is handed."""

import time
from collections.abc import Callable
from contextlib import closing

import pytest
from confluent_kafka import Producer

from compose.stack.local import Addresses
from consumers.control.log.frontier_topic import FrontierTopic
from consumers.processors.sink_source import KafkaSource, SinkRecord
from edges.kafka.compacted import compacted_records
from edges.kafka.markers import is_marker
from edges.kafka.offsets import TopicReader
from edges.kafka.producer import ordered_producer
from edges.kafka.tail import FrontierTail
from schemas.ids import Ts
from schemas.rawlog.frontier import NOBODYS, FrontierRecord, encode_frontier
from schemas.rawlog.record_check import RawRecord, RecordDamagedError
from schemas.sink.position import POSITION_HEADER
from sorters.cut.record_window import RecordWindow
from tests.support.processes.bus import wait_until
from tests.support.rawlog.raw_log import create_topic


def published(ts: int) -> FrontierRecord:
    return FrontierRecord(owner_rev=1, resolved_ts=Ts(ts), low=(0,), high=(0,), ddl_high=0, repeat_high=(0,))


class Topic:
    """A frontier topic, and who writes there."""

    def __init__(self, stack: Addresses, name: str) -> None:
        self.kafka, self.name, self.config = stack.kafka_access, name, stack.kafka_access.config()
        create_topic(stack.kafka, name, 1)

    def publish(self, *all_ts: int) -> None:
        producer = ordered_producer(self.config)
        for ts in all_ts:
            producer.produce(self.name, encode_frontier(published(ts)), partition=0)
        assert producer.flush(30) == 0

    def stray(self, *, commits: bool) -> None:
        """Let a stranger write a record in a transaction; return once its marker stands there."""
        end, producer = self.end(), self.open_stray()
        producer.commit_transaction(60) if commits else producer.abort_transaction(60)
        wait_until(lambda: self.end() == end + 2, 30, "the marker stands there")

    def open_stray(self) -> Producer:
        """Return a stranger who has written a record, and has not ended its transaction."""
        producer = Producer({**self.config, "transactional.id": f"stray-{self.name}"})
        producer.init_transactions(60)
        producer.begin_transaction()
        producer.produce(self.name, b"hello, wrong topic", partition=0)
        assert producer.flush(30) == 0
        return producer

    def end(self) -> int:
        with closing(TopicReader(self.config, self.name)) as reader:
            return reader.bounds()[1]


@pytest.fixture
def topic(stack: Addresses, fresh_name: Callable[[str], str]) -> Topic:
    return Topic(stack, fresh_name("stray"))


@pytest.mark.parametrize("commits", [True, False])
def test_frontier_goes_on_behind_a_strangers_transaction(topic: Topic, commits: bool) -> None:
    topic.publish(1, 2)
    topic.stray(commits=commits)
    with closing(FrontierTopic(topic.kafka, topic.name)) as frontier:
        assert frontier.newest() == published(2), "the marker is the last one"
        topic.publish(3, 4)
        assert frontier.newest() == published(4)
    want = [published(1), published(2), NOBODYS, NOBODYS, published(3), published(4)]
    heard: list[FrontierRecord] = []
    with FrontierTail(topic.config, topic.name, 0) as follower:
        deadline = time.monotonic() + 30
        while len(heard) < len(want) and time.monotonic() < deadline:
            heard += follower.read(10, 0.5)
    assert heard == want
    assert [is_marker(topic.config, topic.name, 0, offset) for offset in range(7)] == [
        offset == 3 for offset in range(7)
    ]


@pytest.mark.parametrize("commits", [True, False])
def test_compacted_topic_is_read_up_to_a_strangers_transaction_at_its_end(topic: Topic, commits: bool) -> None:
    topic.publish(1, 2)
    topic.stray(commits=commits)
    assert [offset for offset, _, _ in compacted_records(topic.config, topic.name, 30.0)] == [0, 1, 2]


def test_strangers_open_transaction_hides_nothing_from_a_processor(topic: Topic) -> None:
    stranger = topic.open_stray()
    producer = ordered_producer(topic.config)
    producer.produce(topic.name, b"row", partition=0, headers={POSITION_HEADER: b"position"})
    assert producer.flush(30) == 0
    with closing(KafkaSource(topic.kafka, topic.name, topic.name)) as source:
        source.start({0: 0})
        records: list[SinkRecord] = []
        deadline = time.monotonic() + 20
        while not records and time.monotonic() < deadline:
            records += source.poll(0.5)
    assert [(record.offset, record.value) for record in records] == [(1, b"row")]
    stranger.abort_transaction(60)


def test_raw_record_of_a_strangers_transaction_is_named_and_so_is_its_marker(topic: Topic) -> None:
    topic.publish(1)
    topic.stray(commits=True)
    topic.publish(2)
    with closing(RecordWindow(topic.config, topic.name)) as window:
        records = {offset: value for _, offset, value in window.read_all({0: (0, 4)})}
    assert records.keys() == {0, 1, 2, 3}
    for offset in (1, 2):
        record = records[offset]
        assert isinstance(record, RawRecord)
        with pytest.raises(RecordDamagedError, match=f"offset={offset}"):
            record.check()
