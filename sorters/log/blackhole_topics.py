"""Topics of a blackhole sink: in no Kafka, with as many partitions as its settings say."""

from collections.abc import Iterable

from schemas.config.settings import ChangefeedConfig
from sorters.log.topic_admin import PARTITIONS_DEFAULT, SinkTopicLimits


class BlackholeTopics:
    """Has every topic that is asked for."""

    def __init__(self, config: ChangefeedConfig) -> None:
        kafka = config.kafka
        partitions = kafka.partition_num if kafka.partition_num is not None else PARTITIONS_DEFAULT
        self._limits = SinkTopicLimits(partitions=partitions, message_bytes_max=kafka.max_message_bytes)

    def ensure(self, topics: Iterable[str]) -> dict[str, SinkTopicLimits]:
        """Return all ``topics``."""
        return dict.fromkeys(topics, self._limits)

    def recount(self, topics: Iterable[str]) -> dict[str, int]:
        """Return how many partitions they have: always as many."""
        return dict.fromkeys(topics, self._limits.partitions)
