"""Records of any topic, shown to people."""

import pytest
from confluent_kafka import Producer

from compose.kafka_follower import Record, TopicFollower
from compose.operator.decode import decode_record
from edges.kafka.access import KafkaAccess
from schemas.errors import CorruptDataError

MESSAGE = b'{"type":"DDL"}'


def record(value: bytes) -> Record:
    return Record(partition=0, offset=7, timestamp_ms=0, key=None, value=value, headers=())


@pytest.mark.parametrize("topic", ["ddl", "shop.ddl", "app.frontier", "prod.region-events", "tidebus.ddl"])
def test_users_topic_named_as_one_of_the_raw_log_holds_messages(topic: str) -> None:
    (shown,) = decode_record(topic, record(MESSAGE))
    assert shown["value"] == {"type": "DDL"}


@pytest.mark.parametrize("topic", ["tidebus.u.ddl", "tidebus.a.b.frontier", "tidebus.prologue.default.cf.1.ddl"])
def test_topic_of_a_raw_log_does_not(topic: str) -> None:
    with pytest.raises(CorruptDataError):
        list(decode_record(topic, record(MESSAGE)))


def test_follower_reads_nothing_below_the_offset_that_it_is_given() -> None:
    producer = Producer({"bootstrap.servers": "none:1", "test.mock.num.brokers": 1})
    (broker,) = producer.list_topics(timeout=10).brokers.values()
    for partition, count in ((0, 50), (1, 5)):
        for number in range(count):
            producer.produce("t", str(number).encode(), partition=partition)
    assert producer.flush(20) == 0
    with TopicFollower(KafkaAccess(f"{broker.host}:{broker.port}"), "t", from_offset=40) as follower:
        read = [(each.partition, each.offset) for each in follower.read_to_end(20)]
    assert read == [(0, offset) for offset in range(40, 50)]
