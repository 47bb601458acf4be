"""How topics are made and asked for, whosever they are: the raw log's, a sink's, or those that somebody looks at.

Kafka tells nobody when its brokers have heard of a topic that was just made, and each hears of it on its own: what asks
for a new topic asks again until it is there. What the admin client raises (``KafkaException``) is the caller's to put
into words of its own.
"""

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ClusterMetadata, ConfigEntry, ConfigResource, NewTopic, ResourceType

TOPICS_A_REQUEST: Final = 500
"""A broker makes some hundred topics a second, and answers when it has made all that it was asked for."""
CREATE_TIMEOUT_S: Final = 60.0
"""For one such request."""
APPEAR_POLL_S: Final = 0.05
"""Between two looks for a topic that has just been created."""
_PASSING: Final = frozenset(
    {
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.NOT_CONTROLLER,
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.THROTTLING_QUOTA_EXCEEDED,
    }
)
"""Java's client calls those of brokers retriable; librdkafka's word (``retriable``) is of transactions alone."""


def partition_counts(cluster: ClusterMetadata) -> dict[str, int]:
    """Return how many partitions each topic has that a ``ClusterMetadata`` knows without an error."""
    return {name: len(topic.partitions) for name, topic in cluster.topics.items() if topic.error is None}


def create_topics(
    admin: AdminClient, wanted: Mapping[str, tuple[int, Mapping[str, str]]], replication: int
) -> dict[str, KafkaException]:
    """Create topics; return those that were refused, with the reason. One that is there already was made by another.

    Args:
        admin: the client.
        wanted: by name the number of partitions, and the settings beside the brokers' defaults.
        replication: how many copies; -1 is the brokers' default.
    """
    refused = {}
    for names in _requests(list(wanted)):
        new = [
            NewTopic(name, wanted[name][0], replication_factor=replication, config=dict(wanted[name][1]))
            for name in names
        ]
        futures = admin.create_topics(new, operation_timeout=CREATE_TIMEOUT_S, request_timeout=CREATE_TIMEOUT_S)
        for name, future in futures.items():
            try:
                future.result()
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    refused[name] = error
        if refused:
            break  # what a broker does not take now it will not take of the next request either
    return refused


def delete_topics(admin: AdminClient, names: Sequence[str]) -> dict[str, KafkaException]:
    """Delete topics; return those that were refused, with the reason. One that is not there was deleted by another."""
    refused = {}
    for some in _requests(names):
        for name, future in admin.delete_topics(list(some), operation_timeout=CREATE_TIMEOUT_S).items():
            try:
                future.result()
            except KafkaException as error:
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    refused[name] = error
    return refused


def is_passing(error: KafkaException) -> bool:
    """Tell whether a broker may take later what it has not taken now."""
    return error.args[0].code() in _PASSING


def await_topics(admin: AdminClient, names: Collection[str], patience_s: float) -> tuple[dict[str, int], list[str]]:
    """Return all partition counts once the broker that we ask has heard of ``names``, and those it has not in time.

    Raises:
        KafkaException: the brokers do not answer within ``patience_s``.
    """
    deadline = time.monotonic() + patience_s
    while True:
        counts = partition_counts(admin.list_topics(timeout=patience_s))
        absent = [name for name in names if not counts.get(name)]
        if not absent or time.monotonic() > deadline:
            return counts, absent
        time.sleep(APPEAR_POLL_S)


def topic_settings(admin: AdminClient, names: Sequence[str], patience_s: float) -> dict[str, dict[str, ConfigEntry]]:
    """Return the settings of each topic as its brokers have them, by name.

    Raises:
        KafkaException: one is not there, or is hidden from us; or the brokers do not answer within ``patience_s``.
    """
    settings: dict[str, dict[str, ConfigEntry]] = {}
    for some in _requests(names):
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in some]
        settings |= zip(some, described(admin, resources, patience_s), strict=True)
    return settings


def described(
    admin: AdminClient, resources: Sequence[ConfigResource], patience_s: float
) -> list[dict[str, ConfigEntry]]:
    """Return the settings of each; a topic that this broker has not heard of yet is asked for again.

    Raises:
        KafkaException: see :func:`topic_settings`.
    """
    deadline = time.monotonic() + patience_s
    while True:
        answers = admin.describe_configs(list(resources), request_timeout=patience_s)
        try:
            return [answers[resource].result() for resource in resources]
        except KafkaException as error:
            unheard = error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART
            if not unheard or time.monotonic() > deadline:
                raise
        time.sleep(APPEAR_POLL_S)


def _requests(names: Sequence[str]) -> Iterator[Sequence[str]]:
    return (names[at : at + TOPICS_A_REQUEST] for at in range(0, len(names), TOPICS_A_REQUEST))
