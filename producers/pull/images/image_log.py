"""The images topic as a capture lands in it: made, and its schema registered, with the first scan of all."""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from confluent_kafka import KafkaError

from edges.kafka.access import KafkaAccess
from edges.registry.access import RegistryAccess
from producers.pull.landing.batch_schema import FIRST_TRY_S, UNREGISTERED
from producers.pull.landing.raw_log import (
    RECORD_OVERHEAD_BYTES,
    RawLogSettings,
    ensure_images_topic,
    record_bytes_max,
    register_image_batch,
)
from producers.pull.landing.raw_producer import close_producer, raw_log_producer
from schemas.errors import BusError
from schemas.rawlog.topics import RawTopics

log = logging.getLogger(__name__)

STOP_FLUSH_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenImageLog:
    """What is needed to land."""

    topic: str
    partitions: int
    record_bytes_max: int
    schema_id: int
    """What the registry calls ImageBatch; nothing of ours reads it, so one that is away stops no scan."""
    producer: Any
    unsure: threading.Event = field(default_factory=threading.Event)
    """The broker had a record already, and did not say where it stands: offsets that are reported behind it are none
    (:func:`~edges.kafka.producer.landed_at`), whichever scan's records they are of."""


class ImageLog:
    """Safe from any thread."""

    def __init__(
        self,
        kafka: KafkaAccess,
        registry: RegistryAccess,
        topics: RawTopics,
        settings: RawLogSettings,
        *,
        partitions: int,
        compression: str,
        on_error: Callable[[KafkaError], None],
    ) -> None:
        """``partitions``: of region-events; the images topic is made with as many."""
        self._kafka, self._registry, self._topics, self._settings = kafka, registry, topics, settings
        self._partitions, self._compression, self._on_error = partitions, compression, on_error
        self._lock = threading.Lock()
        self._open: OpenImageLog | None = None

    def open(self) -> OpenImageLog:
        """Return what the topic is landed with; the first call makes it.

        Raises:
            RawTopicError: the topic cannot be made.
            DeliveryFailedError: the producer's settings are refused.
        """
        with self._lock:
            if self._open is None or self._open.unsure.is_set():
                self._open = self._made()  # scans that still have the one before fail, and let go of it
            return self._open

    def close(self) -> None:
        """End the producer; what is not acknowledged is of scans that nobody will hear of."""
        with self._lock:
            opened, self._open = self._open, None
        if opened is not None:
            close_producer(opened.producer, STOP_FLUSH_S)

    def _made(self) -> OpenImageLog:
        topic = self._topics.images
        partitions = ensure_images_topic(self._kafka, self._topics, self._settings, self._partitions)
        record_bytes = record_bytes_max(self._kafka, topic)
        schema_id = UNREGISTERED
        try:
            schema_id = register_image_batch(self._registry, topic, FIRST_TRY_S)
        except BusError as error:
            log.warning(
                "image records go out without the id of their schema",
                extra={"topic": topic, "code": error.code, "reason": str(error)},
            )
        producer = raw_log_producer(
            self._kafka, self._compression, self._on_error, record_bytes + RECORD_OVERHEAD_BYTES
        )
        return OpenImageLog(
            topic=topic,
            partitions=partitions,
            record_bytes_max=record_bytes,
            schema_id=schema_id,
            producer=producer,
        )
