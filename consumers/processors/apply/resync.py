"""The steps of a resync by noted keys (:mod:`consumers.processors.core.apply.noted_keys`), at the destination.

They are run as DDL is: by the leader, under its lock, with all partitions at one place of the order. So nothing is
written to the table meanwhile, and a step that was begun by a leader before us is done once more from its beginning:
what it has noted is noted anew, what it has deleted is not there any more.

Which tables have noted keys stands in ``tidebus.resync``, written when all of them are noted. What is not there is not
struck off, and nothing is deleted by it: then the rest of the resync is a backfill.
"""

import json
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

import pymysql

from consumers.processors.apply.connection import Connection, execute, select
from consumers.processors.apply.errors import NO_SUCH_TABLE, ShapeDiffersError, errno
from consumers.processors.core.apply.noted_keys import (
    DELETED_AT_ONCE,
    NOTED_AT_ONCE,
    KeyColumn,
    create_statement,
    delete_statements,
    drop_statement,
    last_key_statement,
    note_statement,
    noted_table,
    notes_name,
    null_statement,
    type_misfits,
)
from consumers.processors.core.apply.statements import NotedTable, quoted
from schemas.ids import TableId
from schemas.sink.sql_rows import ResyncStep, SqlDdl

log = logging.getLogger(__name__)
_TABLE = """CREATE TABLE IF NOT EXISTS tidebus.resync (
    feed VARCHAR(600) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    table_id BIGINT NOT NULL,
    notes VARCHAR(64) CHARACTER SET ascii NOT NULL,
    key_columns LONGTEXT CHARACTER SET utf8mb4 NOT NULL,
    noted_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,
    PRIMARY KEY (feed, table_id)
)"""
_NOTED = "REPLACE INTO tidebus.resync (feed, table_id, notes, key_columns) VALUES (%s, %s, %s, %s)"
_FORGET = "DELETE FROM tidebus.resync WHERE feed = %s AND table_id = %s"
_FIND = "SELECT table_id, notes, key_columns FROM tidebus.resync WHERE feed = %s AND table_id IN %s"
Guard = Callable[[], None]
"""Raises if we are to stop."""
Fence = Callable[[Connection], None]
"""Raises if another leader has taken over; within a transaction it keeps one from doing so before the end."""


def run_step(connection: Connection, feed: str, ddl: SqlDdl, fence: Fence, guard: Guard) -> None:
    """Do a step of a resync.

    Args:
        connection: the leader's, with its lock.
        feed: the changefeed, as the destination knows it.
        ddl: an event with a step.
        fence: is asked in each transaction.
        guard: is asked before each.

    Raises:
        ShapeDiffersError: the table is not there, or has no such key.
        ProcessorReplacedError: from ``fence``.
        pymysql.MySQLError: the destination does not take it.
    """
    connection.query(b"USE tidebus")  # a DELETE of several tables wants one, whatever names it says
    connection.query(_TABLE.encode())
    match ddl.step:
        case ResyncStep.NOTE:
            _note(connection, feed, ddl, fence, guard)
        case ResyncStep.DELETE:
            _delete(connection, feed, ddl, fence, guard)
        case _:
            _forget(connection, feed, ddl.table_id)


def noted_tables(connection: Connection, feed: str, tables: Collection[TableId]) -> Mapping[TableId, NotedTable]:
    """Return which of some tables have noted keys.

    Raises:
        pymysql.MySQLError: the destination does not say.
    """
    return {
        table: noted_table(name, [column.name for column in key])
        for table, (name, key) in _find(connection, feed, tables).items()
    }


def end_notes(connection: Connection, feed: str, ddl: SqlDdl) -> None:
    """After a DDL: forget what is noted of keys that mean something else now, or of tables that are others.

    Raises:
        pymysql.MySQLError: the destination does not answer.
    """
    for table, (_, noted) in _find(connection, feed, {ddl.table_id, *ddl.ended} - {0}).items():
        names = {column.name.lower() for column in noted}
        now = {
            column.name.lower(): column.shape for column in _columns(connection, ddl) if column.name.lower() in names
        }
        if table in ddl.ended or now != {column.name.lower(): column.shape for column in noted}:
            log.warning(
                "a ddl ends a resync: rows that the source has no more may stay, ask for it again",
                extra={"table": ddl.name, "commit_ts": ddl.commit_ts, "query": ddl.query[:1000]},
            )
            _forget(connection, feed, table)


def _note(connection: Connection, feed: str, ddl: SqlDdl, fence: Fence, guard: Guard) -> None:
    name, key = notes_name(feed, ddl.table_id), _key(connection, ddl)
    _forget(connection, feed, ddl.table_id)
    connection.query(create_statement(name, key))
    total = noted = 0
    while total == 0 or noted == NOTED_AT_ONCE:
        guard()
        is_first = total == 0
        if not is_first:
            connection.query(last_key_statement(name, key))
        connection.begin()
        fence(connection)
        connection.query(note_statement(name, _name(ddl), key, is_first=is_first))
        noted = connection.affected_rows()
        connection.commit()
        total += noted
        if not noted:
            break
    connection.begin()
    fence(connection)
    execute(connection, _NOTED, (feed, ddl.table_id, name, _encode(key)))
    connection.commit()
    log.info("resync: keys are noted", extra={"table": ddl.name, "rows": total, "commit_ts": ddl.commit_ts})


