"""Writes records to the sink's topics, in their order: the one way in which a sorter writes.

A record that is lost between others would be a hole that a reader who goes by positions never sees filled, for what
comes after it stands above it. So after a failure nothing more is sent: messages do not time out one by one, librdkafka
refuses to go on behind a batch that the broker has refused for good (``enable.gapless.guarantee``), and the writer that
failed is emptied and not used again. What a partition got until then is the start of what it is to get, which the next
try writes again.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message

from edges.kafka.clients import kafka_producer
from schemas.errors import BusError
from schemas.sink.position import POSITION_HEADER
from sorters.core.feed.large_messages import SinkMessageTooLargeError
from sorters.core.records.order import OutputRecords
from sorters.log.failures import KafkaUnreachableError

STALL_S = 120.0
"""A broker that has taken nothing for so long fails the cut, which is then repeated as it was."""
BATCH_BYTES = 256 * 1024
"""The largest batch of a partition in one request. A topic counts a whole batch against its ``max.message.bytes``."""
QUEUE_KIB = 32 * 1024
"""Keys and values that wait for the broker; with what librdkafka keeps beside each, some 100 MiB for short rows."""
_ROWS_PER_SLICE, _BYTES_PER_SLICE = 4_096, 32 * 1024 * 1024
"""The most rows, and their bytes, that are Python objects at once."""
_WAIT_S = 0.1
_LAST_WORDS_S = 5.0
_HALTED = (KafkaError._FATAL, KafkaError._GAPLESS_GUARANTEE)


class SinkWriter:
    """One producer. Whoever gets an error from it must take another one."""

    def __init__(
        self, config: Mapping[str, Any], *, batch_bytes: int = BATCH_BYTES, stopped: Callable[[], bool] = lambda: False
    ) -> None:
        """``config`` is librdkafka's, and must keep the order (idempotence, or one request in flight).

        Args:
            batch_bytes: no topic may allow less, or it refuses batches whose messages it would take.
            stopped: gives up what is under way.
        """
        self._failed: list[tuple[KafkaError, Message | None]] = []
        self._trouble: KafkaError | None = None
        """What librdkafka has last said of the brokers; it goes on trying."""
        self._stopped = stopped
        limits = {
            "message.timeout.ms": 0,
            "linger.ms": 20,
            "batch.size": min(batch_bytes, BATCH_BYTES),
            "queue.buffering.max.kbytes": max(QUEUE_KIB, 2 * int(config.get("message.max.bytes", 0)) // 1024),
            "delivery.report.only.error": True,
        }
        if config.get("enable.idempotence"):
            # librdkafka calls it experimental, and says so at each start of a producer unless it is told to be quiet.
            limits |= {"enable.gapless.guarantee": True, "log_level": 3}
        self._producer = kafka_producer(
            {**config, **limits, "on_delivery": self._on_delivery, "error_cb": self._on_error}
        )

    def write(self, records: OutputRecords) -> None:
        """Queue records; those of a partition are sent in this order.

        Raises:
            BusError: these or some before cannot be sent, or Kafka does not answer.
        """
        produce, header = self._producer.produce, POSITION_HEADER
        rows = max(1, min(_ROWS_PER_SLICE, records.num_rows * _BYTES_PER_SLICE // max(records.nbytes, 1)))
        for batch in records.to_batches(rows):
            columns = (batch.column(name).to_pylist() for name in ("topic", "partition", "key", "value", "position"))
            for topic, partition, key, value, position in zip(*columns, strict=True):
                while True:
                    try:
                        # By position, as names cost a third more: value, key, partition, callbacks, timestamp, headers.
                        produce(topic, value, key, partition, None, None, 0, [(header, position)])
                        break
                    except BufferError:
                        self._wait(self._producer.poll)
                    except KafkaException as error:
                        self._failed.append((error.args[0], None))
                        self._check()
            self._serve(self._producer.poll, 0)
            self._check()

    def finish(self) -> None:
        """Return when the broker has acknowledged everything.

        Raises:
            BusError: see :meth:`write`.
        """
        while len(self._producer):
            self._wait(self._producer.flush)
        self._check()

    def abandon(self) -> None:
        """Forget what has not been sent; nothing is sent from here on."""
        self._producer.purge()
        self._serve(self._producer.poll, 0)

    def _wait(self, serve: Callable[[float], int]) -> None:
        """Return when the broker has taken some of what is queued, or all of it."""
        queued, deadline = len(self._producer), time.monotonic() + STALL_S
        while queued and len(self._producer) >= queued:
            self._serve(serve, _WAIT_S)
            self._check()
            if time.monotonic() > deadline:
                self.abandon()
                raise KafkaUnreachableError("kafka takes no records", seconds=STALL_S, reason=self._trouble)

    def _serve(self, serve: Callable[[float], int], seconds: float) -> None:
        """Run callbacks. The client raises here, and not where it calls back, what its producer will not survive."""
        try:
            serve(seconds)
        except KafkaException as error:
            self._failed.append((error.args[0], None))
        except SystemError:  # the same, when a callback ran between the raising and here
            self._failed.append((KafkaError(KafkaError._FATAL), None))

    def _on_error(self, error: KafkaError) -> None:
        self._trouble = error

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._failed.append((error, message))

    def _check(self) -> None:
        if self._failed or self._stopped():
            reason = self._failed[0][0] if self._failed else "stopped"
            if any(error.code() in _HALTED for error, _ in self._failed):
                # librdkafka sends nothing more; it still has to say which record it was.
                self._serve(self._producer.flush, _LAST_WORDS_S)
            self.abandon()
            raise _refused(self._failed, reason)


def _refused(failed: list[tuple[KafkaError, Message | None]], reason: object) -> BusError:
    too_large = [(error, message) for error, message in failed if error.code() == KafkaError.MSG_SIZE_TOO_LARGE]
    if not too_large:
        return KafkaUnreachableError("kafka did not take a record", reason=reason)
    error, message = max(too_large, key=lambda refused: len(refused[1]) if refused[1] is not None else 0)
    if message is None:  # refused before it was queued
        return SinkMessageTooLargeError("message is larger than the producer allows", reason=error)
    key = message.key()
    return SinkMessageTooLargeError(
        "sink topic refused a message as too large",
        topic=message.topic(),
        partition=message.partition(),
        key=key.hex() if isinstance(key, bytes) else key,
        bytes=len(message),
        reason=error,
    )
