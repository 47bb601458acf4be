"""One partition of a sink topic: what has been read of it, what may be applied next, and what is a repeat.

Records come in the order of the partition. A sorter that starts again writes from its checkpoint on what it has written
before: the same records in the same order, though perhaps cut into other messages. So reading goes forward in *passes*,
and a pass begins at a boundary of commit_ts::

      offset    0    1    2    3    4    5    6    7
      commit_ts 10   20   30   | 20   30   40   W40
                first pass       second pass

**The repeat rule.** A row is dropped for good only when it is at or below the *applied* position, which the destination
holds. What was read and not yet applied is forgotten when a pass begins at or below it, and read again: the first pass
may have ended in the middle of a transaction. A transaction is complete, and may be applied, when something that stands
after it has been read in the same pass.

Transactions that are on their way to the destination (``claim``) count as applied for this rule. Either they arrive, or
everything here is thrown away and read anew from where the destination says (:class:`PartitionQueue` is made again).
"""

import struct
from collections import deque
from dataclasses import dataclass

from schemas.errors import CorruptDataError, InvariantBrokenError
from schemas.ids import Ts
from schemas.position import POSITION_CLASS_AT, Position, PositionClass, decode_position
from schemas.sql_rows import SqlDdl, SqlRow, TableForm, decode_ddl, decode_form, decode_rows

_TXN_END = struct.Struct(">QBQB")
_AFTER_ALL_OPS = 0xFF
FORMS_MAX = 10_000
"""Table forms that are kept parsed."""


@dataclass(slots=True)
class Txn:
    """The rows of one upstream transaction in this partition."""

    commit_ts: int
    start_ts: int
    offset: int
    """Of the message in which it begins."""
    rows: list[tuple[TableForm, SqlRow]]
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class DdlMark:
    """A DDL event: the partition stops here until it has run."""

    position: bytes
    start_ts: Ts
    ddl: SqlDdl
    offset: int


@dataclass(slots=True)
class WatermarkMark:
    """All up to ``ts`` has been read."""

    ts: Ts
    offset: int
    """Behind it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Whole transactions to be applied at once, in their order."""

    rows: list[tuple[TableForm, SqlRow]]
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
    """Return the position of a changefeed that has applied nothing: all up to ``start_ts`` is none of its."""
    return Position(start_ts, PositionClass.BOOTSTRAP, Ts(2**63), key=b"\xff").encode()


def watermark_position(ts: Ts) -> bytes:
    """Return the position of a watermark."""
    return Position(ts, PositionClass.WATERMARK).encode()


def covered_ts(position: bytes) -> Ts:
    """Return the highest ts up to which a partition that stands at ``position`` has applied everything."""
    commit_ts = int.from_bytes(position[:POSITION_CLASS_AT], "big")
    whole = position[POSITION_CLASS_AT] >= PositionClass.WATERMARK
    return Ts(commit_ts if whole else commit_ts - 1)


