"""One partition of a sink topic: what has been read of it, what may be applied next, and what is a repeat.

Records come in the order of the partition. A sorter that starts again writes from its checkpoint on what it has written
before: the same records in the same order, though perhaps cut into other messages. So reading goes forward in *passes*,
and a pass begins at a boundary of commit_ts::

      offset    0    1    2    3    4    5    6    7
      commit_ts 10   20   30   | 20   30   40   W40
                first pass       second pass

**Late records.** What an older sorter, or attempt, writes behind a newer one's records is no pass: it is passed over
(:mod:`consumers.processors.core.fence`).

**The repeat rule.** A row is dropped for good only when it is at or below the *applied* position, which the destination
holds. What was read and not yet applied is forgotten when a pass begins at or below it, and read again: the first pass
may have ended in the middle of a transaction. A transaction is complete, and may be applied, when something that stands
after it has been read in the same pass.

Transactions that are on their way to the destination (``claim``) count as applied for this rule. Either they arrive, or
everything here is thrown away and read anew from where the destination says (:class:`PartitionQueue` is made again).

Nothing here is done once a row: what waits are slices of messages, and a claim is cut where a transaction ends.

**One transaction at a time.** A table's rows are in one partition, and a partition has one transaction under way, which
is never divided. Why, and what else was looked at: docs/decisions/2026-11-22-one-transaction-a-partition.md.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from consumers.processors.core.apply.waiting import DdlMark as DdlMark
from consumers.processors.core.apply.waiting import RowBatch, RowSlice, Taken, Waiting, WatermarkMark, txn_borders
from consumers.processors.core.fence import PartitionFence
from consumers.processors.core.flow_book import FlowBook
from schemas.errors import CorruptDataError, InvariantBrokenError
from schemas.ids import Ts
from schemas.sink.fence import NO_FENCE
from schemas.sink.flow_mark import read_mark
from schemas.sink.parts import MessageJoiner, is_part
from schemas.sink.position import POSITION_CLASS_AT, Position, PositionClass, decode_position
from schemas.sink.sql_rows import IntArray, SqlRows, TableForm, decode_ddl, decode_form, decode_rows

_TXN_END = struct.Struct(">QBQB")
_AFTER_ALL_OPS = 0xFF
FORMS_MAX = 10_000
"""Table forms that are kept parsed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Whole transactions to be applied at once, in their order."""

    rows: RowBatch
    position: bytes
    """Where the partition stands when they are."""
    next_offset: int
    """Where reading must begin to find everything above ``position``."""
    watermark: Ts
    """Highest that everything up to is applied then; 0: none."""
    last_commit_ts: Ts
    txns: int


def txn_end(commit_ts: int, start_ts: int) -> bytes:
    """Return the position that is above every row of a transaction, and below what follows.

    >>> txn_end(7, 5) > Position(Ts(7), PositionClass.ROW, Ts(5)).encode()
    True
    """
    return _TXN_END.pack(commit_ts, PositionClass.ROW, start_ts, _AFTER_ALL_OPS)


def start_position(start_ts: Ts) -> bytes:
    """Return the position of a changefeed that has applied nothing: all up to ``start_ts`` is none of its, but for the
    tables that are made as of it.
    """
    return watermark_position(start_ts)


def watermark_position(ts: Ts) -> bytes:
    """Return the position of a watermark."""
    return Position(ts, PositionClass.WATERMARK).encode()


def covered_ts(position: bytes) -> Ts:
    """Return the highest ts up to which a partition that stands at ``position`` has applied everything."""
    commit_ts = int.from_bytes(position[:POSITION_CLASS_AT], "big")
    whole = position[POSITION_CLASS_AT] >= PositionClass.WATERMARK
    return Ts(commit_ts if whole else commit_ts - 1)


class PartitionQueue:
    """See the module. Pure: ``feed`` it records, ``claim`` what may be applied, say ``arrived`` when it has been."""

    def __init__(
        self,
        number: int,
        applied: bytes,
        offset: int,
        ignore_start_ts: frozenset[int] = frozenset(),
        topic: str = "",
    ) -> None:
        """Begin where the destination stands: position ``applied``, reading from ``offset``.

        Args:
            ignore_start_ts: transactions whose rows are passed over (``ignore-txn-start-ts``).
            topic: for errors.
        """
        self.number = number
        self.applied = applied
        self.offset = offset
        """Where reading must begin to find everything above ``applied``."""
        self._floor = applied
        """Repeats are what is not above: applied, or claimed."""
        self._claimed: Claim | None = None
        self._waiting = Waiting()
        self._parts = MessageJoiner()
        self._fence, self._first_offset = PartitionFence(number, topic), offset
        self.flow = FlowBook(number, topic)
        self._watermark = covered_ts(applied)
        """Highest that everything up to is applied."""
        self._ignored = ignore_start_ts
        self._forms: dict[bytes, TableForm] = {}

    @property
    def waiting_bytes(self) -> int:
        """Of their literals."""
        return self._waiting.bytes

    @property
    def applied_ts(self) -> Ts:
        """Everything up to here is in the destination."""
        return self._watermark

    @property
    def barrier(self) -> DdlMark | None:
        """The DDL that the partition stands at: all before it is applied."""
        head = self._waiting.head
        return head if self._claimed is None and isinstance(head, DdlMark) else None

    @property
    def can_wait(self) -> bool:
        """Whether something can be done without reading on: not if a transaction's end is all that is missing."""
        return self._claimed is not None or self._waiting.has_whole

    @property
    def late_records(self) -> int:
        """How many were passed over."""
        return self._fence.late

    def feed(self, *, position: bytes, offset: int, key: bytes | None, value: bytes, fence: bytes = NO_FENCE) -> bool:
        """Take the next record; False: it came late, and tells nothing. One that stands before the offset where this
        began says only who wrote last.

        Raises:
            CorruptDataError: it does not decode.
            FlowBrokenError: rows that were applied are not those that the sorter wrote.
            FenceWentBackError: a sorter writes whose records would all be late.
        """
        if offset < self._first_offset:
            self._fence.learn(fence)
            return False
        if not self._fence.passes(fence, position, is_part=(part := is_part(key))):
            return False
        if position <= self._floor:
            self._pass_repeat(position, offset)
            return True
        if part and key is not None:
            joined = self._parts.take(position, offset, key, value)
            if joined is None:
                return True
            self._fence.close()
            offset, key, value = joined.offset, joined.key, joined.value
        self._take(position, offset, key, value)
        self._pass_marks()
        return True

    def _take(self, position: bytes, offset: int, key: bytes | None, value: bytes) -> None:
        where = decode_position(position)
        match where.position_class:
            case PositionClass.ROW:
                if key is None:
                    raise CorruptDataError("row message has no table form", partition=self.number, offset=offset)
                self._rows(self._form(key), value, offset)
            # Tables as of the changefeed's start stand behind its watermark: they are made as any DDL is run.
            case PositionClass.DDL | PositionClass.BOOTSTRAP:
                self._rewind(where.commit_ts, position)
                self._waiting.add_ddl(DdlMark(position, where.start_ts, decode_ddl(value), offset))
            case PositionClass.WATERMARK:
                self._rewind(where.commit_ts, position)
                self._waiting.add_watermark(where.commit_ts, offset + 1, read_mark(value))

    def claim(self, rows_max: int, *, bytes_max: int, barrier_ts: Ts | None = None) -> Claim | None:
        """Return the next complete transactions, ``rows_max`` rows in all or one larger transaction; None: none yet.

        One claim may be open at a time. ``barrier_ts``: nothing above it is handed out.

        Raises:
            FlowBrokenError: the rows that it ends with are not those that the sorter wrote.
        """
        if self._claimed is not None:
            return None
        cut = self._waiting.cut(rows_max, bytes_max, barrier_ts)
        if cut is None:
            self._pass_marks()
            return None
        taken = self._waiting.take(*cut)
        self._prove(taken)
        rows = taken.rows
        last = rows.slices[-1]
        commit_ts, start_ts = last.rows.txn(last.end - 1)
        self._floor = txn_end(commit_ts, start_ts)
        self._claimed = Claim(
            rows=rows,
            position=self._floor,
            next_offset=self._next_offset(last.offset),
            watermark=taken.watermark,
            last_commit_ts=Ts(commit_ts),
            txns=rows.txns,
        )
        return self._claimed

    def arrived(self) -> None:
        """Note that the destination has what was claimed."""
        if self._claimed is None:
            raise InvariantBrokenError("nothing was claimed", partition=self.number)
        self._watermark = max(self._watermark, self._claimed.watermark)
        self.applied, self.offset, self._claimed = self._claimed.position, self._claimed.next_offset, None
        self._pass_marks()

    def _prove(self, taken: Taken) -> None:
        """Hold what is handed out against what the sorter says of it, watermark by watermark."""
        at = 0
        for end, watermark in taken.watermarks:
            self.flow.take(taken.rows.slices[at:end])
            self.flow.pass_watermark(watermark.ts, watermark.mark)
            at = end
        self.flow.take(taken.rows.slices[at:])

    def stands_at(self, ts: Ts) -> bool:
        """Tell whether all up to ``ts`` is applied, DDL too, and nothing up to it is still to be read."""
        if self._claimed is not None:
            return False
        if self._watermark >= ts:
            return True
        head = self._waiting.head
        if isinstance(head, RowSlice):
            return head.rows.txn(head.first)[0] > ts
        return isinstance(head, DdlMark) and head.ddl.commit_ts > ts

    def pass_barrier(self, position: bytes) -> None:
        """Go on behind a DDL that has run.

        Raises:
            InvariantBrokenError: the partition does not stand at it.
        """
        head = self.barrier
        if head is None or head.position != position:
            raise InvariantBrokenError("partition does not stand at this ddl", partition=self.number)
        self._waiting.pop()
        self.applied = self._floor = position
        self.offset = self._next_offset(head.offset)
        self._pass_marks()

    # What has been read.

    def _form(self, key: bytes) -> TableForm:
        form = self._forms.get(key)
        if form is None:
            if len(self._forms) >= FORMS_MAX:
                self._forms.clear()
            form = self._forms[key] = decode_form(key)
        return form

    def _rows(self, form: TableForm, value: bytes, offset: int) -> None:
        """Take a message's rows."""
        rows = decode_rows(value)
        if self._waiting.is_repeated_by(form, rows):
            self._waiting.truncate(rows.txn(0)[0])
        at = 0
        for first, end in self._kept(rows.start_ts, self._repeated(rows)):
            if first > at:
                self._waiting.close()
            self._waiting.add_rows(form, rows, first, end, offset)
            at = end
        if at < len(rows):
            self._waiting.close()
        if self._ignored and np.isin(rows.start_ts, list(self._ignored)).any():
            self._waiting.pass_over()

    def _repeated(self, rows: SqlRows) -> int:
        """Return how many rows are at or below the floor: a message's first ones, as positions ascend within it."""
        if txn_end(*rows.txn(0)) > self._floor:
            return 0
        return next((row for row in txn_borders(rows).tolist() if txn_end(*rows.txn(row)) > self._floor), len(rows))

    def _kept(self, start_ts: IntArray, first: int) -> Iterator[tuple[int, int]]:
        """Yield the runs of rows from ``first`` on that are of no ignored transaction."""
        if not self._ignored:
            if first < len(start_ts):
                yield first, len(start_ts)
            return
        kept = ~np.isin(start_ts, list(self._ignored))
        kept[:first] = False
        borders = np.flatnonzero(np.diff(np.concatenate(([False], kept, [False]))))
        yield from zip(borders[0::2].tolist(), borders[1::2].tolist(), strict=True)

    def _pass_marks(self) -> None:
        """Move the applied watermark over marks that nothing stands before."""
        while self._claimed is None and isinstance(head := self._waiting.head, WatermarkMark):
            self._waiting.pop()
            self.flow.pass_watermark(head.ts, head.mark)
            self._watermark = max(self._watermark, head.ts)
            self.applied = self._floor = max(self.applied, watermark_position(head.ts))
            self.offset = self._next_offset(head.offset)

    def _next_offset(self, otherwise: int) -> int:
        """Return where to read from, given what is still waiting."""
        head = self._waiting.head
        if isinstance(head, RowSlice | DdlMark):
            return self._from_offset(head.offset)
        return self._from_offset(head.offset - 1 if head is not None else otherwise)

    def _from_offset(self, offset: int) -> int:
        """Return where to read from to find what stands at an offset, and rows of which a part was read before it."""
        self._parts.forget(self._floor)
        return self._parts.from_offset(offset)

    # A pass that begins anew.

    def _pass_repeat(self, position: bytes, offset: int) -> None:
        """A record at or below the floor: if it stands at or below what is waiting, a pass has begun before that."""
        self._waiting.truncate(int.from_bytes(position[:POSITION_CLASS_AT], "big"))
        if not self._waiting and self._claimed is None:
            self.offset = max(self.offset, self._from_offset(offset + 1))

    def _rewind(self, commit_ts: int, position: bytes) -> None:
        """A DDL or watermark: what waits at or above it comes again."""
        if self._waiting.is_repeated_at(commit_ts, position):
            self._waiting.truncate(commit_ts, position)
