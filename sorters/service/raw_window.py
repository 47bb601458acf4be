"""The newest records of a raw topic, read once for all changefeeds that stand there, in a bounded memory.

The consumer goes on only when somebody needs more; what it has brought is kept for the others, as much memory as the
bound allows: what a record takes beside its bytes counts too, for those of a quiet upstream are of few rows. A
changefeed whose cut begins below what is kept reads that part by a consumer of its own, and the rest of the cut here.
A reader may begin up to ``JUMP_RECORDS`` above what was read: the window then reads on to there. Did it jump, the
readers in between would have to read alone.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import cast

from edges.kafka.errors import KafkaUnreachableError, address_of
from edges.kafka.offsets import READ_TIMEOUT_S, NextRecords, damaged_batch, offsets_consumer
from schemas.errors import BusError
from schemas.rawlog.region_batch import SharedRecord
from sorters.core.cut.cut import Cut
from sorters.cut.raw_cut import RAW_RECORD_BYTES_GUESS, RawCut, read_cut
from sorters.cut.record_window import Record, RecordWindow
from sorters.service.decoded_records import DecodedRecords
from sorters.service.shared_cuts import SharedCuts

BYTES_MAX = 96 * 1024 * 1024
"""Memory of records that are kept: five cuts of the largest size that a driver runs, of large records."""
DECODED_BYTES_MAX = 32 * 1024 * 1024
"""Memory of what was decoded of these last, beside it: many changefeeds read a record at about the same time."""
_CONSUME_MAX = 1_000
_FETCH_WAIT_MS, _POLL_S = 100, 0.1
_SLICE = 256
"""Records that are handed out between two looks at what is kept."""
JUMP_RECORDS = 20_000
"""How far above what was read of a partition a reader may begin: the window reads on to there. For one that begins
further up it lets go what is kept of the partition, and reads on from that reader's start."""


class _Kept:
    """The records of one partition that are kept, in their order and without gaps, up to :attr:`next`."""

    def __init__(self, start: int) -> None:
        self.records: deque[SharedRecord] = deque()
        self.first = self.next = start

    def between(self, start: int, end: int) -> list[Record]:
        index = start - self.first
        stop = min(end - self.first, len(self.records), index + _SLICE)
        return [(self.first + at, self.records[at]) for at in range(index, stop)]