class PartitionQueue:
    """See the module. Pure; ``feed`` records, ``claim`` what may be applied, tell with ``applied`` that it is."""

    def __init__(self, number: int, applied: bytes, offset: int, ignore_start_ts: frozenset[int] = frozenset()) -> None:
        """Begin where the destination stands: position ``applied``, reading from ``offset``.

        Args:
            ignore_start_ts: transactions whose rows are passed over (``ignore-txn-start-ts``).
        """
        self.number = number
        self.applied = applied
        self.offset = offset
        """Where reading must begin to find everything above ``applied``."""
        self.waiting_rows = 0
        self.waiting_bytes = 0
        self._floor = applied
        """Repeats are what is not above: applied, or claimed."""
        self._claimed: Claim | None = None
        self._queue: deque[Txn | DdlMark | WatermarkMark] = deque()
        self._open: Txn | None = None
        """The last of the queue, if more of it may come."""
        self._watermark = covered_ts(applied)
        """Highest that everything up to is applied."""
        self._ignored = ignore_start_ts
        self._forms: dict[bytes, TableForm] = {}

    @property
    def applied_ts(self) -> Ts:
        """Everything up to here is in the destination."""
        return self._watermark

    @property
    def barrier(self) -> DdlMark | None:
        """The DDL that the partition stands at: all before it is applied."""
        if self._claimed is None and self._queue and isinstance(head := self._queue[0], DdlMark):
            return head
        return None

    @property
    def can_wait(self) -> bool:
        """Whether something can be done without reading on: not if a transaction's end is all that is missing."""
        return self._claimed is not None or (bool(self._queue) and self._queue[0] is not self._open)

    def feed(self, *, position: bytes, offset: int, key: bytes | None, value: bytes) -> None:
        """Take the next record.

        Raises:
            CorruptDataError: it does not decode.
        """
        if position <= self._floor:
            self._pass_repeat(position, offset)
            return
        where = decode_position(position)
        match where.position_class:
            case PositionClass.ROW:
                if key is None:
                    raise CorruptDataError("row message has no table form", partition=self.number, offset=offset)
                self._rows(self._form(key), value, offset)
            case PositionClass.DDL:
                self._rewind(where.commit_ts, position)
                self._open = None
                self._queue.append(DdlMark(position, where.start_ts, decode_ddl(value), offset))
            case PositionClass.WATERMARK:
                self._rewind(where.commit_ts, position)
                self._open = None
                self._mark(where.commit_ts, offset + 1)
            case PositionClass.BOOTSTRAP:
                raise CorruptDataError("a database sink has no bootstraps", partition=self.number, offset=offset)
        self._pass_marks()

    def claim(self, rows_max: int, *, bytes_max: int, barrier_ts: Ts | None = None) -> Claim | None:
        """Return the next complete transactions, ``rows_max`` rows in all or one larger transaction; None: none yet.

        One claim may be open at a time. ``barrier_ts``: nothing above it is handed out.
        """
        if self._claimed is not None:
            return None
        rows: list[tuple[TableForm, SqlRow]] = []
        size = txns = 0
        last: Txn | None = None
        watermark = Ts(0)
        while self._queue:
            head = self._queue[0]
            if isinstance(head, WatermarkMark):
                if len(self._queue) == 1:
                    break
                watermark = head.ts
                self._queue.popleft()
                continue
            if isinstance(head, DdlMark) or head is self._open:
                break
            if barrier_ts is not None and head.commit_ts > barrier_ts:
                break
            if rows and (len(rows) + len(head.rows) > rows_max or size + head.bytes > bytes_max):
                break
            self._queue.popleft()
            rows += head.rows
            size, txns, last = size + head.bytes, txns + 1, head
        if last is None:
            self._pass_marks()
            return None
        self.waiting_rows -= len(rows)
        self.waiting_bytes -= size
        position = txn_end(last.commit_ts, last.start_ts)
        self._claimed = Claim(
            rows=rows,
            position=position,
            next_offset=self._next_offset(last.offset),
            watermark=watermark,
            last_commit_ts=Ts(last.commit_ts),
            txns=txns,
        )
        self._floor = position
        return self._claimed

    def arrived(self) -> None:
        """Note that the destination has what was claimed."""
        if self._claimed is None:
            raise InvariantBrokenError("nothing was claimed", partition=self.number)
        self._watermark = max(self._watermark, self._claimed.watermark)
        self.applied, self.offset, self._claimed = self._claimed.position, self._claimed.next_offset, None
        self._pass_marks()

    def stands_at(self, ts: Ts) -> bool:
        """Tell whether all up to ``ts`` is applied, DDL too, and nothing up to it is still to be read."""
        if self._claimed is not None:
            return False
        if self._watermark >= ts:
            return True
        head = self._queue[0] if self._queue else None
        if isinstance(head, Txn):
            return head.commit_ts > ts
        return isinstance(head, DdlMark) and head.ddl.commit_ts > ts

    def pass_barrier(self, position: bytes) -> None:
        """Go on behind a DDL that has run.

        Raises:
            InvariantBrokenError: the partition does not stand at it.
        """
        head = self.barrier
        if head is None or head.position != position:
            raise InvariantBrokenError("partition does not stand at this ddl", partition=self.number)
        self._queue.popleft()
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
        """Take a message's rows; this is the loop that runs once a row."""
        rows = decode_rows(value)
        if not rows:
            return
        self._rewind_to_row(form, rows[0])
        current, above = self._open, False
        at = (current.commit_ts, current.start_ts) if current is not None else (0, 0)
        for row in rows:
            if row[0] != at[0] or row[1] != at[1]:
                at = row[0], row[1]
                # Positions ascend within a message: behind the first row above the floor all are.
                above = above or txn_end(*at) > self._floor
                if above and row[1] not in self._ignored:
                    current = self._open = Txn(row[0], row[1], offset, [])
                    self._queue.append(current)
                else:
                    current = self._open = None
            if current is not None:
                current.rows.append((form, row))
                size = len(row[3]) + len(row[4])
                current.bytes += size
                self.waiting_rows += 1
                self.waiting_bytes += size

    def _mark(self, ts: Ts, offset: int) -> None:
        last = self._queue[-1] if self._queue else None
        if isinstance(last, WatermarkMark):
            last.ts, last.offset = ts, offset
        else:
            self._queue.append(WatermarkMark(ts, offset))

    def _pass_marks(self) -> None:
        """Move the applied watermark over marks that nothing stands before."""
        while self._claimed is None and self._queue and isinstance(head := self._queue[0], WatermarkMark):
            self._queue.popleft()
            self._watermark = max(self._watermark, head.ts)
            self.applied = self._floor = max(self.applied, watermark_position(head.ts))
            self.offset = self._next_offset(head.offset)

    def _next_offset(self, otherwise: int) -> int:
        """Return where to read from, given what is still waiting."""
        head = self._queue[0] if self._queue else None
        if isinstance(head, Txn | DdlMark):
            return head.offset
        return head.offset - 1 if head is not None else otherwise

    # A pass that begins anew.

    def _pass_repeat(self, position: bytes, offset: int) -> None:
        """A record at or below the floor: if it stands at or below what is waiting, a pass has begun before that."""
        if self._queue or self._open is not None:
            self._truncate(int.from_bytes(position[:8], "big"))
        if not self._queue and self._claimed is None:
            self.offset = max(self.offset, offset + 1)

    def _rewind(self, commit_ts: int, position: bytes) -> None:
        """A DDL or watermark: what waits at or above it comes again."""
        last = self._queue[-1] if self._queue else None
        if last is None:
            return
        if isinstance(last, Txn):
            again = last.commit_ts > commit_ts
        elif isinstance(last, DdlMark):
            again = last.position >= position
        else:
            again = last.ts >= commit_ts
        if again:
            self._truncate(commit_ts, position)

    def _rewind_to_row(self, form: TableForm, row: SqlRow) -> None:
        """The first row of a message. Only the first of a pass can stand before what was read."""
        last = self._queue[-1] if self._queue else None
        if last is None:
            return
        at = row[0], row[1]
        if isinstance(last, Txn):
            known = last.commit_ts, last.start_ts
            if at > known or (at == known and last is self._open and not _begins_with(last, form, row)):
                return
        elif isinstance(last, DdlMark):
            if txn_end(*at) > last.position:
                return
        elif at[0] > last.ts:
            return
        self._truncate(at[0])

    def _truncate(self, commit_ts: int, position: bytes = b"") -> None:
        """Forget what waits from the beginning of ``commit_ts`` on; of marks at this ts those from ``position`` on."""
        while self._queue:
            last = self._queue[-1]
            if isinstance(last, Txn):
                # With a position: rows of this ts stand before the DDL or watermark, and do not come again.
                if last.commit_ts < commit_ts or (position and last.commit_ts == commit_ts):
                    break
                self.waiting_rows -= len(last.rows)
                self.waiting_bytes -= last.bytes
            elif isinstance(last, DdlMark):
                if int.from_bytes(last.position[:8], "big") < commit_ts or (position and last.position < position):
                    break
            elif last.ts < commit_ts:
                break
            self._queue.pop()
        self._open = None


def _begins_with(txn: Txn, form: TableForm, row: SqlRow) -> bool:
    """Tell whether a row is the first of a transaction: within one, a table's key is written once by an operation."""
    if not txn.rows:
        return False
    known_form, known = txn.rows[0]
    return known_form.name == form.name and known[2] == row[2] and known[3] == row[3]
