"""A MariaDB whose default character set holds no Chinese: statements with such comments are noted and run."""

from collections.abc import Callable, Iterator

import pytest

from compose.stack.mariadb import LocalMariaDb
from schemas.ddl.job import DdlType
from tests.support.database.apply import Processor, rows, run_sql
from tests.support.database.mariadb import started_or_skip
from tests.support.topics.sink_log import SinkLog

QUERY = "ALTER TABLE `d`.`a` ADD COLUMN `c` INT COMMENT '价格🙂'"


@pytest.fixture(scope="module")
def latin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalMariaDb]:
    folder = tmp_path_factory.mktemp("latin")
    with started_or_skip(LocalMariaDb(data=folder, options=("--character-set-server=latin1",))) as server:
        yield server


@pytest.fixture
def log(latin: LocalMariaDb) -> SinkLog:
    run_sql(latin, "DROP DATABASE IF EXISTS tidebus", "DROP DATABASE IF EXISTS d")
    run_sql(latin, "CREATE DATABASE d CHARACTER SET utf8mb4", "CREATE TABLE d.a (id INT PRIMARY KEY)")
    log = SinkLog()
    log.ddl(20, DdlType.ADD_COLUMN, "d.a", QUERY, pre="d.a", restored=True)
    log.watermark(20)
    return log


def _comments(server: LocalMariaDb) -> list[str]:
    connection = server.connect()
    try:
        with connection.cursor() as cursor:
            cursor.execute("SET NAMES utf8mb4")
            cursor.execute("SHOW FULL COLUMNS FROM d.a")
            return [str(row[-1])[:2] for row in cursor.fetchall()]  # this server keeps no emoji in a comment
    finally:
        connection.close()


def test_statement_is_noted_whatever_the_servers_character_set(
    latin: LocalMariaDb, log: SinkLog, fresh_name: Callable[[str], str]
) -> None:
    Processor(latin, log, fresh_name("feed")).apply(20)
    assert _comments(latin) == ["", "价格"]
    noted = rows(latin, "SELECT CONVERT(ddl_query USING utf8mb4) COLLATE utf8mb4_bin = _utf8mb4 x'"
                 f"{QUERY.encode().hex()}' FROM tidebus.changefeed")  # fmt: skip
    assert noted == [(1,)]


@pytest.mark.parametrize("charset", ["latin1", "utf8mb3"])
def test_statement_that_a_table_of_a_release_before_cannot_hold_is_noted_in_escapes(
    charset: str, latin: LocalMariaDb, log: SinkLog, fresh_name: Callable[[str], str]
) -> None:
    name = fresh_name("feed")
    processor = Processor(latin, SinkLog(), name)
    processor.open()
    processor.close()
    run_sql(latin, f"ALTER TABLE tidebus.changefeed MODIFY ddl_query LONGTEXT CHARACTER SET {charset} NULL")
    Processor(latin, log, name, revision=2).apply(20)
    assert _comments(latin) == ["", "价格"]
    noted = QUERY.replace("价格🙂", r"\u4ef7\u683c\U0001f642")
    assert rows(latin, "SELECT ddl_query FROM tidebus.changefeed") == [(noted,)]
