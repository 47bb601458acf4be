"""Unique keys that rows do not hold, and rows that stay behind upstream's, in a real MariaDB."""

from typing import Any

import pytest

from compose.stack.mariadb import LocalMariaDb
from consumers.processors.core.apply.statements import StatementSettings
from schemas.ids import TableId, Ts
from schemas.sink.sql_rows import decode_form
from schemas.tidb.keys import row_key
from schemas.tidb.row_v2 import encode_row_v2
from schemas.tidb.table_info import table_version
from tests.support.database.apply import Processor, run_sql, table
from tests.support.database.apply_tables import feed
from tests.support.database.mariadb import mariadb
from tests.support.database.sorted_rows import sorted_rows
from tests.support.recorded.ddl_jobs import column, index, table_info
from tests.support.recorded.mounting import row_changes
from tests.support.recorded.recording import CommittedChange
from tests.support.topics.sink_log import SinkLog

__all__ = ["feed", "mariadb"]

BEFORE = {1: (b"x", 0), 2: (b"z", 0)}
Rows = dict[int, tuple[bytes, int]]


def _info(**more: Any) -> dict[str, Any]:
    """Return ``t (id INT PRIMARY KEY, email VARCHAR(20), n INT)`` with what ``more`` says."""
    email = column(2, "email", tp=15, flen=20, charset="utf8mb4", collation="utf8mb4_bin")
    columns = [column(1, "id", not_null=True, flag=2), email, column(3, "n"), *more.pop("columns", [])]
    return {**table_info(100, "t", columns=[spec | {"offset": at} for at, spec in enumerate(columns)]), **more}


def _change(ts: int, key: int, old: tuple[bytes, int] | None, new: tuple[bytes, int] | None) -> CommittedChange:
    def value(row: tuple[bytes, int] | None) -> bytes:
        return b"" if row is None else encode_row_v2({2: row[0], 3: bytes([row[1]])})

    row = row_key(TableId(100), key)
    return CommittedChange(ts, ts - 1, row, "delete" if new is None else "put", value(new), value(old), 0)


def _changes(rows: Rows, *steps: tuple[int, tuple[bytes, int] | None]) -> list[CommittedChange]:
    """Return a transaction for each step: the key, and what it has then."""
    rows, changes = dict(rows), list[CommittedChange]()
    for number, (key, new) in enumerate(steps):
        changes.append(_change(10 + 2 * number, key, rows.get(key), new))
        if new is None:
            del rows[key]
        else:
            rows[key] = new
    return changes


@pytest.mark.parametrize("max_txn_row", [2048, 1])
@pytest.mark.parametrize("safe_mode", [False, True])
def test_value_of_an_expression_that_one_row_gives_up_goes_to_another_in_a_batch(
    mariadb: LocalMariaDb, feed: str, max_txn_row: int, safe_mode: bool
) -> None:
    run_sql(
        mariadb,
        "DROP DATABASE IF EXISTS d",
        "CREATE DATABASE d",
        "CREATE TABLE d.t (id INT PRIMARY KEY, email VARCHAR(20), n INT, "
        "low VARCHAR(20) AS (lower(email)) VIRTUAL, UNIQUE KEY (low))",
        "INSERT INTO d.t (id, email, n) VALUES (1,'x',0), (2,'z',0)",
    )
    hidden = column(4, "_V$_u_0", tp=15) | {"generated_expr_string": "lower(`email`)", "hidden": True}
    info = _info(columns=[hidden], index_info=[index(1, "u", [3], unique=True)])
    steps = (1, (b"y", 0)), (2, (b"X", 0)), (1, (b"y", 1))  # x is free, x is taken, and the first row is touched again
    log = SinkLog(partitions=1)
    version = table_version(info, schema_id=1, schema="d", version=Ts(1))
    log.add_all(sorted_rows(row_changes(100, _changes(BEFORE, *steps)), version))
    log.watermark(20)
    settings = StatementSettings(safe_mode=safe_mode)
    Processor(mariadb, log, feed, max_txn_row=max_txn_row, settings=settings).apply(20)
    assert table(mariadb, "d.t") == [(1, "y", 1, "y"), (2, "X", 0, "x")]


IGNORES_DELETES = {"filter": {"event-filters": [{"matcher": ["d.*"], "ignore-event": ["delete"]}]}}
IGNORES_SOME_DELETES = {"filter": {"event-filters": [{"matcher": ["d.*"], "ignore-delete-value-expr": "n > 5"}]}}
IGNORES_UPDATES = {"filter": {"event-filters": [{"matcher": ["d.*"], "ignore-event": ["update"]}]}}


@pytest.mark.parametrize("max_txn_row", [2048, 1])
@pytest.mark.parametrize(
    ("config", "steps", "left"),
    [
        (IGNORES_DELETES, [(1, None), (1, (b"y", 1))], [(1, "y", 1), (2, "z", 0)]),
        (IGNORES_DELETES, [(1, None), (3, (b"x", 1))], [(2, "z", 0), (3, "x", 1)]),
        (IGNORES_SOME_DELETES, [(1, (b"x", 9)), (1, None), (1, (b"x", 1))], [(1, "x", 1), (2, "z", 0)]),
        (IGNORES_UPDATES, [(1, (b"y", 0)), (3, (b"x", 1))], [(2, "z", 0), (3, "x", 1)]),
    ],
    ids=["key", "unique value", "expression", "update"],
)
def test_what_an_event_filter_left_at_the_destination_is_replaced_when_its_key_comes_again(
    mariadb: LocalMariaDb,
    feed: str,
    max_txn_row: int,
    config: dict[str, Any],
    steps: list[tuple[int, tuple[bytes, int] | None]],
    left: list[tuple[int, str, int]],
) -> None:
    run_sql(
        mariadb,
        "DROP DATABASE IF EXISTS d",
        "CREATE DATABASE d",
        "CREATE TABLE d.t (id INT PRIMARY KEY, email VARCHAR(20), n INT, UNIQUE KEY (email))",
        "INSERT INTO d.t VALUES (1,'x',0), (2,'z',0)",
    )
    info = _info(index_info=[index(1, "u", [1], unique=True)])
    version = table_version(info, schema_id=1, schema="d", version=Ts(1))
    log = SinkLog(partitions=1)
    log.add_all(sorted_rows(row_changes(100, _changes(BEFORE, *steps)), version, config))
    log.watermark(20)
    Processor(mariadb, log, feed, max_txn_row=max_txn_row).apply(20)
    assert table(mariadb, "d.t") == left


@pytest.mark.parametrize(
    ("events", "unique", "overwrites"),
    [
        (["delete"], False, True),
        (["all dml"], False, True),
        (["update"], False, False),
        (["update"], True, True),
        (["insert"], True, False),
        ([], True, False),
    ],
)
def test_only_tables_that_may_keep_what_upstream_has_no_more_are_written_over(
    events: list[str], unique: bool, overwrites: bool
) -> None:
    info = _info(index_info=[index(1, "u", [1], unique=True)] if unique else [])
    version = table_version(info, schema_id=1, schema="d", version=Ts(1))
    changes = row_changes(100, _changes(BEFORE, (3, (b"a", 0)), (3, (b"b", 0)), (3, None)))
    for matcher in ("d.t", "d.other"):
        config = {"filter": {"event-filters": [{"matcher": [matcher], "ignore-event": events}]}}
        forms = {decode_form(key) for key in sorted_rows(changes, version, config).column("key").to_pylist()}
        assert {form.overwrites for form in forms} <= {overwrites and matcher == "d.t"}
