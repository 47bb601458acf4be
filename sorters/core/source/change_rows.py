"""Row changes of the raw log to Arrow batches of a query's columns. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas.changes import RowChanges
from schemas.ddl.schema_store import SchemaStore
from schemas.ids import PHYSICAL_SHIFT_BITS, Ts
from schemas.tidb.table import ColumnVersion, TableVersion
from sorters.core.columnar.row_changes import rows_where
from sorters.core.mount.column import Column
from sorters.core.mount.filled_columns import absent_column
from sorters.core.mount.mounted import MountedPart, RowKind
from sorters.core.mount.mounter import mount
from sorters.core.route.moved_keys import by_key
from sorters.core.source.arrow_columns import arrow_column
from sorters.core.source.options import TableName
from sorters.core.source.row_shape import COMMIT_TIME, RowShape, arrow_type
from sorters.core.source.table_history import is_named

if TYPE_CHECKING:  # each query starts some processes, and few need filters
    from sorters.core.source.feed_filter import FeedFilter

INSERT, UPDATE_PREIMAGE, UPDATE_POSTIMAGE, DELETE = "insert", "update_preimage", "update_postimage", "delete"
_NEW_SIDE = {RowKind.INSERT: INSERT, RowKind.UPDATE: UPDATE_POSTIMAGE}
_OLD_SIDE = {RowKind.UPDATE: UPDATE_PREIMAGE, RowKind.DELETE: DELETE}
_MS_US = 1_000


@dataclass(frozen=True, slots=True)
class Program:
    """What a task needs to know of a query's table. Plain data of ours, which Spark sends from the driver."""

    schemas: SchemaStore
    """Of the physical tables of a batch."""
    table: TableName
    shape: RowShape
    feed_filter: "FeedFilter | None" = None
    """None: all changes go out."""

    def batches(self, rows: RowChanges) -> Iterator[Any]:
        """Yield ``pyarrow.RecordBatch`` of the rows of one physical table, less those of another name. An update that
        changes the primary key, or the not-null unique key in its place, is a delete and an insert at one commit_ts: as
        many rows.

        Raises:
            CorruptRowError: a row does not decode.
            UnknownTableError, SchemaGoneError: the schemas do not know the table at a row's commit_ts.
            ExpressionColumnNotFoundError, ExpressionMisfitError: a filter of the changefeed does not fit the table.
        """
        wanted = rows if self.feed_filter is None else self.feed_filter.changes(rows)
        for version, changes in self._by_version(wanted):
            parts: Sequence[MountedPart] = mount(version, changes, zone=UTC).parts
            if self.feed_filter is not None:
                parts = self.feed_filter.rows(version, parts)
            for part in parts:
                for half in by_key(part):
                    yield from self._of_part(half)

    def _by_version(self, rows: RowChanges) -> Iterator[tuple[TableVersion, RowChanges]]:
        """Yield the table's rows of each schema; those that no schema is for are skipped, as sorters do."""
        named = is_named(self.schemas, self.table, rows.table_id, rows.commit_ts)
        rows = rows if named.all() else rows_where(rows, named)
        number = np.searchsorted(self.schemas.boundaries_of(rows.table_id), rows.commit_ts, side="left")
        distinct = np.unique(number)
        for each in distinct.tolist():
            mine = rows if len(distinct) == 1 else rows_where(rows, number == each)
            version = self.schemas.lookup(rows.table_id, Ts(int(mine.commit_ts.min())))
            if isinstance(version, TableVersion):
                yield version, mine

    def _of_part(self, part: MountedPart) -> Iterator[Any]:
        new = None
        if part.kind in _NEW_SIDE:
            columns = part.new_columns()
            new = columns, [self._array(spec, columns, len(part)) for spec in self.shape.columns]
        if part.kind in _OLD_SIDE:
            old = part.old_columns()
            arrays = [
                new[1][at] if new is not None and _same(spec, old, new[0]) else self._array(spec, old, len(part))
                for at, spec in enumerate(self.shape.columns)
            ]
            yield self._batch(arrays, _OLD_SIDE[part.kind], part)
        if new is not None:
            yield self._batch(new[1], _NEW_SIDE[part.kind], part)

    def _array(self, spec: ColumnVersion, columns: Sequence[Column], count: int) -> Any:
        """Return a column of the query; one that came after the rows has what TiDB reads in them."""
        column = _column(spec, columns)
        return arrow_column(absent_column(spec, count, UTC) if column is None else column, arrow_type(spec))

    def _batch(self, arrays: list[Any], change_type: str, part: MountedPart) -> Any:
        count, schema = len(part), self.shape.arrow
        commit_ts = pa.array(part.commit_ts)
        moments = pa.array((part.commit_ts >> PHYSICAL_SHIFT_BITS) * _MS_US).cast(schema.field(COMMIT_TIME).type)
        kinds = pa.repeat(pa.scalar(change_type), count)
        return pa.RecordBatch.from_arrays([*arrays, kinds, commit_ts, moments], schema=schema)


def _column(spec: ColumnVersion, columns: Sequence[Column]) -> Column | None:
    return next((column for column in columns if column.spec.id == spec.id), None)


def _same(spec: ColumnVersion, old: Sequence[Column], new: Sequence[Column]) -> bool:
    before, after = _column(spec, old), _column(spec, new)
    return before is not None and after is not None and after.same_as(before)


def drop_repeats(rows: RowChanges) -> RowChanges:
    """Return each change of one physical table once: a key has one change at a commit_ts. In commit order."""
    order = pc.sort_indices(
        pa.table({"ts": pa.array(rows.commit_ts), "key": rows.key}),
        sort_keys=[("ts", "ascending"), ("key", "ascending")],
    )
    chosen = order.to_numpy()
    ts, keys = rows.commit_ts[chosen], rows.key.take(order)
    first = np.ones(len(ts), np.bool_)
    if len(ts) > 1:
        same_key = pc.equal(keys.slice(1), keys.slice(0, len(ts) - 1)).to_numpy(zero_copy_only=False)
        first[1:] = (ts[1:] != ts[:-1]) | ~same_key
    kept = chosen[first]
    taken = pa.array(kept)
    return RowChanges(
        table_id=rows.table_id,
        commit_ts=rows.commit_ts[kept],
        start_ts=rows.start_ts[kept],
        op=rows.op[kept],
        key=rows.key.take(taken),
        value=rows.value.take(taken),
        old_value=rows.old_value.take(taken),
        txn_source=rows.txn_source[kept],
    )
