"""DDL that upstream's users say from another schema than its table's does at a real server what it did upstream."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from compose.stack.mariadb import LocalMariaDb
from schemas.ddl.job import DdlType
from schemas.ids import Ts
from schemas.sink.position import Position, PositionClass
from sorters.core.encode.sql.rows import SqlRowsEncoder
from sorters.core.sql.ddl_event import ddl_events
from tests.support.database.apply import Processor, rows, run_sql
from tests.support.database.mariadb import mariadb
from tests.support.recorded.ddl_jobs import job, snapshot, table_info, view_info
from tests.support.topics.sink_log import SinkLog

__all__ = ["mariadb"]


@pytest.fixture
def server(mariadb: LocalMariaDb) -> Iterator[LocalMariaDb]:
    """One with ``d.t`` and ``e.t``, of which the latter has a column more."""
    run_sql(mariadb, "CREATE OR REPLACE DATABASE d", "CREATE OR REPLACE DATABASE e")
    run_sql(mariadb, "CREATE TABLE d.t (id INT PRIMARY KEY, v INT)", "INSERT INTO d.t VALUES (1, 1)")
    run_sql(mariadb, "CREATE TABLE e.t (id INT PRIMARY KEY, v INT, w INT)", "INSERT INTO e.t VALUES (2, 2, 2)")
    yield mariadb
    run_sql(mariadb, "DROP DATABASE IF EXISTS d", "DROP DATABASE IF EXISTS e")


def run(server: LocalMariaDb, feed: str, kind: DdlType, schema_id: int, query: str, info: dict[str, Any]) -> None:
    """Run upstream's job at the destination; ``d`` is schema 2 and has table 50, ``e`` is 3 and has 60."""
    record = job(20, kind, schema_id=schema_id, table_id=info["id"], query=query, table_info=info)
    record.payload["involving_schema_info"] = [{"database": "d", "table": "t", "mode": 1}]
    change = snapshot(("d", 2, [table_info(50, "t")]), ("e", 3, [table_info(60, "t")])).apply(record)
    assert change is not None
    (event,) = ddl_events(change)
    log = SinkLog()
    for part in range(log.partitions):
        position = Position(Ts(20), PositionClass.DDL, Ts(19), key=bytes(4)).encode()
        log.add(part, position, None, SqlRowsEncoder().encode_ddl(event).value)
    log.watermark(21)
    Processor(server, log, feed).apply(21)


@pytest.mark.parametrize("query", ["RENAME TABLE e.t TO n", "ALTER TABLE e.t RENAME TO n"])
def test_table_is_renamed_into_the_schema_of_the_session(
    server: LocalMariaDb, fresh_name: Callable[[str], str], query: str
) -> None:
    run(server, fresh_name("feed"), DdlType.RENAME_TABLE, 2, query, table_info(60, "n"))
    assert rows(server, "SHOW TABLES FROM d") == [("n",), ("t",)]
    assert rows(server, "SHOW TABLES FROM e") == []
    assert rows(server, "SELECT * FROM d.n") == [(2, 2, 2)]


def test_table_of_another_schema_is_made_like_one_of_the_sessions(
    server: LocalMariaDb, fresh_name: Callable[[str], str]
) -> None:
    info = table_info(100, "c")
    run(server, fresh_name("feed"), DdlType.CREATE_TABLE, 3, "CREATE TABLE e.c LIKE t", info)
    assert len(rows(server, "SHOW COLUMNS FROM e.c")) == 2


def test_view_of_another_schema_reads_the_sessions_tables(
    server: LocalMariaDb, fresh_name: Callable[[str], str]
) -> None:
    info = view_info(100, "w", "SELECT `d`.`t`.`id` AS `id` FROM `d`.`t`")
    run(server, fresh_name("feed"), DdlType.CREATE_VIEW, 3, "CREATE OR REPLACE VIEW e.w AS SELECT id FROM t", info)
    assert rows(server, "SELECT * FROM e.w") == [(1,)]
