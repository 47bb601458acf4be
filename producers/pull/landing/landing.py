"""The landing shell: changes of the event feed into records of the raw log, through confluent-kafka.

It runs inside the feed's thread (:class:`~producers.pull.feed.types.FeedSink`), and delivery reports come out of
``poll`` in the same thread; so the book changes in one thread, and a report under the feed's lock is one moment.
"""

import functools
import logging
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from confluent_kafka import KafkaError, KafkaException

from edges.kafka.producer import Delivered, landed_at
from producers.errors import DeliveryFailedError, LandingHaltedError, RowsLostError, RowTooLargeError
from producers.pull.core.landing.book import LandingBook, Sent
from producers.pull.core.landing.packing import pack
from producers.pull.core.landing.row_tally import RowTally
from producers.pull.core.match.change_columns import Change, ChangeColumns
from schemas.changes import RowChanges
from schemas.ids import RegionId, Ts
from schemas.rawlog.record_check import RowsCheck, Whose, check_headers
from schemas.rawlog.region_batch import RegionBatch, encode_region_batch
from schemas.rawlog.row_parts import ROW_BYTES_MAX, cut_record
from schemas.rawlog.topics import RAW_MESSAGE_BYTES_MAX, raw_partition_of_span
from schemas.tidb.spans import TableSpan

log = logging.getLogger(__name__)

SLOW_BROKER_S: Final = 5.0
"""A record that waits longer for its acknowledgement is shown as the reason why nothing lands."""
_LOOK_S, _REST_S = 0.005, 0.05
"""Between two turns while a record waits for its acknowledgement, and else."""
SEVERAL_REGIONS: Final = RegionId(0)
"""A batch's region_id when its rows come from more than one."""


OnDelivery = Callable[[KafkaError | None, Delivered], None]
"""Told of a record's fate; where there is an error, the record stands nowhere."""


class RecordProducer(Protocol):
    """The part of ``confluent_kafka.Producer`` that is used; tests put their own here."""

    def produce(
        self,
        topic: str,
        *,
        value: bytes,
        partition: int,
        headers: list[tuple[str, bytes]] = ...,
        on_delivery: OnDelivery,
    ) -> None:
        """Queue a record; BufferError when the queue is full."""

    def poll(self, timeout: float) -> int:
        """Serve delivery reports."""

    def flush(self, timeout: float) -> int:
        """Wait for all delivery reports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LandingSettings:
    """How rows become records."""

    batch_bytes_max: int = 256 << 10
    """Of one record, before compression: large enough that per-record costs vanish, small enough to skip by ts."""
    batch_rows_max: int = 2_000
    buffer_bytes_max: int = 1 << 20
    """Of a span's values that wait for company: a few records' worth; large rows must not wait by the thousand."""
    linger_s: float = 0.15
    """How long a row waits for company where its span's next resolved ts, which takes it along, is longer in coming:
    no row leaves the raw log before that (docs/decisions/2026-11-30-rows-wait-for-company.md)."""
    in_flight_bytes_max: int = 64 << 20
    """Sent and not acknowledged; beyond it the feed takes nothing more."""
    in_flight_records_max: int = 20_000
    """Likewise. The client's queue takes 100,000 whatever their size, and who waits for room there holds the feed's
    lock: nobody gets a report then, and nobody can stop the puller."""
    record_bytes_max: int = RAW_MESSAGE_BYTES_MAX
    """What the topic takes; a larger row is landed in parts."""
    row_bytes_max: int = ROW_BYTES_MAX
    """Of a row's value, and of its old one; a larger row is not landed, and its span goes no further."""


@dataclass(slots=True)
class LandingCounters:
    """What has been landed since the start."""

    rows: int = 0
    records: int = 0
    bytes: int = 0
    """Encoded, before compression."""
    acked_rows: int = 0
    acked_records: int = 0


@dataclass(slots=True)
class _Buffer:
    columns: list[ChangeColumns] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    """What came not by column. The raw log's rows may stand in any order."""
    tally: RowTally = field(default_factory=RowTally)
    region_id: RegionId | None = None
    since_s: float = 0.0


