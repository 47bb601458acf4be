"""A table of the upstream by its name: which physical tables its rows are in, and which DDL a stream stops at. Pure.

What holds for a row is the schema just before its commit_ts. So a batch may go up to the ts of a DDL that changes
columns, and whoever goes on from there has rows of the new ones alone. It ends before a DDL that replaces rows: whether
that is passed is decided by the batch that would have it within.

A query follows the name. An exchange, or RENAMEs that swap, give it to other physical tables, so that of one of them
some rows are the table's and others are not, by their commit_ts.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

import numpy as np

from schemas.ddl.bad_jobs import BadJob
from schemas.ddl.job import DDL_TYPE_NAMES, DdlType
from schemas.ddl.schema_change import SchemaChange, StoredTable
from schemas.ddl.schema_store import SchemaStore
from schemas.errors import BusError
from schemas.ids import TableId, Ts
from schemas.tidb.table import TableVersion
from sorters.core.columnar.spans import BoolArray, IntArray
from sorters.core.source.errors import RowsReplacedError, SchemaChangedError, SourceTableError
from sorters.core.source.options import TableName
from sorters.core.source.row_shape import RowShape

KEEPS_ROWS = frozenset(
    {
        DdlType.REORGANIZE_PARTITION,
        DdlType.ALTER_TABLE_PARTITIONING,
        DdlType.REMOVE_PARTITIONING,
        DdlType.CREATE_TABLE,
        DdlType.CREATE_TABLES,
    }
)
"""Jobs that give a table other physical ids, and leave its rows as they are; a table that is created has none."""
SIMILAR_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class Stop:
    """A DDL at which a query ends."""

    ts: Ts
    upto_ts: Ts
    """Changes up to it may go out: whoever starts the query again goes on from there."""
    error: BusError


def table_at(store: SchemaStore, name: TableName, ts: Ts) -> StoredTable:
    """Return the table of a name as DDLs up to ``ts`` left it.

    Raises:
        SourceTableError: there is none, or it holds no rows.
    """
    stored = _named(store, name, ts)
    if stored is None:
        gone = _gone(store, name, ts)
        if gone is not None:
            raise gone
        similar = _similar(store, name, ts)
        raise SourceTableError("upstream has no table of this name", table=str(name), ts=ts, similar=similar)
    return stored


def versions_of(store: SchemaStore, stored: StoredTable) -> Iterator[TableVersion]:
    """Yield the versions of a table, the newest first."""
    for _, version in reversed(store.versions_of(stored.physical_ids[0])):
        if version is not None:
            yield version


def physical_ids(store: SchemaStore, name: TableName, after_ts: Ts, upto_ts: Ts) -> frozenset[TableId]:
    """Return the physical tables that changes of the table within ``(after_ts, upto_ts]`` may be in; they may have
    changes of others, too: see :func:`is_named`.
    """
    first = _named(store, name, after_ts)
    ids = set(first.physical_ids if first is not None else ())
    for change in store.changes_between(after_ts, upto_ts):
        ids.update(*(table.physical_ids for table in _sides(change, name) if table is not None))
    return frozenset(ids)


def is_named(store: SchemaStore, name: TableName, physical_id: TableId, commit_ts: IntArray) -> BoolArray:
    """Tell of each row of a physical table whether it is a row of the table of this name.

    A row at the very ts of a DDL has the columns from before, and the name from after: a query that must not pass the
    DDL ends below it, and the one that goes on has what it left. Of a physical table that it took the name is the one
    from before. Rows from when there was no such physical table are left to lookups.
    """
    stored = store.stored_of(physical_id)
    gone = np.array([False, *(each is None for each in stored)])
    ours = np.array([True, *(each is None or name.is_of(each.schema, each.table) for each in stored)])
    valid_after = store.boundaries_of(physical_id)
    before = np.searchsorted(valid_after, commit_ts, side="left")
    after = np.searchsorted(valid_after, commit_ts, side="right")
    named: BoolArray = ours[np.where(gone[after], before, after)]
    return named


def named_since(store: SchemaStore, name: TableName, physical_id: TableId, ts: Ts) -> Ts:
    """Return since when a physical table has been of the name without a break, up to ``ts``; 0: ever since the store
    knows it.
    """
    stored, valid_after = store.stored_of(physical_id), store.boundaries_of(physical_id)
    for number in range(int(np.searchsorted(valid_after, ts, side="right")) - 1, -1, -1):
        each = stored[number]
        if each is None or not name.is_of(each.schema, each.table):
            return Ts(int(valid_after[number + 1]))
    return Ts(0)


def stop_between(
    store: SchemaStore, name: TableName, shape: RowShape, after_ts: Ts, upto_ts: Ts, pass_ddl_ts: Ts
) -> Stop | None:
    """Return the first DDL that a query must not pass; None: there is none within ``(after_ts, upto_ts]``.

    Args:
        shape: the query's columns.
        pass_ddl_ts: DDLs up to it may be passed though they replaced rows.
    """
    first = _named(store, name, after_ts)
    if first is not None and (why := shape.misfit(store.decoded(first))):
        if first.version > shape.version:
            error = _schema_changed(name, first.version, why, _query_at(store, first.version))
        else:
            error = _rows_of_before(store, name, shape, after_ts, why)
        return Stop(Ts(after_ts + 1), after_ts, error)
    for change in store.changes_between(after_ts, upto_ts):
        before, after = _sides(change, name)
        ts = change.job.finished_ts
        if ts > pass_ddl_ts and _replaces_rows(change, before, after):
            return Stop(ts, Ts(ts - 1), _rows_replaced(name, change, before, after))
        if after is not None and (why := shape.misfit(store.decoded(after))):
            if ts < shape.version:
                return Stop(ts, ts, _rows_of_before(store, name, shape, ts, why))
            return Stop(ts, ts, _schema_changed(name, ts, why, change.job.query))
    return None


def bad_stop(bad: tuple[BadJob, ...], name: TableName, ids: frozenset[TableId], upto_ts: Ts) -> Stop | None:
    """Return the first job up to ``upto_ts`` that the store could not take, if it may concern the table."""
    for job in bad:
        scope = job.scope
        if scope.ts <= upto_ts and concerns(name, ids, scope.schema, scope.table, scope.table_id):
            return Stop(scope.ts, Ts(scope.ts - 1), job.error)
    return None


def concerns(name: TableName, ids: frozenset[TableId], schema: str, table: str, table_id: TableId) -> bool:
    """Tell whether a job that names a table, or nothing (''), may change this one."""
    return not schema or name.is_of(schema, table) or table_id in ids


def _gone(store: SchemaStore, name: TableName, ts: Ts) -> SourceTableError | None:
    """Return the error for a table that a DDL has taken the name from; None: none that the log knows of."""
    for change in reversed(store.changes_between(Ts(0), ts)):
        before, after = _sides(change, name)
        if before is not None and after is None:
            return SourceTableError(
                "upstream has no table of this name any more; spark.read shows the changes that it had, with an "
                "endingTs below this ddl_ts; of a table that has another name now, what follows is read by that one",
                table=str(name),
                ts=ts,
                ddl_ts=change.job.finished_ts,
                now=_name_after(change, before),
                query=change.job.query,
            )
    return None


def _name_after(change: SchemaChange, before: StoredTable) -> str:
    """Return the name that a DDL gave a table; ``none``: it dropped the table."""
    after = (table.post for table in change.tables if table.pre is before)
    return next((f"{post.schema}.{post.table}" for post in after if post is not None), "none")


def _similar(store: SchemaStore, name: TableName, ts: Ts) -> str:
    """Return names of tables that somebody may have meant by ``name``, the nearest first; ``none``: none is near."""
    names = (f"{stored.schema}.{stored.table}" for stored in store.stored_at(ts) if stored.has_rows)
    known = {each.lower(): each for each in names}
    near = get_close_matches(str(name).lower(), known, n=SIMILAR_MAX)
    return ", ".join(known[each] for each in near) or "none"


def _named(store: SchemaStore, name: TableName, ts: Ts) -> StoredTable | None:
    tables = (stored for stored in store.stored_at(ts) if name.is_of(stored.schema, stored.table))
    return next((stored for stored in tables if stored.has_rows), None)


def _sides(change: SchemaChange, name: TableName) -> tuple[StoredTable | None, StoredTable | None]:
    """Return what had the name before a job, and what has it after."""
    before = [table.pre for table in change.tables if _has_name(table.pre, name)]
    after = [table.post for table in change.tables if _has_name(table.post, name)]
    return (before[0] if before else None), (after[-1] if after else None)


def _has_name(stored: StoredTable | None, name: TableName) -> bool:
    return stored is not None and stored.has_rows and name.is_of(stored.schema, stored.table)


def _replaces_rows(change: SchemaChange, before: StoredTable | None, after: StoredTable | None) -> bool:
    if change.job.type in KEEPS_ROWS or (before is None and after is None):
        return False
    if before is None or after is None:
        return True
    return not set(before.physical_ids) <= set(after.physical_ids)


def _rows_replaced(
    name: TableName, change: SchemaChange, before: StoredTable | None, after: StoredTable | None
) -> RowsReplacedError:
    now = "none" if before is None else _name_after(change, before)
    if before is None or after is not None:
        how = "with passDdlTs, this ddl_ts"
    elif now == "none":
        how = "with passDdlTs, this ddl_ts, once there is a table of this name again"
    else:
        how = f"with passDdlTs, this ddl_ts, and its new name as table: {now}"
    return RowsReplacedError(
        "a DDL took or brought rows of the table without a change for each; do the same to what was made of them, then "
        f"start the query again {how}",
        table=str(name),
        ddl_ts=change.job.finished_ts,
        kind="" if change.job.type is None else DDL_TYPE_NAMES[change.job.type],
        query=change.job.query,
    )


def _query_at(store: SchemaStore, ts: Ts) -> str:
    return "; ".join(change.job.query for change in store.changes_between(Ts(ts - 1), ts))


def _rows_of_before(store: SchemaStore, name: TableName, shape: RowShape, after_ts: Ts, why: str) -> SchemaChangedError:
    """Return the error for rows of columns that the query's newer ones cannot hold."""
    last_ts, query = Ts(after_ts + 1), ""
    for change in store.changes_between(after_ts, Ts(shape.version)):
        before, _ = _sides(change, name)
        if before is not None and shape.misfit(store.decoded(before)):
            last_ts, query = change.job.finished_ts, change.job.query
    return SchemaChangedError(
        "rows from before a DDL do not fit the columns that the table has had since; read them by spark.read, with an "
        "endingTs below this ddl_ts, and start a new query above it",
        table=str(name),
        after_ts=after_ts,
        ddl_ts=last_ts,
        columns=why,
        query=query,
    )


def _schema_changed(name: TableName, ts: Ts, why: str, query: str) -> SchemaChangedError:
    return SchemaChangedError(
        "table has other columns than the query; start the query again, and load() takes those that it has now",
        table=str(name),
        ddl_ts=ts,
        columns=why,
        query=query,
    )
