"""The frontier topic as the owner and the changefeed store use it: one partition, records that never go back."""

import contextlib
import logging
import time
from collections.abc import Iterator
from typing import Any

from confluent_kafka import KafkaException

from edges.kafka.access import KafkaAccess
from edges.kafka.errors import HistoryLostError, KafkaUnreachableError
from edges.kafka.offsets import TopicReader
from edges.kafka.producer import landed_at, ordered_producer, rest_of_head_start
from edges.kafka.tail import decoded_frontier
from schemas.errors import Action, BusError
from schemas.rawlog.frontier import NOBODYS, FrontierRecord, encode_frontier, follow_frontier, widened

log = logging.getLogger(__name__)

PUBLISH_TIMEOUT_S = 5.0
"""Below the ZooKeeper session timeout: a record that hangs must not outlive the owner that sent it."""
READ_TIMEOUT_S = 15.0
"""For one answer of the broker; it covers a broker's restart."""
FETCH_WAIT_MS = 20
"""How long the broker keeps a question for which it has nothing. What is asked next waits behind it, half a second by
Kafka's default: a new owner asks five times."""
TAIL_RECORDS = 2000
"""Read at the topic's end to know where its readers stand. Only records of a replaced owner can stand after the newest
valid one, and such an owner stops with its session: at 20 records a second this is 100 s of them."""


class FrontierUnavailableError(BusError):
    """The frontier topic cannot be read or written now."""

    code, action = "frontier.unavailable", Action.RETRY


class FrontierLostError(BusError):
    """All records have gone by retention: nobody knows any more up to where the raw log is whole."""

    code, action = "frontier.lost", Action.STOP_CHANGEFEED


class FrontierTopic:
    """Reads and writes one upstream's frontier topic. Not thread-safe; close it."""

    def __init__(self, kafka: KafkaAccess, topic: str, *, publishes: bool = False) -> None:
        """``publishes``: make the producer now, so that it has its head start when it is needed."""
        self._kafka, self._topic = kafka, topic
        self._producer: Any = None
        self._made_at_s = 0.0
        """When the producer was made, by the monotonic clock."""
        if publishes:
            self._make_producer()
        self._reader = TopicReader(
            kafka.config(), topic, fetch_wait_ms=FETCH_WAIT_MS, timeout_s=READ_TIMEOUT_S, log=log
        )

    def publish(self, record: FrontierRecord) -> int:
        """Append ``record`` and return its offset once every in-sync replica has it.

        Raises:
            FrontierUnavailableError: not acknowledged in time; the record may be in the topic all the same, so whoever
                goes on must read the topic first.
        """
        if self._producer is None:
            self._make_producer()
        rest_of_head_start(self._made_at_s)
        outcome: list[tuple[Any, Any]] = []
        with self._errors("publishing a record"):
            self._producer.produce(
                self._topic,
                encode_frontier(record),
                partition=0,
                on_delivery=lambda error, message: outcome.append((error, message)),
            )
            self._producer.flush(PUBLISH_TIMEOUT_S + 1)
        offset, reason = landed_at(*outcome[0]) if outcome else (None, f"no answer in {PUBLISH_TIMEOUT_S} s")
        if offset is None:
            raise FrontierUnavailableError(
                "a frontier record was not acknowledged; the owner starts anew from the topic",
                topic=self._topic,
                resolved_ts=record.resolved_ts,
                reason=reason,
            )
        return offset

    def newest(self) -> FrontierRecord | None:
        """Return where a reader of the whole topic stands, or None: nothing has ever been published.

        Raises:
            FrontierUnavailableError: the broker does not answer.
            FrontierLostError: there were records, and retention has removed them all.
            CorruptDataError: a record does not decode.
        """
        start, end = self.offsets()
        newest: FrontierRecord | None = None
        for _, record in self.read(max(start, end - TAIL_RECORDS), end):
            if record is not NOBODYS:
                newest = follow_frontier(newest, record)
        if newest is None and end > 0:
            raise FrontierLostError(
                "no owner has published for longer than the frontier topic's retention, so changes are missing in the "
                "raw log; delete its three topics, start the capture as for a new upstream, create changefeeds anew",
                topic=self._topic,
                end=end,
            )
        return newest

    def oldest_usable(self, log_starts: tuple[int, ...]) -> FrontierRecord | None:
        """Return the oldest record whose rows the raw log still holds: no low is below ``log_starts``.

        Lows never go back, so this is a binary search: some 20 reads, however long the topic is.

        Raises:
            FrontierUnavailableError: the broker does not answer.
            CorruptDataError: a record does not decode.
        """
        first, end = self.offsets()
        last, usable = end, None
        while first < last:
            middle = (first + last) // 2
            at, record = next(((at, read) for at, read in self.read(middle, end) if read is not NOBODYS), (end, None))
            if record is None:
                last = middle
                continue
            # A partition that has come since the record: all of it is above.
            lows = widened(record.low, len(log_starts))
            if all(low >= start for low, start in zip(lows, log_starts, strict=False)):
                usable, last = record, middle
            else:
                first = at + 1
        return usable

    def offsets(self) -> tuple[int, int]:
        """Return the first and the next offset of the topic.

        Raises:
            FrontierUnavailableError: the broker does not answer, or there is no such topic.
        """
        with self._errors("reading offsets"):
            return self._reader.bounds()

    def read(self, start: int, end: int) -> Iterator[tuple[int, FrontierRecord]]:
        """Yield ``(offset, record)`` from ``start`` up to ``end``.

        Raises:
            FrontierUnavailableError: the broker does not answer.
            CorruptDataError: a record does not decode.
        """
        records = self._reader.read(start, end)
        while True:
            with self._errors("reading records"):
                record = next(records, None)
            if record is None:
                return
            offset, value = record
            yield offset, decoded_frontier(value, self._topic, offset)

    def close(self) -> None:
        """Close the clients; nothing is buffered, because :meth:`publish` waits."""
        with contextlib.suppress(Exception):
            self._reader.close()

    def _make_producer(self) -> None:
        self._producer = ordered_producer(
            {**self._kafka.config(), "linger.ms": 0, "message.timeout.ms": int(PUBLISH_TIMEOUT_S * 1000)}, log
        )
        self._made_at_s = time.monotonic()

    @contextlib.contextmanager
    def _errors(self, doing: str) -> Iterator[None]:
        try:
            yield
        except (KafkaException, KafkaUnreachableError, HistoryLostError, BufferError) as error:
            raise FrontierUnavailableError(
                "Kafka does not serve the frontier topic; check --kafka and that a capture has created the raw log",
                topic=self._topic,
                kafka=self._kafka.servers,
                doing=doing,
                reason=error,
            ) from error
