"""Cuts that several changefeeds of an upstream run: their rows are gathered, and their passes made, for all of them.

Epochs end at common beats (:mod:`sorters.service.frontier_window`), those of a crowd at its protocols', so changefeeds
that keep up run the same cuts, each of its own tables, and many by the same protocol. Who comes first does the work;
the others take what it has made, and say only where it goes. Columns and messages of a few cuts are kept, of those that
were asked for last.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence, Set
from itertools import chain
from typing import Final, Generic, NamedTuple, Self, TypeVar

from schemas.changes import RowChanges
from schemas.errors import CorruptDataError
from schemas.flow.flow_sum import FlowSum
from schemas.ids import TableId, Ts
from schemas.rawlog.region_batch import decode_region_batch, read_batch_head
from sorters.core.columnar.row_changes import join_rows
from sorters.core.cut.cut import Cut, overlaps
from sorters.core.flow.row_ids import sums_of_changes
from sorters.core.rows.asked_tables import AskedTable, AskedTables
from sorters.core.rows.pipeline import EncodedPass
from sorters.core.rows.settled_rows import SettledKey, SettledRows
from sorters.core.rows.shared_pass import PassKey
from sorters.cut.damaged_records import DamagedRecords, is_damaged
from sorters.cut.raw_cut import RawCut
from sorters.cut.record_rows import rows_of_record
from sorters.cut.worker import gather_rows

CUT_BYTES_MAX: Final = 8 * 1024 * 1024
"""Raw bytes of a cut that is kept: where all are behind, they are so together, and must not be so each alone."""
KEPT_BYTES_MAX: Final = 96 * 1024 * 1024
"""Of the rows, columns and messages of all cuts that are kept, about; one cut has at most half of it."""
CUTS_MAX: Final = 16
"""Of each protocol that which all run, and the one before it for those who are last."""


T = TypeVar("T")


class _Made(Generic[T]):
    """Something that is made, or is being made, by whoever asked first."""

    def __init__(self, keeps: object) -> None:
        self.keeps, self.lock = keeps, threading.Lock()
        self.is_made = False
        self.made: T | None = None

    def get(self, make: Callable[[], T | None], on_made: Callable[[T | None], None]) -> T | None:
        with self.lock:  # whoever makes it only computes
            if not self.is_made:
                self.made, self.is_made = make(), True
                on_made(self.made)
            return self.made


class _Pass(_Made[EncodedPass]):
    def __init__(self, key: PassKey, keeps: object) -> None:
        super().__init__(keeps)
        self.number_of = {table: number for number, table in enumerate(key.tables)}


class SharedCut:
    """One cut; a :class:`~sorters.cut.worker.SharedRows`. From any thread."""

    def __init__(self, cut: Cut, raw: RawCut, asked: "Asked | None" = None) -> None:
        """``asked`` is of all cuts of its upstream."""
        self._asked = asked or Asked()
        self._number = self._asked.begin()
        self._cut, self.held_bytes = cut, raw.raw_bytes
        """What it holds, about: only records at first."""
        self._records: dict[TableId, list[bytes]] = {}
        self._damaged: list[tuple[TableId, bytes]] = []
        """Records that some changefeeds pass over, and others fail at."""
        for record in raw.records:
            head = read_batch_head(record)
            if not overlaps(head, cut.after_ts, cut.upto_ts):
                continue
            if is_damaged(record):
                self._damaged.append((head.table_id, record))
            else:
                self._records.setdefault(head.table_id, []).append(record)
        self._lock = threading.Lock()
        self._rows: dict[TableId, RowChanges] = {}
        self._landed: dict[TableId, FlowSum] = {}
        self._passes: dict[Hashable, dict[tuple[Hashable, ...], _Pass]] = {}
        """By what their keys say beside tables, and by the tables."""
        self._lone: set[Hashable] = set()
        """By what their keys say: nobody takes others' tables along any more."""
        self._settled: dict[SettledKey, _Made[SettledRows]] = {}

    def tables(self) -> Set[TableId]:
        """See :class:`~sorters.cut.worker.SharedRows`."""
        return self._records.keys()

    def rows(
        self,
        is_wanted: Callable[[TableId], bool],
        on_rows: Callable[[int], None] | None = None,
        damaged: DamagedRecords | None = None,
    ) -> Iterator[RowChanges]:
        """See :class:`~sorters.cut.worker.SharedRows`."""
        for table, record in self._damaged:
            if not (damaged or DamagedRecords()).passes(record, is_wanted=is_wanted(table)):
                decode_region_batch(record)  # which refuses it
        try:
            of_tables = [rows for table in self._records if is_wanted(table) and len(rows := self._rows_of(table))]
        except CorruptDataError:  # nobody knew before: who names the record passes over it, the others fail at it
            records = chain.from_iterable(self._records.values())
            of_tables = list(gather_rows(records, self._cut, is_wanted, damaged=damaged))
        else:
            self._sum_up(of_tables)
        for rows in of_tables:
            if on_rows is not None:
                on_rows(len(rows))
            yield rows

    def holds(self, rows: RowChanges) -> bool:
        """See :class:`~sorters.core.rows.shared_pass.KeptPasses`."""
        return self._rows.get(rows.table_id) is rows

    def landed(self, rows: RowChanges) -> FlowSum | None:
        """See :class:`~sorters.core.rows.shared_pass.KeptPasses`."""
        if not self.holds(rows):
            return None
        self._sum_up([rows])
        return self._landed[rows.table_id]

    def encoded(self, key: PassKey, keeps: object, make: Callable[[], EncodedPass | None]) -> EncodedPass | None:
        """See :class:`~sorters.core.rows.shared_pass.KeptPasses`."""
        with self._lock:
            alike = self._passes.setdefault(key[:2], {})
            kept = alike.get(key.tables)
            if kept is None and self._has_room():
                kept = alike[key.tables] = _Pass(key, keeps)
        return make() if kept is None else kept.get(make, self._hold_pass)

    def ask(self, key: PassKey, tables: Sequence[AskedTable]) -> None:
        """See :class:`~sorters.core.rows.shared_pass.KeptPasses`."""
        self._asked.note(key.how, tables, self._number)

    def company(self, key: PassKey, tables: Sequence[AskedTable]) -> list[tuple[AskedTable, RowChanges]]:
        """See :class:`~sorters.core.rows.shared_pass.KeptPasses`."""
        with self._lock:
            if key[:2] in self._lone or not self._passes.get(key[:2]) or not self._has_room():
                return []
        others = self._asked.others(key.how, tables, self._number)
        return [
            (other, self._rows_of(other.version.table_id))
            for other in others
            if other.version.table_id in self._records
        ]

    def run_alone(self, key: PassKey) -> None:
        """See :class:`~sorters.core.rows.shared_pass.KeptPasses`."""
        with self._lock:
            self._lone.add(key[:2])

    def covering(self, key: PassKey) -> tuple[EncodedPass, list[int]] | None:
        """See :class:`~sorters.core.rows.shared_pass.KeptPasses`."""
        with self._lock:
            alike = self._passes.get(key[:2], {})
            if key.tables in alike:
                return None
            others = list(alike.values())
        for kept in others:
            numbers = [kept.number_of.get(table) for table in key.tables]
            if None not in numbers:
                with kept.lock:  # it may be under way, which takes less than to make another
                    if kept.made is not None:
                        return kept.made, [number for number in numbers if number is not None]
        return None

    def settled(self, key: SettledKey, keeps: object, make: Callable[[], SettledRows | None]) -> SettledRows | None:
        """See :class:`~sorters.cut.worker.SharedRows`."""
        with self._lock:
            kept = self._settled.get(key)
            if kept is None and self._has_room():
                kept = self._settled[key] = _Made(keeps)
        return make() if kept is None else kept.get(make, self._hold_settled)

    def _sum_up(self, of_tables: Sequence[RowChanges]) -> None:
        """Sum up rows of tables that nobody has asked for yet, at once: a call costs as much as hundreds of rows."""
        fresh = [rows for rows in of_tables if rows.table_id not in self._landed]
        if fresh:
            sums = zip(fresh, sums_of_changes(fresh), strict=True)
            self._landed.update({rows.table_id: each for rows, each in sums})  # of two at the same time the same

    def _has_room(self) -> bool:
        return self.held_bytes < KEPT_BYTES_MAX // 2

    def _hold_pass(self, passed: EncodedPass | None) -> None:
        with self._lock:
            self.held_bytes += _held_bytes(passed)

    def _hold_settled(self, settled: SettledRows | None) -> None:
        with self._lock:
            self.held_bytes += 0 if settled is None else settled.records.nbytes

    def _rows_of(self, table: TableId) -> RowChanges:
        rows = self._rows.get(table)
        if rows is None:
            records = self._records[table]
            fresh = join_rows([rows_of_record(record, read_batch_head(record), self._cut) for record in records])
            with self._lock:
                if table not in self._rows:
                    self.held_bytes += fresh.held_bytes
                rows = self._rows.setdefault(table, fresh)
        return rows


