"""The tables of a cut by their names, for Spark's UI.

Whose rows are in a cut nobody knows before a task has read it. So first come those that are known to have a part in it
(rows of an image, a DDL, or what a look at the raw log has found), then those that had the most rows in the cut before,
then what else the changefeed has within it. Nothing is made before a name is asked for: where the driver runs the cuts,
nobody asks.
"""

from collections.abc import Collection, Iterator
from heapq import nlargest

from schemas.ddl.schema_store import SchemaStore
from schemas.flow.flow_sum import TableSums
from schemas.ids import TableId
from sorters.core.cut.cut import Cut
from sorters.core.feed.feed import CompiledFeed
from sorters.core.feed.scope import tables_between

NAMED_MAX = 3


class CutTables:
    """Names the tables of one changefeed's cuts, which come in ts order."""

    def __init__(self) -> None:
        self._names: dict[TableId, str] | None = None
        """By physical table, since the schema has changed last."""
        self._is_changed = False
        self._rows_before: TableSums = {}

    def begin(self, *, is_changed: bool) -> None:
        """Go on to the next cut; ``is_changed``: a DDL within it has changed the schema, or it is the first."""
        if is_changed or self._is_changed:  # what a DDL did away with is in its own cut, and in no later one
            self._names = None
        self._is_changed = is_changed

    def note_rows(self, written: TableSums) -> None:
        """Take which physical tables a cut had rows of, for the next one."""
        self._rows_before = written

    def text(
        self, cut: Cut, store: SchemaStore, feed: CompiledFeed, with_rows: Collection[TableId] | None = None
    ) -> str:
        """Return the names of some tables of the cut that was begun, and how many there are more; '': it has none.

        Args:
            with_rows: the physical tables that have rows in it, where that is known.
        """
        if self._names is None:
            between = tables_between(store, cut.after_ts, cut.upto_ts, feed)
            self._names = {i: f"{stored.schema}.{stored.table}" for stored in between for i in stored.physical_ids}
        busy = nlargest(NAMED_MAX, self._rows_before, key=lambda table: self._rows_before[table].count)
        ids = [*_part_of(cut, store), *([*busy, *self._names] if with_rows is None else sorted(with_rows))]
        names = list(dict.fromkeys(self._names[i] for i in ids if i in self._names))
        more = len(names) - NAMED_MAX
        return ", ".join(names[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")


def _part_of(cut: Cut, store: SchemaStore) -> Iterator[TableId]:
    """Yield the physical tables of a cut's images, then those of its DDLs."""
    yield from sorted(cut.resynced.union(chunk.table_id for chunk in cut.chunks))
    for change in store.changes_between(cut.after_ts, cut.upto_ts):
        for table in change.tables:
            for stored in (table.post, table.pre):
                yield from stored.physical_ids if stored is not None else ()
