"""How many rows a batch may have, and where it ends: between two transactions. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from schemas.changes import Op, RowChanges
from schemas.ids import Ts
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
        commit_ts, number = np.unique(np.concatenate([part.commit_ts for part in parts]), return_inverse=True)
        rows = np.zeros(len(commit_ts), np.int64)
        np.add.at(rows, number.reshape(-1), np.concatenate([part.rows for part in parts]))
        return cls(commit_ts, rows)

    @property
    def total(self) -> int:
        """All rows."""
        return int(self.rows.sum())

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
