"""Reads records of a topic by offset, without a group: an exact range of them, of which none may be missing.

The one such reader: of the frontier, of DDL and of the raw log, in captures, sorters and their tasks.
"""

import logging
import math
import time
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import closing
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from edges.kafka.clients import kafka_consumer
from edges.kafka.errors import HistoryLostError, KafkaUnreachableError, address_of
from edges.kafka.markers import READS_ALL, Marker, is_marker
from edges.kafka.settings import CHECK_BATCHES
from schemas.errors import BusError, CorruptDataError

READ_TIMEOUT_S = 30.0
"""How long the broker may take to hand out records that are known to exist, before the read fails and is retried."""
GONE_ERRORS = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)
"""What a consumer with ``auto.offset.reset=error`` says of offsets that retention has passed."""
ELECTION_S = 5.0
"""A topic that was just created, or whose broker went, has a leader again in less."""
_LEADER_MOVES = frozenset(
    {
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._NOENT,
    }
)
"""What a broker, or librdkafka from its cache, says while a partition's leader is not where it was."""
_DAMAGED = frozenset({KafkaError._BAD_MSG, KafkaError._BAD_COMPRESSION})
"""What a consumer says of a batch whose checksum does not fit, or that does not decompress: with its first offset."""
_LOOK_S = 5.0
"""How long a second consumer looks for a damaged batch."""
_LEADER_RETRY_S = 0.1
_STALL_S = 5.0
"""After which a record that is known to exist, and does not come, is looked at; a busy broker may take seconds."""
_FETCH_WAIT_MS = 10
_CONSUME_MAX = 64
_POLL_S = 0.1
_MARKERS_MAX = 16
"""Of transactions, one behind the other; where more is missing than these, it is something else."""
_AHEAD_KIB = 16 * 1024
"""What a consumer fetches before it is asked for, which is also what it fetches in vain beyond the end of a read."""


def value_of(message: Any) -> bytes:
    """Return a message's value; empty where it has none."""
    return message.value() or b""


def offsets_consumer(
    config: Mapping[str, object],
    topic: str,
    *,
    fetch_wait_ms: int,
    log: logging.Logger | None = None,
    are_checked: bool = False,
) -> Any:
    """Return a consumer that reads by offset.

    Args:
        fetch_wait_ms: see librdkafka's ``fetch.wait.max.ms``; a fetch that has nothing to bring waits so long at the
            broker, and so does an ``assign`` that comes meanwhile.
        are_checked: whether the records say themselves whether they are those that were sent. Else Kafka's checksum of
            their batch is compared, which damages all of a batch with one; so it is where ``config`` asks for it.
    """
    return kafka_consumer(
        {
            **config,
            "group.id": f"tidebus-read-{topic}",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            **READS_ALL,
            CHECK_BATCHES: config.get(CHECK_BATCHES, not are_checked),
            "fetch.wait.max.ms": fetch_wait_ms,
            "queued.max.messages.kbytes": _AHEAD_KIB,
            "fetch.queue.backoff.ms": 5,  # by default a full queue stops fetching for a whole second
        },
        log,
    )


def partition_bounds(
    consumer: Any, topic: str, partition: int, *, answer_s: float, patience_s: float = ELECTION_S
) -> tuple[int, int]:
    """Return the first offset that a partition still holds, and the one after its last.

    Args:
        answer_s: for one answer of the broker.
        patience_s: how long one whose leader is moving, or which is just being made, is asked again.

    Raises:
        KafkaException: there is no answer, or no such partition.
    """
    deadline = time.monotonic() + patience_s
    while True:
        try:
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=answer_s)
            return int(low), int(high)
        except KafkaException as error:
            moves = error.args[0].code() in _LEADER_MOVES or error.args[0].retriable()
            if not moves or time.monotonic() >= deadline:
                raise
        time.sleep(_LEADER_RETRY_S)


def damaged_batch(config: Mapping[str, object], topic: str, at: Mapping[int, int]) -> CorruptDataError | None:
    """Return an error that names a damaged batch among those that hold the next records of some partitions, as Kafka's
    checksums tell; None: they fit, or do not come.

    Where these are not compared, a batch whose compressed bytes are damaged may bring fewer records than it holds.
    """
    with closing(offsets_consumer(config, topic, fetch_wait_ms=_FETCH_WAIT_MS)) as consumer:
        consumer.assign([TopicPartition(topic, *next_offset) for next_offset in at.items()])
        unseen, deadline = set(at), time.monotonic() + _LOOK_S
        while unseen and time.monotonic() < deadline:
            message = consumer.poll(_POLL_S)
            if message is not None and message.error() is None:
                unseen.discard(message.partition())
            elif message is not None and message.error().code() in _DAMAGED:
                return _damage(topic, message, at)
    return None


def _damage(topic: str, message: Any, at: Mapping[int, int]) -> CorruptDataError:
    partition = message.partition()
    where = {"topic": topic, "partition": partition, "offset": at.get(partition, message.offset())}
    return CorruptDataError("a batch of records is damaged", **where, reason=message.error().str())


