"""A MariaDB that others use and set as they like: what a processor says of locks, small packets, a server that is read
only or has no connection left, and that it goes on by itself once that is over.
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from compose.stack.mariadb import LocalMariaDb
from consumers.processors.apply import connection as connection_module
from consumers.processors.apply.errors import DestinationUnreachableError, RowRefusedError
from schemas.ddl.job import DdlType
from schemas.errors import Action, BusError
from schemas.sink.position import RowOp
from tests.support.database.apply import Processor, rows, run_sql, table
from tests.support.database.apply_tables import A, feed, two_tables
from tests.support.database.mariadb import mariadb
from tests.support.topics.sink_log import SinkLog

__all__ = ["feed", "mariadb"]

PLAIN = ("plain", "plain")
"""A user who may write and is no administrator: one of those may write to a server that is read only, too."""
HURRY = "worker-count=2&read-timeout=5s"


@contextmanager
def set_to(mariadb: LocalMariaDb, variable: str, value: int) -> Iterator[None]:
    """Let a variable of the server have another value meanwhile; new connections get it."""
    ((before,),) = rows(mariadb, f"SELECT @@GLOBAL.{variable}")
    run_sql(mariadb, f"SET GLOBAL {variable} = {value}")
    try:
        yield
    finally:
        run_sql(mariadb, f"SET GLOBAL {variable} = {before}")


@pytest.fixture
def plain(mariadb: LocalMariaDb, feed: str) -> tuple[str, str]:
    two_tables(mariadb)
    run_sql(
        mariadb,
        "CREATE USER IF NOT EXISTS 'plain'@'127.0.0.1' IDENTIFIED BY 'plain'",
        "GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, DROP, ALTER, INDEX ON *.* TO 'plain'@'127.0.0.1'",
    )
    return PLAIN


def log_of(*numbers: int, text: str = "0") -> SinkLog:
    log = SinkLog()
    for number in numbers:
        log.rows(0, A, 10 + number, (RowOp.INSERT, str(number), f"({number},{text})"))
    log.watermark(50)
    return log


def error_of(processor: Processor) -> BusError:
    with pytest.raises(BusError) as caught:
        processor.apply(50)
    return caught.value


def test_apply_to_a_table_that_somebody_has_locked_names_it_and_leaves_no_session_behind(
    mariadb: LocalMariaDb, feed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_tables(mariadb)
    monkeypatch.setattr(connection_module, "LOCK_WAIT_S", 1)
    with closing(mariadb.connect()) as other:
        other.query("LOCK TABLES d.a WRITE")
        error = error_of(Processor(mariadb, log_of(1), feed, parameters=HURRY))
        waiting = rows(
            mariadb, "SELECT id, info FROM information_schema.processlist WHERE state LIKE 'Waiting for table%'"
        )
    assert error.action is Action.RETRY
    assert (error.fields.get("table"), error.fields.get("key"), error.fields.get("commit_ts")) == ("d.a", "1", 11)
    assert "1205" in str(error.fields["reason"])
    assert waiting == []
    Processor(mariadb, log_of(1), feed, revision=2).apply(50)
    assert table(mariadb, "d.a") == [(1, 0)]


def test_ddl_on_a_table_that_somebody_reads_says_that_it_waits_for_a_lock(mariadb: LocalMariaDb, feed: str) -> None:
    two_tables(mariadb)
    log = SinkLog()
    log.ddl(20, DdlType.ADD_COLUMN, "d.a", "ALTER TABLE `d`.`a` ADD COLUMN w INT", pre="d.a")
    log.watermark(50)
    with closing(mariadb.connect()) as other:
        other.begin()
        other.query("SELECT * FROM d.a")
        error = error_of(Processor(mariadb, log, feed, parameters=HURRY))
    assert error.action is Action.RETRY
    assert (error.fields["table"], error.fields["commit_ts"]) == ("d.a", 20)
    assert "1205" in str(error.fields["reason"])
    Processor(mariadb, log, feed, revision=2).apply(50)
    assert rows(mariadb, "SELECT COUNT(*) FROM information_schema.columns WHERE table_name = 'a'") == [(3,)]


def test_apply_to_a_row_that_somebody_has_locked_names_its_table(mariadb: LocalMariaDb, feed: str) -> None:
    two_tables(mariadb)
    run_sql(mariadb, "INSERT INTO d.a VALUES (1, 7)")
    log = SinkLog()
    log.rows(0, A, 11, (RowOp.UPDATE, "1", "(1,8)"))
    log.watermark(50)
    with set_to(mariadb, "innodb_lock_wait_timeout", 1), closing(mariadb.connect()) as other:
        other.begin()
        other.query("SELECT * FROM d.a WHERE id = 1 FOR UPDATE")
        error = error_of(Processor(mariadb, log, feed))
    assert error.action is Action.RETRY
    assert (error.fields.get("table"), error.fields.get("key"), error.fields.get("commit_ts")) == ("d.a", "1", 11)
    Processor(mariadb, log, feed, revision=2).apply(50)
    assert table(mariadb, "d.a") == [(1, 8)]


def test_apply_does_not_blame_a_row_for_a_lock_that_was_taken_while_it_looked_for_the_refused_one(
    mariadb: LocalMariaDb, feed: str
) -> None:
    two_tables(mariadb)
    run_sql(
        mariadb,
        "CREATE TRIGGER d.other BEFORE INSERT ON d.a FOR EACH ROW BEGIN SET @seen = IFNULL(@seen, 0) + 1;"
        " IF @seen = 1 THEN SIGNAL SQLSTATE '45000' SET MYSQL_ERRNO = 1644, MESSAGE_TEXT = 'no';"
        " ELSE SIGNAL SQLSTATE '45000' SET MYSQL_ERRNO = 1205, MESSAGE_TEXT = 'a lock'; END IF; END",
    )
    error = error_of(Processor(mariadb, log_of(1, 2), feed))
    assert isinstance(error, DestinationUnreachableError), error
    run_sql(mariadb, "DROP TRIGGER d.other")
    Processor(mariadb, log_of(1, 2), feed, revision=2).apply(50)
    assert table(mariadb, "d.a") == [(1, 0), (2, 0)]


@pytest.mark.parametrize("packet_bytes", [1 << 20, 64 << 10])
def test_apply_to_a_server_of_small_packets_divides_rows_and_names_the_one_that_is_too_long(
    mariadb: LocalMariaDb, feed: str, packet_bytes: int
) -> None:
    run_sql(mariadb, "CREATE TABLE d.a (id INT PRIMARY KEY, v LONGTEXT)")
    log = SinkLog()
    text = "'" + "x" * 2000 + "'"
    log.rows(0, A, 10, *((RowOp.INSERT, str(number), f"({number},{text})") for number in range(1000)))
    log.rows(0, A, 20, (RowOp.INSERT, "1000", f"(1000,'{'y' * packet_bytes}')"))
    log.watermark(50)
    with set_to(mariadb, "max_allowed_packet", packet_bytes):
        error = error_of(Processor(mariadb, log, feed, max_txn_row=1000))
        assert rows(mariadb, "SELECT COUNT(*) FROM d.a") == [(1000,)]
    assert isinstance(error, RowRefusedError), error
    assert (error.fields["table"], error.fields["key"], error.fields["commit_ts"]) == ("d.a", "1000", 20)
    assert error.fields["bytes_max"] == packet_bytes
    Processor(mariadb, log, feed, revision=2).apply(50)
    assert rows(mariadb, "SELECT COUNT(*), MAX(LENGTH(v)) FROM d.a") == [(1001, packet_bytes)]


@pytest.mark.parametrize("variable", ["read_only", "tx_read_only"])
def test_apply_to_a_server_that_is_read_only_for_a_while_goes_on_by_itself(
    mariadb: LocalMariaDb, feed: str, plain: tuple[str, str], variable: str
) -> None:
    Processor(mariadb, log_of(1), feed, user=plain).apply(50)
    log = log_of(1)
    log.rows(0, A, 60, (RowOp.INSERT, "2", "(2,0)"))
    log.watermark(70)
    with set_to(mariadb, variable, 1), pytest.raises(BusError) as caught:
        Processor(mariadb, log, feed, revision=2, user=plain).apply(70)
    assert caught.value.action is Action.RETRY, caught.value
    Processor(mariadb, log, feed, revision=3, user=plain).apply(70)
    assert table(mariadb, "d.a") == [(1, 0), (2, 0)]


def test_apply_to_a_server_without_a_connection_left_is_tried_again(
    mariadb: LocalMariaDb, feed: str, plain: tuple[str, str]
) -> None:
    with set_to(mariadb, "max_connections", 10):
        held = [mariadb.connect(*plain) for _ in range(10)]
        error = error_of(Processor(mariadb, log_of(1), feed, user=plain))
        for connection in held:
            connection.close()
    assert error.action is Action.RETRY, error
    Processor(mariadb, log_of(1), feed, revision=2, user=plain).apply(50)
    assert table(mariadb, "d.a") == [(1, 0)]
