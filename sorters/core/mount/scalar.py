"""One row change to its columns, a row at a time: small groups take this path, and it is the twin of the columnar one.

A column's value comes from the row value; if it is not there, from the row key; else it is the column's default
(docs/formats/tidb-encoding.md §3.3). The old value is read with the same schema as the new one, as TiCDC does.
"""

from collections.abc import Container
from dataclasses import dataclass
from datetime import UTC, tzinfo

from schemas.changes import Op
from schemas.errors import Action, BusError, CorruptDataError
from schemas.ids import TableId, Ts
from schemas.sink.position import RowOp
from schemas.tidb.column_value import absent_value_in_zone, value_of_datum, value_of_v2
from schemas.tidb.keys import RowKey, decode_row_key
from schemas.tidb.mysql_types import MysqlType
from schemas.tidb.row_checksum import MountedChecksum, mounted_checksum
from schemas.tidb.row_v1 import decode_row_v1
from schemas.tidb.row_v2 import decode_row_v2, is_row_v2
from schemas.tidb.table import HandleKind, TableVersion
from schemas.tidb.value import Value

Columns = tuple[Value, ...]
"""Parallel to ``TableVersion.columns``."""


class CorruptRowError(BusError):
    """A row value or key that does not decode by its table's schema; ``fields`` name table, key and commit_ts."""

    code, action = "mount.corrupt_row", Action.STOP_CHANGEFEED


@dataclass(frozen=True, slots=True, kw_only=True)
class MountedRow:
    """A row change with its columns. ``columns`` is None for a delete, ``pre_columns`` for an insert."""

    table: TableVersion
    physical_id: TableId
    commit_ts: Ts
    start_ts: Ts
    op: RowOp
    key: bytes
    columns: Columns | None
    pre_columns: Columns | None
    txn_source: int = 0
    checksum: MountedChecksum | None = None
    """Only when asked for, and only of rows that carry one."""


def mount_row(  # noqa: PLR0913 # the twin of a column's decoder
    table: TableVersion,
    *,
    key: bytes,
    op: Op,
    value: bytes,
    old_value: bytes,
    commit_ts: Ts,
    start_ts: Ts,
    txn_source: int = 0,
    zone: tzinfo = UTC,
    with_checksum: bool = False,
) -> MountedRow | None:
    """Mount one row change.

    Args:
        table: the schema just before ``commit_ts``.
        key: the raw row key.
        op: PUT or DELETE.
        value: the row value; empty for a DELETE.
        old_value: the version before it; empty: there was none.
        commit_ts: of the transaction.
        start_ts: of the same.
        txn_source: who wrote it (TiCDC's loop protection).
        zone: the changefeed's time zone, which TIMESTAMPs are shown in.
        with_checksum: verify the checksums of rows that carry some; what comes of it is in the row's ``checksum``.

    Returns:
        None for the delete of a row that does not exist (transactions may write those).

    Raises:
        CorruptRowError: key or value does not decode.
    """
    try:
        row_key = decode_row_key(key)
        columns = mount_columns(table, row_key, value, zone) if op == Op.PUT else None
        pre_columns = mount_columns(table, row_key, old_value, zone) if old_value else None
        checksum = None
        if with_checksum:
            sides = (columns, value), (pre_columns, old_value)
            checksum = mounted_checksum(table, key, *(_in_utc(table, row_key, zone, *side) for side in sides))
    except (CorruptDataError, ValueError, OverflowError) as error:
        raise CorruptRowError(
            "row does not decode", table=table.name, key=key.hex(), commit_ts=commit_ts, reason=str(error)
        ) from error
    if columns is None and pre_columns is None:
        return None
    return MountedRow(
        table=table,
        physical_id=row_key.table_id,
        commit_ts=commit_ts,
        start_ts=start_ts,
        op=_row_op(columns, pre_columns),
        key=key,
        columns=columns,
        pre_columns=pre_columns,
        txn_source=txn_source,
        checksum=checksum,
    )


def mount_columns(table: TableVersion, row_key: RowKey, value: bytes, zone: tzinfo = UTC) -> Columns:
    """Return the values of ``table.columns`` for one row value that is not empty.

    Raises:
        CorruptDataError: key or value does not decode.
    """
    values = _columns_in_value(table, value, zone)
    if any(table.columns[offset].id not in values for offset in table.key_columns):
        values |= _columns_in_key(table, row_key, zone, values)
    return tuple(
        values[column.id] if column.id in values else absent_value_in_zone(column, zone) for column in table.columns
    )


def _in_utc(
    table: TableVersion, row_key: RowKey, zone: tzinfo, columns: Columns | None, value: bytes
) -> tuple[Columns | None, bytes]:
    """Return columns and row value with TIMESTAMPs in UTC, as checksums are made of them."""
    if columns is None or zone is UTC or all(column.tp is not MysqlType.TIMESTAMP for column in table.columns):
        return columns, value
    return mount_columns(table, row_key, value), value


def _columns_in_value(table: TableVersion, value: bytes, zone: tzinfo) -> dict[int, Value]:
    values = dict[int, Value]()
    if is_row_v2(value):
        raw_v2 = decode_row_v2(value)
        for column in table.columns:
            if column.id in raw_v2:
                data = raw_v2[column.id]
                values[column.id] = None if data is None else value_of_v2(column, data, zone)
        return values
    raw_v1 = decode_row_v1(value)
    for column in table.columns:
        if column.id in raw_v1:
            datum = raw_v1[column.id]
            values[column.id] = None if datum is None else value_of_datum(column, datum, zone)
    return values


def _columns_in_key(table: TableVersion, row_key: RowKey, zone: tzinfo, known: Container[int]) -> dict[int, Value]:
    """Return the columns that the key holds whole, but those of the ids ``known``: of these it may hold sort keys."""
    if table.handle_kind is HandleKind.INT:
        column = table.columns[table.key_columns[0]]
        return {column.id: value_of_datum(column, row_key.int_handle(), zone)}
    datums = row_key.common_handle()
    if len(datums) != len(table.key_columns):
        raise CorruptDataError(
            "row key does not fit the primary key", parts=len(datums), columns=len(table.key_columns)
        )
    values = dict[int, Value]()
    for offset, datum in zip(table.key_columns, datums, strict=True):
        column = table.columns[offset]
        if column.whole_in_key and column.id not in known and datum.value is not None:
            values[column.id] = value_of_datum(column, datum.value, zone)
    return values


def _row_op(columns: Columns | None, pre_columns: Columns | None) -> RowOp:
    if columns is None:
        return RowOp.DELETE
    return RowOp.INSERT if pre_columns is None else RowOp.UPDATE
