"""Reads a compacted topic whole: what stands there of its one partition, where offsets may be missing by right."""

import time
from collections.abc import Iterator, Mapping
from typing import Final

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from edges.kafka.clients import kafka_consumer
from edges.kafka.errors import KafkaUnreachableError, address_of
from edges.kafka.markers import READS_ALL
from edges.kafka.offsets import partition_bounds

_CONSUME_MAX: Final = 500
_POLL_S: Final = 0.1


def compacted_records(config: Mapping[str, object], topic: str, timeout_s: float) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield ``(offset, key, value)`` of all records that stood there when the call began; a tombstone's value is empty.

    Args:
        config: librdkafka's: servers, TLS, SASL.
        timeout_s: how long the broker may hand out nothing.

    Raises:
        KafkaUnreachableError: it does, or the topic is not there.
    """
    consumer = kafka_consumer(
        {
            **config,
            "group.id": f"tidebus-read-{topic}",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",  # the first offset may go while this begins
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,
            **READS_ALL,
        }
    )
    try:
        low, high = partition_bounds(consumer, topic, 0, answer_s=timeout_s)
        if low >= high:
            return
        consumer.assign([TopicPartition(topic, 0, low)])
        deadline = time.monotonic() + timeout_s
        while True:
            for message in consumer.consume(_CONSUME_MAX, timeout=_POLL_S):
                error = message.error()
                if error is None and message.offset() < high:
                    deadline = time.monotonic() + timeout_s
                    yield message.offset(), message.key() or b"", message.value() or b""
                if error is None and message.offset() >= high - 1:
                    return
                # A leader that was just elected may not know yet how far its records may be read.
                is_end = error is not None and error.code() == KafkaError._PARTITION_EOF
                if is_end and message.offset() >= high:
                    return
            if time.monotonic() > deadline:
                raise KafkaUnreachableError("records did not come", topic=topic, address=address_of(config))
    except KafkaException as error:
        raise KafkaUnreachableError(
            "topic is not readable", topic=topic, address=address_of(config), reason=error.args[0].str()
        ) from error
    finally:
        consumer.close()
