"""How a destination has what a DDL is about, before and after it."""

import hashlib
import re

import pymysql

from consumers.processors.apply.connection import Connection, is_tidb, select
from consumers.processors.apply.errors import errno
from consumers.processors.core.apply.ddl_effects import exchanged_partition
from consumers.processors.core.apply.statements import quoted
from schemas.ddl.job import DdlType
from schemas.sink.sql_rows import SqlDdl

_NO_SUCH = frozenset({1049, 1146, 1109, 1051, 1735, 1747})
"""Unknown database, no such table, unknown table; unknown partition, and one of a table that has none."""
_ABSENT = "absent"
_TABLE_ID = (
    "SELECT tidb_table_id FROM information_schema.tables"
    " WHERE LOWER(table_schema) = LOWER(%s) AND LOWER(table_name) = LOWER(%s)"
)
_PARTITION_ID = (
    "SELECT tidb_partition_id FROM information_schema.partitions"
    " WHERE LOWER(table_schema) = LOWER(%s) AND LOWER(table_name) = LOWER(%s) AND LOWER(partition_name) = LOWER(%s)"
)
_COLUMNS = (
    "SELECT column_name FROM information_schema.columns"
    " WHERE LOWER(table_schema) = LOWER(%s) AND LOWER(table_name) = LOWER(%s) ORDER BY ordinal_position"
)
_ALL_CHARS, _ROWS_CHARS = 32, 16
"""Of the digests in a note of an EXCHANGE PARTITION, which are 64 characters together, as the column has."""
_AUTO_INCREMENT = re.compile(r" AUTO_INCREMENT=\d+")
_AUTO_RANDOM_BASE = re.compile(r" /\*T!\[auto_rand_base\] AUTO_RANDOM_BASE=\d+ \*/")
"""Both move with rows that somebody inserts; no DDL is told by them."""


def fingerprint(connection: Connection, ddl: SqlDdl) -> str:
    """Return a digest of how the destination has what a DDL is about.

    Of an EXCHANGE PARTITION the first half of it, behind it of the rows of the plain table, and of the partition's.
    """
    noted = _digest(_AUTO_RANDOM_BASE.sub("", _all_shown(connection, ddl)))
    if ddl.ddl_type != DdlType.EXCHANGE_PARTITION or not ddl.pre_table:
        return noted
    return noted[:_ALL_CHARS] + "".join(_sides(connection, ddl))


def is_as_before(connection: Connection, ddl: SqlDdl, before: str | None) -> bool:
    """Tell whether the destination has what a DDL is about as it had it when ``before`` was noted.

    A release before left AUTO_RANDOM's base in: what it noted and did not come to do must not be taken for done.
    """
    shown = _all_shown(connection, ddl)
    chars = _ALL_CHARS if ddl.ddl_type == DdlType.EXCHANGE_PARTITION else None
    now = {_digest(text)[:chars] for text in (_AUTO_RANDOM_BASE.sub("", shown), shown)}
    return before is not None and before[:chars] in now


def are_exchanged(connection: Connection, ddl: SqlDdl, before: str | None) -> bool | None:
    """Tell whether the rows of an EXCHANGE PARTITION have changed places since ``before`` was noted, whatever else has
    changed; None: that cannot be told, as of what a release before has noted.
    """
    noted = (before or "")[_ALL_CHARS:]
    plain, part = noted[:_ROWS_CHARS], noted[_ROWS_CHARS:]
    now = _sides(connection, ddl)
    # Whoever has mended one of the tables has left the other's rows where they were.
    if now[0] == plain or now[1] == part:
        return False
    return True if now == (part, plain) else None


def is_schema_there(connection: Connection, schema: str) -> bool:
    """Tell whether the destination has a schema."""
    return _shown(connection, b"SHOW CREATE DATABASE " + quoted(schema)) != _ABSENT


def is_there(connection: Connection, schema: str, table: str) -> bool:
    """Tell whether the destination has a table, or a view, as it reads names itself."""
    return _shown(connection, b"SHOW CREATE TABLE " + quoted(schema) + b"." + quoted(table)) != _ABSENT


def _digest(shown: str) -> str:
    return hashlib.sha256(shown.encode("utf-8", "surrogateescape")).hexdigest()


def _all_shown(connection: Connection, ddl: SqlDdl) -> str:
    schemas = sorted({ddl.schema, ddl.pre_schema} - {""})
    parts = [_shown(connection, b"SHOW CREATE DATABASE " + quoted(schema)) for schema in schemas]
    for schema, table in sorted({(ddl.schema, ddl.table), (ddl.pre_schema, ddl.pre_table)}):
        if schema and table:
            parts.append(_shown(connection, b"SHOW CREATE TABLE " + quoted(schema) + b"." + quoted(table)))
    if ddl.ddl_type == DdlType.EXCHANGE_PARTITION and ddl.pre_table:
        parts.append(_rows_shown(connection, ddl.pre_schema, ddl.pre_table))
    return "\n".join(parts)


def _sides(connection: Connection, ddl: SqlDdl) -> tuple[str, str]:
    """Return digests of the rows of the plain table and of the partition, whatever their columns' types are."""
    partition = exchanged_partition(ddl)
    if is_tidb(connection):
        plain = select(connection, _TABLE_ID, (ddl.pre_schema, ddl.pre_table))
        sides = str(plain), str(select(connection, _PARTITION_ID, (ddl.schema, ddl.table, partition)))
    else:
        of = b" PARTITION (" + quoted(partition) + b")" if partition else b""
        sides = (
            _rows_as_text(connection, ddl.pre_schema, ddl.pre_table),
            _rows_as_text(connection, ddl.schema, ddl.table, of),
        )
    return _digest(sides[0])[:_ROWS_CHARS], _digest(sides[1])[:_ROWS_CHARS]


def _rows_as_text(connection: Connection, schema: str, table: str, partition: bytes = b"") -> str:
    columns = [quoted(str(name)) for (name,) in select(connection, _COLUMNS, (schema, table))]
    if not columns:
        return _ABSENT
    texts = b",".join(b"IFNULL(CRC32(" + name + b"),'')" for name in columns)
    sql = b"SELECT COUNT(*), SUM(CRC32(CONCAT_WS(','," + texts + b"))) FROM "
    return _shown(connection, sql + quoted(schema) + b"." + quoted(table) + partition)


def _rows_shown(connection: Connection, schema: str, table: str) -> str:
    if is_tidb(connection):
        return str(select(connection, _TABLE_ID, (schema, table)))
    return _shown(connection, b"CHECKSUM TABLE " + quoted(schema) + b"." + quoted(table))


def _shown(connection: Connection, sql: bytes) -> str:
    try:
        with connection.cursor() as cursor:
            cursor.execute(sql.decode("utf-8", "surrogateescape"))
            return _AUTO_INCREMENT.sub("", str(cursor.fetchall()))
    except pymysql.MySQLError as error:
        if errno(error) in _NO_SUCH:
            return _ABSENT
        raise
