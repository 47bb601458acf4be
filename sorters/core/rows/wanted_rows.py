"""Which rows of which table version a changefeed is to get: the first steps of a row, before it is mounted."""

from bisect import bisect_left
from collections.abc import Iterator

import numpy as np

from schemas.changes import RowChanges
from schemas.ddl.layered_schemas import LayeredSchemas
from schemas.ddl.schema_store import SchemaStore
from schemas.ids import Ts
from schemas.tidb.table import TableVersion
from sorters.core.columnar.row_changes import rows_where
from sorters.core.feed.feed import CompiledFeed
from sorters.core.filter.kept_rows import OnLeftOut, wanted_changes
from sorters.core.flow.ledger import FlowLedger
from sorters.core.rows.table_plans import TablePlans


def wanted_versions(
    rows: RowChanges,
    schemas: SchemaStore | LayeredSchemas,
    feed: CompiledFeed,
    ledger: FlowLedger | None = None,
    plans: TablePlans | None = None,
) -> Iterator[tuple[TableVersion, RowChanges]]:
    """Yield the rows of each schema version that the changefeed is to get; ``ledger`` is told of the others. ``plans``
    keep which versions those are.

    Raises:
        UnknownTableError, SchemaGoneError: see :meth:`SchemaStore.lookup`.
    """
    on_left_out, plans = None if ledger is None else ledger.leave_out, plans or TablePlans()
    rows = wanted_changes(rows, feed.ignore_start_ts, bdr_mode=feed.bdr_mode, on_left_out=on_left_out)
    for version, group in by_version(rows, schemas, ledger):
        if plans.contains(version, feed):
            changes = _with_a_side(group, on_left_out)
            if len(changes):
                yield version, changes
        elif ledger is not None:
            ledger.leave_out("table_filter", group)


def _with_a_side(rows: RowChanges, on_left_out: OnLeftOut | None) -> RowChanges:
    """Return the rows without DELETEs of rows that were not there, which TiCDC drops, too."""
    is_nothing = rows.deletes_of_nothing
    if is_nothing is None:
        return rows
    if on_left_out is not None:
        on_left_out("deletes_nothing", rows, is_nothing)
    return rows_where(rows, ~is_nothing)


def by_version(
    rows: RowChanges, schemas: SchemaStore | LayeredSchemas, ledger: FlowLedger | None = None
) -> Iterator[tuple[TableVersion, RowChanges]]:
    """Yield the rows of each schema version; rows of a table that is gone or was not there yet are skipped, and
    ``ledger`` is told.

    Raises:
        UnknownTableError, SchemaGoneError: see :meth:`SchemaStore.lookup`.
    """
    if not len(rows):
        return
    boundaries = schemas.boundaries_of(rows.table_id)
    # Two searches one by one: a table has few versions, and a call of numpy's takes longer than both.
    first, last = (bisect_left(boundaries, ts) for ts in rows.ts_span)
    number = None if first == last else boundaries.searchsorted(rows.commit_ts, side="left")
    for version_number in [first] if number is None else np.unique(number).tolist():
        group = rows if number is None else rows_where(rows, number == version_number)
        version = schemas.lookup(rows.table_id, Ts(int(group.commit_ts[0])))
        if isinstance(version, TableVersion):
            yield version, group
        elif ledger is not None:
            ledger.leave_out("no_table", group)
