"""Sink topics, on the driver: found or created before a row is sent to one (TiCDC's rules for a Kafka sink)."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import ClusterMetadata, ConfigEntry, ConfigResource, ResourceType

from edges.kafka.clients import shared_admin
from edges.kafka.errors import address_of
from edges.kafka.topics import await_topics, create_topics, described, is_passing, partition_counts, topic_settings
from schemas.errors import Action, BusError
from sorters.log.failures import KafkaUnreachableError

log = logging.getLogger(__name__)
TIMEOUT_S = 10.0
"""TiCDC's dial, read and write timeouts."""
PARTITIONS_DEFAULT = 3
"""How many a topic has that we create, where partition-num is not set."""
MESSAGE_OVERHEAD_BYTES = 128
"""What TiCDC leaves free below the broker's limit for the record's own fields."""
_MESSAGE_BYTES, _MIN_INSYNC = "max.message.bytes", "min.insync.replicas"


class TopicMissingError(BusError):
    """The topic is not there, and the changefeed says that it must not be created."""

    code, action = "sorter.topic_missing", Action.STOP_CHANGEFEED


class TopicPartitionsError(BusError):
    """partition-num is larger than what the topic has."""

    code, action = "sorter.topic_partitions", Action.STOP_CHANGEFEED


class TopicRefusedError(BusError):
    """The broker does not allow us to create or read the topic."""

    code, action = "sorter.topic_refused", Action.STOP_CHANGEFEED


class TopicReplicationError(BusError):
    """With required-acks = -1, fewer copies are asked for than must be in sync: no write could be acknowledged."""

    code, action = "sorter.topic_replication", Action.STOP_CHANGEFEED


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkTopicLimits:
    """What a sink topic offers."""

    partitions: int
    """How many are used: with a partition-num below the topic's count only the first ones."""
    message_bytes_max: int
    """Largest message that the topic takes, less the record's own fields."""


