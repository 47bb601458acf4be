"""An index that refuses no row is built beside the rows, once, whatever dies where."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from compose.stack.mariadb import LocalMariaDb
from consumers.processors.apply import ddl
from consumers.processors.apply.errors import DdlRefusedError, DestinationUnreachableError
from consumers.processors.apply.index_builder import IndexBuilder
from consumers.processors.core.apply.index_ddl import IndexDdl
from schemas.ddl.job import DdlType
from schemas.sink.position import RowOp
from tests.support.database.apply import PATIENCE_S, Crash, Faults, Processor, faulty_connections, rows, run_sql, table
from tests.support.database.apply_tables import A, B, feed, two_tables
from tests.support.database.mariadb import mariadb
from tests.support.topics.sink_log import SinkLog, form

__all__ = ["feed", "mariadb"]

INSERT = RowOp.INSERT
INDEX = "ALTER TABLE `a` ADD INDEX (`v`)"
"""Without a name: a second run would make a second one."""
LONG_S = 2.0
"""A DDL that need not wait has run by then."""


def test_apply_index_is_built_beside_the_rows_and_a_later_ddl_of_its_table_waits(
    mariadb: LocalMariaDb, feed: str
) -> None:
    two_tables(mariadb)
    log = SinkLog()
    log.rows(0, A, 10, (INSERT, "1", "(1,1)"))
    log.ddl(11, DdlType.ADD_INDEX, "d.a", INDEX, pre="d.a")
    log.rows(1, B, 12, (INSERT, "(`id`=1 AND `k`='x')", "(1,'x',1)"))
    log.ddl(13, DdlType.ADD_COLUMN, "d.b", "ALTER TABLE `b` ADD COLUMN `w` INT", pre="d.b")
    log.watermark(15)
    log.ddl(16, DdlType.ADD_COLUMN, "d.a", "ALTER TABLE `a` ADD COLUMN `w` INT", pre="d.a")
    log.rows(0, form("d.a", "id", "v", "w"), 17, (INSERT, "2", "(2,2,2)"))
    log.watermark(20)
    holder = mariadb.connect()
    holder.begin()
    holder.cursor().execute("SELECT * FROM d.a")  # no index can be built while this goes on
    processor = Processor(mariadb, log, feed)
    run = processor.open()
    processor.until_true(lambda: run.rows_total == 2 and run.ddl_total == 2 and run.checkpoint_ts >= 10)
    assert run.checkpoint_ts == 10
    assert len(rows(mariadb, "SHOW INDEX FROM d.a")) == 1
    holder.rollback()
    holder.close()
    processor.apply(20)
    assert len(rows(mariadb, "SHOW INDEX FROM d.a")) == 2
    assert table(mariadb, "d.a") == [(1, 1, None), (2, 2, 2)]
    assert table(mariadb, "d.b") == [(1, "x", 1, None)]
    assert rows(mariadb, f"SELECT COUNT(*) FROM tidebus.index_ddl WHERE feed = '{feed}'") == [(0,)]


@pytest.mark.parametrize("referred", [[("d", "a")], []], ids=["told", "of a former release"])
def test_apply_table_made_like_another_has_the_index_that_is_being_built_there(
    mariadb: LocalMariaDb, feed: str, monkeypatch: pytest.MonkeyPatch, referred: list[tuple[str, str]]
) -> None:
    two_tables(mariadb)
    log, may = SinkLog(), threading.Event()
    log.ddl(11, DdlType.ADD_INDEX, "d.a", INDEX, pre="d.a")
    log.ddl(12, DdlType.ADD_COLUMN, "d.b", "ALTER TABLE `b` ADD COLUMN `w` INT", pre="d.b")
    log.ddl(13, DdlType.CREATE_TABLE, "d.c", "CREATE TABLE `c` LIKE `a`", referred=referred)
    log.watermark(20)

    def held(build: Callable[[IndexDdl], None]) -> IndexBuilder:
        def later(index: IndexDdl) -> None:
            assert may.wait(PATIENCE_S)
            build(index)

        return IndexBuilder(later)

    monkeypatch.setattr(ddl, "IndexBuilder", held)
    processor = Processor(mariadb, log, feed)
    run = processor.open()
    processor.until_true(lambda: run.ddl_total == 2)  # the index is noted, and the other table has its column
    time_up = time.monotonic() + LONG_S
    processor.until_true(lambda: time.monotonic() > time_up)
    may.set()
    processor.apply(20)
    assert [len(rows(mariadb, f"SHOW INDEX FROM d.{name}")) for name in ("a", "c")] == [2, 2]


def test_apply_killed_at_every_statement_builds_an_index_once(
    mariadb: LocalMariaDb, fresh_name: Callable[[str], str]
) -> None:
    log = SinkLog(partitions=1)
    log.ddl(12, DdlType.ADD_INDEX, "d.a", INDEX, pre="d.a")
    log.rows(0, A, 13, (INSERT, "1", "(1,1)"))
    log.watermark(20)

    def begin() -> None:
        run_sql(
            mariadb, "DROP DATABASE IF EXISTS d", "CREATE DATABASE d", "CREATE TABLE d.a (id INT PRIMARY KEY, v INT)"
        )

    def check() -> None:
        assert len(rows(mariadb, "SHOW INDEX FROM d.a")) == 2
        assert table(mariadb, "d.a") == [(1, 1)]

    begin()
    clean = Faults()
    with faulty_connections(clean):
        Processor(mariadb, log, fresh_name("clean")).apply(20)
    check()
    built = next(at for at, text in enumerate(clean.said) if text == INDEX)
    for at in range(built - 12, clean.count):
        feed = fresh_name("killed")
        begin()
        with faulty_connections(Faults(at=at)), suppress(Crash, DestinationUnreachableError):
            Processor(mariadb, log, feed, revision=1).apply(20)
        Processor(mariadb, log, feed, revision=2).apply(20)
        check()


def test_apply_index_that_is_refused_is_named_and_can_be_skipped(mariadb: LocalMariaDb, feed: str) -> None:
    two_tables(mariadb)
    log = SinkLog()
    log.ddl(12, DdlType.ADD_INDEX, "d.a", "ALTER TABLE `a` ADD INDEX `i` (`nowhere`)", pre="d.a")
    log.rows(0, A, 13, (INSERT, "1", "(1,1)"))
    log.watermark(20)
    with pytest.raises(DdlRefusedError) as caught:
        Processor(mariadb, log, feed).apply(20)
    assert (caught.value.fields["table"], caught.value.fields["start_ts"]) == ("d.a", 11)
    with pytest.raises(DdlRefusedError):
        Processor(mariadb, log, feed, revision=2).apply(20)
    Processor(mariadb, log, feed, revision=3, ignore_start_ts=frozenset({11})).apply(20)
    assert table(mariadb, "d.a") == [(1, 1)]
