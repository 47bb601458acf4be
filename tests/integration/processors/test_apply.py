"""A processor writes a sink log into a real MariaDB: exactly once, whatever dies where."""

from collections.abc import Callable

import pymysql
import pytest

from compose.stack.mariadb import LocalMariaDb
from consumers.processors.apply.connection import execute
from consumers.processors.apply.destination import DatabaseDestination
from consumers.processors.apply.errors import (
    DdlRefusedError,
    ProcessorReplacedError,
    RowRefusedError,
)
from consumers.processors.apply.syncpoints import SyncpointWriter
from consumers.processors.core.apply.statements import StatementSettings
from schemas.ddl.job import DdlType
from schemas.ids import Ts, compose_ts
from schemas.sink.parts import cut_message
from schemas.sink.position import RowOp
from tests.support.database.apply import Crash, Faults, Processor, faulty_connections, rows, run_sql, table
from tests.support.database.apply_tables import A, B, feed, two_tables
from tests.support.database.mariadb import mariadb
from tests.support.topics.sink_log import SinkLog, form

__all__ = ["feed", "mariadb"]

INSERT, UPDATE, DELETE = RowOp.INSERT, RowOp.UPDATE, RowOp.DELETE


def test_apply_rows_of_all_kinds_leaves_what_upstream_has(mariadb: LocalMariaDb, feed: str) -> None:
    two_tables(mariadb)
    log = SinkLog()
    log.rows(0, A, 10, (INSERT, "1", "(1,10)"), (INSERT, "2", "(2,20)"))
    log.rows(0, A, 11, (DELETE, "1", ""), (UPDATE, "2", "(2,21)"))
    log.rows(1, B, 11, (INSERT, "(`id`=1 AND `k`='x')", "(1,'x',1)"), (INSERT, "(`id`=1 AND `k`='y')", "(1,'y',2)"))
    log.watermark(15)
    log.rows(1, B, 16, (DELETE, "(`id`=1 AND `k`='x')", ""))
    log.rows(0, A, 17, (INSERT, "1", "(1,11)"))
    log.watermark(20)
    Processor(mariadb, log, feed).apply(20)
    assert table(mariadb, "d.a") == [(1, 11), (2, 21)]
    assert table(mariadb, "d.b") == [(1, "y", 2)]


def test_apply_again_from_the_beginning_changes_nothing(mariadb: LocalMariaDb, feed: str) -> None:
    two_tables(mariadb)
    log = SinkLog()
    log.rows(0, A, 10, (INSERT, "1", "(1,10)"))
    log.watermark(15)
    Processor(mariadb, log, feed).apply(15)
    run_sql(mariadb, "UPDATE d.a SET v = 99")  # a repeat would be seen, and would fail
    for record in [record for records in log.records.values() for record in list(records)]:
        log.add(record.partition, record.position, record.key, record.value)
    log.rows(0, A, 16, (INSERT, "2", "(2,20)"))
    log.watermark(20)
    Processor(mariadb, log, feed, revision=2).apply(20)
    assert table(mariadb, "d.a") == [(1, 99), (2, 20)]


def test_apply_by_a_processor_that_was_replaced_is_refused_by_the_destination(mariadb: LocalMariaDb, feed: str) -> None:
    two_tables(mariadb)
    log = SinkLog()
    log.rows(0, A, 10, (INSERT, "1", "(1,10)"))
    log.watermark(15)
    zombie, heir = Processor(mariadb, log, feed, revision=1), Processor(mariadb, log, feed, revision=2)
    zombie.until(15)
    heir.until(15)
    log.rows(0, A, 16, (INSERT, "2", "(2,20)"))
    log.watermark(20)
    with pytest.raises(ProcessorReplacedError):
        zombie.until(20)
    zombie.close()
    assert table(mariadb, "d.a") == [(1, 10)]
    heir.until(20)
    heir.close()
    assert table(mariadb, "d.a") == [(1, 10), (2, 20)]
    with pytest.raises(ProcessorReplacedError):
        zombie.open()


