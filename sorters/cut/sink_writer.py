"""Writes records to the sink's topics, in their order: the one way in which a sorter writes.

A record that is lost between others would be a hole that a reader who goes by positions never sees filled, for what
comes after it stands above it. So after a failure nothing more is sent: messages do not time out one by one, librdkafka
refuses to go on behind a batch that the broker has refused for good (``enable.gapless.guarantee``), and the writer that
failed is emptied and not used again. What a partition got until then is the start of what it is to get, which the next
try writes again.

librdkafka's thread polls without a pause while a flush waits for a broker that has all the requests which may be under
way, and likewise once the first message of a queue is older than ``linger.ms``
(docs/decisions/2026-11-22-waiting-without-a-flush.md). So a flush only sends the rest here, or what fills no batch.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import KafkaError, KafkaException, Message

from edges.kafka.clients import kafka_producer
from edges.kafka.errors import address_of
from edges.kafka.producer import rest_of_head_start
from edges.kafka.producer_meter import STATISTICS, ProducerMeter
from schemas.errors import BusError
from schemas.producer_figures import NO_PRODUCER, ProducerFigures
from schemas.sink.fence import FENCE_HEADER, NO_FENCE
from schemas.sink.image_note import IMAGES_HEADER, WatermarkNote
from schemas.sink.position import POSITION_HEADER
from sorters.core.feed.large_messages import SinkMessageTooLargeError
from sorters.core.records.order import OutputRecords, bytes_of, column_of
from sorters.log.failures import KafkaUnreachableError

STALL_S = 120.0
"""A broker that has taken nothing for so long fails the cut, which is then repeated as it was."""
BATCH_BYTES = 256 * 1024
"""The largest batch of a partition in one request. A topic counts a whole batch against its ``max.message.bytes``."""
NEW_PARTITION_S = 10.0
"""For brokers to hear of a partition that has just been added."""
QUEUE_KIB = 8 * 1024
"""Keys and values that wait for the broker; with what librdkafka keeps beside each, some 25 MiB for short rows. Five
batches are under way to a broker, so this feeds six brokers at once."""
LINGER_MS = 10_000
"""Longer than a queue takes to be sent. Nobody waits for it: who waits for a broker flushes in the end."""
REST_BYTES = 1024 * 1024
"""Keys and values of which a flush is to send the rest: what may be under way to one broker."""
_ROWS_PER_SLICE, _BYTES_PER_SLICE = 4_096, 32 * 1024 * 1024
"""The most rows, and their bytes, that are Python objects at once."""
_WAIT_S = 0.1
_LOOK_S, _LOOKS, _PUSH_S = 0.01, 4, 0.004
"""Between two looks whether the broker has taken something; how many in vain before partial batches are sent; for how
long librdkafka is asked to."""
_LAST_WORDS_S = 5.0
_HALTED = (KafkaError._FATAL, KafkaError._GAPLESS_GUARANTEE)


class SinkWriter:
    """One producer. Whoever gets an error from it must take another one."""

    def __init__(
        self,
        config: Mapping[str, object],
        *,
        batch_bytes: int = BATCH_BYTES,
        stopped: Callable[[], bool] = lambda: False,
        waiting: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """``config`` is librdkafka's, and must keep the order (idempotence, or one request in flight). If it asks for
        statistics, somebody has to call :meth:`tend` while nothing is written: they wait in memory until then.

        Args:
            batch_bytes: no topic may allow less, or it refuses batches whose messages it would take.
            stopped: gives up what is under way.
            waiting: entered around each wait for the broker.
        """
        self._address = address_of(config)
        self._failed: list[tuple[KafkaError, Message | None]] = []
        self._trouble: KafkaError | None = None
        """What librdkafka has last said of the brokers; it goes on trying."""
        self._stopped, self._waiting = stopped, waiting
        self._row_bytes = 1
        """Mean size of the rows that were queued last."""
        limits: dict[str, object] = {
            "message.timeout.ms": 0,
            "linger.ms": LINGER_MS,
            "batch.size": min(batch_bytes, BATCH_BYTES),
            "queue.buffering.max.kbytes": max(QUEUE_KIB, 2 * int(str(config.get("message.max.bytes", 0))) // 1024),
            "delivery.report.only.error": True,
        }
        if config.get("enable.idempotence"):
            # librdkafka calls it experimental, and says so at each start of a producer unless it is told to be quiet.
            limits |= {"enable.gapless.guarantee": True, "log_level": 3}
        self._meter: ProducerMeter | None = None
        if STATISTICS in config:
            self._meter = ProducerMeter(is_compressed=config.get("compression.type", "none") != "none")
            limits["stats_cb"] = self._meter.take
        self._producer = kafka_producer(
            {**config, **limits, "on_delivery": self._on_delivery, "error_cb": self._on_error}
        )
        self._is_abandoned = False
        self._made_at_s: float | None = time.monotonic() if config.get("enable.idempotence") else None
        """By the monotonic clock; None: it has had its head start, or needs none."""

    def write(self, records: OutputRecords, fence: bytes = NO_FENCE, note: WatermarkNote | None = None) -> None:
        """Queue records; those of a partition are sent in this order. ``fence`` stands in each of them
        (:mod:`schemas.sink.fence`), ``note`` in the watermarks among them (:mod:`schemas.sink.image_note`).

        Raises:
            BusError: these or some before cannot be sent, or Kafka does not answer.
        """
        if self._made_at_s is not None:
            with self._waiting():
                rest_of_head_start(self._made_at_s)
            self._made_at_s = None
        headers = {FENCE_HEADER: fence} if fence else {}  # one for all rows: the client has copied it when it returns
        if note is None:
            self._queue(records, headers)
            return
        # Watermarks stand behind all rows and DDL of a cut, so that of each partition the order stays.
        noted = pc.equal(column_of(records, "position"), pa.scalar(note.position, pa.binary()))
        self._queue(records.filter(pc.invert(noted)), headers)
        self._queue(records.filter(noted), {**headers, IMAGES_HEADER: note.header})

    def _queue(self, records: OutputRecords, headers: dict[str, bytes]) -> None:
        """Queue records; each gets its position beside ``headers``."""
        produce = self._producer.produce
        size = records.nbytes
        self._row_bytes = 1 + size // max(records.num_rows, 1)
        if self._meter is not None:
            _count_headers(self._meter, records, headers)
        rows = max(1, min(_ROWS_PER_SLICE, records.num_rows * _BYTES_PER_SLICE // max(size, 1)))
        for batch in records.to_batches(rows):
            columns = (batch.column(name).to_pylist() for name in ("topic", "partition", "key", "value", "position"))
            for topic, partition, key, value, headers[POSITION_HEADER] in zip(*columns, strict=True):
                try:
                    # By position, as names cost a third more: value, key, partition, callbacks, timestamp, headers.
                    produce(topic, value, key, partition, None, None, 0, headers)
                except (BufferError, KafkaException):
                    self._queue_patiently(topic, value, key, partition, headers)
            self._serve(self._producer.poll, 0)
            self._check()

    def _queue_patiently(
        self, topic: str, value: bytes | None, key: bytes | None, partition: int, headers: dict[str, bytes]
    ) -> None:
        """Queue a record that the client did not take at once: there was no room, or it has not heard of the partition.

        Raises:
            BusError: it cannot be sent.
        """
        while True:
            try:
                self._producer.produce(topic, value, key, partition, None, None, 0, headers)
                return
            except BufferError:
                self._wait(self._poll)
            except KafkaException as error:
                if error.args[0].code() == KafkaError._UNKNOWN_PARTITION and self._learns_of(topic, partition):
                    continue
                self._failed.append((error.args[0], None))
                self._check()

    def finish(self) -> None:
        """Return when the broker has acknowledged everything.

        Raises:
            BusError: see :meth:`write`.
        """
        while rows := len(self._producer):
            self._wait(self._poll if rows * self._row_bytes > REST_BYTES else self._producer.flush)
        self._check()

    def abandon(self) -> None:
        """Forget what has not been sent; nothing is sent from here on, and the client's threads and connections end."""
        if self._is_abandoned:
            return
        self._is_abandoned = True
        self._producer.purge()
        self._serve(self._producer.poll, 0)
        # Its callbacks refer to us, and we to it: Python lets go of it only once it looks for cycles.
        self._serve(lambda _: self._producer.close(), 0)

    def tend(self) -> None:
        """Take in what librdkafka has to say; called now and then while nothing is written."""
        self._serve(self._producer.poll, 0)

    def figures(self) -> ProducerFigures:
        """Return what statistics say of the producer since the last call."""
        return NO_PRODUCER if self._meter is None else self._meter.figures()

    def _learns_of(self, topic: str, partition: int) -> bool:
        """Ask for a topic that has grown, until it has: the client asks each five minutes, brokers learn one by one."""
        with self._waiting():
            return self._hears_of(topic, partition)

    def _hears_of(self, topic: str, partition: int) -> bool:
        deadline = time.monotonic() + NEW_PARTITION_S
        while not self._stopped():
            try:
                if partition in self._producer.list_topics(topic, timeout=_LAST_WORDS_S).topics[topic].partitions:
                    return True
            except KafkaException as error:
                self._trouble = error.args[0]
            if time.monotonic() > deadline:
                return False
            self._serve(self._producer.poll, _WAIT_S)
        return False

    def _wait(self, serve: Callable[[float], int]) -> None:
        """Return when the broker has taken some of what is queued, or all of it."""
        with self._waiting():
            self._await_room(serve)

    def _await_room(self, serve: Callable[[float], int]) -> None:
        queued, deadline = len(self._producer), time.monotonic() + STALL_S
        while queued and len(self._producer) >= queued:
            self._serve(serve, _WAIT_S)
            self._check()
            if time.monotonic() > deadline:
                self.abandon()
                raise KafkaUnreachableError(
                    "kafka takes no records", address=self._address, seconds=STALL_S, reason=self._trouble
                )

    def _poll(self, seconds: float) -> int:
        """Wait for the broker to take something. When it takes nothing, perhaps no batch is full: send what there is.

        Ends within ``seconds``, with how many records are queued.
        """
        queued = len(self._producer)
        for _ in range(_LOOKS):
            # Acknowledgements wake nobody, as only errors are reported.
            self._producer.poll(min(seconds, _LOOK_S))
            if len(self._producer) < queued:
                return len(self._producer)
        return int(self._producer.flush(_PUSH_S))

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
            raise _refused(self._failed, reason, self._address)


def _count_headers(meter: ProducerMeter, records: OutputRecords, headers: Mapping[str, bytes]) -> None:
    """Count records that are queued, and what stands in their headers: those of all, and each one's position."""
    of_all = sum(len(name) + len(value) for name, value in headers.items() if name != POSITION_HEADER)
    positions = bytes_of(records, "position")
    count = len(headers.keys() | {POSITION_HEADER})
    meter.queued(records.num_rows, count, records.num_rows * (of_all + len(POSITION_HEADER)) + positions)


def _refused(failed: list[tuple[KafkaError, Message | None]], reason: object, address: str) -> BusError:
    too_large = [(error, message) for error, message in failed if error.code() == KafkaError.MSG_SIZE_TOO_LARGE]
    if not too_large:
        message = failed[0][1] if failed else None  # none: refused before it was queued, or of no record
        where = {} if message is None else {"topic": message.topic(), "partition": message.partition()}
        return KafkaUnreachableError("kafka did not take a record", **where, address=address, reason=reason)
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
