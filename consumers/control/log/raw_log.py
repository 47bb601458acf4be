"""What of the raw log can still be read, and so from where a changefeed can start."""

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass

from confluent_kafka import KafkaException

from consumers.control.log.frontier_topic import FrontierTopic
from edges.kafka.access import KafkaAccess
from edges.kafka.clients import kafka_consumer
from edges.kafka.offsets import partition_bounds
from schemas.errors import Action, BusError
from schemas.ids import Ts
from schemas.rawlog.topics import RawTopics

log = logging.getLogger(__name__)

ADMIN_TIMEOUT_S = 15.0
"""For one answer of the broker; it covers a broker's restart."""


class RawLogUnavailableError(BusError):
    """Kafka does not answer, or has no raw log."""

    code, action = "rawlog.unavailable", Action.RETRY


@dataclass(frozen=True, slots=True)
class RetainedFrontier:
    """Where a changefeed may start."""

    oldest_ts: Ts
    newest_ts: Ts


def retained_frontier(kafka: KafkaAccess, topics: RawTopics) -> RetainedFrontier | None:
    """Return the range of ts from which a changefeed may start now; None: no capture has published a frontier yet.

    Raises:
        RawLogUnavailableError: Kafka does not answer, or there is no raw log.
        BusError: the frontier topic cannot be read.
    """
    starts = _log_starts(kafka, topics.region_events)
    frontier = FrontierTopic(kafka, topics.frontier)
    with contextlib.closing(frontier):
        newest = frontier.newest()
        if newest is None:
            return None
        # Retention may have emptied a partition beyond all that the records say: then only the newest frontier is safe.
        oldest = frontier.oldest_usable(starts) or newest
    return RetainedFrontier(oldest.resolved_ts, newest.resolved_ts)


def _log_starts(kafka: KafkaAccess, topic: str) -> tuple[int, ...]:
    with _errors(kafka, "reading where the raw log starts"):
        consumer = kafka_consumer({**kafka.config(), "group.id": "tidebus-raw-log"}, log)
        with contextlib.closing(consumer):
            metadata = consumer.list_topics(topic, timeout=ADMIN_TIMEOUT_S).topics[topic]
            if metadata.error is not None:
                raise RawLogUnavailableError(
                    "there is no raw log; start a capture first", topic=topic, reason=metadata.error
                )
            return tuple(_log_start(consumer, topic, number) for number in sorted(metadata.partitions))


def _log_start(consumer: object, topic: str, partition: int) -> int:
    """Return where a partition starts; one whose leader is moving, or which is just being made, is asked again."""
    return partition_bounds(consumer, topic, partition, answer_s=ADMIN_TIMEOUT_S, patience_s=ADMIN_TIMEOUT_S)[0]


@contextlib.contextmanager
def _errors(kafka: KafkaAccess, doing: str) -> Iterator[None]:
    try:
        yield
    except KafkaException as error:
        raise RawLogUnavailableError(
            "Kafka does not answer; check --kafka", kafka=kafka.servers, doing=doing, reason=error.args[0].str()
        ) from error
