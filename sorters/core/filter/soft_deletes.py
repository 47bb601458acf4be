"""Tables that TiDB marks as SOFTDELETE or ACTIVE_ACTIVE: what their rows' kinds mean at a destination.

TiDB deletes a row of such a table by putting a time into ``_tidb_softdelete_time``, and takes it away for good some
days later. So an update of that column from NULL to a time goes out as the DELETE of the row as it was, and a DELETE
does not go out at all: it comes of a row that is deleted at the destination already. All else stays as it is, also the
insert of a row that has a time, and the update that takes a time back. A DELETE half of an update of a key counts as a
DELETE.

With ``enable-active-active`` only the DELETEs are left out: an update that puts a time stays an update, for a reader
that takes the later of two clusters' rows needs the time and ``_tidb_origin_ts``. All tables are ACTIVE_ACTIVE then.

Source: pingcap/ticdc ``pkg/common/event/active_active.go`` (``EvaluateRowPolicy``), and of its dispatchers
``ensureTableModeCompatibility``, which refuses such tables where the sink is a database, while
``enable-active-active`` is off, and ``ensureActiveActiveTableInfo``. The marks are ``is_active_active`` and
``softdelete_info`` of TiDB's TableInfo.
"""

from collections.abc import Iterable

import numpy as np

from schemas.errors import Action, BusError
from schemas.tidb.mysql_types import MysqlType
from schemas.tidb.table import TableVersion
from sorters.core.columnar.spans import BoolArray
from sorters.core.mount.column import Column
from sorters.core.mount.mounted import MountedPart, RowKind

SOFT_DELETE_TIME = "_tidb_softdelete_time"
ORIGIN_TS = "_tidb_origin_ts"
"""The commit_ts in the cluster where a row was written first; NULL: it was written here."""
_MICROSECONDS = 6


class SoftDeleteTableError(BusError):
    """A soft-delete table whose rows cannot be replicated to this sink, or that lacks the column of its marks."""

    code, action = "sorter.soft_delete_table", Action.STOP_CHANGEFEED


class ActiveActiveTableError(BusError):
    """A table that is not ACTIVE_ACTIVE, or lacks a column of such, in a changefeed with ``enable-active-active``."""

    code, action = "sorter.active_active_table", Action.STOP_CHANGEFEED


def check_active_active(table: TableVersion) -> None:
    """Hold a table against what ``enable-active-active`` asks for.

    Raises:
        ActiveActiveTableError: it is not marked, or its columns are not those that TiDB gives such tables.
    """
    if not table.active_active:
        raise ActiveActiveTableError(
            "enable-active-active is for tables with ACTIVE_ACTIVE, and this one is none",
            table=table.name,
            table_id=table.table_id,
            allowed="a filter that leaves the table out, or enable-active-active = false",
        )
    columns = {column.name: column for column in table.columns}
    time = columns.get(SOFT_DELETE_TIME)
    if ORIGIN_TS not in columns or time is None:
        raise ActiveActiveTableError(
            "a table with ACTIVE_ACTIVE lacks a column of such tables",
            table=table.name,
            table_id=table.table_id,
            lacking=[name for name in (ORIGIN_TS, SOFT_DELETE_TIME) if name not in columns],
        )
    if time.tp is not MysqlType.TIMESTAMP or time.decimal != _MICROSECONDS or not time.nullable:
        raise ActiveActiveTableError(
            "the time of a deletion is no TIMESTAMP(6) that may be NULL",
            table=table.name,
            table_id=table.table_id,
            column=SOFT_DELETE_TIME,
        )


def without_deletes(parts: Iterable[MountedPart]) -> list[MountedPart]:
    """Return what goes out of mounted rows of a table with ACTIVE_ACTIVE, with ``enable-active-active``.

    Raises:
        CorruptRowError: a row that does not go out does not decode.
    """
    sent = []
    for part in parts:
        if part.kind is RowKind.DELETE:
            part.check()  # whole, as it is decoded before it is left out
        else:
            sent.append(part)
    return sent


def soft_delete_time(table: TableVersion, *, is_sql: bool) -> int:
    """Return the offset of ``_tidb_softdelete_time`` in ``table.columns``, of a table with marks.

    Raises:
        SoftDeleteTableError: rows go into a database, or there is no such column.
    """
    if is_sql:
        raise SoftDeleteTableError(
            "a table with SOFTDELETE or ACTIVE_ACTIVE goes into no database: that needs active-active replication",
            table=table.name,
            table_id=table.table_id,
            allowed="Kafka, files or lake tables as sink, or a filter that leaves the table out",
        )
    for column in table.columns:
        if column.name == SOFT_DELETE_TIME:
            return column.offset
    raise SoftDeleteTableError(
        "a table with SOFTDELETE or ACTIVE_ACTIVE has no column for the time of a deletion",
        table=table.name,
        table_id=table.table_id,
        column=SOFT_DELETE_TIME,
    )


def sent_parts(parts: Iterable[MountedPart], offset: int) -> list[MountedPart]:
    """Return what goes out of mounted rows of a soft-delete table; ``offset``: see :func:`soft_delete_time`.

    Raises:
        CorruptRowError: a row that does not go out does not decode.
    """
    sent = []
    for part in parts:
        if part.kind is RowKind.DELETE:
            part.check()  # whole, as it is decoded before it is left out
            continue
        deleted = soft_deleted(part, offset) if part.kind is RowKind.UPDATE else np.zeros(len(part), np.bool_)
        if not deleted.any():
            sent.append(part)
            continue
        part.check()
        gone, _ = part.split(np.flatnonzero(deleted))
        sent += [gone] if deleted.all() else [part.take(np.flatnonzero(~deleted)), gone]
    return sent


def soft_deleted(part: MountedPart, offset: int) -> BoolArray:
    """Tell which updates put a time where there was none: bool, by row of the part."""
    if part.old_rows is not None and part.new_rows is not None:
        pairs = zip(part.old_rows, part.new_rows, strict=True)
        return np.array([old[offset] is None and new[offset] is not None for old, new in pairs], np.bool_)
    return ~_has_value(part.old_columns()[offset]) & _has_value(part.new_columns()[offset])


def _has_value(column: Column) -> BoolArray:
    return np.ones(len(column), np.bool_) if column.valid is None else column.valid
