"""Partitions that topics get: used from a new epoch on, and not where an epoch is run again."""

import logging
from collections.abc import Iterable

import pytest

from schemas.ids import Ts
from sorters.core.cut.topic_counts import TopicCount, decode_counts, encode_counts, shard_of
from sorters.log.failures import KafkaUnreachableError
from sorters.log.topic_admin import SinkTopicLimits
from sorters.run.topic_growth import LOOK_S, TopicGrowth


class Broker:
    """Has topics, and remembers what it has said first, as the topic admin does."""

    def __init__(self, **topics: int) -> None:
        self.topics, self.said, self.looks = topics, dict[str, int](), 0
        self.away = False

    def ensure(self, topics: Iterable[str]) -> dict[str, SinkTopicLimits]:
        for topic in topics:
            self.said.setdefault(topic, self.topics[topic])
        return {topic: SinkTopicLimits(partitions=self.said[topic], message_bytes_max=1) for topic in topics}

    def recount(self, topics: Iterable[str]) -> dict[str, int]:
        self.looks += 1
        if self.away:
            raise KafkaUnreachableError("sink topics are not readable")
        return {topic: self.topics[topic] for topic in topics}


class Nodes:
    """ZooKeeper's."""

    def __init__(self) -> None:
        self.shards: dict[int, bytes] = {}
        self.writes = 0

    def read(self) -> list[bytes]:
        return list(self.shards.values())

    def write(self, shard: int, counts: bytes) -> None:
        self.shards[shard] = counts
        self.writes += 1

    @property
    def counts(self) -> dict[str, TopicCount]:
        return {topic: count for content in self.shards.values() for topic, count in decode_counts(content).items()}


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def used(growth: TopicGrowth, *topics: str) -> dict[str, int]:
    return {topic: limits.partitions for topic, limits in growth.ensure(topics).items()}


def ran(broker: Broker, nodes: Nodes, *topics: str) -> None:
    """Let a sorter use the topics, and die."""
    growth = TopicGrowth(broker, nodes)
    growth.settle()
    growth.ensure(topics)
    growth.write()


def test_topic_that_grew_while_no_sorter_ran_is_used_as_it_was_until_the_begun_epoch_is_done() -> None:
    broker, nodes = Broker(a=3, b=1), Nodes()
    ran(broker, nodes, "a", "b")
    after = Broker(a=5, b=1)
    growth = TopicGrowth(after, nodes)
    growth.begin(Ts(10))
    feed = used(growth, "a", "b")
    assert feed == {"a": 3, "b": 1}
    assert growth.look(feed) == {}, "not in an epoch that is run again"
    growth.write()
    assert nodes.counts == {"a": TopicCount(3), "b": TopicCount(1)}
    growth.settle()
    growth.begin(Ts(70))
    assert growth.look(feed) == {"a": 5}
    assert nodes.counts["a"] == TopicCount(3), "before the epoch is written down the old one may have to run again"
    growth.write()
    assert nodes.counts == {"a": TopicCount(5, 3, Ts(70)), "b": TopicCount(1)}
    assert growth.new_partitions(Ts(70)) == {"a": range(3, 5)}


def test_topic_that_grew_where_no_epoch_is_run_again_is_used_as_it_is_and_its_border_noted() -> None:
    nodes = Nodes()
    ran(Broker(a=3), nodes, "a")
    growth = TopicGrowth(Broker(a=5), nodes)
    growth.settle()
    growth.begin(Ts(70))
    assert used(growth, "a") == {"a": 5}
    assert growth.new_partitions(Ts(70)) == {"a": range(3, 5)}


def test_sorter_that_repeats_the_epoch_after_the_border_knows_the_new_partitions_again() -> None:
    nodes = Nodes()
    nodes.write(shard_of("a"), encode_counts({"a": TopicCount(5, 3, Ts(70))}))
    growth = TopicGrowth(Broker(a=9), nodes)
    growth.begin(Ts(70))
    assert used(growth, "a") == {"a": 5}
    assert growth.new_partitions(Ts(70)) == {"a": range(3, 5)}


def test_look_asks_once_a_minute_and_says_what_has_grown_once(caplog: pytest.LogCaptureFixture) -> None:
    broker, clock = Broker(a=3), Clock()
    growth = TopicGrowth(broker, Nodes(), clock=clock)
    growth.settle()
    feed = used(growth, "a")
    growth.look(feed)
    broker.topics["a"] = 4
    assert (growth.look(feed), broker.looks) == ({}, 1)
    clock.now_s += LOOK_S
    with caplog.at_level(logging.WARNING):
        assert growth.look(feed) == {"a": 4}
        clock.now_s += LOOK_S
        assert growth.look({"a": 4}) == {}
    (record,) = caplog.records
    assert vars(record)["code"] == "sorter.topic_grown"
    assert "a: 3 to 4" in vars(record)["said"]


def test_look_where_kafka_does_not_answer_says_so_and_asks_again_later(caplog: pytest.LogCaptureFixture) -> None:
    broker, clock = Broker(a=3), Clock()
    growth = TopicGrowth(broker, None, clock=clock)
    growth.settle()
    feed = used(growth, "a")
    broker.topics["a"], broker.away = 4, True
    assert growth.look(feed) == {}
    assert "not known" in caplog.text
    clock.now_s, broker.away = clock.now_s + LOOK_S, False
    assert growth.look(feed) == {"a": 4}


def test_topic_that_was_made_anew_with_fewer_partitions_is_used_as_it_is() -> None:
    nodes = Nodes()
    ran(Broker(a=5), nodes, "a")
    growth = TopicGrowth(Broker(a=2), nodes)
    assert used(growth, "a") == {"a": 2}


def test_write_with_nothing_new_writes_nothing() -> None:
    nodes = Nodes()
    ran(Broker(a=3), nodes, "a")
    ran(Broker(a=3), nodes, "a")
    assert nodes.writes == 1
