"""The raw log's edge to Kafka and the schema registry: topics made and checked, RegionBatch's schema registered."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.schema_registry import Schema
from confluent_kafka.schema_registry.error import SchemaRegistryError

from edges.kafka.access import KafkaAccess
from edges.kafka.clients import kafka_admin
from edges.kafka.topics import await_topics, create_topics, partition_counts, topic_settings
from edges.registry.access import RegistryAccess
from producers.errors import RawTopicError, RegistryError, RegistryRefusedError
from schemas.rawlog.image_batch import IMAGE_BATCH_SCHEMA_TEXT
from schemas.rawlog.region_batch import REGION_BATCH_SCHEMA_TEXT
from schemas.rawlog.topics import RAW_MESSAGE_BYTES_MAX, RawTopics

ADMIN_TIMEOUT_S: Final = 30.0
REGISTRY_PAUSES_S: Final = (0.1, 0.3, 1.0)
"""After a conflict, which is what a registry says to two captures that register the schema at one moment."""
FRONTIER_MARGIN_MS: Final = 3600 * 1000
"""A frontier record must be there for all rows that are: Kafka looks for what is too old every five minutes only, and
topic by topic."""
MAY_PASS: Final = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS)
"""Refusals of a registry that are not for ever."""
SEGMENT_MS_MIN: Final = 60 * 1000
RECORD_OVERHEAD_BYTES: Final = 512
"""What a topic counts of a record beside its value: the head of its batch, the lengths of its fields."""
QUIETER: Final = {"log.connection.close": False}
"""For every client: a broker may close what is idle."""
kafka_log = logging.getLogger("producers.kafka")
"""librdkafka's own words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RawLogSettings:
    """How the raw topics are created; an existing topic is taken as it is."""

    partitions: int = 8
    """Of region-events: the most tasks that can land or read one upstream at once."""
    replication_factor: int = -1
    """-1: what the brokers' default.replication.factor says (Kafka 2.4 and later)."""
    retention_ms: int = 7 * 24 * 3600 * 1000
    """Of region-events: how far back a new changefeed can start, and how long one may stand still. The frontier topic
    is kept FRONTIER_MARGIN_MS longer."""


