"""What of a partition has been read and not yet applied: rows, DDL events and watermarks, in their order.

Rows wait as *slices* of messages, and nothing here is done once a row: the heads of a message are columns
(:class:`schemas.sink.sql_rows.SqlRows`), so where transactions end is found for all its rows at once. A transaction may
go on from one slice to the next, of another table too; the last one of all is *open* while more of it may come.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from schemas.ids import Ts
from schemas.sink.flow_mark import FlowMark, joined_marks
from schemas.sink.message_rows import RowSummer, table_word
from schemas.sink.position import POSITION_CLASS_AT
from schemas.sink.sql_rows import IntArray, SqlDdl, SqlRow, SqlRows, TableForm

_NO_ENDS = np.zeros(0, np.int64)


def txn_borders(rows: SqlRows, first: int = 0, end: int | None = None) -> IntArray:
    """Return how many rows of ``first`` to ``end`` stand before each transaction but the first one."""
    commit_ts, start_ts = (column[first:end] for column in (rows.commit_ts, rows.start_ts))
    return np.flatnonzero((commit_ts[1:] != commit_ts[:-1]) | (start_ts[1:] != start_ts[:-1])) + 1


@dataclass(slots=True, eq=False)
class RowSlice:
    """Rows of one message that are side by side: ``first`` to ``end``."""

    form: TableForm
    rows: SqlRows
    first: int
    end: int
    offset: int
    """Of the message."""
    continues: bool = False
    """Whether the first row belongs to the transaction of the slice before."""
    ends: IntArray = field(init=False)
    """Rows before which a transaction of this slice ends and another one of it begins."""

    def __post_init__(self) -> None:
        if self.end - self.first < 2:
            self.ends = _NO_ENDS
            return
        self.ends = self.first + txn_borders(self.rows, self.first, self.end)

    def __len__(self) -> int:
        return self.end - self.first

    @property
    def bytes(self) -> int:
        """Of the literals."""
        return int(self.rows.literal_bytes(self.first, self.end))

    def add_to(self, summer: RowSummer) -> None:
        """Give the rows to a summer."""
        rows, word = self.rows, table_word(self.form.schema, self.form.table)
        keys = int(rows.key_at[self.first]), int(rows.key_at[self.end])
        summer.add(rows.value, self.first, self.end, keys, word)

    @property
    def last_txn_at(self) -> int:
        """Row at which the last transaction of this slice begins, as far as it stands here."""
        return int(self.ends[-1]) if len(self.ends) else self.first

    def up_to(self, commit_ts: int, *, inclusive: bool) -> int:
        """Return the row before which all rows are below ``commit_ts``, or at it."""
        within = self.rows.commit_ts[self.first : self.end]
        return self.first + int(np.searchsorted(within, commit_ts, "right" if inclusive else "left"))

    def before(self, row: int) -> "RowSlice":
        """Return the rows before ``row``."""
        return RowSlice(self.form, self.rows, self.first, row, self.offset, self.continues)

    def behind(self, row: int) -> "RowSlice":
        """Return the rows from ``row`` on, where a transaction begins."""
        return RowSlice(self.form, self.rows, row, self.end, self.offset)


@dataclass(frozen=True, slots=True)
class RowBatch:
    """Rows of whole transactions, in their order."""

    slices: tuple[RowSlice, ...]

    def __len__(self) -> int:
        return sum(len(part) for part in self.slices)

    def __iter__(self) -> Iterator[tuple[TableForm, SqlRow]]:
        """Yield the rows one by one: for people and tests."""
        for part in self.slices:
            for row in range(part.first, part.end):
                yield part.form, part.rows.row(row, part.form)

    @property
    def txns(self) -> int:
        """How many transactions."""
        return sum(len(part.ends) + (not part.continues) for part in self.slices)


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
    mark: FlowMark | None = None
    """What it says of the rows before it."""


Item = RowSlice | DdlMark | WatermarkMark


@dataclass(frozen=True, slots=True)
class Taken:
    """What goes to the destination at once."""

    rows: RowBatch
    watermarks: tuple[tuple[int, WatermarkMark], ...]
    """That are passed with them, each behind so many slices."""

    @property
    def watermark(self) -> Ts:
        """The last one; 0: none."""
        return self.watermarks[-1][1].ts if self.watermarks else Ts(0)


@dataclass(slots=True)
class _OpenTxn:
    """Where the open transaction begins."""

    part: RowSlice
    row: int

    @property
    def at(self) -> tuple[int, int]:
        return self.part.rows.txn(self.row)

    def begins_with(self, form: TableForm, rows: SqlRows) -> bool:
        """Tell whether a message begins as it does: within a transaction an operation writes a table's key once."""
        mine = self.part.rows
        same = self.part.form.name == form.name and mine.op[self.row] == rows.op[0]
        return bool(same) and mine.key(self.row) == rows.key(0)


