"""DDL that a MariaDB refuses, whose obstacle is taken away by hand: it runs when the changefeed is resumed, once."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

from compose.stack.mariadb import LocalMariaDb
from consumers.processors.apply.errors import DdlRefusedError, DestinationUnreachableError
from schemas.ddl.job import DdlType
from tests.support.database.apply import Crash, Faults, Processor, faulty_connections, rows, run_sql
from tests.support.database.apply_tables import feed
from tests.support.database.mariadb import mariadb
from tests.support.topics.sink_log import SinkLog

__all__ = ["feed", "mariadb"]
TS = 20
COLUMNS = (
    "SELECT GROUP_CONCAT(CONCAT(column_name, ' ', column_type) ORDER BY ordinal_position SEPARATOR ', ')"
    " FROM information_schema.columns WHERE table_schema = 'd' AND table_name = 't'"
)
INDEXES = (
    "SELECT GROUP_CONCAT(index_name ORDER BY index_name) FROM information_schema.statistics"
    " WHERE table_schema = 'd' AND table_name = 't'"
)
TABLES = "SELECT GROUP_CONCAT(table_name) FROM information_schema.tables WHERE table_schema = 'd'"
SCHEMAS = "SELECT COUNT(*) FROM information_schema.schemata WHERE schema_name = 'd'"
FOREIGN_KEYS = (
    "SELECT GROUP_CONCAT(constraint_name) FROM information_schema.referential_constraints WHERE constraint_schema = 'd'"
)
PARTITIONS = (
    "SELECT GROUP_CONCAT(IFNULL(CONCAT(partition_name, ' ', partition_description), '') ORDER BY partition_name)"
    " FROM information_schema.partitions WHERE table_schema = 'd' AND table_name = 't'"
)
COMMENT = "SELECT table_comment FROM information_schema.tables WHERE table_schema = 'd' AND table_name = 't'"
CHARSET = "SELECT default_character_set_name FROM information_schema.schemata WHERE schema_name = 'd'"
WIDE = "CREATE TABLE d.t (id INT PRIMARY KEY, a VARCHAR(700) CHARACTER SET utf8mb4, b INT) ROW_FORMAT=COMPACT"
"""No index can be made on it, for its keys may have 767 bytes."""
DYNAMIC = "ALTER TABLE d.t ROW_FORMAT=DYNAMIC"
LONG = (
    "CREATE TABLE d.t (id INT PRIMARY KEY, a VARCHAR(10000) CHARACTER SET utf8mb4,"
    " b VARCHAR(6000) CHARACTER SET utf8mb4)"
)
"""A row may have 65,535 bytes: one more column is too much."""
SHORTER = "ALTER TABLE d.t MODIFY b TEXT"
PARENT = "CREATE TABLE d.p (id INT PRIMARY KEY)"
CHILD = "CREATE TABLE d.t (id INT PRIMARY KEY, a INT, CONSTRAINT f FOREIGN KEY (a) REFERENCES d.p(id))"
OF_PARTS = (
    "CREATE TABLE d.t (id INT PRIMARY KEY) PARTITION BY RANGE (id)"
    " (PARTITION p0 VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN (20))"
)
LAST_TO_20 = "ALTER TABLE d.t DROP PARTITION p1; ALTER TABLE d.t ADD PARTITION (PARTITION p1 VALUES LESS THAN (20))"


@dataclass(frozen=True)
class Case:
    """A DDL that ``setup`` does not allow, and ``mend`` does; what ``show`` says behind it."""

    kind: DdlType
    query: str
    setup: tuple[str, ...]
    mend: str
    """Statements between semicolons."""
    show: str
    shown: object
    pre: str = "d.t"
    name: str = "d.t"


CASES = {
    "create table": Case(
        DdlType.CREATE_TABLE,
        "CREATE TABLE `d`.`t` (`id` INT PRIMARY KEY)",
        ("DROP DATABASE d",),
        "CREATE DATABASE d",
        TABLES,
        "t",
        pre="",
    ),
    "add column": Case(
        DdlType.ADD_COLUMN,
        "ALTER TABLE `d`.`t` ADD COLUMN `n` VARCHAR(500)",
        (LONG,),
        SHORTER,
        COLUMNS,
        "id int(11), a varchar(10000), b text, n varchar(500)",
    ),
    "drop column": Case(
        DdlType.DROP_COLUMN,
        "ALTER TABLE `d`.`t` DROP COLUMN `a`",
        (PARENT, CHILD),
        "ALTER TABLE d.t DROP FOREIGN KEY f",
        COLUMNS,
        "id int(11)",
    ),
    "add unique": Case(
        DdlType.ADD_INDEX, "ALTER TABLE `d`.`t` ADD UNIQUE `u`(`a`)", (WIDE,), DYNAMIC, INDEXES, "PRIMARY,u"
    ),
    "add unique without a name": Case(
        DdlType.ADD_INDEX, "ALTER TABLE `d`.`t` ADD UNIQUE (`a`, `b`)", (WIDE,), DYNAMIC, INDEXES, "a,a,PRIMARY"
    ),
    "add index beside the rows": Case(
        DdlType.ADD_INDEX, "ALTER TABLE `d`.`t` ADD INDEX `i`(`a`)", (WIDE,), DYNAMIC, INDEXES, "i,PRIMARY"
    ),
    "add index without a name": Case(
        DdlType.ADD_INDEX, "ALTER TABLE `d`.`t` ADD INDEX (`a`)", (WIDE,), DYNAMIC, INDEXES, "a,PRIMARY"
    ),
    "create index": Case(
        DdlType.ADD_INDEX, "CREATE INDEX `i` ON `d`.`t` (`a`)", (WIDE,), DYNAMIC, INDEXES, "i,PRIMARY"
    ),
    "drop index": Case(
        DdlType.DROP_INDEX,
        "DROP INDEX `k` ON `d`.`t`",
        ("CREATE TABLE d.t (id INT PRIMARY KEY, a INT AUTO_INCREMENT, KEY k (a))",),
        "ALTER TABLE d.t MODIFY a INT",
        INDEXES,
        "PRIMARY",
    ),
    "add primary key": Case(
        DdlType.ADD_PRIMARY_KEY,
        "ALTER TABLE `d`.`t` ADD PRIMARY KEY (`a`)",
        (WIDE.replace("id INT PRIMARY KEY", "id INT"),),
        DYNAMIC,
        INDEXES,
        "PRIMARY",
    ),
    "drop primary key": Case(
        DdlType.DROP_PRIMARY_KEY,
        "ALTER TABLE `d`.`t` DROP PRIMARY KEY",
        ("CREATE TABLE d.t (id INT AUTO_INCREMENT PRIMARY KEY)",),
        "ALTER TABLE d.t MODIFY id INT NOT NULL",
        INDEXES,
        None,
    ),
    "add foreign key": Case(
        DdlType.ADD_FOREIGN_KEY,
        "ALTER TABLE `d`.`t` ADD CONSTRAINT `f` FOREIGN KEY (`a`) REFERENCES `d`.`p`(`id`)",
        (PARENT, "CREATE TABLE d.t (id INT PRIMARY KEY, a BIGINT)"),
        "ALTER TABLE d.t MODIFY a INT",
        FOREIGN_KEYS,
        "f",
    ),
    "modify column": Case(
        DdlType.MODIFY_COLUMN,
        "ALTER TABLE `d`.`t` MODIFY COLUMN `a` VARCHAR(700)",
        ("CREATE TABLE d.t (id INT PRIMARY KEY, a VARCHAR(100) CHARACTER SET utf8mb4, KEY k (a)) ROW_FORMAT=COMPACT",),
        DYNAMIC,
        COLUMNS,
        "id int(11), a varchar(700)",
    ),
    "change column": Case(
        DdlType.MODIFY_COLUMN,
        "ALTER TABLE `d`.`t` CHANGE COLUMN `a` `n` VARCHAR(700)",
        ("CREATE TABLE d.t (id INT PRIMARY KEY, a VARCHAR(100) CHARACTER SET utf8mb4, KEY k (a)) ROW_FORMAT=COMPACT",),
        DYNAMIC,
        COLUMNS,
        "id int(11), n varchar(700)",
    ),
    "set default": Case(
        DdlType.SET_DEFAULT_VALUE,
        "ALTER TABLE `d`.`t` ALTER COLUMN `a` SET DEFAULT 7",
        ("CREATE TABLE d.t (id INT PRIMARY KEY)",),
        "ALTER TABLE d.t ADD COLUMN a INT",
        "SELECT column_default FROM information_schema.columns WHERE table_schema = 'd' AND column_name = 'a'",
        "7",
    ),
    "comment of a table that lacks": Case(
        DdlType.MODIFY_TABLE_COMMENT,
        "ALTER TABLE `d`.`t` COMMENT = 'upstream'",
        (),
        "CREATE TABLE d.t (id INT PRIMARY KEY)",
        COMMENT,
        "upstream",
    ),
    "charset of a schema that lacks": Case(
        DdlType.MODIFY_SCHEMA_CHARSET,
        "ALTER DATABASE `d` CHARACTER SET = utf8mb4",
        ("DROP DATABASE d",),
        "CREATE DATABASE d CHARACTER SET latin1",
        CHARSET,
        "utf8mb4",
        pre="",
        name="d",
    ),
    "truncate table": Case(
        DdlType.TRUNCATE_TABLE,
        "TRUNCATE TABLE `d`.`t`",
        (),
        "CREATE TABLE d.t AS SELECT 1 AS id",
        "SELECT COUNT(*) FROM d.t",
        0,
    ),
    "drop table that is a view": Case(
        DdlType.DROP_TABLE,
        "DROP TABLE `d`.`t`",
        (PARENT, "CREATE VIEW d.t AS SELECT id FROM d.p"),
        "DROP VIEW d.t; CREATE TABLE d.t (id INT PRIMARY KEY)",
        TABLES,
        "p",
    ),
    "rename table": Case(
        DdlType.RENAME_TABLE,
        "RENAME TABLE `d`.`t` TO `d`.`n`",
        (),
        "CREATE TABLE d.t (id INT PRIMARY KEY)",
        TABLES,
        "n",
        name="d.n",
    ),
    "several changes": Case(
        DdlType.MULTI_SCHEMA_CHANGE,
        "ALTER TABLE `d`.`t` ADD COLUMN `n` VARCHAR(500), MODIFY COLUMN `a` VARCHAR(9999), ALGORITHM = COPY",
        (LONG,),
        SHORTER,
        COLUMNS,
        "id int(11), a varchar(9999), b text, n varchar(500)",
    ),
    "add partition": Case(
        DdlType.ADD_PARTITION,
        "ALTER TABLE `d`.`t` ADD PARTITION (PARTITION `p2` VALUES LESS THAN (30))",
        (OF_PARTS.replace("(20)", "(MAXVALUE)"),),
        LAST_TO_20,
        PARTITIONS,
        "p0 10,p1 20,p2 30",
    ),
    "other bounds": Case(
        DdlType.REORGANIZE_PARTITION,
        "ALTER TABLE `d`.`t` REORGANIZE PARTITION `p0`,`p1` INTO"
        " (PARTITION `p0` VALUES LESS THAN (5), PARTITION `p1` VALUES LESS THAN (20))",
        (OF_PARTS.replace("20", "30"),),
        LAST_TO_20,
        PARTITIONS,
        "p0 5,p1 20",
    ),
    "remove partitioning": Case(
        DdlType.REMOVE_PARTITIONING,
        "ALTER TABLE `d`.`t` REMOVE PARTITIONING",
        (),
        OF_PARTS,
        PARTITIONS,
        "",
    ),
}


def _log(case: Case) -> SinkLog:
    log = SinkLog()
    log.ddl(TS, case.kind, case.name, case.query, pre=case.pre, restored=True)
    log.watermark(TS)
    return log


def _destination(mariadb: LocalMariaDb, *statements: str) -> None:
    run_sql(mariadb, "SET FOREIGN_KEY_CHECKS = 0", "DROP DATABASE IF EXISTS d", "CREATE DATABASE d", *statements)


def _said(mariadb: LocalMariaDb, sql: str) -> object:
    ((value,),) = rows(mariadb, sql)
    return value


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_ddl_whose_obstacle_was_removed_by_hand_runs_on_resume(case: Case, mariadb: LocalMariaDb, feed: str) -> None:
    _destination(mariadb, *case.setup)
    with pytest.raises(DdlRefusedError):
        Processor(mariadb, _log(case), feed).apply(TS)
    run_sql(mariadb, *case.mend.split("; "))
    Processor(mariadb, _log(case), feed, revision=2).apply(TS)
    assert _said(mariadb, case.show) == case.shown


EXCHANGE = Case(
    DdlType.EXCHANGE_PARTITION,
    "ALTER TABLE `d`.`p` EXCHANGE PARTITION `p0` WITH TABLE `d`.`q`",
    (
        "CREATE TABLE d.p (id INT PRIMARY KEY, v INT) PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (100))",
        "INSERT INTO d.p VALUES (1, 1)",
        "CREATE TABLE d.q (id INT PRIMARY KEY, v BIGINT)",
        "INSERT INTO d.q VALUES (2, 2)",
    ),
    "ALTER TABLE d.q MODIFY v INT",
    "SELECT CONCAT((SELECT GROUP_CONCAT(id) FROM d.p), ' ', (SELECT GROUP_CONCAT(id) FROM d.q))",
    "2 1",
    pre="d.q",
    name="d.p",
)


@dataclass
class DiesBehind(Faults):
    """The processor dies when the server has run a statement."""

    query: str = ""

    def around(self, text: str, call: Callable[[], Any], close: Callable[[], None]) -> Any:
        result = super().around(text, call, close)
        if text == self.query:
            self.dead = True
            close()
            raise Crash
        return result


MENDS = {
    "the table": EXCHANGE.mend,
    "the partition": "ALTER TABLE d.p MODIFY v BIGINT",
    "and exchanged by hand": f"{EXCHANGE.mend}; {EXCHANGE.query}",
}


@pytest.mark.parametrize("mend", MENDS.values(), ids=MENDS)
def test_exchange_that_was_refused_changes_places_once(mend: str, mariadb: LocalMariaDb, feed: str) -> None:
    _destination(mariadb, *EXCHANGE.setup)
    with pytest.raises(DdlRefusedError):
        Processor(mariadb, _log(EXCHANGE), feed).apply(TS)
    run_sql(mariadb, *mend.split("; "))
    Processor(mariadb, _log(EXCHANGE), feed, revision=2).apply(TS)
    assert _said(mariadb, EXCHANGE.show) == "2 1"


@pytest.mark.parametrize("noted", ["of a release before", "of ours"])
def test_exchange_whose_processor_died_behind_it_is_known(noted: str, mariadb: LocalMariaDb, feed: str) -> None:
    """A release before noted one digest of it all."""
    _destination(mariadb, *EXCHANGE.setup, EXCHANGE.mend)
    with faulty_connections(DiesBehind(query=EXCHANGE.query)), suppress(Crash):
        Processor(mariadb, _log(EXCHANGE), feed).apply(TS)
    if noted == "of a release before":
        run_sql(mariadb, f"UPDATE tidebus.changefeed SET ddl_before = '{'0a' * 32}' WHERE feed = '{feed}'")
    Processor(mariadb, _log(EXCHANGE), feed, revision=2).apply(TS)
    assert _said(mariadb, EXCHANGE.show) == "2 1"


def test_change_of_which_no_name_tells_stops_again_where_the_table_was_changed(
    mariadb: LocalMariaDb, feed: str
) -> None:
    """An index over an expression, which a MariaDB has not: whether somebody has made something like it, who knows."""
    _destination(mariadb, "CREATE TABLE d.t (id INT PRIMARY KEY, a INT)")
    case = Case(DdlType.ADD_INDEX, "ALTER TABLE `d`.`t` ADD UNIQUE ((`a` + 1))", (), "", "", "")
    for revision, mend in ((1, "ALTER TABLE d.t ADD COLUMN b INT"), (2, "DO 0"), (3, "DO 0")):
        with pytest.raises(DdlRefusedError) as caught:
            Processor(mariadb, _log(case), feed, revision=revision).apply(TS)
        run_sql(mariadb, mend)
    assert caught.value.fields["not_known"] == "ADD UNIQUE ( ( `a` + 1 ) )"
    Processor(mariadb, _log(case), feed, revision=4, ignore_start_ts=frozenset({TS - 1})).apply(TS)


KILLED = ("add column", "add index beside the rows", "modify column", "rename table", "several changes")


@pytest.mark.parametrize("case", [*(CASES[name] for name in KILLED), EXCHANGE], ids=[*KILLED, "exchange"])
def test_mended_ddl_killed_at_every_statement_goes_on_exactly_once(
    case: Case, mariadb: LocalMariaDb, fresh_name: Callable[[str], str]
) -> None:
    at = 0
    while True:
        feed = fresh_name("mended")
        _destination(mariadb, *case.setup)
        with pytest.raises(DdlRefusedError):
            Processor(mariadb, _log(case), feed).apply(TS)
        run_sql(mariadb, *case.mend.split("; "))
        faults = Faults(at=at)
        with faulty_connections(faults), suppress(Crash, DestinationUnreachableError):
            Processor(mariadb, _log(case), feed, revision=2).apply(TS)
        Processor(mariadb, _log(case), feed, revision=3).apply(TS)
        assert _said(mariadb, case.show) == case.shown, at
        if not faults.dead:
            return
        at += 1