def ensure_raw_topics(kafka: KafkaAccess, topics: RawTopics, settings: RawLogSettings) -> int:
    """Create what is missing of the three topics; return how many partitions region-events has.

    ddl keeps everything: the schema store is built from its first record on. A frontier record is of use as long as the
    rows above it are there, and one is published at least each minute (:data:`consumers.control.owner.owner.REPEAT_S`),
    so retention always leaves one while an owner lives.

    Raises:
        RawTopicError: Kafka does not answer or refuses, or ddl or frontier has more than one partition.
    """
    admin = kafka_admin({**QUIETER, **kafka.config()}, kafka_log)
    keep = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
    events = {"cleanup.policy": "delete", "retention.ms": str(settings.retention_ms)}
    frontier = {
        "cleanup.policy": "delete",
        "retention.ms": str(settings.retention_ms + FRONTIER_MARGIN_MS),
        # Kafka deletes whole segments. One of the default 1 GiB would take days to fill: ten records a second are some
        # 10 MB an hour.
        "segment.ms": str(max(settings.retention_ms // 24, SEGMENT_MS_MIN)),
    }
    large = {"max.message.bytes": str(RAW_MESSAGE_BYTES_MAX)}
    wanted = {
        topics.region_events: (settings.partitions, {**events, **large}),
        topics.ddl: (1, {**keep, **large}),
        topics.frontier: (1, frontier),
    }
    with _answers(kafka):
        present = partition_counts(admin.list_topics(timeout=ADMIN_TIMEOUT_S))
        missing = {name: settled for name, settled in wanted.items() if name not in present}
        for name, error in create_topics(admin, missing, settings.replication_factor).items():
            raise RawTopicError("Kafka refuses to create a raw topic", topic=name, reason=error.args[0]) from error
        present, absent = await_topics(admin, wanted, ADMIN_TIMEOUT_S)
    if absent:
        raise RawTopicError("raw topics do not appear after their creation", topics=absent)
    for name in (topics.ddl, topics.frontier):
        if present[name] != 1:
            raise RawTopicError(
                "topic must have one partition, its records are in order", topic=name, has=present[name]
            )
    return present[topics.region_events]


def ensure_images_topic(kafka: KafkaAccess, topics: RawTopics, settings: RawLogSettings, partitions: int) -> int:
    """Create the images topic if there is none; return how many partitions it has.

    It is made with the first scan of an image, as long-lived and as wide as region-events are made: a changefeed that
    reads old changes again needs the rows that stood before them.

    Raises:
        RawTopicError: Kafka does not answer or refuses.
    """
    admin = kafka_admin({**QUIETER, **kafka.config()}, kafka_log)
    wanted = {
        topics.images: (
            partitions,
            {
                "cleanup.policy": "delete",
                "retention.ms": str(settings.retention_ms),
                "max.message.bytes": str(RAW_MESSAGE_BYTES_MAX),
            },
        )
    }
    with _answers(kafka):
        present = partition_counts(admin.list_topics(timeout=ADMIN_TIMEOUT_S))
        if topics.images not in present:
            for name, error in create_topics(admin, wanted, settings.replication_factor).items():
                raise RawTopicError("Kafka refuses to create a raw topic", topic=name, reason=error.args[0]) from error
            present, absent = await_topics(admin, wanted, ADMIN_TIMEOUT_S)
            if absent:
                raise RawTopicError("raw topics do not appear after their creation", topics=absent)
    return present[topics.images]


def record_bytes_max(kafka: KafkaAccess, topic: str) -> int:
    """Return how large the value of a record may be, as the topic's settings are now; ours where they are hidden.

    Raises:
        RawTopicError: Kafka does not answer.
    """
    admin = kafka_admin({**QUIETER, **kafka.config()}, kafka_log)
    try:
        config = topic_settings(admin, [topic], ADMIN_TIMEOUT_S)[topic]
    except KafkaException as error:
        if error.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            return RAW_MESSAGE_BYTES_MAX - RECORD_OVERHEAD_BYTES
        raise RawTopicError("a raw topic's settings are not readable", topic=topic, reason=error) from error
    return min(int(config["max.message.bytes"].value or 0), RAW_MESSAGE_BYTES_MAX) - RECORD_OVERHEAD_BYTES


@contextmanager
def _answers(kafka: KafkaAccess) -> Iterator[None]:
    try:
        yield
    except KafkaException as error:
        raise RawTopicError("Kafka does not answer", bootstrap_servers=kafka.servers, reason=error.args[0]) from error


def register_region_batch(registry: RegistryAccess, topic: str, timeout_s: float = ADMIN_TIMEOUT_S) -> int:
    """Register RegionBatch's schema as ``<topic>-value``; return its id.

    Raises:
        RegistryRefusedError: the registry refuses it, or us.
        RegistryError: the registry does not answer, or with an error of its own.
    """
    return _register(registry, topic, REGION_BATCH_SCHEMA_TEXT, timeout_s)


def register_image_batch(registry: RegistryAccess, topic: str, timeout_s: float = ADMIN_TIMEOUT_S) -> int:
    """Register ImageBatch's schema as ``<topic>-value``; return its id. Errors as of :func:`register_region_batch`."""
    return _register(registry, topic, IMAGE_BATCH_SCHEMA_TEXT, timeout_s)


def _register(registry: RegistryAccess, topic: str, schema: str, timeout_s: float) -> int:
    with registry.client(timeout=timeout_s, max_retries=0) as client:
        return _register_by(client, registry.url, topic, schema)


def _register_by(client: Any, url: str, topic: str, schema: str) -> int:
    for pause_s in (*REGISTRY_PAUSES_S, None):
        try:
            return int(client.register_schema(f"{topic}-value", Schema(schema, "AVRO")))
        except SchemaRegistryError as error:
            if error.http_status_code == HTTPStatus.CONFLICT and pause_s is not None:
                time.sleep(pause_s)  # another capture may be registering it at this moment
                continue
            status = error.http_status_code
            kind = RegistryRefusedError if 400 <= status < 500 and status not in MAY_PASS else RegistryError
            raise kind("the registry refuses the schema", url=url, subject=f"{topic}-value", reason=error) from error
        except (
            Exception
        ) as error:  # the client lets its HTTP library's errors through, and which one differs by version
            raise RegistryError("the registry does not answer", url=url, reason=repr(error)) from error
    raise AssertionError("the last attempt returns or raises")
