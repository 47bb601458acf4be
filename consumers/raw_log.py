"""The raw log as a whole: its topics come into being here, and what of it can still be read is said here."""

import contextlib
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from consumers.frontier_topic import FrontierTopic
from schemas.errors import Action, BusError, ConfigError
from schemas.ids import Ts
from schemas.rawlog.topics import RAW_MESSAGE_BYTES_MAX, RawTopics

log = logging.getLogger(__name__)

PARTITIONS_DEFAULT = 8
ADMIN_TIMEOUT_S = 15.0
"""A new topic's leaders are known to all brokers well within it."""
RETENTION_FOREVER = "-1"


class RawLogUnavailableError(BusError):
    """Kafka does not answer, or refuses the topics of the raw log."""

    code, action = "rawlog.unavailable", Action.RETRY


@dataclass(frozen=True, slots=True)
class FrontierWindow:
    """Where a changefeed may start."""

    oldest_ts: Ts
    newest_ts: Ts


def ensure_topics(
    bootstrap_servers: str,
    topics: RawTopics,
    *,
    partitions: int = PARTITIONS_DEFAULT,
    replication: int = -1,
    retention_ms: int | None = None,
) -> int:
    """Create what is missing of the raw log and return how many partitions region-events has.

    ``replication`` -1 and ``retention_ms`` None leave both to the brokers' defaults. The ddl topic is kept for ever:
    the schema store is built from its first record on.

    Raises:
        RawLogUnavailableError: Kafka does not answer, or refuses.
        ConfigError: a topic is there and unfit.
    """
    retention = {} if retention_ms is None else {"retention.ms": str(retention_ms)}
    wanted = {
        topics.region_events: (partitions, {"max.message.bytes": str(RAW_MESSAGE_BYTES_MAX), **retention}),
        topics.ddl: (1, {"max.message.bytes": str(RAW_MESSAGE_BYTES_MAX), "retention.ms": RETENTION_FOREVER}),
        topics.frontier: (1, retention),
    }
    with _errors(bootstrap_servers, "creating the raw log's topics"):
        admin = AdminClient({"bootstrap.servers": bootstrap_servers}, logger=log)
        there = admin.list_topics(timeout=ADMIN_TIMEOUT_S).topics
        missing = [
            NewTopic(name, num_partitions=count, replication_factor=replication, config=config)
            for name, (count, config) in wanted.items()
            if name not in there
        ]
        for future in admin.create_topics(missing, request_timeout=ADMIN_TIMEOUT_S).values() if missing else ():
            with _created_by_another():
                future.result(timeout=ADMIN_TIMEOUT_S)
        counts = _partition_counts(admin, list(wanted))
    for name in (topics.ddl, topics.frontier):
        if counts[name] != 1:
            raise ConfigError("topic must have one partition", topic=name, partitions=counts[name])
    return counts[topics.region_events]


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
            return tuple(
                int(consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=ADMIN_TIMEOUT_S)[0])
                for partition in sorted(metadata.partitions)
            )


def _partition_counts(admin: Any, names: list[str]) -> dict[str, int]:
    """Wait until all brokers know the topics: metadata lags a creation."""
    deadline = time.monotonic() + ADMIN_TIMEOUT_S
    while True:
        there = admin.list_topics(timeout=ADMIN_TIMEOUT_S).topics
        counts = {name: len(there[name].partitions) for name in names if name in there and there[name].error is None}
        if all(counts.get(name) for name in names):
            return counts
        if time.monotonic() > deadline:
            raise RawLogUnavailableError("topics were created and do not appear", missing=set(names) - set(counts))
        time.sleep(0.1)


@contextlib.contextmanager
def _created_by_another() -> Iterator[None]:
    try:
        yield
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise


@contextlib.contextmanager
def _errors(bootstrap_servers: str, doing: str) -> Iterator[None]:
    try:
        yield
    except KafkaException as error:
        raise RawLogUnavailableError(
            "Kafka does not answer, or refuses; check --kafka", kafka=bootstrap_servers, doing=doing, reason=error
        ) from error
