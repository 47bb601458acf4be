"""What a DDL leaves behind, read from its text."""

import pytest

from consumers.processors.core.apply.ddl_effects import (
    Effect,
    Effects,
    Kind,
    effects_of,
    exchanged_partition,
    is_one_change,
)
from schemas.ddl.job import DdlType
from schemas.ids import Ts
from schemas.sink.sql_rows import SqlDdl


def _ddl(query: str, kind: DdlType = DdlType.MULTI_SCHEMA_CHANGE, *, plain: bool = True) -> SqlDdl:
    return SqlDdl(
        commit_ts=Ts(9),
        ddl_type=kind,
        schema="d",
        table="t",
        pre_schema="d",
        pre_table="t",
        query=query,
        plain_backslashes=plain,
    )


def _column(name: str, is_there: bool = True) -> Effect:
    return Effect(Kind.COLUMN, name, is_there)


def _index(name: str, is_there: bool = True) -> Effect:
    return Effect(Kind.INDEX, name, is_there)


def _partition(name: str, is_there: bool = True) -> Effect:
    return Effect(Kind.PARTITION, name, is_there)


@pytest.mark.parametrize(
    ("changes", "effects"),
    [
        ("ADD COLUMN `A` INT, DROP COLUMN `b`", [_column("a"), _column("b", False)]),
        ("ADD COLUMN (`a` DECIMAL(5,2), `b` INT, UNIQUE `u`(`a`, `b`))", [_column("a"), _column("b"), _index("u")]),
        ("ADD COLUMN /*T! IF NOT EXISTS  */`a` INT AFTER `b`, add c int", [_column("a"), _column("c")]),
        (
            "ADD COLUMN `a` ENUM('x'', ADD COLUMN `n` INT','\\'), DROP COLUMN `b,c`",
            [_column("a"), _column("b,c", False)],
        ),
        ("ADD COLUMN `a` INT, ALGORITHM = INSTANT, LOCK=NONE", [_column("a")]),
        ("ADD COLUMN `algorithm` INT, ALGORITHM DEFAULT, WITHOUT VALIDATION", [_column("algorithm")]),
        ("ADD INDEX `i`(`v`(3), (`w` + 1)), ADD UNIQUE `u`(`v`)", [_index("i"), _index("u")]),
        ("ADD UNIQUE KEY `u` (`v`), DROP INDEX /*T! IF EXISTS  */`i`", [_index("u"), _index("i", False)]),
        (
            "ADD PRIMARY KEY(`id`) /*T![clustered_index] NONCLUSTERED */, drop key i",
            [_index("primary"), _index("i", False)],
        ),
        ("DROP PRIMARY KEY, RENAME COLUMN `a` TO `b`", [_index("primary", False), _column("b"), _column("a", False)]),
        ("RENAME INDEX `i` TO `j`, ADD COLUMN `index` INT", [_index("j"), _index("i", False), _column("index")]),
        (
            "ADD PARTITION (PARTITION `p1` VALUES LESS THAN (10), PARTITION p2 VALUES IN ((1,2)))",
            [_partition("p1"), _partition("p2")],
        ),
        ("DROP PARTITION `p0`,`p1`", [_partition("p0", False), _partition("p1", False)]),
        ("TRUNCATE PARTITION `p0`", [_partition("p0", False)]),
        ("TRUNCATE PARTITION `all`", [_partition("all", False)]),
        (
            "REORGANIZE PARTITION `p0`,`p1` INTO (PARTITION `p0` VALUES IN (5), PARTITION `p2` VALUES IN (9))",
            [_partition("p0"), _partition("p2"), _partition("p1", False)],
        ),
    ],
)
def test_effects_are_told_by_name(changes: str, effects: list[Effect]) -> None:
    assert effects_of(_ddl(f"ALTER TABLE `d`.`t` {changes}")) == Effects(tuple(effects))


@pytest.mark.parametrize(
    ("query", "unknown"),
    [
        ("ALTER TABLE `t` ADD INDEX `i`(`v`), MODIFY COLUMN `w` VARCHAR(20)", "MODIFY COLUMN `w` VARCHAR ( 20 )"),
        ("ALTER TABLE `t` ADD FULLTEXT `i`(`v`)", "ADD FULLTEXT `i` ( `v` )"),
        ("ALTER TABLE `t` ADD INDEX (`v`)", "ADD INDEX ( `v` )"),
        ("ALTER TABLE `t` DROP INDEX `i`, ADD INDEX `i`(`v`)", "index i"),
        (
            "ALTER TABLE `t` ADD CONSTRAINT `f` FOREIGN KEY (`v`) REFERENCES `u`(`id`)",
            "ADD CONSTRAINT `f` FOREIGN KEY ( `v` ) REFERENCES `u` ( `id` )",
        ),
        (
            "ALTER TABLE `t` /*!50100 DROP COLUMN `x`, */ ADD COLUMN `a` INT",
            "ALTER TABLE `t` /*!50100 DROP COLUMN `x`, */ ADD COLUMN `a` INT",
        ),
        ("ALTER TABLE `t` ADD COLUMN `a` INT; DROP TABLE `t`", "ALTER TABLE `t` ADD COLUMN `a` INT; DROP TABLE `t`"),
        ("TRUNCATE TABLE `t`", "TRUNCATE TABLE `t`"),
    ],
)
def test_effects_that_no_name_tells_are_unknown(query: str, unknown: str) -> None:
    assert effects_of(_ddl(query)).unknown == (unknown,)