class NextRecords:
    """Takes what a consumer has next, of each partition from the offset that ``at`` says, which moves on.

    Lives as long as the consumer is assigned: what that has said of a damaged batch it says once, and of what comes
    behind it anything.
    """

    def __init__(
        self,
        consumer: Any,
        topic: str,
        at: dict[int, int],
        stopped: Callable[[], bool],
        timeout_s: float = READ_TIMEOUT_S,
        record_of: Callable[[Any], bytes] = value_of,
        *,
        config: Mapping[str, object],
        are_checked: bool = False,
    ) -> None:
        """``stopped`` gives up; ``timeout_s`` is how long records that are known to exist are waited for; ``record_of``
        makes of a message what is handed out as its value. ``config`` is librdkafka's, for another consumer that looks
        where records are missing: at their batches, if ``are_checked`` and so the first compares no checksums
        (:func:`damaged_batch`), and for markers of transactions, which are handed out as empty (:func:`is_marker`).
        """
        self._config, self._address, self._are_checked = config, address_of(config), are_checked
        self._consumer, self._topic, self._at, self._stopped = consumer, topic, at, stopped
        self._record_of = record_of
        self._broken: dict[int, BusError] = {}
        """Why nothing more comes of partitions."""
        self._timeout_s = timeout_s
        self.expect()

    def assign(self) -> None:
        """Let the consumer begin anew where ``at`` says now."""
        self._broken.clear()
        self._consumer.assign([TopicPartition(self._topic, *next_offset) for next_offset in self._at.items()])
        self.expect()

    def expect(self) -> None:
        """Records are waited for from now on (:meth:`take`)."""
        self._reason: KafkaError | None = None
        self._is_overdue = False
        self._wait_anew()

    def _wait_anew(self) -> None:
        now_s = time.monotonic()
        self._deadline, self._looks_at_s = now_s + self._timeout_s, now_s + min(_STALL_S, self._timeout_s / 2)

    def take(self, count: int, of: Container[int] | None = None) -> list[tuple[int, int, bytes]]:
        """Wait for a record that is known to exist; return ``(partition, offset, value)`` of all that are here then.

        Args:
            count: how many more, at most.
            of: the partitions that are waited for; None: all. The others' records count for nothing.

        Raises:
            KafkaUnreachableError: the broker does not hand it out in time, or it was given up.
            HistoryLostError, CorruptDataError: see :meth:`peek`.
        """
        if self._is_overdue:  # before others' records are taken, which would be lost with the error
            raise self._late()
        records = self.peek(count, _POLL_S, of)
        if any(of is None or partition in of for partition, _, _ in records):
            self._wait_anew()
        elif time.monotonic() > self._deadline or self._stopped():
            if not records:
                raise self._late()
            self._is_overdue = True
        elif time.monotonic() > self._looks_at_s:
            self._looks_at_s = math.inf
            self._look_for_markers(of, records)
        return records

    def _look_for_markers(self, of: Container[int] | None, records: list[tuple[int, int, bytes]]) -> None:
        """Take markers where records do not come, unless it is the broker that is in trouble."""
        deadline = time.monotonic() + _LOOK_S
        for partition in [number for number in self._at if of is None or number in of]:
            if self._reason is not None or self._stopped() or time.monotonic() > deadline:
                return
            self._take_markers(partition, self._at[partition] + _MARKERS_MAX, records)

    def _late(self) -> BusError:
        return self._missing("records did not come", at=self._at, address=self._address, reason=self._reason)

    def _missing(self, text: str, **fields: object) -> BusError:
        """Return an error that says why records that exist do not come; a broker's trouble is reason enough."""
        if self._are_checked and self._reason is None and not self._stopped():
            damaged = damaged_batch(self._config, self._topic, self._at)
            if damaged is not None:
                return damaged
        return KafkaUnreachableError(text, topic=self._topic, **fields)

    def peek(self, count: int, timeout_s: float, of: Container[int] | None = None) -> list[tuple[int, int, bytes]]:
        """Return what is here, having waited for one record at most ``timeout_s``. Each error is of a partition, and
        raised if it is one of these (None: of any) and all that came before it has been returned.

        Raises:
            HistoryLostError: records are gone.
            KafkaUnreachableError: some were passed over.
            CorruptDataError: what comes next is damaged: none of its batch can be read.
        """
        self._check(of)
        first = self._consumer.poll(timeout_s)
        if first is None:
            return []
        records: list[tuple[int, int, bytes]] = []
        for message in [first, *self._consumer.consume(count, timeout=0)]:
            if message.error() is not None:
                self._take_error(message)
                continue
            partition, offset = message.partition(), message.offset()
            if partition not in self._broken and self._is_next(partition, offset, records):
                records.append((partition, offset, self._record_of(message)))
        if not records:
            self._check(of)
        return records

    def _check(self, of: Container[int] | None) -> None:
        for partition, error in self._broken.items():
            if of is None or partition in of:
                raise error

    def _take_error(self, message: Any) -> None:
        reason, partition = message.error(), message.partition()
        if partition in self._broken:
            return  # what the client makes of the bytes behind a damaged batch may be anything
        if reason.code() in GONE_ERRORS:
            if message.offset() == self._at.get(partition):  # else of an earlier assignment, or nobody's offset
                where = {"topic": self._topic, "partition": partition, "at": dict(self._at)}
                self._broken[partition] = HistoryLostError("records are gone", **where, reason=reason)
            return
        self._reason = reason
        if reason.code() in _DAMAGED:
            self._broken[partition] = _damage(self._topic, message, self._at)

    def _is_next(self, partition: int, offset: int, records: list[tuple[int, int, bytes]]) -> bool:
        """Tell whether a message is one that follows, and note that; False: it is of before a seek, or messages before
        it are missing. A topic of ours has no gaps but markers of a stranger's transactions, which are added to
        ``records``; were the records deleted, reading them again says so.
        """
        due = self._at.get(partition)
        if due is None or offset < due:
            return False
        if offset > due and not self._take_markers(partition, offset, records):
            where = {"partition": partition, "address": self._address}
            self._broken[partition] = self._missing("records were passed over", **where, at=due, next_offset=offset)
            return False
        self._at[partition] = offset + 1
        return True

    def markers(self, partition: int, upto: int) -> list[tuple[int, int, bytes]]:
        """Return the markers that stand next, up to an offset, as records: where nothing else tells of them."""
        records: list[tuple[int, int, bytes]] = []
        self._take_markers(partition, upto, records)
        return records

    def _take_markers(self, partition: int, upto: int, records: list[tuple[int, int, bytes]]) -> bool:
        """Take the markers that stand next, up to an offset; tell whether that is reached."""
        for offset in range(self._at[partition], min(upto, self._at[partition] + _MARKERS_MAX)):
            if not is_marker(self._config, self._topic, partition, offset):
                break
            records.append((partition, offset, self._record_of(Marker((self._topic, partition, offset)))))
            self._at[partition] = offset + 1
        return self._at[partition] == upto


