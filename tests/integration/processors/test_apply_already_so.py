"""DDL that a MariaDB refuses because something is there already, or gone: passed over where its effect is there."""

import logging

import pytest

from compose.stack.mariadb import LocalMariaDb
from consumers.processors.apply.errors import DdlRefusedError
from schemas.ddl.job import DdlType
from tests.support.database.apply import Processor, rows, run_sql, table
from tests.support.database.apply_tables import feed
from tests.support.database.mariadb import mariadb
from tests.support.topics.sink_log import SinkLog

__all__ = ["feed", "mariadb"]
TS = 20


def _log(kind: DdlType, query: str, name: str = "d.t", pre: str = "d.t") -> SinkLog:
    log = SinkLog()
    log.ddl(TS, kind, name, query, pre=pre, restored=True)
    log.watermark(TS)
    return log


def _destination(mariadb: LocalMariaDb, *statements: str) -> None:
    run_sql(mariadb, "DROP DATABASE IF EXISTS d", "CREATE DATABASE d", *statements)


def _refused(mariadb: LocalMariaDb, log: SinkLog, feed: str) -> DdlRefusedError:
    with pytest.raises(DdlRefusedError) as caught:
        Processor(mariadb, log, feed).apply(TS)
    return caught.value


def _passed_over(caplog: pytest.LogCaptureFixture) -> list[tuple[int, int, str]]:
    said = [record for record in caplog.records if "passed over" in record.getMessage()]
    assert {record.levelno for record in said} <= {logging.WARNING}
    return [(vars(record)["errno"], vars(record)["commit_ts"], vars(record)["query"]) for record in said]


def test_rename_onto_a_table_that_is_there_stops_and_moves_no_row(mariadb: LocalMariaDb, feed: str) -> None:
    """An online schema change whose old table was left behind: passed over, its rows would be another table's."""
    _destination(
        mariadb,
        "CREATE TABLE d.t (id INT PRIMARY KEY, v INT)",
        "INSERT INTO d.t VALUES (1,10)",
        "CREATE TABLE d._t_old (id INT PRIMARY KEY, v INT)",
    )
    log = _log(DdlType.RENAME_TABLE, "RENAME TABLE `d`.`t` TO `d`.`_t_old`", "d._t_old")
    error = _refused(mariadb, log, feed)
    assert (error.fields["errno"], error.fields["lacks"]) == (1050, "table d.t gone")
    run_sql(mariadb, "DROP TABLE d._t_old")
    Processor(mariadb, log, feed, revision=2).apply(TS)
    assert table(mariadb, "d._t_old") == [(1, 10)]


def test_change_of_several_things_of_which_one_is_there_stops_and_names_the_others(
    mariadb: LocalMariaDb, feed: str
) -> None:
    _destination(mariadb, "CREATE TABLE d.t (id INT PRIMARY KEY, v INT, w INT, gone_not INT, KEY i(v))")
    query = "ALTER TABLE `d`.`t` ADD INDEX `i`(`v`), ADD COLUMN `n` INT, DROP COLUMN `gone_not`"
    log = _log(DdlType.MULTI_SCHEMA_CHANGE, query)
    error = _refused(mariadb, log, feed)
    assert (error.fields["errno"], error.fields["lacks"]) == (1061, "column n; column gone_not gone")
    run_sql(mariadb, "ALTER TABLE d.t DROP INDEX i")
    Processor(mariadb, log, feed, revision=2).apply(TS)
    assert [row[0] for row in rows(mariadb, "SHOW COLUMNS FROM d.t")] == ["id", "v", "w", "n"]
    assert [row[2] for row in rows(mariadb, "SHOW INDEX FROM d.t")] == ["PRIMARY", "i"]


def test_change_of_a_type_beside_an_index_that_is_there_stops(mariadb: LocalMariaDb, feed: str) -> None:
    _destination(mariadb, "CREATE TABLE d.t (id INT PRIMARY KEY, v INT, w INT, KEY i(v))")
    query = "ALTER TABLE `d`.`t` ADD INDEX `i`(`v`), MODIFY COLUMN `w` VARCHAR(20)"
    log = _log(DdlType.MULTI_SCHEMA_CHANGE, query)
    assert "MODIFY COLUMN `w`" in str(_refused(mariadb, log, feed).fields["not_known"])
    run_sql(mariadb, "ALTER TABLE d.t MODIFY COLUMN w VARCHAR(20)")
    Processor(mariadb, log, feed, revision=2).apply(TS)


def test_partitions_of_which_one_is_gone_are_not_taken_for_dropped(mariadb: LocalMariaDb, feed: str) -> None:
    parts = ", ".join(f"PARTITION p{at} VALUES LESS THAN ({at}0)" for at in (1, 2, 3))
    _destination(mariadb, f"CREATE TABLE d.t (id INT PRIMARY KEY) PARTITION BY RANGE (id) ({parts})")
    log = _log(DdlType.DROP_PARTITION, "ALTER TABLE `d`.`t` DROP PARTITION `p0`,`p1`")
    error = _refused(mariadb, log, feed)
    assert (error.fields["errno"], error.fields["lacks"]) == (1507, "partition p1 gone")


@pytest.mark.parametrize(
    ("kind", "query", "number"),
    [
        (DdlType.ADD_COLUMN, "ALTER TABLE `d`.`t` ADD COLUMN `v` INT", 1060),
        (DdlType.DROP_COLUMN, "ALTER TABLE `d`.`t` DROP COLUMN `x`", 1091),
        (DdlType.CREATE_TABLE, "CREATE TABLE `d`.`t` (`id` INT PRIMARY KEY)", 1050),
        (DdlType.MULTI_SCHEMA_CHANGE, "ALTER TABLE `d`.`t` ADD COLUMN `v` INT, ADD INDEX `i`(`v`)", 1060),
        (DdlType.MULTI_SCHEMA_CHANGE, "ALTER TABLE `d`.`t` ADD COLUMN `v` INT, ADD COLUMN `w` INT, LOCK = NONE", 1060),
        (DdlType.MULTI_SCHEMA_CHANGE, "ALTER TABLE `d`.`t` DROP COLUMN `x`, ADD INDEX `I`(`v`)", 1091),
        (DdlType.ADD_COLUMNS, "ALTER TABLE `d`.`t` ADD COLUMN (`v` INT, `w` INT)", 1060),
        (DdlType.DROP_TABLE, "DROP TABLE `d`.`u`", 1051),
        (DdlType.DROP_VIEW, "DROP VIEW `d`.`v`", 4092),
        (DdlType.DROP_PARTITION, "ALTER TABLE `d`.`t` DROP PARTITION `p9`", 1507),
        (DdlType.ADD_PARTITION, "ALTER TABLE `d`.`t` ADD PARTITION (PARTITION `p1` VALUES LESS THAN (90))", 1517),
    ],
)
def test_ddl_whose_effect_is_there_is_passed_over_with_a_warning(
    kind: DdlType, query: str, number: int, mariadb: LocalMariaDb, feed: str, caplog: pytest.LogCaptureFixture
) -> None:
    _destination(
        mariadb,
        "CREATE TABLE d.t (id INT PRIMARY KEY, v INT, w INT, KEY i(v))"
        " PARTITION BY RANGE (id) (PARTITION p1 VALUES LESS THAN (10), PARTITION p2 VALUES LESS THAN (20))",
    )
    shape = rows(mariadb, "SHOW CREATE TABLE d.t")
    Processor(mariadb, _log(kind, query), feed).apply(TS)
    assert _passed_over(caplog) == [(number, TS, query)]
    assert rows(mariadb, "SHOW CREATE TABLE d.t") == shape
