"""Reads records of a one-partition topic by offset, on the driver (the frontier and ddl topics)."""

import time
from collections.abc import Iterator, Mapping

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from sorters.failures import HistoryLostError, KafkaUnreachableError

READ_TIMEOUT_S = 30.0
"""How long the broker may take to hand out records that are known to exist, before the read fails and is retried."""
GONE_ERRORS = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)
"""What a consumer with ``auto.offset.reset=error`` says of offsets that retention has passed."""


class TopicReader:
    """One consumer, assigned and never subscribed; reads that follow one another go on without a seek."""

    def __init__(self, config: Mapping[str, str], topic: str) -> None:
        """``config`` is librdkafka's: servers, TLS, SASL."""
        self.topic = topic
        self._next = -1
        self._consumer = Consumer(
            {
                **config,
                "group.id": f"tidebus-read-{topic}",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 50,
            }
        )

    def close(self) -> None:
        self._consumer.close()

    def bounds(self) -> tuple[int, int]:
        """Return the first offset that the topic still holds, and the one after its last.

        Raises:
            KafkaUnreachableError: the broker does not answer, or the topic is not there (yet).
        """
        try:
            low, high = self._consumer.get_watermark_offsets(TopicPartition(self.topic, 0), timeout=READ_TIMEOUT_S)
        except KafkaException as error:
            raise KafkaUnreachableError("topic is not readable", topic=self.topic, reason=error) from error
        return int(low), int(high)

    def read(self, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        """Yield ``(offset, value)`` for offsets ``[start, end)``, which must have been written.

        Raises:
            KafkaUnreachableError: the broker does not hand them out in time.
            HistoryLostError: they are gone.
        """
        if start >= end:
            return
        if start != self._next:
            self._consumer.assign([TopicPartition(self.topic, 0, start)])
        at, self._next = start, -1
        deadline = time.monotonic() + READ_TIMEOUT_S
        reason: object = None
        while at < end:
            message = self._consumer.poll(1.0)
            if message is None or message.error() is not None:
                reason = message.error() if message is not None else reason
                if message is not None and message.error().code() in GONE_ERRORS:
                    raise HistoryLostError("records are gone", topic=self.topic, offset=at, reason=reason)
                if time.monotonic() > deadline:
                    raise KafkaUnreachableError("records did not come", topic=self.topic, offset=at, reason=reason)
                continue
            at = message.offset() + 1
            if at <= end:
                yield at - 1, message.value() or b""
            deadline = time.monotonic() + READ_TIMEOUT_S
        self._next = at
