"""The producer of raw topics: of rows, of DDL and of images."""

from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError

from edges.kafka.access import KafkaAccess
from edges.kafka.errors import KafkaSettingsError
from edges.kafka.producer import ordered_producer
from producers.errors import DeliveryFailedError
from producers.pull.landing.raw_log import QUIETER, kafka_log
from schemas.rawlog.topics import RAW_MESSAGE_BYTES_MAX


def raw_log_producer(
    kafka: KafkaAccess,
    compression: str,
    on_error: Callable[[KafkaError], None],
    record_bytes: int = RAW_MESSAGE_BYTES_MAX,
) -> Any:
    """Return a producer that loses nothing: acks of all replicas, idempotent, and it tries as long as it lives.

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
            },
            kafka_log,
        )
    except KafkaSettingsError as error:
        raise DeliveryFailedError("Kafka producer settings are refused", reason=error) from error


def close_producer(producer: Any) -> None:
    """End a producer's threads. What is not acknowledged is given up: the next start lands it again."""
    producer.purge()
    producer.close()