class TopicAdmin:
    """Knows the sink topics that were asked for; asks the broker only for new ones."""

    def __init__(
        self,
        config: Mapping[str, object],
        *,
        partitions: int | None,
        replication: int,
        auto_create: bool,
        acks_all: bool = True,
        topic_config: Mapping[str, str] | None = None,
    ) -> None:
        """``config`` is librdkafka's; the rest is partition-num, replication-factor, auto-create-topic, whether
        required-acks is -1, and what topics are created with beside the brokers' defaults.
        """
        self._client = shared_admin(config, log)
        self._address = address_of(config)
        self._partitions = partitions
        self._replication = replication
        self._auto_create = auto_create
        self._acks_all = acks_all
        self._topic_config = dict(topic_config or {})
        self._topics: dict[str, SinkTopicLimits] = {}

    def ensure(self, topics: Iterable[str]) -> dict[str, SinkTopicLimits]:
        """Return all ``topics`` as they are, having created those that were missing.

        Raises:
            TopicMissingError, TopicPartitionsError, TopicRefusedError, TopicReplicationError, KafkaUnreachableError
        """
        wanted = set(topics)
        unknown = sorted(wanted - self._topics.keys())
        if unknown:
            cluster = self._cluster()
            counts = partition_counts(cluster)
            missing = [topic for topic in unknown if topic not in counts]
            if missing:
                self._create(missing, cluster)
                counts = self._await_topics(unknown)
            limits = self._message_limits(unknown)
            for topic in unknown:
                usable = self._usable(topic, counts[topic])
                self._topics[topic] = SinkTopicLimits(partitions=usable, message_bytes_max=limits[topic])
        return {topic: self._topics[topic] for topic in wanted}

    def recount(self, topics: Iterable[str]) -> dict[str, int]:
        """Return how many partitions of ``topics`` may be used now; with a partition-num always as many.

        Raises:
            KafkaUnreachableError
        """
        if self._partitions is not None:
            return dict.fromkeys(topics, self._partitions)
        counts = partition_counts(self._cluster())
        return {topic: counts[topic] for topic in topics if topic in counts}

    def existing(self, topics: Iterable[str]) -> dict[str, SinkTopicLimits]:
        """Return those of ``topics`` that are there, with all their partitions; nothing is created.

        Raises:
            TopicRefusedError, TopicReplicationError, KafkaUnreachableError
        """
        counts = partition_counts(self._cluster())
        present = sorted(set(topics) & counts.keys())
        limits = self._message_limits(present)
        return {topic: SinkTopicLimits(partitions=counts[topic], message_bytes_max=limits[topic]) for topic in present}

    def check(self, topic: str) -> None:
        """Check that a topic can be used, or made, as the changefeed says; nothing is created.

        Raises:
            TopicMissingError, TopicPartitionsError, TopicRefusedError, TopicReplicationError, KafkaUnreachableError
        """
        cluster = self._cluster()
        counts = partition_counts(cluster)
        if topic in counts:
            self._message_limits([topic])
            self._usable(topic, counts[topic])
        elif self._auto_create:
            self._check_broker(cluster)
        else:
            raise TopicMissingError("topic is missing and auto-create-topic is false", topics=topic)

    def _usable(self, topic: str, real: int) -> int:
        if self._partitions is None:
            return real
        if self._partitions > real:
            raise TopicPartitionsError(
                "partition-num is larger than what the topic has",
                topic=topic,
                partition_num=self._partitions,
                real=real,
            )
        return self._partitions

    def _cluster(self) -> Any:
        try:
            return self._client.list_topics(timeout=TIMEOUT_S)
        except KafkaException as error:
            raise self._unreachable("sink topics are not readable", error) from error

    def _create(self, topics: list[str], cluster: ClusterMetadata) -> None:
        if not self._auto_create:
            raise TopicMissingError("topic is missing and auto-create-topic is false", topics=",".join(topics))
        self._check_broker(cluster)
        count = self._partitions or PARTITIONS_DEFAULT
        refused = create_topics(self._client, dict.fromkeys(topics, (count, self._topic_config)), self._replication)
        for topic, error in refused.items():
            if is_passing(error):
                raise self._unreachable("topic was not created in time", error, topic=topic) from error
            raise TopicRefusedError(
                "broker refuses to create the topic", topic=topic, reason=error.args[0].str()
            ) from error

    def _await_topics(self, topics: Sequence[str]) -> dict[str, int]:
        """Return the partition counts of ``topics`` once the broker that we ask has heard of all of them."""
        try:
            counts, absent = await_topics(self._client, topics, TIMEOUT_S)
        except KafkaException as error:
            raise self._unreachable("broker does not answer", error) from error
        if absent:
            raise KafkaUnreachableError(
                "created topic did not appear in time", topics=",".join(absent), address=self._address
            )
        return counts

    def _message_limits(self, topics: Sequence[str]) -> dict[str, int]:
        limits = {}
        try:
            for topic, entries in topic_settings(self._client, topics, TIMEOUT_S).items():
                self._check_replication(entries, topic=topic)
                limits[topic] = int(entries[_MESSAGE_BYTES].value or 0) - MESSAGE_OVERHEAD_BYTES
        except KafkaException as error:
            if error.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                raise TopicRefusedError("topic settings may not be read", reason=error.args[0].str()) from error
            raise self._unreachable("topic settings are not readable", error) from error
        return limits

    def _check_broker(self, cluster: ClusterMetadata) -> None:
        """Check what a new topic will inherit, before it is created with too few copies."""
        if not self._acks_all or not cluster.brokers:
            return
        try:
            broker = ConfigResource(ResourceType.BROKER, str(min(cluster.brokers)))
            (entries,) = described(self._client, [broker], TIMEOUT_S)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.CLUSTER_AUTHORIZATION_FAILED:
                return  # hosted brokers hide their settings; TiCDC passes over the check too
            raise self._unreachable("broker settings are not readable", error) from error
        self._check_replication(entries)

    def _check_replication(self, entries: Mapping[str, ConfigEntry], **where: object) -> None:
        """Compare as TiCDC does: with replication-factor, also where the topic is there already."""
        least = entries.get(_MIN_INSYNC)
        if self._replication < 0:  # the brokers' default
            return
        if self._acks_all and least is not None and least.value and self._replication < int(least.value):
            raise TopicReplicationError(
                "replication-factor is below min.insync.replicas, and required-acks is -1",
                **where,
                replication_factor=self._replication,
                min_insync_replicas=int(least.value),
            )

    def _unreachable(self, message: str, error: KafkaException, **where: object) -> KafkaUnreachableError:
        return KafkaUnreachableError(message, **where, address=self._address, reason=error.args[0].str())