@pytest.mark.parametrize(
    ("query", "effects"),
    [
        ("CREATE INDEX `i` ON `d`.`t` (`v`)", [_index("i")]),
        ("CREATE UNIQUE INDEX IF NOT EXISTS `i` USING BTREE ON `t` (`v`)", [_index("i")]),
        ("DROP INDEX `I` ON `d`.`t`", [_index("i", False)]),
        ("DROP INDEX IF EXISTS `i` ON `t` ALGORITHM = INPLACE", [_index("i", False)]),
    ],
)
def test_effects_of_a_statement_about_an_index_are_told_by_name(query: str, effects: list[Effect]) -> None:
    assert effects_of(_ddl(query)) == Effects(tuple(effects))


@pytest.mark.parametrize(
    ("changes", "likely"),
    [
        ("ADD INDEX (`V`(3), `w` DESC)", [Effect(Kind.INDEX_ON, "v,w")]),
        ("ADD UNIQUE (`v`) USING BTREE", [Effect(Kind.INDEX_ON, "unique v")]),
        ("ADD FULLTEXT INDEX `i`(`v`)", [_index("i")]),
        ("CHANGE COLUMN `a` `b` INT", [_column("b"), _column("a", False)]),
        ("ADD CONSTRAINT `f` FOREIGN KEY (`v`) REFERENCES `u`(`id`)", [Effect(Kind.FOREIGN_KEY, "f")]),
        ("DROP FOREIGN KEY `f`", [Effect(Kind.FOREIGN_KEY, "f", is_there=False)]),
    ],
)
def test_effects_that_are_no_more_than_likely_are_told_beside_the_unknown(changes: str, likely: list[Effect]) -> None:
    effects = effects_of(_ddl(f"ALTER TABLE `d`.`t` {changes}"))
    assert (effects.named, effects.likely, effects.once) == ((), tuple(likely), ())
    assert len(effects.unknown) == 1


@pytest.mark.parametrize(
    "query",
    [
        "ALTER TABLE `t` MODIFY COLUMN `v` BIGINT",
        "ALTER TABLE `t` CHANGE COLUMN `v` `V` BIGINT",
        "ALTER TABLE `t` ALTER COLUMN `v` SET DEFAULT 5",
        "ALTER TABLE `t` ALTER INDEX `i` INVISIBLE",
        "ALTER TABLE `t` COMMENT = 'x'",
        "ALTER TABLE `t` CONVERT TO CHARACTER SET UTF8MB4",
        "ALTER TABLE `t` /*T![ttl] TTL = `v` + INTERVAL 1 DAY */",
        "ALTER TABLE `t` PARTITION BY HASH (`id`) PARTITIONS 4",
        "ALTER TABLE `t` REORGANIZE PARTITION `p` INTO (PARTITION `p` VALUES LESS THAN (9))",
        "ALTER TABLE `t` DROP INDEX `i`, ADD INDEX `i`(`w`)",
        "ALTER DATABASE `d` CHARACTER SET = utf8mb4",
        "CREATE OR REPLACE VIEW `t` AS SELECT 1",
        "TRUNCATE TABLE `t`",
        "ALTER TABLE `t` TRUNCATE PARTITION ALL",
    ],
)
def test_change_that_sets_something_may_be_done_once_more(query: str) -> None:
    effects = effects_of(_ddl(query))
    assert (effects.named, effects.likely, effects.once) == ((), (), ())
    assert effects.unknown


@pytest.mark.parametrize(
    ("changes", "once"),
    [
        ("EXCHANGE PARTITION `p0` WITH TABLE `u`", ("EXCHANGE PARTITION `p0` WITH TABLE `u`",)),
        ("ADD INDEX ((`v` + 1))", ("ADD INDEX ( ( `v` + 1 ) )",)),
        ("ADD CHECK (`v` > 1)", ("ADD CHECK ( `v` > 1 )",)),
        ("RENAME COLUMN `a` TO `b`, RENAME COLUMN `b` TO `a`", ("column a", "column b")),
        ("CHANGE `a` `b` INT, CHANGE `b` `a` INT", ("column a", "column b")),
    ],
)
def test_change_that_a_second_time_would_spoil_is_done_once(changes: str, once: tuple[str, ...]) -> None:
    effects = effects_of(_ddl(f"ALTER TABLE `t` {changes}"))
    assert (effects.named, effects.likely, sorted(set(effects.once))) == ((), (), sorted(once))


def test_partition_that_is_exchanged_is_told_as_it_is_written() -> None:
    query = "ALTER TABLE `d`.`p` EXCHANGE PARTITION `P``0` WITH TABLE `d`.`t` WITHOUT VALIDATION"
    assert exchanged_partition(_ddl(query)) == "P`0"
    assert exchanged_partition(_ddl("ALTER TABLE `t` DROP PARTITION `p`")) == ""


def test_backslash_within_a_string_is_read_as_the_session_reads_it() -> None:
    query = r"ALTER TABLE `t` ADD COLUMN `a` INT COMMENT '\', DROP COLUMN `b`, COMMENT \''"
    assert effects_of(_ddl(query)).named == (_column("a"), _column("b", False))
    assert effects_of(_ddl(query, plain=False)).named == (_column("a"),)


def test_one_change_is_what_the_error_itself_is_about() -> None:
    assert is_one_change(_ddl("CREATE TABLE `t` (`id` INT)", DdlType.CREATE_TABLE))
    assert is_one_change(_ddl("ALTER TABLE `t` ADD COLUMN `a` INT", DdlType.ADD_COLUMN))
    several = (DdlType.MULTI_SCHEMA_CHANGE, DdlType.ADD_COLUMNS, DdlType.MODIFY_COLUMN, DdlType.DROP_PARTITION)
    assert not any(is_one_change(_ddl("", kind)) for kind in (*several, DdlType.RENAME_TABLE))