class Asked:
    """Tables that changefeeds of an upstream ask for, over all of its cuts. From any thread."""

    def __init__(self) -> None:
        self._tables, self._cuts, self._lock = AskedTables(), 0, threading.Lock()

    def begin(self) -> int:
        """Return the number of the next cut."""
        with self._lock:
            self._cuts += 1
            return self._cuts

    def note(self, how: Hashable, tables: Sequence[AskedTable], cut: int) -> None:
        with self._lock:
            self._tables.note(how, tables, cut)

    def others(self, how: Hashable, tables: Sequence[AskedTable], cut: int) -> list[AskedTable]:
        with self._lock:
            return self._tables.others(how, tables, cut)


def _held_bytes(passed: EncodedPass | None) -> int:
    """Return what a pass holds, about: its messages, and columns of about as much."""
    if passed is None:
        return 0
    return 2 * (passed.encoded.keys.nbytes + passed.encoded.values.nbytes) + 2 * passed.positions.nbytes


class _Read(NamedTuple):
    """What the rows of a cut hang on. What else a cut says is its changefeed's: what a watermark tells of images, which
    tables are read again, what counts for state proofs.
    """

    after_ts: Ts
    upto_ts: Ts
    start: tuple[int, ...]
    end: tuple[int, ...]

    @classmethod
    def of(cls, cut: Cut) -> Self:
        return cls(cut.after_ts, cut.upto_ts, cut.start, cut.end)


