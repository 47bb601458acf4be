"""The columns of a lake table: TiDB's, in types of Iceberg's format v2, and those that say what changed.

Types are written as Iceberg prints them. The table of types stands on docs/lake.md. All columns are optional: what TiDB
holds and no type of Iceberg does (a zero date) is NULL.
"""

import re
from dataclasses import dataclass

import pyarrow as pa

from schemas.config.sink.iceberg import LakeMode
from schemas.ddl.schema_change import StoredTable
from schemas.tidb.mysql_types import MysqlType
from schemas.tidb.table import ColumnVersion, TableVersion
from sorters.core.lake.errors import LakeSchemaError

OP, COMMIT_TS, COMMIT_TIME = "_tidb_op", "_tidb_commit_ts", "_tidb_commit_time"
"""Columns of mode append, as TiCDC's branch names them: I, U or D, the ts, and the time that the ts stands for."""
CHANGE_COLUMN_IDS = {OP: -1, COMMIT_TS: -2, COMMIT_TIME: -3}
"""In the place of TiDB's column ids, which begin at 1."""
DECIMAL_DIGITS_MAX = 38
"""Of Iceberg and Spark; TiDB has up to 65."""
UINT64 = "decimal(20, 0)"
_DECIMAL = re.compile(r"decimal\((\d+), (\d+)\)")
_TYPES = {
    **dict.fromkeys([MysqlType.TINYINT, MysqlType.SMALLINT, MysqlType.MEDIUMINT, MysqlType.INT, MysqlType.YEAR], "int"),
    MysqlType.BIGINT: "long",
    MysqlType.FLOAT: "float",
    MysqlType.DOUBLE: "double",
    MysqlType.DATE: "date",
    MysqlType.NEWDATE: "date",
    MysqlType.DATETIME: "timestamp",
    MysqlType.TIMESTAMP: "timestamptz",
}
_ARROW_TYPES = {
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
}


@dataclass(frozen=True, slots=True)
class LakeColumn:
    """A column that a lake table is to have."""

    id: int
    """TiDB's column id, which stays through renames; below 0: a change column's."""
    name: str
    type: str


def lake_type(column: ColumnVersion) -> str:
    """Return the type that holds a column's values."""
    if column.tp is MysqlType.INT and column.unsigned:
        return "long"
    if column.tp is MysqlType.BIGINT and column.unsigned:
        return UINT64
    if column.tp is MysqlType.BIT:
        return "long" if column.flen < 64 else UINT64
    if column.tp is MysqlType.DECIMAL:
        fits = 0 < column.flen <= DECIMAL_DIGITS_MAX
        return f"decimal({column.flen}, {max(column.decimal, 0)})" if fits else "string"
    known = _TYPES.get(column.tp)
    if known is not None:
        return known
    is_bytes = column.binary and column.tp not in (MysqlType.JSON, MysqlType.ENUM, MysqlType.SET, MysqlType.TIME)
    return "binary" if is_bytes and column.tp is not MysqlType.VECTOR else "string"


def lake_columns(table: TableVersion, mode: LakeMode, *, says_changes: bool = True) -> tuple[LakeColumn, ...]:
    """Return the columns of a table version's lake table, in table order; ``says_changes``: in mode append with those
    that say what changed.

    Raises:
        LakeSchemaError: it has no columns of its own, or one with the name of a change column.
    """
    columns = [LakeColumn(column.id, column.name, lake_type(column)) for column in table.columns]
    taken = {column.name.lower() for column in columns} & set(CHANGE_COLUMN_IDS)
    if taken:
        reason = f"column {min(taken)} has the name of one that says what changed"
        helps = "rename that column in TiDB"
        raise LakeSchemaError("a table cannot be a lake table", table=table.name, reason=reason, what_helps=helps)
    if mode == "append" and says_changes:
        types = {OP: "string", COMMIT_TS: "long", COMMIT_TIME: "timestamptz"}
        columns += [LakeColumn(CHANGE_COLUMN_IDS[name], name, type_name) for name, type_name in types.items()]
    return tuple(columns)


def key_names(table: TableVersion) -> tuple[str, ...]:
    """Return the columns by which mode upsert finds a row: the handle key's.

    Raises:
        LakeSchemaError: there is none.
    """
    if not table.handle_columns:
        reason, helps = "it has no primary key and no not-null unique key", "a changefeed of mode=append takes it"
        raise LakeSchemaError("a table cannot be a lake table", table=table.name, reason=reason, what_helps=helps)
    return tuple(table.columns[offset].name for offset in table.handle_columns)


def arrow_type(type_name: str) -> pa.DataType:
    """Return what holds values of a lake type on their way to Spark."""
    decimal = _DECIMAL.fullmatch(type_name)
    return pa.decimal128(int(decimal[1]), int(decimal[2])) if decimal else _ARROW_TYPES[type_name]


def widens(before: str, after: str) -> bool:
    """Tell whether Iceberg lets a column of one type become one of the other, without writing a file anew."""
    if (before, after) in (("int", "long"), ("float", "double")):
        return True
    old, new = _DECIMAL.fullmatch(before), _DECIMAL.fullmatch(after)
    return bool(old and new and old[2] == new[2] and int(old[1]) <= int(new[1]))


def checked_name(name: str, table: TableVersion) -> str:
    """Return a schema's or table's name, which names a folder of the warehouse.

    Raises:
        LakeSchemaError: it cannot name one.
    """
    if not _names_folder(name):
        reason = "a name of a lake table has at most 200 characters, without `/`, `\\`, `:` and control characters"
        helps = "give it another one by target-schema or target-table of [sink] dispatchers"
        raise LakeSchemaError("a table cannot be a lake table", table=table.name, reason=reason, what_helps=helps)
    return name


def fits_unread(stored: StoredTable, mode: LakeMode) -> bool:
    """Tell of a table, stored under its names at the destination, whether it can surely be a lake table, without
    decoding it, which is slow where there are very many. False: :func:`lake_columns` and the others know.
    """
    has_key = mode == "append" or stored.eligible
    return has_key and all(map(_names_folder, (stored.schema, stored.table))) and not stored.mentions(CHANGE_COLUMN_IDS)


def _names_folder(name: str) -> bool:
    is_odd = not name or name in (".", "..") or len(name) > 200
    return not is_odd and not any(char in "/\\:" or ord(char) < 32 for char in name)