def test_apply_takes_over_from_one_that_froze_in_a_transaction(
    mariadb: LocalMariaDb, feed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its server-side session holds the lock of a position, until the server ends it."""
    monkeypatch.setattr("consumers.processors.apply.connection.IDLE_MAX_S", 1)
    two_tables(mariadb)
    log = SinkLog()
    log.rows(0, A, 10, (INSERT, "1", "(1,10)"))
    log.watermark(15)
    frozen = Processor(mariadb, log, feed, revision=1)
    frozen.open()
    connection = frozen.connector()()
    connection.begin()
    execute(connection, "UPDATE tidebus.position SET next_offset = 1 WHERE feed = %s", (feed,))
    Processor(mariadb, log, feed, revision=2).apply(15)
    assert table(mariadb, "d.a") == [(1, 10)]
    with pytest.raises(pymysql.MySQLError):
        connection.commit()
    frozen.close()


P, Q = form("d.p", "id", "v"), form("d.q", "id", "v")
COLUMNS = "(`id` INT PRIMARY KEY, `v` INT)"
PARTITIONS = "PARTITION BY RANGE (`id`) (PARTITION `p0` VALUES LESS THAN (100), PARTITION `p1` VALUES LESS THAN (200))"
ONE_BY_ONE = "worker-count=2&multi-stmt-enable=false"
EXCHANGE = "ALTER TABLE `d`.`p` EXCHANGE PARTITION `p0` WITH TABLE `d`.`q`"


def _barrier_log() -> SinkLog:
    """Three DDLs whose repetition shows: a swap of rows, an index without a name, a rename."""
    log = SinkLog()
    log.ddl(5, DdlType.CREATE_TABLE, "d.q", f"CREATE TABLE `q` {COLUMNS}")
    log.ddl(6, DdlType.CREATE_TABLE, "d.p", f"CREATE TABLE `p` {COLUMNS} {PARTITIONS}")
    log.rows(0, P, 10, (INSERT, "1", "(1,1)"), (INSERT, "150", "(150,1)"))
    log.rows(1, Q, 11, (INSERT, "2", "(2,2)"))
    log.ddl(12, DdlType.EXCHANGE_PARTITION, "d.p", EXCHANGE, pre="d.q")
    log.rows(0, P, 13, (UPDATE, "2", "(2,20)"))
    log.ddl(14, DdlType.ADD_INDEX, "d.q", "ALTER TABLE `q` ADD INDEX (`v`)", pre="d.q")
    log.rows(1, Q, 15, (UPDATE, "1", "(1,10)"))
    log.ddl(16, DdlType.RENAME_TABLE, "d.r", "RENAME TABLE `d`.`q` TO `d`.`r`", pre="d.q")
    log.rows(1, form("d.r", "id", "v"), 17, (INSERT, "3", "(3,3)"))
    log.ddl(18, DdlType.TRUNCATE_TABLE, "d.p", "TRUNCATE TABLE `p`", pre="d.p")
    log.rows(0, P, 19, (INSERT, "7", "(7,7)"))
    log.watermark(20)
    return log


def _assert_after_barriers(mariadb: LocalMariaDb) -> None:
    assert table(mariadb, "d.p") == [(7, 7)]
    assert table(mariadb, "d.r") == [(1, 10), (3, 3)]
    assert len(rows(mariadb, "SHOW INDEX FROM d.r")) == 2
    assert [row[0] for row in rows(mariadb, "SHOW TABLES FROM d")] == ["p", "r"]


def test_apply_ddl_runs_where_it_stands_once(mariadb: LocalMariaDb, feed: str) -> None:
    Processor(mariadb, _barrier_log(), feed).apply(20)
    _assert_after_barriers(mariadb)


@pytest.mark.timeout(1200)
def test_apply_killed_at_every_statement_goes_on_exactly_once(
    mariadb: LocalMariaDb, fresh_name: Callable[[str], str]
) -> None:
    """A swap of rows and a rename, rows before and behind each; a second run of either would show.

    Statements are sent one by one, so that there is a place between any two. Killed after one is
    the same to the server as killed before the next, so ``before`` covers both.
    """
    log = SinkLog()
    log.rows(0, P, 10, (INSERT, "1", "(1,1)"))
    log.rows(1, Q, 11, (INSERT, "2", "(2,2)"))
    log.ddl(12, DdlType.EXCHANGE_PARTITION, "d.p", EXCHANGE, pre="d.q")
    log.rows(0, P, 13, (UPDATE, "2", "(2,20)"))
    log.ddl(14, DdlType.RENAME_TABLE, "d.r", "RENAME TABLE `d`.`q` TO `d`.`r`", pre="d.q")
    log.rows(1, form("d.r", "id", "v"), 15, (INSERT, "3", "(3,3)"))
    log.watermark(20)

    def begin() -> None:
        run_sql(mariadb, "DROP DATABASE IF EXISTS d", "CREATE DATABASE d")
        run_sql(mariadb, f"CREATE TABLE d.p {COLUMNS} {PARTITIONS}", f"CREATE TABLE d.q {COLUMNS}")

    def check() -> None:
        assert (table(mariadb, "d.p"), table(mariadb, "d.r")) == ([(2, 20)], [(1, 1), (3, 3)])
        assert [row[0] for row in rows(mariadb, "SHOW TABLES FROM d")] == ["p", "r"]

    begin()
    clean = Faults()
    with faulty_connections(clean):
        Processor(mariadb, log, fresh_name("clean"), parameters=ONE_BY_ONE).apply(20)
    check()
    assert [text.split()[0] for text in clean.said if "`d`.`q`" in text].count("RENAME") == 1
    died = 0
    for at in range(clean.count):
        feed = fresh_name("killed")
        begin()
        with faulty_connections(Faults(at=at)):
            try:
                Processor(mariadb, log, feed, revision=1, parameters=ONE_BY_ONE).apply(20)
            except Crash:
                died += 1
        Processor(mariadb, log, feed, revision=2).apply(20)
        check()
    # Workers run their statements in another order now and then, so that the last numbers may be missed.
    assert died >= clean.count - 5 > 40


@pytest.mark.parametrize(
    ("create", "row", "number"),
    [
        ("", "(2,20)", 1146),
        ("CREATE TABLE d.a (id INT PRIMARY KEY, other INT)", "(2,20)", 1054),
        ("CREATE TABLE d.a (id INT PRIMARY KEY, v TINYINT)", "(2,20000)", 1264),
        ("CREATE TABLE d.a (id INT PRIMARY KEY, v INT); INSERT INTO d.a VALUES (2, 0)", "(2,20)", 1062),
    ],
    ids=["missing table", "other shape", "out of range", "duplicate key"],
)
def test_apply_row_that_is_refused_is_named_and_nothing_has_moved(
    mariadb: LocalMariaDb, feed: str, create: str, row: str, number: int
) -> None:
    run_sql(mariadb, *filter(None, create.split("; ")))
    log = SinkLog()
    log.rows(0, A, 10, (INSERT, "1", "(1,1)"))
    log.rows(0, A, 12, (INSERT, "2", row))
    log.rows(0, A, 13, (INSERT, "3", "(3,3)"))
    log.watermark(20)
    processor = Processor(mariadb, log, feed)
    with pytest.raises(RowRefusedError) as caught:
        processor.apply(20)
    fields = caught.value.fields
    named = (10, "1") if number in (1146, 1054) else (12, "2")
    assert (fields["table"], fields["errno"]) == ("d.a", number)
    assert (fields["commit_ts"], fields["key"]) == named
    (position,) = rows(mariadb, f"SELECT commit_ts FROM tidebus.position WHERE feed = '{feed}' AND part = 0")
    assert position == (1,)
    run_sql(mariadb, "DROP TABLE IF EXISTS d.a", "CREATE TABLE d.a (id INT PRIMARY KEY, v INT)")
    Processor(mariadb, log, feed, revision=2).apply(20)
    assert len(table(mariadb, "d.a")) == 3


def test_apply_row_longer_than_the_server_takes_is_named_and_goes_in_when_it_takes_more(
    mariadb: LocalMariaDb, feed: str
) -> None:
    """The longer row comes in parts, as from a sorter."""
    run_sql(mariadb, "CREATE TABLE d.a (id INT PRIMARY KEY, v LONGBLOB)", "SET GLOBAL max_allowed_packet = 16777216")
    log = SinkLog()
    log.rows(0, A, 10, (INSERT, "1", f"(1,x'{'61' * (7 << 20)}')"))
    log.rows(0, A, 12, (INSERT, "2", f"(2,x'{'62' * (9 << 20)}')"))
    whole = log.records[0].pop()
    for key, piece in cut_message(whole.key or b"", whole.value, 1 << 20):
        log.add(0, whole.position, key, bytes(piece))
    log.watermark(20)
    with pytest.raises(RowRefusedError) as caught:
        Processor(mariadb, log, feed, max_txn_row=1).apply(20)
    fields = caught.value.fields
    assert (fields["table"], fields["key"], fields["commit_ts"], fields["bytes_max"]) == ("d.a", "2", 12, 16 << 20)
    assert fields["bytes"] > 18 << 20 and "max_allowed_packet" in str(fields["what_helps"])  # type: ignore[operator]
    sizes = "SELECT id, LENGTH(v), LEFT(v, 1) FROM d.a ORDER BY id"
    assert rows(mariadb, sizes) == [(1, 7 << 20, b"a")]
    run_sql(mariadb, "SET GLOBAL max_allowed_packet = 67108864")  # as it was
    Processor(mariadb, log, feed, revision=2, max_txn_row=1).apply(20)
    assert rows(mariadb, sizes) == [(1, 7 << 20, b"a"), (2, 9 << 20, b"b")]


def test_apply_without_privilege_names_the_row_and_resumes_when_it_is_given(mariadb: LocalMariaDb, feed: str) -> None:
    two_tables(mariadb)
    run_sql(
        mariadb,
        "CREATE USER IF NOT EXISTS 'poor'@'127.0.0.1' IDENTIFIED BY 'poor'",
        "CREATE DATABASE IF NOT EXISTS tidebus",
        "GRANT ALL ON tidebus.* TO 'poor'@'127.0.0.1'",
        "GRANT SELECT ON d.* TO 'poor'@'127.0.0.1'",
    )
    log = SinkLog()
    log.rows(0, A, 10, (INSERT, "1", "(1,1)"))
    log.watermark(20)
    with pytest.raises(RowRefusedError, match="privilege") as caught:
        Processor(mariadb, log, feed, user=("poor", "poor")).apply(20)
    assert (caught.value.fields["table"], caught.value.fields["commit_ts"]) == ("d.a", 10)
    run_sql(mariadb, "GRANT INSERT, UPDATE, DELETE ON d.* TO 'poor'@'127.0.0.1'")
    Processor(mariadb, log, feed, revision=2, user=("poor", "poor")).apply(20)
    assert table(mariadb, "d.a") == [(1, 1)]


def test_apply_in_safe_mode_writes_over_what_is_there(mariadb: LocalMariaDb, feed: str) -> None:
    two_tables(mariadb)
    run_sql(mariadb, "INSERT INTO d.a VALUES (1, 0), (2, 0)")
    log = SinkLog()
    log.rows(0, A, 10, (INSERT, "1", "(1,1)"))
    log.rows(0, A, 11, (INSERT, "2", "(2,2)"))
    log.rows(0, A, 12, (DELETE, "2", ""))
    log.watermark(20)
    Processor(mariadb, log, feed, settings=StatementSettings(safe_mode=True)).apply(20)
    assert table(mariadb, "d.a") == [(1, 1)]


def test_apply_goes_on_where_another_one_was_ahead_and_is_strict_above_that(
    mariadb: LocalMariaDb, feed: str, fresh_name: Callable[[str], str]
) -> None:
    two_tables(mariadb)
    run_sql(mariadb, "ALTER TABLE d.a ADD UNIQUE KEY (v)")
    before, ahead = SinkLog(), SinkLog()
    for log in (before, ahead):
        log.rows(0, A, 10, (INSERT, "1", "(1,10)"), (INSERT, "2", "(2,20)"))
        log.watermark(15)
        log.rows(0, A, 16, (INSERT, "3", "(3,30)"))
        log.rows(0, A, 17, (DELETE, "1", ""), (UPDATE, "2", "(2,10)"))
        log.rows(0, A, 18, (INSERT, "1", "(1,20)"))
        log.watermark(20)
    Processor(mariadb, ahead, feed).apply(20)
    whole = table(mariadb, "d.a")
    assert whole == [(1, 20), (2, 10), (3, 30)]
    heir = Processor(mariadb, before, fresh_name("heir"), settings=StatementSettings(safe_until_ts=20))
    heir.until(20)
    assert table(mariadb, "d.a") == whole
    run_sql(mariadb, "INSERT INTO d.a VALUES (4, 0)")  # by somebody else
    before.rows(0, A, 25, (INSERT, "4", "(4,40)"))
    before.watermark(26)
    with pytest.raises(RowRefusedError) as caught:
        heir.until(26)
    heir.close()
    assert caught.value.fields["commit_ts"] == 25
    assert table(mariadb, "d.a") == [*whole, (4, 0)]


def test_apply_ddl_that_is_refused_is_named_and_can_be_skipped_or_made_by_hand(
    mariadb: LocalMariaDb, feed: str
) -> None:
    two_tables(mariadb)
    log = SinkLog()
    log.rows(0, A, 9, (INSERT, "1", "(1,1)"))
    log.ddl(10, DdlType.ADD_COLUMN, "d.a", "ALTER TABLE `a` ADD COLUMN `e` VECTOR(3)", pre="d.a")
    log.rows(0, A, 11, (INSERT, "2", "(2,2)"))
    log.ddl(12, DdlType.ADD_COLUMN, "d.a", "ALTER TABLE `a` ADD COLUMN `w` NO_SUCH_TYPE", pre="d.a")
    log.rows(0, form("d.a", "id", "v", "w"), 13, (INSERT, "3", "(3,3,3)"))
    log.watermark(20)
    with pytest.raises(DdlRefusedError) as caught:
        Processor(mariadb, log, feed).apply(20)
    fields = caught.value.fields
    assert (fields["table"], fields["commit_ts"], fields["start_ts"]) == ("d.a", 10, 9)
    assert "VECTOR" in str(fields["query"])
    with pytest.raises(DdlRefusedError) as caught:
        Processor(mariadb, log, feed, revision=2, ignore_start_ts=frozenset({9})).apply(20)
    assert caught.value.fields["commit_ts"] == 12
    run_sql(mariadb, "ALTER TABLE d.a ADD COLUMN w BIGINT")
    Processor(mariadb, log, feed, revision=3).apply(20)
    assert table(mariadb, "d.a") == [(1, 1, None), (2, 2, None), (3, 3, 3)]


def test_apply_syncpoints_are_written_where_the_destination_stands_still(mariadb: LocalMariaDb, feed: str) -> None:
    """Interval 30 s: at 30 s and 60 s; rows at those ts are in, later ones are not."""
    two_tables(mariadb)
    first, second = compose_ts(30_000), compose_ts(60_000)
    log, seen = SinkLog(), list[tuple[int, list[tuple[int, int]]]]()
    for number, ts in enumerate((10, first, first + 1, second - 1, second, second + 1)):
        log.rows(0, A, ts, (INSERT, str(number), f"({number},{number})"))
    log.watermark(compose_ts(61_000))

    class Seeing(SyncpointWriter):
        def write(self, ts: Ts) -> None:
            seen.append((ts, table(mariadb, "d.a")))
            super().write(ts)

    def syncpoints(destination: DatabaseDestination) -> SyncpointWriter:
        return Seeing(
            destination=destination,
            cluster="default",
            changefeed_id=feed,
            namespace="default",
            start_ts=Ts(1),
            interval_s=30,
            retention_s=3600,
        )

    Processor(mariadb, log, feed, syncpoints=syncpoints).apply(compose_ts(61_000))
    assert seen == [(first, [(0, 0), (1, 1)]), (second, [(n, n) for n in range(5)])]
    written = "SELECT primary_ts, secondary_ts FROM tidb_cdc.syncpoint_v1 WHERE changefeed = "
    assert set(rows(mariadb, f"{written}'{feed}'")) == {(str(first), "0"), (str(second), "0")}
    Processor(mariadb, log, feed, revision=2, syncpoints=syncpoints).apply(compose_ts(61_000))
    assert len(seen) == 2, "what is noted is not written again"