class RawWindow:
    """One consumer for many readers. :meth:`close` must be called."""

    def __init__(
        self,
        config: Mapping[str, object],
        topic: str,
        bytes_max: int = BYTES_MAX,
        is_shared: Callable[[], bool] = lambda: False,
    ) -> None:
        """``config`` is librdkafka's; ``is_shared`` tells whether several changefeeds read here."""
        self.is_shared = is_shared
        self._config, self._topic, self._bytes_max = config, topic, bytes_max
        self._bringing, self._lock = threading.Lock(), threading.Lock()
        """The first is held by whoever waits for the consumer, the second over what is kept, and never for long."""
        self._consumer = offsets_consumer(config, topic, fetch_wait_ms=_FETCH_WAIT_MS, are_checked=True)
        self._at: dict[int, int] = {}
        """What the consumer brings next of each partition."""
        self._records = NextRecords(
            self._consumer,
            topic,
            self._at,
            lambda: self._closed,
            record_of=SharedRecord.of,
            config=config,
            are_checked=True,
        )
        self._kept: dict[int, _Kept] = {}
        self._order: deque[int] = deque()
        """Partitions of what is kept, oldest first."""
        self._bytes = 0
        self._decoded = DecodedRecords(DECODED_BYTES_MAX)
        self._on_decoded = self._decoded.add
        self._closed = False
        self.record_bytes = float(RAW_RECORD_BYTES_GUESS)
        """Mean size of the records that were brought last; before the first one a guess."""
        self.cuts = SharedCuts()

    def reader(self, stopped: Callable[[], bool]) -> "WindowReader":
        """Return what reads for one changefeed, until ``stopped``."""
        return WindowReader(self, stopped, lambda: RecordWindow(self._config, self._topic, stopped=stopped))

    def first(self, partition: int, start: int) -> int:
        """Return the offset from which on a reader that begins at ``start`` reads a partition here: ``start``, or the
        first one that is kept, if that is above.
        """
        with self._lock:
            kept = self._kept.get(partition)
            return start if kept is None else max(start, kept.first)

    def take(self, partition: int, start: int, end: int, stopped: Callable[[], bool]) -> list[Record] | None:
        """Return records of a partition from ``start`` on, below ``end``, at least one; None: they are kept no more.

        Raises:
            KafkaUnreachableError, HistoryLostError, CorruptDataError: see :meth:`NextRecords.peek`. The first also
                where ``stopped`` says so, or the window is closed. Where a record that only other readers need is
                damaged or gone, this reader goes on.
        """
        seen, deadline_s = -1, 0.0
        while True:
            is_kept, records = self._kept_of(partition, start, end)
            if records or not is_kept:
                return records
            next_offset = self._next(partition, start)
            if next_offset != seen:
                seen, deadline_s = next_offset, time.monotonic() + READ_TIMEOUT_S
            elif self._closed or stopped():
                raise self._no_records(partition, next_offset)
            elif time.monotonic() > deadline_s:  # others' records may come all the while
                if next_offset == start:
                    raise self._stall_error(partition, start)
                with self._bringing:
                    self._drop(partition, next_offset)
                continue
            with self._bringing:
                if self._is_unread(partition, start):  # nobody has brought it meanwhile
                    self._bring(partition, start)

    @property
    def held_bytes(self) -> int:
        """The memory of what is kept, and of what was decoded of it."""
        return self._bytes + self._decoded.held_bytes

    def close(self) -> None:
        """Close the consumer; who reads now fails."""
        self._closed = True
        self.cuts.clear()
        with self._bringing:
            self._consumer.close()

    def _kept_of(self, partition: int, start: int, end: int) -> tuple[bool, list[Record] | None]:
        """Return whether ``start`` is not below what is kept, and the records from there on; None: none has been
        brought yet.
        """
        with self._lock:
            kept = self._kept.get(partition)
            if kept is None or start >= kept.next:
                return True, None
            return (True, kept.between(start, end)) if start >= kept.first else (False, None)

    def _next(self, partition: int, start: int) -> int:
        """Return which record of a partition the consumer brings next, for who begins at ``start``."""
        with self._lock:
            kept = self._kept.get(partition)
            return start if kept is None else kept.next

    def _stall_error(self, partition: int, at: int) -> BusError:
        return damaged_batch(self._config, self._topic, {partition: at}) or self._no_records(partition, at)

    def _no_records(self, partition: int, at: int) -> BusError:
        where = {"topic": self._topic, "partition": partition, "at": at, "address": address_of(self._config)}
        return KafkaUnreachableError("records did not come", **where)

    def _is_unread(self, partition: int, start: int) -> bool:
        with self._lock:
            kept = self._kept.get(partition)
            return kept is None or start >= kept.next

    def _go_to(self, partition: int, start: int) -> None:
        """Keep from ``start`` on, and forget what was kept of the partition."""
        with self._lock:
            self._forget_partition(partition)
            self._kept[partition] = _Kept(start)
        self._assign()

    def _drop(self, partition: int, at: int) -> None:
        """Read a partition no more, unless it has gone on from ``at``: who reads there next begins anew."""
        with self._lock:
            if partition not in self._kept or self._kept[partition].next != at:
                return
            self._forget_partition(partition)
        self._assign()

    def _forget_partition(self, partition: int) -> None:
        old = self._kept.pop(partition, None)
        if old is not None:
            self._let_go(old, len(old.records))
            self._order = deque(number for number in self._order if number != partition)

    def _assign(self) -> None:
        self._at.clear()
        self._at.update((number, kept.next) for number, kept in self._kept.items())
        self._records.assign()

    def _bring(self, partition: int, start: int) -> None:
        """Take what the consumer has next, and forget the oldest beyond the bound. Where it gets nothing more of this
        partition it reads that no more; whoever begins just there is told.
        """
        kept = self._kept.get(partition)
        if kept is None or start > kept.next + JUMP_RECORDS:
            self._go_to(partition, start)
        try:
            taken = self._records.peek(_CONSUME_MAX, _POLL_S, {partition})
        except BusError:
            at = self._at[partition]
            self._drop(partition, at)
            if at == start:
                raise
            return
        with self._lock:
            if taken:
                self.record_bytes += (sum(len(record) for _, _, record in taken) / len(taken) - self.record_bytes) / 4
            for number, _, record in taken:
                self._keep(self._kept[number], number, cast(SharedRecord, record))
            self._forget()

    def _keep(self, kept: _Kept, partition: int, record: SharedRecord) -> None:
        record.on_decoded = self._on_decoded
        kept.records.append(record)
        kept.next += 1
        self._order.append(partition)
        self._bytes += record.held_bytes

    def _forget(self) -> None:
        while self._bytes > self._bytes_max and len(self._order) > 1:
            self._let_go(self._kept[self._order.popleft()], 1)

    def _let_go(self, kept: _Kept, count: int) -> None:
        for _ in range(count):
            record = kept.records.popleft()
            self._bytes -= record.held_bytes
            self._decoded.discard(record)
        kept.first += count