class _Kept(NamedTuple):
    raw: RawCut
    """What its changefeeds go on with. A cut must not refer to it: it would wait, with all its rows and messages, for
    the collector of cycles.
    """
    cut: SharedCut


class SharedCuts:
    """Cuts of an upstream that were asked for last. From any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cuts = OrderedDict[_Read, _Kept]()
        self._asked = Asked()

    def find(self, cut: Cut) -> RawCut | None:
        """Return what is kept of a cut, all of whose changes go out."""
        read = _Read.of(cut)
        with self._lock:
            kept = self._cuts.get(read)
            if kept is not None:
                self._cuts.move_to_end(read)  # who is behind alone must not drive out what all others run
        return None if kept is None else kept.raw

    def keep(self, cut: Cut, raw: RawCut) -> RawCut:
        """Keep a cut that was read, unless it is large; return what its changefeed goes on with."""
        if raw.raw_bytes > CUT_BYTES_MAX:
            return raw
        fresh = SharedCut(cut, raw, self._asked)
        with_rows = _Kept(RawCut([], raw.raw_bytes, fresh), fresh)
        with self._lock:
            kept = self._cuts.setdefault(_Read.of(cut), with_rows)  # another may have read it at the same time
            while len(self._cuts) > 1 and self._is_too_much():
                self._cuts.popitem(last=False)
        return kept.raw

    def clear(self) -> None:
        """Let go of all: nobody runs the same cuts any more."""
        with self._lock:
            self._cuts.clear()

    def _is_too_much(self) -> bool:
        return len(self._cuts) > CUTS_MAX or sum(kept.cut.held_bytes for kept in self._cuts.values()) > KEPT_BYTES_MAX
