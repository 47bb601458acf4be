"""Mounted rows as JSON objects, for ``tidebus dry-run --protocol mounted`` and for people.

The format is that of ``data/tidb/mounted`` (its README): a value is text whatever its type, ``{"hex": …}`` for bytes
that are binary or no UTF-8, or null; ``kind`` names the Go type that TiCDC holds.
"""

import numpy as np

from schemas.sink.position import RowOp
from schemas.tidb.codec import Datum, DatumFlag
from schemas.tidb.keys import RowKey, decode_row_key
from schemas.tidb.mysql_types import CdcFlag, MysqlType
from schemas.tidb.packed_time import duration_text
from schemas.tidb.table import ColumnVersion, TableVersion
from schemas.tidb.value import Value
from sorters.core.mount.scalar import Columns, MountedRow

_OP_NAMES = {RowOp.INSERT: "insert", RowOp.UPDATE: "update", RowOp.DELETE: "delete"}
_UNSIGNED_KINDS = frozenset({MysqlType.ENUM, MysqlType.SET, MysqlType.BIT})
_KEY_FLAGS = CdcFlag.HANDLE_KEY | CdcFlag.UNIQUE_KEY
_HANDLE_FSP = 6


def mounted_object(row: MountedRow) -> dict[str, object]:
    """Return the JSON object of a mounted row; fields in alphabetical order, optional ones left out."""
    table = row.table
    fields: dict[str, object] = {
        "columns": _columns(table, row.columns),
        "commit_ts": int(row.commit_ts),
        "handle": _handle(decode_row_key(row.key)),
        "handle_columns": [table.columns[offset].name for offset in table.handle_columns] or None,
        "key": row.key.hex(),
        "op": _OP_NAMES[row.op],
        "pre_columns": _columns(table, row.pre_columns),
        "schema": table.schema,
        "start_ts": int(row.start_ts),
        "table": table.table,
        "table_id": int(row.physical_id),
        "table_version": int(table.version),
    }
    if row.checksum:
        fields["checksum"] = {
            "corrupted": row.checksum.corrupted,
            "current": row.checksum.current,
            "previous": row.checksum.previous,
            "version": row.checksum.version,
        }
    if table.partitions:
        fields["logical_table_id"] = int(table.table_id)
    if row.columns is not None and row.pre_columns is not None:
        fields["split_update"] = _key_changed(table, row.columns, row.pre_columns)
    if row.txn_source:
        fields["txn_source"] = row.txn_source
    return dict(sorted(fields.items()))


def _columns(table: TableVersion, columns: Columns | None) -> list[dict[str, object]] | None:
    if columns is None:
        return None
    return [_column(column, value) for column, value in zip(table.columns, columns, strict=True)]


def _column(column: ColumnVersion, value: Value) -> dict[str, object]:
    fields: dict[str, object] = {
        "charset": column.charset,
        "collation": column.collation,
        "flag": int(column.cdc_flag),
    }
    if value is not None:
        fields["kind"] = _kind(column, value)
    fields |= {"name": column.name, "type": int(column.tp), "value": _value(column, value)}
    return fields


def _kind(column: ColumnVersion, value: Value) -> str:
    match value:
        case int():
            unsigned = column.tp in _UNSIGNED_KINDS or (column.unsigned and column.tp is not MysqlType.YEAR)
            return "uint64" if unsigned else "int64"
        case float():
            return "float32" if column.tp is MysqlType.FLOAT else "float64"
        case str():
            return "string"
        case bytes():
            return "bytes"
        case _:
            return "types.VectorFloat32"


def _value(column: ColumnVersion, value: Value) -> str | dict[str, str] | None:
    match value:
        case None | str():
            return value
        case int():
            return str(value)
        case float():
            return float_text(value, single=column.tp is MysqlType.FLOAT)
        case bytes():
            try:
                return {"hex": value.hex()} if column.binary else value.decode()
            except UnicodeDecodeError:
                return {"hex": value.hex()}
        case _:
            return vector_text(value)


def float_text(value: float, *, single: bool) -> str:
    """Return the shortest digits that read back as the same 32- or 64-bit number, never with an exponent.

    >>> float_text(3.1415925, single=True), float_text(-1.5e-10, single=False), float_text(0.0, single=False)
    ('3.1415925', '-0.00000000015', '0')
    """
    return np.format_float_positional(np.float32(value) if single else np.float64(value), unique=True, trim="-")


def vector_text(vector: tuple[float, ...]) -> str:
    """Return a VECTOR as TiDB prints it.

    >>> vector_text((1.0, 2.5, -3e10))
    '[1,2.5,-30000000000]'
    """
    return "[" + ",".join(float_text(item, single=True) for item in vector) + "]"


def _handle(key: RowKey) -> dict[str, object]:
    if key.is_int:
        return {"int": True, "value": str(key.int_handle())}
    parts = ", ".join(_datum(datum) for datum in key.common_handle())
    return {"encoded": key.handle.hex(), "int": False, "value": f"{{{parts}}}"}


def _datum(datum: Datum) -> str:
    """Print a key part as TiDB does, which knows no column types there: times stay packed, text is its sort key."""
    match datum.value:
        case bytes() as raw:
            return raw.decode("utf-8", "replace")
        case int() as number if datum.flag is DatumFlag.DURATION:
            return duration_text(number, _HANDLE_FSP)
        case float() as number:
            return float_text(number, single=False)
        case value:
            return str(value)


def _key_changed(table: TableVersion, columns: Columns, pre_columns: Columns) -> bool:
    return any(
        column.cdc_flag & _KEY_FLAGS and columns[column.offset] != pre_columns[column.offset]
        for column in table.columns
    )