class Landing:
    """Implements :class:`~producers.pull.feed.types.FeedSink` over a book and a producer."""

    def __init__(
        self,
        book: LandingBook,
        producer: RecordProducer,
        *,
        topic: str,
        partitions: int,
        schema_id: int,
        settings: LandingSettings = LandingSettings(),
        may_land: Callable[[], bool] = lambda: True,
        on_landed: Callable[[], None] = lambda: None,
    ) -> None:
        """Take over ``book``: from now on it is called under the feed's lock only. Who may not land any more sends
        nothing and raises LandingHaltedError. ``on_landed`` is told when a report would say more than before.
        """
        self.book = book
        self.counters = LandingCounters()
        self._producer = producer
        self._topic = topic
        self._partitions = partitions
        self._schema_id = schema_id
        self._settings = settings
        self._buffers: dict[tuple[TableSpan, bool], _Buffer] = {}
        self._in_flight_bytes = 0
        self._in_flight: dict[Sent, float] = {}
        self._failure: DeliveryFailedError | None = None
        self._may_land, self._on_landed = may_land, on_landed
        self._refused: dict[TableSpan, RowTooLargeError | RowsLostError] = {}

    # -- FeedSink ------------------------------------------------------------------------------------------------------

    def rows(self, span: TableSpan, region_id: RegionId, changes: Collection[Change], *, may_repeat: bool) -> None:
        """Buffer changes; a full buffer is sent at once.

        Raises:
            LandingHaltedError: this capture may not land any more.
            DeliveryFailedError: Kafka refuses a record.
        """
        if span in self._refused:
            return
        buffer = self._buffers.get((span, may_repeat))
        if buffer is None:
            buffer = self._buffers[span, may_repeat] = _Buffer(since_s=time.monotonic())
        if isinstance(changes, ChangeColumns):
            buffer.columns.append(changes)
        else:
            buffer.changes += changes
        buffer.tally.take(changes)
        buffer.region_id = region_id if buffer.region_id in (None, region_id) else SEVERAL_REGIONS
        settings, tally = self._settings, buffer.tally
        if tally.rows >= settings.batch_rows_max or tally.value_bytes >= settings.buffer_bytes_max:
            self._send(span, may_repeat, buffer)
            del self._buffers[span, may_repeat]

    def resolved(self, span: TableSpan, ts: Ts) -> None:
        """Send what is buffered of the span, then tell the book: every row up to ``ts`` has been sent.

        Raises:
            LandingHaltedError, DeliveryFailedError: see :meth:`rows`.
        """
        for may_repeat in (True, False):
            buffer = self._buffers.pop((span, may_repeat), None)
            if buffer is not None:
                self._send(span, may_repeat, buffer)
        if span not in self._refused:
            self.book.resolved(span, ts)

    def turn(self, now_s: float) -> float:
        """Send buffers that are due, take delivery reports; return in how many seconds the next turn is wanted.

        Raises:
            LandingHaltedError, DeliveryFailedError: see :meth:`rows`; or Kafka did not take a record.
        """
        due_s = now_s - self._settings.linger_s
        while self._buffers:
            (span, may_repeat), buffer = next(iter(self._buffers.items()))
            if buffer.since_s > due_s:
                break  # the oldest stand first
            self._send(span, may_repeat, buffer)
            del self._buffers[span, may_repeat]
        self._producer.poll(0)
        if self._failure is not None:
            raise self._failure
        if self.book.has_moved:
            self.book.has_moved = False
            self._on_landed()
        return _LOOK_S if self._in_flight else _REST_S

    def saturated(self) -> bool:
        """Say whether too much waits for the broker."""
        settings = self._settings
        return (
            self._in_flight_bytes >= settings.in_flight_bytes_max
            or len(self._in_flight) >= settings.in_flight_records_max
        )

    # -- for the puller ------------------------------------------------------------------------------------------------

    def forget(self, span: TableSpan) -> None:
        """Drop what is buffered of a span; it comes again from the published R."""
        self._buffers.pop((span, False), None)
        self._buffers.pop((span, True), None)
        self._refused.pop(span, None)

    def refused(self) -> Mapping[TableSpan, RowTooLargeError | RowsLostError]:
        """Return the spans that go no further because of a row that cannot be landed, or was lost. Others go on."""
        return self._refused

    def with_schema_id(self, schema_id: int) -> None:
        """Let the records from now on say this id; from any thread."""
        self._schema_id = schema_id

    def flush(self, timeout_s: float) -> int:
        """Wait for acknowledgements, at most ``timeout_s``; return how many records are still without."""
        return self._producer.flush(timeout_s)

    def slow_reason(self) -> str:
        """Return why the broker holds landing back ('' if it does not)."""
        oldest_s = next(iter(self._in_flight.values()), None)
        if oldest_s is None or time.monotonic() - oldest_s < SLOW_BROKER_S:
            return ""
        return f"Kafka has not acknowledged a record of {self._topic} for {time.monotonic() - oldest_s:.0f} s"

    def _send(self, span: TableSpan, may_repeat: bool, buffer: _Buffer) -> None:
        region_id, settings = buffer.region_id or SEVERAL_REGIONS, self._settings
        columns = buffer.columns
        if buffer.changes:
            columns = [*columns, ChangeColumns.of(*zip(*buffer.changes, strict=True))]
        bytes_max = min(settings.batch_bytes_max, settings.record_bytes_max // 2)
        packed = list(pack(span.table_id, columns, bytes_max))
        checks, difference = buffer.tally.checks(buffer.changes, packed)
        if difference is not None:
            self._lose(span, difference)
            return
        for rows, check in zip(packed, checks, strict=True):
            value = encode_region_batch(
                RegionBatch(region_id=region_id, may_repeat=may_repeat, rows=rows), self._schema_id
            )
            if len(value) > settings.row_bytes_max:  # so it is of one row
                size = max(len(column[0].as_buffer()) for column in (rows.value, rows.old_value))
                if size > settings.row_bytes_max:
                    self._refuse(span, rows, size)
                    return
            parts: Iterable[bytes] = (value,)
            if len(value) > settings.record_bytes_max:
                parts = cut_record(value, settings.record_bytes_max, int.from_bytes(os.urandom(8), "little"))
            whose = Whose.of(rows)
            for at, part in enumerate(parts):
                counts = 0 if at else len(rows)
                self._send_record(span, part, check, whose, may_repeat=may_repeat, rows=counts)

    def _send_record(
        self, span: TableSpan, value: bytes, check: RowsCheck, whose: Whose, *, may_repeat: bool, rows: int
    ) -> None:
        """Send one record; ``check`` and ``whose`` are of its rows, or of the row it is a part of; ``rows`` are what it
        counts for.
        """
        if not self._may_land():
            raise LandingHaltedError("this capture's lease is over; it has stopped landing", topic=self._topic)
        partition = raw_partition_of_span(span, self._partitions)
        sent = self.book.sent(span, partition, whose.max_commit_ts, may_repeat=may_repeat)
        self._in_flight[sent] = time.monotonic()
        self._in_flight_bytes += len(value)
        self.counters.rows += rows
        self.counters.records += 1
        self.counters.bytes += len(value)
        try:
            self._produce(
                partition,
                value,
                check_headers(check, value, whose),
                functools.partial(self._delivered, sent, len(value), rows),
            )
        except KafkaException as error:
            raise DeliveryFailedError(
                "Kafka refuses a record", topic=self._topic, table_id=span.table_id, reason=error.args[0]
            ) from error

    def _lose(self, span: TableSpan, difference: Mapping[str, object]) -> None:
        """Stop the span before rows that are not those that were matched; its landed_ts stays below them."""
        error = RowsLostError(
            "rows of a table were lost or changed between the feed and the raw log: the table goes no further, and no "
            "changefeed that contains it; restart the capture, which reads them again",
            table_id=span.table_id,
            **difference,
        )
        self._refused[span] = error
        log.error("rows are lost before they are landed", extra={"reason": str(error)})

    def _refuse(self, span: TableSpan, rows: RowChanges, size: int) -> None:
        """Stop the span before a row that is no row of TiDB's; its landed_ts stays below it, so nothing is lost."""
        error = RowTooLargeError(
            "a row is larger than any that TiDB writes: its table goes no further, and no changefeed that contains it; "
            "leave the table out by filter.rules",
            table_id=span.table_id,
            key=rows.key[0].as_py().hex(),
            commit_ts=int(rows.commit_ts[0]),
            bytes=size,
            allowed=self._settings.row_bytes_max,
        )
        self._refused[span] = error
        log.error("row is too large to be landed", extra={"reason": str(error)})

    def _produce(self, partition: int, value: bytes, headers: list[tuple[str, bytes]], on_delivery: OnDelivery) -> None:
        while True:
            try:
                self._producer.produce(
                    self._topic, value=value, partition=partition, headers=headers, on_delivery=on_delivery
                )
            except BufferError:
                # Its queue is bounded by messages too; what it delivers makes room.
                self._producer.poll(0.05)
                if self._failure is not None:
                    raise self._failure from None
                continue
            return

    def _delivered(self, sent: Sent, size: int, rows: int, error: KafkaError | None, message: Delivered) -> None:
        """Take one delivery report. A failed record stays unacknowledged in the book: landed_ts cannot pass it. Nor do
        those count that come behind it: the landing is over.
        """
        self._in_flight.pop(sent, None)
        self._in_flight_bytes -= size
        if self._failure is not None:
            return
        offset, reason = landed_at(error, message)
        if offset is not None:
            self.book.acked(sent, offset)
            self.counters.acked_rows += rows
            self.counters.acked_records += 1
        else:
            self._failure = DeliveryFailedError(
                "Kafka did not take a record",
                topic=self._topic,
                partition=sent.partition,
                bytes=size,
                reason=reason,
            )
