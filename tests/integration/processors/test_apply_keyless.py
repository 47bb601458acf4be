"""Rows of tables without a key (``force-replicate``) in a real MariaDB: as many of each as upstream has."""

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from compose.stack.mariadb import LocalMariaDb
from consumers.processors.apply.connection import ROW_SQL_MODE
from schemas.changes import RowChanges
from schemas.ids import TableId, Ts
from schemas.sink.position import RowOp
from schemas.sink.sql_rows import SqlRow, decode_form, decode_rows
from schemas.tidb.keys import row_key
from schemas.tidb.row_v2 import encode_row_v2
from schemas.tidb.table import TableVersion
from schemas.tidb.table_info import table_version
from sorters.core.encode.sql.create_table import create_schema, create_table
from tests.support.database.apply import Crash, Faults, Processor, faulty_connections, run_sql, table
from tests.support.database.apply_tables import feed
from tests.support.database.mariadb import mariadb
from tests.support.database.sorted_rows import sorted_rows
from tests.support.recorded.ddl_jobs import column, table_info
from tests.support.recorded.mounting import recorded_batches, recorded_store, row_changes
from tests.support.recorded.recording import CommittedChange
from tests.support.topics.sink_log import SinkLog, form

__all__ = ["feed", "mariadb"]

INSERT, DELETE = RowOp.INSERT, RowOp.DELETE
ONE_BY_ONE = "worker-count=2&multi-stmt-enable=false"
T = form("d.t", "a", "b", key=())
KINDS = ("t_all", "t_cc", "t_cc2", "t_prefix", "t_sum", "t_v1")
"""Tables of the recording that between them have every type, and texts that a collation takes for the same."""
OF_MARIADB = (
    (re.compile(r"vector(\(\d+\))?"), "longtext"),
    (re.compile("utf8mb4_0900_ai_ci"), "utf8mb4_uca1400_ai_ci"),
    (re.compile(r", (PRIMARY |UNIQUE )?KEY .*\) DEFAULT CHARACTER"), ") DEFAULT CHARACTER"),
)


def test_rows_that_are_alike_go_one_by_one_whatever_statement_a_processor_dies_at(
    mariadb: LocalMariaDb, fresh_name: Callable[[str], str]
) -> None:
    log = SinkLog()
    log.rows(0, T, 10, (INSERT, "/*1*/", "(1,'x')"), (INSERT, "/*2*/", "(1,'x')"), (INSERT, "/*3*/", "(1,NULL)"))
    log.rows(0, T, 11, (DELETE, "(`a`<=>1 AND `b`<=>'x')/*1*/", ""), (INSERT, "/*1*/", "(1,NULL)"))
    # A message of a transaction that begins as the transaction did, but for the row's name.
    log.rows(0, T, 12, (INSERT, "/*4*/", "(2,'y')"))
    log.rows(0, T, 12, (INSERT, "/*5*/", "(2,'y')"))
    log.rows(0, T, 13, (DELETE, "(`a`<=>1 AND `b`<=>NULL)/*3*/", ""), (DELETE, "(`a`<=>2 AND `b`<=>'y')/*4*/", ""))
    log.watermark(20)

    def begin() -> None:
        run_sql(mariadb, "DROP DATABASE IF EXISTS d", "CREATE DATABASE d", "CREATE TABLE d.t (a INT, b VARCHAR(9))")

    begin()
    clean = Faults()
    with faulty_connections(clean):
        Processor(mariadb, log, fresh_name("clean"), parameters=ONE_BY_ONE, max_txn_row=2).apply(20)
    assert table(mariadb, "d.t") == [(1, "x"), (1, None), (2, "y")]
    died = 0
    for at in range(0, clean.count, 2):
        feed = fresh_name("killed")
        begin()
        with faulty_connections(Faults(at=at)):
            try:
                Processor(mariadb, log, feed, parameters=ONE_BY_ONE, max_txn_row=2).apply(20)
            except Crash:
                died += 1
        Processor(mariadb, log, feed, revision=2, max_txn_row=2).apply(20)
        assert table(mariadb, "d.t") == [(1, "x"), (1, None), (2, "y")], at
    assert died >= 10


@pytest.mark.parametrize("name", KINDS)
def test_recorded_rows_of_every_type_are_found_again_by_what_they_hold(
    mariadb: LocalMariaDb, feed: str, name: str
) -> None:
    """Each version of each row comes and goes as it did at TiDB, without a key; then the conditions of those that are
    left hold for one row each, and all of them go.
    """
    stored = next(stored for stored in recorded_store().stored_at(Ts(2**62)) if stored.table == name)
    query = create_table(replace(stored, schema="keyless"))
    for pattern, instead in OF_MARIADB:
        query = pattern.sub(instead, query)
    run_sql(mariadb, "DROP DATABASE IF EXISTS keyless", create_schema("keyless"))
    run_sql(mariadb, "SET sql_mode = 'NO_BACKSLASH_ESCAPES,ALLOW_INVALID_DATES'", query)
    batch = next(batch for batch in recorded_batches() if batch.table.name == f"d1.{name}")
    keyless = replace(batch.table, schema="keyless", handle_columns=())
    log, left = SinkLog(1), _left(batch.rows)
    _write(log, batch.rows, keyless)
    last = int(batch.rows.commit_ts.max())
    log.watermark(last)
    deletes = [
        CommittedChange(last + 1, last, key, "delete", b"", value, 0) for key, value in sorted(left.items()) if value
    ]
    Processor(mariadb, log, feed).apply(last)
    sent = _write(log, row_changes(int(keyless.table_id), deletes), keyless)
    log.watermark(last + 2)
    assert _count(mariadb, f"keyless.{name}") == len(deletes)
    for condition in sent:
        assert _count(mariadb, f"keyless.{name} WHERE {condition}") == 1, condition
    Processor(mariadb, log, feed, revision=2).apply(last + 2)
    assert _count(mariadb, f"keyless.{name}") == 0
    assert len(deletes) > 0


