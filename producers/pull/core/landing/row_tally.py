"""What leaves the matcher, noted before it waits in a buffer, and compared with what is about to be sent.

A row that is lost, doubled or mixed up while rows are joined and cut into records is missing on one side. Counts and
sizes are there anyway; of events that come as columns there are checksums of what rows are known by as well, some 1.3
µs an event. Of the values only the size is held: their bytes, until they are in a record, are the matcher's own.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter

import numpy as np

from producers.pull.core.match.change_columns import Change, ChangeColumns
from schemas.changes import RowChanges
from schemas.rawlog.binary_columns import joined_bytes
from schemas.rawlog.record_check import RowsCheck

_COMMIT_TS, _START_TS, _OP, _KEY, _VALUE, _OLD_VALUE = map(itemgetter, range(6))


@dataclass(slots=True)
class RowTally:
    """Of the rows of one buffer: those that came by column, and then the others."""

    rows: int = 0
    value_bytes: int = 0
    """Of values and old values."""
    _columns: RowsCheck = field(default_factory=RowsCheck)

    def take(self, changes: Collection[Change]) -> None:
        """Take what an event has completed."""
        self.rows += len(changes)
        if isinstance(changes, ChangeColumns):
            self.value_bytes += changes.value_bytes
            self._columns.add(len(changes), changes.commit_ts, changes.start_ts, changes.op, changes.key.data)
        else:
            self.value_bytes += sum(map(len, map(_VALUE, changes))) + sum(map(len, map(_OLD_VALUE, changes)))

    def checks(
        self, changes: Sequence[Change], packed: Sequence[RowChanges]
    ) -> tuple[Sequence[RowsCheck], dict[str, object] | None]:
        """Return the checksums of each of ``packed``, and what they, all rows in their order, have other than what was
        taken; None: nothing.

        Args:
            changes: those that came not by column.
        """
        due, seen, size = self._with(changes), RowsCheck(), 0
        for rows in packed:
            seen.add_rows(rows)
            size += len(joined_bytes(rows.value)) + len(joined_bytes(rows.old_value))
        if size == self.value_bytes and seen.count == self.rows and seen == due:
            return [seen] if len(packed) == 1 else [RowsCheck.of(rows) for rows in packed], None
        names = [name for name in ("commit_ts", "start_ts", "op", "key") if getattr(due, name) != getattr(seen, name)]
        return (), {
            "rows": seen.count,
            "rows_due": self.rows,
            "value_bytes": size,
            "value_bytes_due": self.value_bytes,
            "columns": ", ".join(names),
        }

    def _with(self, changes: Sequence[Change]) -> RowsCheck:
        """Return the checksums of all rows."""
        check = self._columns
        if changes:
            check = replace(check)
            commit_ts, start_ts = (
                np.fromiter(map(at, changes), np.int64, len(changes)) for at in (_COMMIT_TS, _START_TS)
            )
            keys = b"".join(map(_KEY, changes))
            check.add(len(changes), commit_ts, start_ts, bytes(map(_OP, changes)), keys)
        return check