def _delete(connection: Connection, feed: str, ddl: SqlDdl, fence: Fence, guard: Guard) -> None:
    notes = _find(connection, feed, {ddl.table_id}).get(ddl.table_id)
    if notes is None:
        log.warning(
            "resync: no keys are noted, or what is left of them is deleted already; nothing is deleted",
            extra={"table": ddl.name, "commit_ts": ddl.commit_ts},
        )
        _forget(connection, feed, ddl.table_id)  # who came before us may have died in the middle of it
        return
    name, key = notes
    deleted = _delete_all(connection, delete_statements(name, _name(ddl), key), fence, guard)
    if (nulls := null_statement(_name(ddl), key)) is not None:
        deleted += _delete_all(connection, (nulls,), fence, guard)
    _forget(connection, feed, ddl.table_id)
    log.info(
        "resync: rows that the source has no more are deleted",
        extra={"table": ddl.name, "rows": deleted, "commit_ts": ddl.commit_ts},
    )


def _delete_all(connection: Connection, statements: Sequence[bytes], fence: Fence, guard: Guard) -> int:
    """Say statements again and again, each time in a transaction, until the last of them finds no full piece any more;
    return how many rows the first one has deleted.
    """
    deleted, left = 0, DELETED_AT_ONCE
    while left == DELETED_AT_ONCE:
        guard()
        connection.begin()
        fence(connection)
        changed = []
        for statement in statements:
            connection.query(statement)
            changed.append(connection.affected_rows())
        connection.commit()
        deleted, left = deleted + changed[0], changed[-1]
    return deleted


def _forget(connection: Connection, feed: str, table: TableId) -> None:
    execute(connection, _FORGET, (feed, table))
    connection.query(drop_statement(notes_name(feed, table)))


def _find(
    connection: Connection, feed: str, tables: Collection[TableId]
) -> Mapping[TableId, tuple[str, Sequence[KeyColumn]]]:
    if not tables:
        return {}
    try:
        rows = select(connection, _FIND, (feed, tuple(tables)))
    except pymysql.MySQLError as error:
        if errno(error) in NO_SUCH_TABLE:
            return {}
        raise
    return {TableId(int(table)): (str(name), _decode(str(key))) for table, name, key in rows}


def _encode(key: Sequence[KeyColumn]) -> str:
    return json.dumps([[each.name, each.tp, each.collation, each.prefix, each.is_nullable] for each in key])


def _decode(text: str) -> Sequence[KeyColumn]:
    return [
        KeyColumn(name=name, tp=tp, collation=collation, prefix=prefix, is_nullable=is_nullable)
        for name, tp, collation, prefix, is_nullable in json.loads(text)
    ]


def _name(ddl: SqlDdl) -> bytes:
    return quoted(ddl.schema) + b"." + quoted(ddl.table)


def _columns(connection: Connection, ddl: SqlDdl) -> Sequence[KeyColumn]:
    """Return the columns of the destination's table; none where it is not there."""
    try:
        rows = _shown(connection, b"SHOW FULL COLUMNS FROM " + _name(ddl))
    except pymysql.MySQLError as error:
        if errno(error) in NO_SUCH_TABLE:
            return ()
        raise
    return [
        KeyColumn(name=str(name), tp=str(tp), collation=str(collation or ""), is_nullable=null == "YES")
        for name, tp, collation, null, *_ in rows
    ]


def _key(connection: Connection, ddl: SqlDdl) -> Sequence[KeyColumn]:
    """Return the columns of the destination's unique key of the handle key's columns, in its order.

    Raises:
        ShapeDiffersError: it has none.
    """
    columns = {column.name.lower(): column for column in _columns(connection, ddl)}
    wanted = {name.lower() for name in ddl.key}
    indexes: dict[str, list[tuple[object, ...]]] = {}
    if columns:
        for row in _shown(connection, b"SHOW INDEX FROM " + _name(ddl)):
            if not int(str(row[1])):
                indexes.setdefault(str(row[2]), []).append(row)
    differs = f"it has no unique key of ({', '.join(ddl.key)})" if columns else "it is not there"
    for parts in indexes.values():
        if {str(row[4]).lower() for row in parts} == wanted:
            key = [_with_prefix(columns[str(row[4]).lower()], row[7]) for row in parts]
            differs = "; ".join(type_misfits(ddl.key, ddl.key_types, key))
            if not differs:
                return key
    raise ShapeDiffersError(
        "destination's table cannot be resynced; make it as the source's is and resume",
        table=ddl.name,
        differs=differs,
        source_key=list(ddl.key),
    )


def _with_prefix(column: KeyColumn, prefix: object) -> KeyColumn:
    return replace(column, prefix=int(str(prefix)) if prefix is not None else 0)


def _shown(connection: Connection, sql: bytes) -> list[tuple[object, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(sql.decode("utf-8", "surrogateescape"))
        return list(cursor.fetchall())