def test_texts_that_a_collation_takes_for_the_same_are_other_rows(mariadb: LocalMariaDb, feed: str) -> None:
    run_sql(mariadb, "DROP DATABASE IF EXISTS d", "CREATE DATABASE d")
    run_sql(mariadb, "CREATE TABLE d.t (a VARCHAR(9) COLLATE utf8mb4_general_ci, b INT, KEY (a))")
    text = column(1, "a", tp=15, flen=9, charset="utf8mb4", collation="utf8mb4_general_ci")
    columns = [spec | {"offset": at} for at, spec in enumerate([text, column(2, "b")])]
    info = table_info(100, "t", columns=columns, pk_is_handle=False)
    keyless = table_version(info, schema_id=1, schema="d", version=Ts(1))
    texts: list[bytes | None] = [b"a", b"A", b"a ", "á".encode(), b"'\\", b"", b" ", None]
    values = [encode_row_v2({1: text, 2: b"\x01"}) for text in texts]
    keys = [row_key(TableId(100), at) for at in range(len(texts))]
    came = [CommittedChange(10, 9, key, "put", value, b"", 0) for key, value in zip(keys, values, strict=True)]
    went = [CommittedChange(12, 11, keys[at], "delete", b"", values[at], 0) for at in (1, 3, 5, 7)]
    log = SinkLog(1)
    _write(log, row_changes(100, came), keyless)
    _write(log, row_changes(100, went), keyless)
    log.watermark(20)
    Processor(mariadb, log, feed).apply(20)
    assert {row[0] for row in table(mariadb, "d.t")} == {"a", "a ", "'\\", " "}


def test_rows_from_before_a_float_came_are_found_by_its_default(mariadb: LocalMariaDb, feed: str) -> None:
    run_sql(mariadb, "DROP DATABASE IF EXISTS d", "CREATE DATABASE d", "CREATE TABLE d.t (a INT)")
    run_sql(mariadb, "INSERT INTO d.t VALUES (7), (8)", "ALTER TABLE d.t ADD COLUMN f FLOAT DEFAULT 3.14")
    added = column(2, "f", tp=4, flen=12, decimal=-1, origin_default="3.14") | {"offset": 1}
    info = table_info(100, "t", columns=[column(1, "a"), added], pk_is_handle=False)
    keyless = table_version(info, schema_id=1, schema="d", version=Ts(1))
    went = CommittedChange(12, 11, row_key(TableId(100), 1), "delete", b"", encode_row_v2({1: b"\x07"}), 0)
    log = SinkLog(1)
    _write(log, row_changes(100, [went]), keyless)
    log.watermark(20)
    Processor(mariadb, log, feed).apply(20)
    assert [row[0] for row in table(mariadb, "d.t")] == [8]


def _count(mariadb: LocalMariaDb, what: str) -> int:
    connection = mariadb.connect()
    try:
        with connection.cursor() as cursor:
            cursor.execute(f"SET SESSION sql_mode='{ROW_SQL_MODE}', time_zone='+00:00'")
            cursor.execute(f"SELECT COUNT(*) FROM {what}")
            return int(cursor.fetchall()[0][0])
    finally:
        connection.close()


def _left(changes: RowChanges) -> dict[bytes, bytes]:
    """Return the value of each row after the last change; empty: it is gone."""
    values: dict[bytes, bytes] = {}
    for at in np.argsort(changes.commit_ts, kind="stable").tolist():
        values[changes.key[at].as_py()] = changes.value[at].as_py()
    return values


def _write(log: SinkLog, changes: RowChanges, table: TableVersion) -> list[str]:
    """Write rows as a sorter does; return the conditions of those that go."""
    conditions: list[str] = []
    for record in sorted_rows(changes, table, {"force-replicate": True}).to_pylist():
        log.add(0, record["position"], record["key"], record["value"])
        (row,) = _rows_of(record["key"], record["value"])
        if row.op == DELETE:
            conditions.append(row.key.decode("utf-8", "surrogateescape"))
    return conditions


def _rows_of(key: bytes, value: bytes) -> list[SqlRow]:
    form, rows = decode_form(key), decode_rows(value)
    return [rows.row(at, form) for at in range(len(rows))]
