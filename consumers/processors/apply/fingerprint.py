"""How a destination has what a DDL is about, before and after it."""

import hashlib
import re

import pymysql

from consumers.processors.apply.connection import Connection, is_tidb, select
from consumers.processors.apply.errors import errno
from consumers.processors.core.apply.statements import quoted
from schemas.ddl.job import DdlType
from schemas.sink.sql_rows import SqlDdl

_NO_SUCH = frozenset({1049, 1146, 1109, 1051})
"""Unknown database, no such table, unknown table."""
_ABSENT = "absent"
_TABLE_ID = (
    "SELECT tidb_table_id FROM information_schema.tables"
    " WHERE LOWER(table_schema) = LOWER(%s) AND LOWER(table_name) = LOWER(%s)"
)
_AUTO_INCREMENT = re.compile(r" AUTO_INCREMENT=\d+")
_AUTO_RANDOM_BASE = re.compile(r" /\*T!\[auto_rand_base\] AUTO_RANDOM_BASE=\d+ \*/")
"""Both move with rows that somebody inserts; no DDL is told by them."""


def fingerprint(connection: Connection, ddl: SqlDdl) -> str:
    """Return a digest of how the destination has what a DDL is about."""
    return _digest(_AUTO_RANDOM_BASE.sub("", _all_shown(connection, ddl)))


def is_as_before(connection: Connection, ddl: SqlDdl, before: str | None) -> bool:
    """Tell whether the destination has what a DDL is about as it had it when ``before`` was noted.

    A release before left AUTO_RANDOM's base in: what it noted and did not come to do must not be taken for done.
    """
    shown = _all_shown(connection, ddl)
    return before in (_digest(_AUTO_RANDOM_BASE.sub("", shown)), _digest(shown))


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