class Waiting:
    """See the module."""

    def __init__(self) -> None:
        self.rows = 0
        self.bytes = 0
        self._items: deque[Item] = deque()
        self._lacks_rows = False
        """Rows were passed over since the last watermark was read."""
        self._open: _OpenTxn | None = None

    def __len__(self) -> int:
        return len(self._items)

    @property
    def head(self) -> Item | None:
        """What comes next."""
        return self._items[0] if self._items else None

    @property
    def has_whole(self) -> bool:
        """Whether there is more than a transaction whose end is missing."""
        head = self.head
        is_open = self._open is not None and self._open.part is head and self._open.row == self._open.part.first
        return head is not None and not is_open

    def add_rows(self, form: TableForm, rows: SqlRows, first: int, end: int, offset: int) -> None:
        """Add rows ``first`` to ``end`` of a message; more of their last transaction may come."""
        continues = self._open is not None and first == 0 and self._open.at == rows.txn(0)
        part = RowSlice(form, rows, first, end, offset, continues)
        if len(part.ends) or not continues:
            self._open = _OpenTxn(part, part.last_txn_at)
        self._items.append(part)
        self.rows += len(part)
        self.bytes += part.bytes

    def add_ddl(self, mark: DdlMark) -> None:
        """Add a DDL event."""
        self._open = None
        self._items.append(mark)

    def pass_over(self) -> None:
        """Note that rows were read which do not wait: what the next watermark says of rows is not true here."""
        self._lacks_rows = True

    def add_watermark(self, ts: Ts, offset: int, mark: FlowMark | None = None) -> None:
        """Add a watermark; of neighbours the last one counts."""
        self._open = None
        if self._lacks_rows:
            mark, self._lacks_rows = None, False
        last = self._items[-1] if self._items else None
        if isinstance(last, WatermarkMark):
            last.ts, last.offset, last.mark = ts, offset, joined_marks(last.mark, last.ts, mark)
        else:
            self._items.append(WatermarkMark(ts, offset, mark))

    def close(self) -> None:
        """The open transaction is whole: something behind it was read that does not wait."""
        self._open = None

    def pop(self) -> None:
        """Take the head out, a DDL or watermark."""
        self._items.popleft()

    # A pass that begins anew.

    def is_repeated_by(self, form: TableForm, rows: SqlRows) -> bool:
        """Tell whether a message stands before what waits: only the first one of a pass can."""
        last = self._items[-1] if self._items else None
        if last is None:
            return False
        at = rows.txn(0)
        if isinstance(last, RowSlice):
            known = last.rows.txn(last.end - 1)
            goes_on = self._open is not None and not self._open.begins_with(form, rows)
            return at < known or (at == known and not goes_on)
        if isinstance(last, DdlMark):
            return at[0] <= int.from_bytes(last.position[:POSITION_CLASS_AT], "big")
        return at[0] <= last.ts

    def is_repeated_at(self, commit_ts: int, position: bytes) -> bool:
        """Tell whether a DDL or watermark stands before what waits, or is the same."""
        last = self._items[-1] if self._items else None
        if last is None:
            return False
        if isinstance(last, RowSlice):
            return last.rows.txn(last.end - 1)[0] > commit_ts
        return last.position >= position if isinstance(last, DdlMark) else last.ts >= commit_ts

    def truncate(self, commit_ts: int, position: bytes = b"") -> None:
        """Forget what waits from the beginning of ``commit_ts`` on; of marks at this ts those from ``position`` on."""
        while self._items:
            last = self._items[-1]
            if isinstance(last, RowSlice):
                # With a position: rows of this ts stand before the DDL or watermark, and do not come again.
                kept = last.before(last.up_to(commit_ts, inclusive=bool(position)))
                self.rows -= len(last) - len(kept)
                self.bytes -= last.bytes - kept.bytes
                if len(kept):
                    self._items[-1] = kept
                    break
            elif isinstance(last, DdlMark):
                at = int.from_bytes(last.position[:POSITION_CLASS_AT], "big")
                if at < commit_ts or (position and last.position < position):
                    break
            elif last.ts < commit_ts:
                break
            self._items.pop()
        self._open = None

    # What may be applied.

    def cut(self, rows_max: int, bytes_max: int, barrier_ts: int | None = None) -> tuple[int, int] | None:
        """Return where whole transactions end that are within the bounds: the index of a slice, and a row of it.

        None: there is none. A single transaction that is larger counts as within them; a DDL, or a transaction above
        ``barrier_ts``, does not.
        """
        best: tuple[int, int] | None = None
        if not self.has_whole:
            return None
        rows = size = 0
        for at, part in enumerate(self._items):
            if isinstance(part, WatermarkMark):
                continue
            if isinstance(part, DdlMark):
                break
            fits = rows + len(part) <= rows_max and size + part.bytes <= bytes_max
            is_below = barrier_ts is None or part.rows.txn(part.end - 1)[0] <= barrier_ts
            if fits and is_below and not self._goes_on(at):
                best = at, part.end
            else:
                ends = self._ends(at, part, None if is_below else barrier_ts)
                fitting = _fitting(part, ends, rows_max - rows, bytes_max - size)
                if fitting:
                    best = at, int(ends[fitting - 1])
                elif best is None and len(ends):
                    return at, int(ends[0])  # the first transaction alone is larger than the bounds
            rows, size = rows + len(part), size + part.bytes
            is_full = best is not None and (rows > rows_max or size > bytes_max)
            if is_full or not is_below:
                break
        return best

    def _ends(self, at: int, part: RowSlice, barrier_ts: int | None) -> IntArray:
        """Return the rows of a slice before which a transaction ends that is whole, and not above the barrier."""
        ends = part.ends if self._goes_on(at) else np.append(part.ends, part.end)
        return ends if barrier_ts is None else ends[ends <= part.up_to(barrier_ts, inclusive=True)]

    def _goes_on(self, at: int) -> bool:
        """Tell whether more of the last transaction of a slice is waiting behind it, or may come."""
        if at + 1 == len(self._items):
            return self._open is not None
        following = self._items[at + 1]
        return isinstance(following, RowSlice) and following.continues

    def take(self, at: int, end: int) -> Taken:
        """Take what :meth:`cut` has found, and the watermarks that are passed with it."""
        slices: list[RowSlice] = []
        watermarks: list[tuple[int, WatermarkMark]] = []
        for _ in range(at + 1):
            item = self._items.popleft()
            if isinstance(item, RowSlice):
                slices.append(item)
            elif isinstance(item, WatermarkMark):
                watermarks.append((len(slices), item))
        last = slices[-1]
        if end < last.end:
            slices[-1], rest = last.before(end), last.behind(end)
            self._items.appendleft(rest)
            if self._open is not None and self._open.part is last:
                self._open.part = rest
        while len(self._items) > 1 and isinstance(mark := self._items[0], WatermarkMark):
            watermarks.append((len(slices), mark))
            self._items.popleft()
        taken = RowBatch(tuple(slices))
        self.rows -= len(taken)
        self.bytes -= sum(part.bytes for part in slices)
        return Taken(taken, tuple(watermarks))


def _fitting(part: RowSlice, ends: IntArray, rows_max: int, bytes_max: int) -> int:
    """Return how many of a slice's ends lie within so many rows and bytes from its first row on."""
    by_rows = np.searchsorted(ends - part.first, rows_max, "right")
    by_bytes = np.searchsorted(part.rows.literal_bytes(part.first, ends), bytes_max, "right")
    return int(min(by_rows, by_bytes))
