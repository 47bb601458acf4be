"""Which changes of a table a changefeed leaves out: by transaction, by kind, and by what the rows hold. Pure."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from schemas.changes import RowChanges
from schemas.tidb.table import TableVersion
from sorters.core.columnar.row_changes import rows_where
from sorters.core.columnar.spans import BoolArray, IntArray
from sorters.core.filter.event_filter import EventFilter
from sorters.core.filter.row_conditions import TableConditions
from sorters.core.filter.update_columns import UpdateColumns
from sorters.core.mount.mounted import ROW_OPS, MountedPart

CDC_WRITE_SOURCE = 0xFF
"""Bits of ``txn_source`` that say which replication wrote a transaction; 0: a user did. What TiKV's own ``filter_loop``
leaves out, which a raw log that several changefeeds share cannot ask for."""


OnLeftOut = Callable[[str, RowChanges, BoolArray], None]
"""Gets the reason, and which of the rows it concerns."""
LeftOut = Mapping[str, list[IntArray]]
"""Numbers of rows that are left out, by reason; a reason that concerns none is not there."""


def wanted_changes(
    rows: RowChanges, ignore_start_ts: frozenset[int], *, bdr_mode: bool, on_left_out: OnLeftOut | None = None
) -> RowChanges:
    """Return the changes of transactions that are not to be ignored; with ``bdr_mode`` those of users alone."""

    def kept(reason: str, wanted: BoolArray) -> RowChanges:
        if on_left_out is not None:
            on_left_out(reason, rows, ~wanted)
        return rows_where(rows, wanted)

    if ignore_start_ts:
        rows = kept("ignore_txn_start_ts", ~np.isin(rows.start_ts, np.fromiter(ignore_start_ts, np.int64)))
    if bdr_mode and rows.txn_source.any():
        rows = kept("bdr_mode", rows.txn_source & CDC_WRITE_SOURCE == 0)
    return rows


def kept_rows(
    parts: Sequence[MountedPart], table: TableVersion, events: EventFilter, update_columns: UpdateColumns
) -> tuple[list[MountedPart], LeftOut]:
    """Return the rows that no event filter ignores, and which others there were.

    Raises:
        CorruptDataError: a row does not decode, be it one that is ignored.
        ExpressionColumnNotFoundError, ExpressionMisfitError: an expression does not fit the table.
    """
    ignored = events.ignored_ops(table.schema, table.table)
    wanted = [part for part in parts if ROW_OPS[part.kind] not in ignored]
    kept, unchanged = _kept(wanted, update_columns)
    kept, unfit = _kept(kept, events.conditions(table))
    unwanted = [part for part in parts if ROW_OPS[part.kind] in ignored]
    for part in unwanted:
        part.check()
    left_out = {
        "event_filter": [part.rows for part in unwanted],
        "unchanged_columns": unchanged,
        "event_expression": unfit,
    }
    return kept, {reason: numbers for reason, numbers in left_out.items() if numbers}


def _kept(
    parts: list[MountedPart], conditions: TableConditions | UpdateColumns | None
) -> tuple[list[MountedPart], list[IntArray]]:
    """Return the rows that no event filter ignores for what they hold, and the numbers of those that one does."""
    if conditions is None:
        return parts, []
    kept, left = [], []
    for part in parts:
        ignored = conditions.ignored(part)
        if ignored is None:
            kept.append(part)
            continue
        part.check()  # whole, as TiCDC decodes it before it filters
        left.append(part.rows[ignored])
        if not ignored.all():
            kept.append(part.take(np.flatnonzero(~ignored)))
    return kept, left