class WindowReader:
    """Reads for one changefeed; a :class:`~sorters.cut.raw_cut.RawReader`."""

    def __init__(self, window: RawWindow, stopped: Callable[[], bool], alone: Callable[[], RecordWindow]) -> None:
        self._window, self._stopped, self._make_alone = window, stopped, alone
        self._alone: RecordWindow | None = None

    def read_cut(self, cut: Cut, raw_bytes_max: int) -> RawCut | None:
        """See :class:`~sorters.cut.raw_cut.RawReader`."""
        # What is left out for images to come, and what goes out of them, is one changefeed's.
        if not self._window.is_shared() or cut.left_out is not None or cut.chunks:
            return read_cut(self, cut, raw_bytes_max)
        raw = self._window.cuts.find(cut) or read_cut(self, cut, raw_bytes_max)
        if raw is None or raw.raw_bytes > raw_bytes_max:
            return None
        return raw if raw.shared is not None else self._window.cuts.keep(cut, raw)

    def read_all(self, ranges: Mapping[int, tuple[int, int]]) -> Iterator[tuple[int, int, bytes]]:
        """Yield ``(partition, offset, value)`` for the offsets ``[start, end)`` of each partition.

        Raises:
            KafkaUnreachableError, HistoryLostError: see :meth:`RecordWindow.read_all`.
        """
        alone: dict[int, tuple[int, int]] = {}
        for partition, (start, end) in ranges.items():
            at = min(self._window.first(partition, start), end)
            if at > start:
                alone[partition] = (start, at)
        if alone:
            yield from self._read_alone(alone)
        late: dict[int, tuple[int, int]] = {}
        for partition, (start, end) in ranges.items():
            at = alone[partition][1] if partition in alone else start
            while at < end:
                records = self._window.take(partition, at, end, self._stopped)
                if records is None:  # the others were faster
                    late[partition] = (at, end)
                    break
                for offset, value in records:
                    yield partition, offset, value
                at += len(records)
        if late:
            yield from self._read_alone(late)
        elif not alone:
            self._close_alone()

    def _read_alone(self, ranges: Mapping[int, tuple[int, int]]) -> Iterator[tuple[int, int, bytes]]:
        if self._alone is None:
            self._alone = self._make_alone()
        yield from self._alone.read_all(ranges)

    def close(self) -> None:
        self._close_alone()

    def _close_alone(self) -> None:
        alone, self._alone = self._alone, None
        if alone is not None:
            alone.close()
