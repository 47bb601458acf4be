"""Sink topics, on the driver: found or created before a row is sent to one (TiCDC's rules for a Kafka sink)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from schemas.errors import Action, BusError
from sorters.failures import KafkaUnreachableError

TIMEOUT_S = 10.0
"""TiCDC's dial, read and write timeouts."""
PARTITIONS_DEFAULT = 3
"""Of a topic that we create, where partition-num is not set."""
MESSAGE_OVERHEAD_BYTES = 128
"""What TiCDC leaves free below the broker's limit for the record's own fields."""


class TopicMissingError(BusError):
    """The topic is not there, and the changefeed says that it must not be created."""

    code, action = "sorter.topic_missing", Action.STOP_CHANGEFEED


class TopicPartitionsError(BusError):
    """partition-num is larger than what the topic has."""

    code, action = "sorter.topic_partitions", Action.STOP_CHANGEFEED


class TopicRefusedError(BusError):
    """The broker does not allow us to create or read the topic."""

    code, action = "sorter.topic_refused", Action.STOP_CHANGEFEED


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkTopic:
    """What a sink topic offers."""

    partitions: int
    """How many are used: with a partition-num below the topic's count only the first ones."""
    message_bytes_max: int
    """Largest message that the topic takes, less the record's own fields."""


class TopicAdmin:
    """Knows the sink topics that were asked for; asks the broker only for new ones."""

    def __init__(
        self,
        config: Mapping[str, str | int | bool],
        *,
        partitions: int | None,
        replication: int,
        auto_create: bool,
    ) -> None:
        """``config`` is librdkafka's; the rest is partition-num, replication-factor and auto-create-topic."""
        self._client = AdminClient(dict(config))
        self._partitions = partitions
        self._replication = replication
        self._auto_create = auto_create
        self._topics: dict[str, SinkTopic] = {}

    def ensure(self, topics: Iterable[str]) -> dict[str, SinkTopic]:
        """Return all ``topics`` as they are, having created those that were missing.

        Raises:
            TopicMissingError, TopicPartitionsError, TopicRefusedError, KafkaUnreachableError
        """
        wanted = set(topics)
        unknown = sorted(wanted - self._topics.keys())
        if unknown:
            found = self._partition_counts()
            missing = [topic for topic in unknown if topic not in found]
            if missing:
                self._create(missing)
            limits = self._message_limits(unknown)
            created = self._partitions or PARTITIONS_DEFAULT
            for topic in unknown:
                self._topics[topic] = SinkTopic(
                    partitions=self._usable(topic, found.get(topic, created)), message_bytes_max=limits[topic]
                )
        return {topic: self._topics[topic] for topic in wanted}

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

    def _partition_counts(self) -> dict[str, int]:
        try:
            topics = self._client.list_topics(timeout=TIMEOUT_S).topics
        except KafkaException as error:
            raise KafkaUnreachableError("sink topics are not readable", reason=error) from error
        return {name: len(meta.partitions) for name, meta in topics.items() if meta.error is None}

    def _create(self, topics: list[str]) -> None:
        if not self._auto_create:
            raise TopicMissingError("topic is missing and auto-create-topic is false", topics=",".join(topics))
        count = self._partitions or PARTITIONS_DEFAULT
        new = [NewTopic(topic, count, self._replication) for topic in topics]
        for topic, future in self._client.create_topics(new, operation_timeout=TIMEOUT_S).items():
            try:
                future.result(TIMEOUT_S)
            except KafkaException as error:
                reason: Any = error.args[0]
                if reason.code() == KafkaError.TOPIC_ALREADY_EXISTS:
                    continue  # another sorter of ours was first
                if reason.retriable() or reason.code() in (KafkaError._TIMED_OUT, KafkaError._TRANSPORT):
                    raise KafkaUnreachableError("topic was not created in time", topic=topic, reason=reason) from error
                raise TopicRefusedError("broker refuses to create the topic", topic=topic, reason=reason) from error

    def _message_limits(self, topics: list[str]) -> dict[str, int]:
        resources = {topic: ConfigResource(ResourceType.TOPIC, topic) for topic in topics}
        limits = {}
        try:
            answers = self._client.describe_configs(list(resources.values()), request_timeout=TIMEOUT_S)
            for topic, resource in resources.items():
                entries = answers[resource].result(TIMEOUT_S)
                limits[topic] = int(entries["max.message.bytes"].value) - MESSAGE_OVERHEAD_BYTES
        except KafkaException as error:
            raise KafkaUnreachableError("topic settings are not readable", reason=error) from error
        return limits
