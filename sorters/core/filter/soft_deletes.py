"""Tables that TiDB marks as SOFTDELETE or ACTIVE_ACTIVE: what their rows' kinds mean at a destination.

TiDB deletes a row of such a table by putting a time into ``_tidb_softdelete_time``, and takes it away for good some
days later. So an update of that column from NULL to a time goes out as the DELETE of the row as it was, and a DELETE
does not go out at all: it comes of a row that is deleted at the destination already. All else stays as it is, also the
insert of a row that has a time, and the update that takes a time back. A DELETE half of an update of a key counts as a
DELETE.

Source: pingcap/ticdc ``pkg/common/event/active_active.go`` (``EvaluateRowPolicy``), and of its dispatchers
``ensureTableModeCompatibility``, which refuses such tables where the sink is a database, while
``enable-active-active`` is off. The marks are ``is_active_active`` and ``softdelete_info`` of TiDB's TableInfo.
"""

from collections.abc import Iterable

import numpy as np

from schemas.errors import Action, BusError
from schemas.tidb.table import TableVersion
from sorters.core.columnar.spans import BoolArray
from sorters.core.mount.column import Column
from sorters.core.mount.mounted import MountedPart, RowKind

SOFT_DELETE_TIME = "_tidb_softdelete_time"


class SoftDeleteTableError(BusError):
    """A soft-delete table whose rows cannot be replicated to this sink, or that lacks the column of its marks."""

    code, action = "sorter.soft_delete_table", Action.STOP_CHANGEFEED


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
