"""Sink topics on a real broker: created, awaited, and refused where TiCDC refuses them."""

from collections.abc import Callable

import pytest
from confluent_kafka.admin import AdminClient

from compose.stack.local import Addresses
from sorters.log.topic_admin import (
    MESSAGE_OVERHEAD_BYTES,
    PARTITIONS_DEFAULT,
    SinkTopicLimits,
    TopicAdmin,
    TopicMissingError,
    TopicPartitionsError,
    TopicRefusedError,
    TopicReplicationError,
)
from tests.support.rawlog.raw_log import create_topic

FreshName = Callable[[str], str]


def _admin(
    kafka: str, *, partitions: int | None = None, replication: int = 1, auto_create: bool = True, acks_all: bool = True
) -> TopicAdmin:
    return TopicAdmin(
        {"bootstrap.servers": kafka},
        partitions=partitions,
        replication=replication,
        auto_create=auto_create,
        acks_all=acks_all,
    )


def _topics(kafka: str) -> set[str]:
    return set(AdminClient({"bootstrap.servers": kafka}).list_topics(timeout=20).topics)


def test_ensure_missing_topics_returns_them_only_when_the_broker_knows_their_settings(
    stack: Addresses, fresh_name: FreshName
) -> None:
    for _ in range(20):  # a new topic's settings are not there at once: each is a chance to meet that
        names = [fresh_name("sink") for _ in range(3)]
        topics = _admin(stack.kafka).ensure(names)
        assert {topic.partitions for topic in topics.values()} == {PARTITIONS_DEFAULT}
        assert set(names) == topics.keys()


def test_ensure_topic_that_is_there_uses_its_partitions_and_its_message_limit(
    stack: Addresses, fresh_name: FreshName
) -> None:
    name = fresh_name("sink")
    create_topic(stack.kafka, name, 5, {"max.message.bytes": "70000"})
    bytes_max = 70_000 - MESSAGE_OVERHEAD_BYTES
    assert _admin(stack.kafka).ensure([name]) == {name: SinkTopicLimits(partitions=5, message_bytes_max=bytes_max)}
    assert _admin(stack.kafka, partitions=2).ensure([name])[name].partitions == 2
    with pytest.raises(TopicPartitionsError, match=f"{name}.*partition_num=6, real=5"):
        _admin(stack.kafka, partitions=6).ensure([name])


def test_ensure_missing_topic_without_auto_create_names_it_and_creates_nothing(
    stack: Addresses, fresh_name: FreshName
) -> None:
    name = fresh_name("sink")
    with pytest.raises(TopicMissingError, match=name):
        _admin(stack.kafka, auto_create=False).ensure([name])
    assert name not in _topics(stack.kafka)


def test_ensure_with_more_copies_than_brokers_is_refused(stack: Addresses, fresh_name: FreshName) -> None:
    name = fresh_name("sink")
    with pytest.raises(TopicRefusedError, match=name):
        _admin(stack.kafka, replication=9).ensure([name])


def test_ensure_topic_that_needs_more_in_sync_than_replication_factor_is_refused_with_all_acks_only(
    stack: Addresses, fresh_name: FreshName
) -> None:
    name = fresh_name("sink")
    create_topic(stack.kafka, name, 1, {"min.insync.replicas": "2"})
    with pytest.raises(TopicReplicationError, match=f"{name}.*replication_factor=1, min_insync_replicas=2"):
        _admin(stack.kafka).ensure([name])
    assert _admin(stack.kafka, acks_all=False).ensure([name])[name].partitions == 1
    assert _admin(stack.kafka, replication=2).ensure([name])[name].partitions == 1, "TiCDC takes the setting's word"