class TopicReader:
    """One consumer, assigned while it reads and never subscribed."""

    def __init__(
        self,
        config: Mapping[str, object],
        topic: str,
        *,
        fetch_wait_ms: int = _FETCH_WAIT_MS,
        timeout_s: float = READ_TIMEOUT_S,
        stopped: Callable[[], bool] = lambda: False,
        log: logging.Logger | None = None,
        record_of: Callable[[Any], bytes] = value_of,
        are_checked: bool = False,
    ) -> None:
        """``config`` is librdkafka's: servers, TLS, SASL (:meth:`edges.kafka.access.KafkaAccess.config`).

        Args:
            fetch_wait_ms: see :func:`offsets_consumer`.
            timeout_s: for one answer of the broker, and for records that are known to exist.
            stopped: gives up a read that waits.
            log: takes librdkafka's own words, which go to stderr otherwise.
            record_of: makes of a message what is handed out as its value.
            are_checked: see :func:`offsets_consumer`.
        """
        self.topic, self._timeout_s, self._stopped, self._record_of = topic, timeout_s, stopped, record_of
        self._config, self._address, self._are_checked = config, address_of(config), are_checked
        self._consumer = offsets_consumer(config, topic, fetch_wait_ms=fetch_wait_ms, log=log, are_checked=are_checked)

    def close(self) -> None:
        self._consumer.close()

    def bounds(self, partition: int = 0) -> tuple[int, int]:
        """Return the first offset that a partition still holds, and the one after its last.

        Raises:
            KafkaUnreachableError: the broker does not answer, or the topic is not there (yet).
        """
        try:
            return partition_bounds(self._consumer, self.topic, partition, answer_s=self._timeout_s)
        except KafkaException as error:
            raise KafkaUnreachableError(
                "topic is not readable", topic=self.topic, address=self._address, reason=error.args[0].str()
            ) from error

    def read(self, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        """Yield ``(offset, value)`` for offsets ``[start, end)`` of a topic's one partition; see :meth:`read_all`."""
        for _, offset, value in self.read_all({0: (start, end)}):
            yield offset, value

    def read_all(self, ranges: Mapping[int, tuple[int, int]]) -> Iterator[tuple[int, int, bytes]]:
        """Yield ``(partition, offset, value)`` for the offsets ``[start, end)`` of each partition, which must have been
        written; those of one partition in their order.

        Raises:
            KafkaUnreachableError: the broker does not hand them out in time.
            HistoryLostError: they are gone.
            CorruptDataError: a batch of them is damaged.
        """
        at = {partition: start for partition, (start, end) in ranges.items() if end > start}
        if not at:
            return
        records = NextRecords(
            self._consumer,
            self.topic,
            at,
            self._stopped,
            self._timeout_s,
            self._record_of,
            config=self._config,
            are_checked=self._are_checked,
        )
        records.assign()
        try:
            while at:
                for partition, offset, value in records.take(_CONSUME_MAX, at):
                    if partition not in at:
                        continue  # it has come to its end
                    if offset + 1 >= ranges[partition][1]:
                        del at[partition]
                    yield partition, offset, value
        finally:
            self._consumer.unassign()
