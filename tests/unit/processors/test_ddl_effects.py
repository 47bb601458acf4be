"""What a DDL of several changes leaves behind, read from its text."""

import pytest

from consumers.processors.core.apply.ddl_effects import Effect, Effects, Kind, effects_of, is_one_change
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


def test_backslash_within_a_string_is_read_as_the_session_reads_it() -> None:
    query = r"ALTER TABLE `t` ADD COLUMN `a` INT COMMENT '\', DROP COLUMN `b`, COMMENT \''"
    assert effects_of(_ddl(query)).named == (_column("a"), _column("b", False))
    assert effects_of(_ddl(query, plain=False)).named == (_column("a"),)


def test_one_change_is_what_the_error_itself_is_about() -> None:
    assert is_one_change(_ddl("CREATE TABLE `t` (`id` INT)", DdlType.CREATE_TABLE))
    assert is_one_change(_ddl("ALTER TABLE `t` ADD COLUMN `a` INT", DdlType.ADD_COLUMN))
    several = (DdlType.MULTI_SCHEMA_CHANGE, DdlType.ADD_COLUMNS, DdlType.MODIFY_COLUMN, DdlType.DROP_PARTITION)
    assert not any(is_one_change(_ddl("", kind)) for kind in (*several, DdlType.RENAME_TABLE))
