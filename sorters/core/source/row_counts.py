"""How many rows a batch may have, and where it ends: between two transactions. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np

from schemas.changes import Op, RowChanges
from schemas.ids import TableId, Ts
from sorters.core.columnar.spans import IntArray, spans_of


def output_rows(rows: RowChanges) -> IntArray:
    """Return how many rows of a DataFrame each change comes to: two for an update, its pre- and its postimage.

    A DELETE without an old value is none: TiKV sends one for a row that was made and deleted in one transaction.
    """
    has_old = spans_of(rows.old_value).length > 0
    is_delete = rows.op == Op.DELETE
    counts: IntArray = np.where(is_delete, 0, 1) + has_old
    return counts


@dataclass(frozen=True, slots=True, eq=False)
class RowCounts:
    """Rows by commit_ts. Repeats are counted as often as the log has them: a batch is never larger than counted."""

    commit_ts: IntArray
    """Ascending, each once, when they are joined."""
    rows: IntArray

    @classmethod
    def of(cls, rows: RowChanges) -> Self:
        """Count some changes."""
        return cls(rows.commit_ts, output_rows(rows))

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Add counts up."""
        if not parts:
            return cls(np.zeros(0, np.int64), np.zeros(0, np.int64))
        commit_ts = np.concatenate([part.commit_ts for part in parts])
        rows = np.concatenate([part.rows for part in parts])
        if (commit_ts[1:] < commit_ts[:-1]).any():
            order = np.argsort(commit_ts, kind="stable")  # of runs that ascend it is a merge
            commit_ts, rows = commit_ts[order], rows[order]
        is_first = np.ones(len(commit_ts), np.bool_)
        is_first[1:] = commit_ts[1:] != commit_ts[:-1]
        if is_first.all():
            return cls(commit_ts, rows)
        return cls(commit_ts[is_first], np.add.reduceat(rows, np.flatnonzero(is_first)))

    def between(self, after_ts: Ts, upto_ts: Ts) -> Self:
        """Return the counts with ``after_ts < commit_ts <= upto_ts``."""
        within = (self.commit_ts > after_ts) & (self.commit_ts <= upto_ts)
        return self if within.all() else type(self)(self.commit_ts[within], self.rows[within])

    @property
    def total(self) -> int:
        """All rows."""
        return int(self.rows.sum())

    @property
    def first_ts(self) -> Ts:
        """The least commit_ts, where they are joined and there is one."""
        return Ts(int(self.commit_ts[0]))

    def border(self, rows_max: int | None, *, may_be_empty: bool) -> Ts | None:
        """Return the greatest commit_ts up to which there are at most ``rows_max`` rows; None: all are within.

        Args:
            may_be_empty: a batch may end below the first ts, which is then returned less one; without it the first
                transaction goes in however large it is.
        """
        if rows_max is None or self.total <= rows_max:
            return None
        fitting = int(np.searchsorted(np.cumsum(self.rows), rows_max, side="right"))
        if fitting == 0:
            return Ts(int(self.commit_ts[0]) - 1) if may_be_empty else Ts(int(self.commit_ts[0]))
        return Ts(int(self.commit_ts[fitting - 1]))


NO_ROWS: Final = RowCounts.joined([])


class CountedRecords:
    """What was counted of raw records, by partition and offset, so that none has to be read again to be counted.

    A batch often ends within what a frontier record covers, and the next one begins there.
    """

    def __init__(self, counts_max: int = 4_000_000) -> None:
        """``counts_max``: (commit_ts, rows) pairs that are kept at once; 16 bytes each."""
        self._max, self._size = counts_max, 0
        self._tables: frozenset[TableId] = frozenset()
        self._runs: dict[int, tuple[int, list[RowCounts]]] = {}
        """Raw partition → its first offset that was counted, and the counts of the records from there on."""

    def begin(self, tables: frozenset[TableId], starts: Mapping[int, int]) -> None:
        """Let go of what was counted of other tables, and of records below the offsets that are wanted from now on."""
        if tables != self._tables:
            self._tables, self._size, self._runs = tables, 0, {}
        for partition, (first, counts) in list(self._runs.items()):
            gone = counts[: max(starts.get(partition, first) - first, 0)]
            self._size -= sum(len(each.rows) for each in gone)
            self._runs[partition] = first + len(gone), counts[len(gone) :]

    def known(self, partition: int, start: int, end: int) -> list[RowCounts]:
        """Return the counts of the records at ``[start, end)``, as far as they are known from ``start`` on."""
        first, counts = self._runs.get(partition, (start, []))
        return counts[start - first : end - first] if start >= first else []

    def add(self, partition: int, offset: int, counts: RowCounts) -> None:
        """Note a record's counts, if it follows those that are known and there is room."""
        first, known = self._runs.get(partition, (offset, []))
        if not known:
            first = offset
        if offset == first + len(known) and self._size + len(counts.rows) <= self._max:
            known.append(counts)
            self._runs[partition] = first, known
            self._size += len(counts.rows)
