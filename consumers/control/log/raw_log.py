"""What of the raw log can still be read, and so from where a changefeed can start."""

import contextlib
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from consumers.control.log.frontier_topic import FrontierTopic
from schemas.errors import Action, BusError
from schemas.ids import Ts
from schemas.rawlog.topics import RawTopics

log = logging.getLogger(__name__)

ADMIN_TIMEOUT_S = 15.0
"""For one answer of the broker; it covers a broker's restart."""
LEADER_RETRY_S = 0.2
_LEADER_MOVES = frozenset(
    {
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._NOENT,
    }
)
"""What a broker, or librdkafka from its cache, says while a partition's leader is not where it was."""


class RawLogUnavailableError(BusError):
    """Kafka does not answer, or has no raw log."""

    code, action = "rawlog.unavailable", Action.RETRY


@dataclass(frozen=True, slots=True)
class FrontierWindow:
    """Where a changefeed may start."""

    oldest_ts: Ts
    newest_ts: Ts


def frontier_window(bootstrap_servers: str, topics: RawTopics) -> FrontierWindow | None:
    """Return the range of ts from which a changefeed may start now; None: no capture has published a frontier yet.

    Raises:
        RawLogUnavailableError: Kafka does not answer, or there is no raw log.
        BusError: the frontier topic cannot be read.
    """
    starts = _log_starts(bootstrap_servers, topics.region_events)
    frontier = FrontierTopic(bootstrap_servers, topics.frontier)
    with contextlib.closing(frontier):
        newest = frontier.newest()
        if newest is None:
            return None
        # Retention may have emptied a partition beyond all that the records say: then only the newest place is safe.
        oldest = frontier.oldest_usable(starts) or newest
    return FrontierWindow(oldest.resolved_ts, newest.resolved_ts)


def _log_starts(bootstrap_servers: str, topic: str) -> tuple[int, ...]:
    with _errors(bootstrap_servers, "reading where the raw log starts"):
        consumer: Any = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "tidebus-raw-log"}, logger=log)
        with contextlib.closing(consumer):
            metadata = consumer.list_topics(topic, timeout=ADMIN_TIMEOUT_S).topics[topic]
            if metadata.error is not None:
                raise RawLogUnavailableError(
                    "there is no raw log; start a capture first", topic=topic, reason=metadata.error
                )
            return tuple(_log_start(consumer, TopicPartition(topic, number)) for number in sorted(metadata.partitions))


def _log_start(consumer: Any, partition: TopicPartition) -> int:
    """Return where a partition starts; one whose leader is moving, or which is just being made, is asked again."""
    deadline = time.monotonic() + ADMIN_TIMEOUT_S
    while True:
        try:
            return int(consumer.get_watermark_offsets(partition, timeout=ADMIN_TIMEOUT_S)[0])
        except KafkaException as error:
            if error.args[0].code() not in _LEADER_MOVES or time.monotonic() >= deadline:
                raise
            time.sleep(LEADER_RETRY_S)


@contextlib.contextmanager
def _errors(bootstrap_servers: str, doing: str) -> Iterator[None]:
    try:
        yield
    except KafkaException as error:
        raise RawLogUnavailableError(
            "Kafka does not answer; check --kafka", kafka=bootstrap_servers, doing=doing, reason=error
        ) from error
