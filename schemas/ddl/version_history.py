"""The versions of one table or partition id, in ts order."""

import bisect
from dataclasses import dataclass
from typing import Final

from schemas.ddl.schema_change import StoredTable
from schemas.ids import Ts


@dataclass(frozen=True, slots=True)
class TableVersions:
    """Versions of one id: ``tables[i]`` holds for ``valid_after[i] < commit_ts <= valid_after[i+1]``; None: gone.

    Never changed: copies of a store share it.
    """

    valid_after: tuple[Ts, ...] = ()
    tables: tuple[StoredTable | None, ...] = ()

    def __reduce__(self) -> tuple[object, ...]:
        return TableVersions, (self.valid_after, self.tables)

    def put(self, ts: Ts, table: StoredTable | None) -> "TableVersions":
        kept = -1 if self.valid_after and self.valid_after[-1] == ts else len(self.tables)
        return TableVersions((*self.valid_after[:kept], ts), (*self.tables[:kept], table))

    def at(self, commit_ts: Ts) -> StoredTable | None:
        index = bisect.bisect_left(self.valid_after, commit_ts) - 1
        return self.tables[index] if index >= 0 else None

    def without(self, ts: Ts) -> "tuple[TableVersions, list[StoredTable]]":
        """Return it less the versions that ended at or before ``ts``, and those."""
        first = max(bisect.bisect_right(self.valid_after, ts) - 1, 0)
        gone = [table for table in self.tables[:first] if table]
        return TableVersions(self.valid_after[first:], self.tables[first:]), gone


NO_HISTORY: Final = TableVersions()
