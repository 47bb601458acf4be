"""The producer of raw topics: of rows, of DDL and of images."""

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException

from edges.kafka.access import KafkaAccess
from edges.kafka.errors import KafkaSettingsError
from edges.kafka.producer import ordered_producer
from producers.errors import DeliveryFailedError
from producers.pull.landing.raw_log import QUIETER, kafka_log
from schemas.rawlog.topics import RAW_MESSAGE_BYTES_MAX

PURGE_S: Final = 1.0
"""How long records that are given up may take until each of them is reported."""


def raw_log_producer(
    kafka: KafkaAccess,
    compression: str,
    on_error: Callable[[KafkaError], None],
    record_bytes: int = RAW_MESSAGE_BYTES_MAX,
    *,
    is_gapless: bool = False,
) -> Any:
    """Return a producer that loses nothing: acks of all replicas, idempotent, and it tries as long as it lives.

    ``is_gapless``: behind a record that Kafka refuses for good it sends nothing more. Of rows it may, for the table
    starts again from the published R; but what the ddl topic holds is taken for whole up to its last record.

    Raises:
        DeliveryFailedError: librdkafka refuses the settings.
    """
    try:
        return ordered_producer(
            {
                **QUIETER,
                **kafka.config(),
                # 0 = no limit. Giving a record up would only stop the table and start it again from the published R;
                # how long the broker has been silent is shown by `broker_reason` instead.
                "message.timeout.ms": 0,
                "message.max.bytes": record_bytes,
                "linger.ms": 1,
                "queue.buffering.max.kbytes": 256 * 1024,
                "compression.type": compression,
                "error_cb": on_error,
                # librdkafka calls it experimental, and warns of it at each start of a producer.
                **({"enable.gapless.guarantee": True, "log_level": 3} if is_gapless else {}),
            },
            kafka_log,
        )
    except KafkaSettingsError as error:
        raise DeliveryFailedError("Kafka producer settings are refused", reason=error) from error


def serve_gapless(producer: Any, timeout_s: float, topic: str) -> None:
    """Poll a gapless producer.

    Raises:
        DeliveryFailedError: Kafka has refused a record for good. The client raises that where it is polled; as
            SystemError if it has called back meanwhile.
    """
    try:
        producer.poll(timeout_s)
    except (KafkaException, SystemError) as error:
        reason = error.args[0].str() if isinstance(error, KafkaException) else error.__cause__ or error
        raise DeliveryFailedError(
            "Kafka did not take a record, and gets none behind it", topic=topic, reason=reason
        ) from error


def close_producer(producer: Any, flush_s: float = 0.0) -> None:
    """End a producer's threads. What is not acknowledged in ``flush_s`` is given up: the next start lands it again."""
    # A gapless producer takes what is given up in flight for a gap, and raises that before it reports the records.
    gap = (KafkaException, SystemError)
    with suppress(*gap):
        producer.flush(flush_s)
    producer.purge()
    deadline = time.monotonic() + PURGE_S
    while len(producer) and time.monotonic() < deadline:
        with suppress(*gap):
            producer.poll(0.1)
    with suppress(*gap):
        producer.close()
