"""What topics are at the moment: their ids and ends."""

import logging
import time
from collections.abc import Collection, Mapping
from typing import Any, Final

from confluent_kafka import KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from edges.kafka.clients import kafka_admin
from edges.kafka.errors import KafkaUnreachableError, address_of
from edges.kafka.topics import topic_settings
from schemas.rawlog.log_state import TopicState
from schemas.rawlog.topic_settings import SETTINGS, SeenTopic

log = logging.getLogger(__name__)

ANSWER_S: Final = 15.0
PATIENCE_S: Final = 15.0
"""For a partition whose leader is moving, or a topic that was just made."""
_RETRY_S: Final = 0.2


def topic_states(config: Mapping[str, object], topics: Collection[str]) -> dict[str, TopicState]:
    """Return the state of each topic. ``config`` is librdkafka's: servers, TLS, SASL.

    Raises:
        KafkaUnreachableError: the brokers do not answer, or there is no such topic.
    """
    admin, deadline = kafka_admin(config, log), time.monotonic() + PATIENCE_S
    while True:
        try:
            return _asked(admin, list(topics))
        except KafkaException as error:
            if time.monotonic() >= deadline:
                raise KafkaUnreachableError(
                    "raw topics cannot be looked at",
                    topics=sorted(topics),
                    address=address_of(config),
                    reason=error.args[0].str(),
                ) from error
        time.sleep(_RETRY_S)


def _asked(admin: AdminClient, topics: list[str]) -> dict[str, TopicState]:
    futures = admin.describe_topics(TopicCollection(topics), request_timeout=ANSWER_S)
    described = {name: future.result() for name, future in futures.items()}
    wanted = {
        TopicPartition(name, number): OffsetSpec.latest()
        for name, topic in described.items()
        for number in range(len(topic.partitions))
    }
    ends = {
        (at.topic, at.partition): int(future.result().offset)
        for at, future in admin.list_offsets(wanted, request_timeout=ANSWER_S).items()
    }
    return {
        name: TopicState(
            topic_id=_id_text(topic.topic_id),
            ends=tuple(ends[name, number] for number in range(len(topic.partitions))),
        )
        for name, topic in described.items()
    }


def topic_names(config: Mapping[str, object]) -> frozenset[str]:
    """Return the names of all topics that we may see.

    Raises:
        KafkaUnreachableError: the brokers do not answer.
    """
    return frozenset(_listed(kafka_admin(config, log), config, ()))


def seen_topics(config: Mapping[str, object], topics: Collection[str]) -> dict[str, SeenTopic]:
    """Return how topics are set, of those that there are; without what we may not see.

    Raises:
        KafkaUnreachableError: the brokers do not answer.
    """
    admin = kafka_admin(config, log)
    listed = _listed(admin, config, topics)
    present = {name: listed[name] for name in topics if name in listed and listed[name].error is None}
    seen = {}
    for name, topic in present.items():
        settings: dict[str, str] = {}
        try:
            entries = topic_settings(admin, [name], ANSWER_S)[name]
            settings = {key: str(entries[key].value) for key in SETTINGS if key in entries}
        except KafkaException as error:
            log.warning("settings of a topic are not shown to us", extra={"topic": name, "reason": str(error.args[0])})
        replicas = min((len(partition.replicas) for partition in topic.partitions.values()), default=0)
        seen[name] = SeenTopic(replicas=replicas, settings=settings)
    return seen


def _listed(admin: AdminClient, config: Mapping[str, object], topics: Collection[str]) -> Mapping[str, Any]:
    try:
        listed: Mapping[str, Any] = admin.list_topics(timeout=ANSWER_S).topics
    except KafkaException as error:
        raise KafkaUnreachableError(
            "topics cannot be looked at", topics=sorted(topics), address=address_of(config), reason=error.args[0].str()
        ) from error
    return listed


def _id_text(topic_id: Any) -> str:
    """Return the id as text; '' for the zero that brokers without ids say."""
    if topic_id is None or (not topic_id.get_most_significant_bits() and not topic_id.get_least_significant_bits()):
        return ""
    return str(topic_id)
