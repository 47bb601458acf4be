"""Whatever a DDL says upstream, a database destination gets one statement, read as TiDB read it, or none."""

import json
from collections.abc import Callable, Iterator

import pymysql
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pymysql.constants import CLIENT

from compose.stack.mariadb import PASSWORD, USER, LocalMariaDb
from consumers.processors.apply.connection import Connector
from schemas.config.changefeed import load_changefeed
from schemas.errors import Action
from schemas.ids import Ts
from schemas.sink.position import Position, PositionClass
from schemas.sink.sql_rows import SqlDdl, decode_ddl
from sorters.core.encode.sql.rows import DdlUnsafeError, SqlRowsEncoder
from sorters.core.sql.ddl_event import DdlEvent, ddl_events
from sorters.core.sql.statement import check_statement, plain_statement
from sorters.core.sql.tokens import MODE_ANSI_QUOTES, MODE_NO_BACKSLASH_ESCAPES, UnsupportedSqlError, tokenize
from tests.support.database.apply import Processor, rows, run_sql
from tests.support.database.mariadb import mariadb
from tests.support.recorded.ddl_jobs import job, snapshot, table_info
from tests.support.topics.sink_log import SinkLog

__all__ = ["mariadb"]

CREATE_TABLE = 3
PIPES_AS_CONCAT = 1 << 1
NESTED = "CREATE TABLE t2 (id INT PRIMARY KEY, v INT, CHECK((((EXTRACT(DAY FROM '2024-01-01') > 0)))))"
"""The restorer does not know EXTRACT: the text itself is looked at."""
DROP = "DROP DATABASE victim"
FINDING = NESTED + rf" COMMENT='\' /* '; {DROP}; -- */"
ATTACKS = [
    pytest.param(FINDING, MODE_NO_BACKSLASH_ESCAPES, id="no_backslash_escapes"),
    pytest.param(NESTED + rf""" COMMENT="\" /* "; {DROP}; -- */""", MODE_NO_BACKSLASH_ESCAPES, id="double quotes"),
    pytest.param(NESTED + f""" /*M! COMMENT='x'; {DROP}; */ COMMENT='a'""", 0, id="mariadb's comment"),
    pytest.param(NESTED + f""" COMMENT='a' /*M!100000 ; {DROP} */""", 0, id="mariadb's comment with a version"),
    pytest.param(NESTED + f" COMMENT='it''s; {DROP}; -- '", 0, id="string"),
    pytest.param(NESTED + f" COMMENT='a' -- ; {DROP};\n", 0, id="comment to the end of the line"),
    pytest.param(NESTED.replace("v INT", f'"v"" INT); {DROP}; -- x" INT'), MODE_ANSI_QUOTES, id="ansi_quotes"),
]
"""Each is one statement to TiDB."""


def event(query: str, sql_mode: int) -> DdlEvent:
    record = job(20, CREATE_TABLE, schema_id=2, table_id=102, query=query, table_info=table_info(102, "t2"))
    record.payload["sql_mode"] = sql_mode
    change = snapshot(("d", 2, [])).apply(record)
    assert change is not None
    (made,) = ddl_events(change)
    return made


def sent(query: str, sql_mode: int) -> SqlDdl:
    return decode_ddl(SqlRowsEncoder().encode_ddl(event(query, sql_mode)).value)


def run(server: LocalMariaDb, value: bytes, feed: str) -> None:
    log = SinkLog()
    position = Position(Ts(20), PositionClass.DDL, Ts(19), key=bytes(4)).encode()
    for part in range(log.partitions):
        log.add(part, position, None, value)
    log.watermark(21)
    Processor(server, log, feed).apply(21)


@pytest.fixture
def victim(mariadb: LocalMariaDb) -> Iterator[LocalMariaDb]:
    run_sql(mariadb, "CREATE OR REPLACE DATABASE victim", "CREATE TABLE victim.t (id INT)")
    run_sql(mariadb, "CREATE OR REPLACE DATABASE d")
    yield mariadb
    run_sql(mariadb, "DROP DATABASE IF EXISTS victim", "DROP DATABASE d")


@pytest.mark.parametrize(("query", "sql_mode"), ATTACKS)
def test_ddl_at_a_database_creates_its_table_and_drops_nothing(
    victim: LocalMariaDb, fresh_name: Callable[[str], str], query: str, sql_mode: int
) -> None:
    run(victim, SqlRowsEncoder().encode_ddl(event(query, sql_mode)).value, fresh_name("feed"))
    assert rows(victim, "SHOW TABLES FROM d") == [("t2",)]
    assert rows(victim, "SHOW TABLES FROM victim") == [("t",)]


def test_connection_for_ddl_takes_no_second_statement(victim: LocalMariaDb) -> None:
    config = load_changefeed(victim.uri("multi-stmt-enable=true"))
    assert config.uri.server is not None
    connection = Connector(config.uri.server, config)()
    try:
        with pytest.raises(pymysql.MySQLError):
            connection.query(f"DO 1; {DROP}".encode())
    finally:
        connection.close()
    assert rows(victim, "SHOW TABLES FROM victim") == [("t",)]


def test_upstreams_ways_of_reading_go_with_the_statement(
    victim: LocalMariaDb, fresh_name: Callable[[str], str]
) -> None:
    query = NESTED.replace("v INT", "v VARCHAR(9) AS ('a' || 'b')")
    ddl = sent(query, PIPES_AS_CONCAT | MODE_NO_BACKSLASH_ESCAPES | 1 << 21)
    assert (ddl.sql_mode, ddl.plain_backslashes) == (PIPES_AS_CONCAT, True)
    run(victim, SqlRowsEncoder().encode_ddl(event(query, ddl.sql_mode)).value, fresh_name("feed"))
    run_sql(victim, "INSERT INTO d.t2 (id) VALUES (1)")
    assert rows(victim, "SELECT v FROM d.t2") == [("ab",)]


@pytest.mark.parametrize(
    "query",
    [
        NESTED + f"; {DROP}",
        NESTED + " COMMENT='open",
        NESTED + " /*! COMMENT='open'",
        NESTED + " /* open",
        NESTED + " */",
        NESTED + " COMMENT='a' /*T![ttl] COMMENT '*/; DROP DATABASE victim; -- ' */",
        "CREATE TABLE t2 (`*/ d` DATETIME) TTL = `*/ d` + INTERVAL 3 MONTH",
        "CREATE TABLE t2 (id INT) \x00",
        ";",
    ],
)
def test_ddl_that_may_be_more_than_one_statement_is_refused_by_name(query: str) -> None:
    with pytest.raises(DdlUnsafeError) as caught:
        sent(query, 0)
    assert caught.value.action is Action.STOP_CHANGEFEED
    assert caught.value.code == "sink.ddl_unsafe"
    assert "filter.ignore-txn-start-ts" in caught.value.message
    assert (caught.value.fields["table"], caught.value.fields["start_ts"]) == ("d.t2", 19)


def test_several_create_tables_in_a_text_that_nobody_can_split_are_refused() -> None:
    infos = [table_info(102, "a"), table_info(103, "b")]
    record = job(20, 60, schema_id=2, query=f"{NESTED}; {NESTED}", table_infos=infos)
    change = snapshot(("d", 2, [])).apply(record)
    assert change is not None
    for made in ddl_events(change):
        with pytest.raises(DdlUnsafeError):
            SqlRowsEncoder().encode_ddl(made)


def test_split_statement_keeps_its_backslashes() -> None:
    infos = [table_info(102, "a"), table_info(103, "b")]
    query = r"create table a (v int comment 'x\\b'); create table b (v int)"
    change = snapshot(("d", 2, [])).apply(job(20, 60, schema_id=2, query=query, table_infos=infos))
    assert change is not None
    assert ddl_events(change)[0].query == r"CREATE TABLE `a` (`v` INT COMMENT 'x\b')"


def test_ddl_of_an_older_release_still_reads() -> None:
    value = json.loads(SqlRowsEncoder().encode_ddl(event(NESTED, 0)).value)
    del value["sql_mode"]
    assert decode_ddl(json.dumps(value).encode()).sql_mode == 0


@pytest.mark.parametrize(
    "text",
    """a; b|a;|a -- b|a--|a # b|a /* b */|a /*! b */|a /*M! b */|a */|'a|`a|"a"|a /*T! b|a /*T! '*/' */
a /*T! /*T! b */ */|a /*T! `*/`|\\'|a\x00|a /*T! ; */|a /*T! -- */""".replace("\n", "|").split("|"),
)
def test_check_refuses_what_two_servers_may_read_differently(text: str) -> None:
    with pytest.raises(UnsupportedSqlError):
        check_statement(text)


@pytest.mark.parametrize("text", ["", "a - - b", "'-- ; # /*' `\"`", "a /*T![ttl] b 'c' */ d", "1-1", "a--1", "'\\'"])
def test_check_takes_one_statement(text: str) -> None:
    check_statement(text)


FRAGMENTS = [
    "'",
    '"',
    "`",
    "\\",
    "/*",
    "/*!",
    "/*!40101 ",
    "/*M!",
    "/*T!",
    "/*T![ttl] ",
    "/*T![x] ",
    "/*+",
    "*/",
    ";",
    "--",
    "-- ",
]
FRAGMENTS += [
    "#",
    "\n",
    " ",
    "\xa0",
    "a",
    "1",
    "''",
    '""',
    "N",
    "x",
    "-",
    "/",
    "*",
    "DROP TABLE victim.t",
    "\x00",
    "😀",
]
TEXTS = st.lists(st.sampled_from(FRAGMENTS), max_size=24).map("".join) | st.text(max_size=40)
MODES = st.sampled_from([0, MODE_ANSI_QUOTES, MODE_NO_BACKSLASH_ESCAPES, MODE_ANSI_QUOTES | MODE_NO_BACKSLASH_ESCAPES])


@given(TEXTS, MODES)
@settings(max_examples=2000)
def test_any_text_is_refused_by_a_code_or_reads_as_it_was_written(text: str, sql_mode: int) -> None:
    try:
        plain = plain_statement(text, sql_mode)
    except UnsupportedSqlError:
        return
    assert [
        token for token in tokenize(text, sql_mode) if token.text != ";" or token.kind.value != "symbol"
    ] == tokenize(plain, MODE_NO_BACKSLASH_ESCAPES)
    assert plain_statement(plain, MODE_NO_BACKSLASH_ESCAPES).split() == plain.split()


@given(TEXTS, MODES)
@settings(max_examples=500)
def test_any_ddl_is_encoded_or_refused_by_a_code(text: str, sql_mode: int) -> None:
    try:
        ddl = sent(f"CREATE TABLE t2 {text}", sql_mode)
    except DdlUnsafeError:
        return
    check_statement(ddl.query)


DROP_IT = "; DROP TABLE victim.t"
TRIVIA = st.sampled_from(
    [
        *(" ", "\n", "/*! */", "/*!50000 + 1 */", "/*M!*/", "/*T! + 1 */", "/*! -- */", f"-- {DROP_IT}\n"),
        *(f"/*{DROP_IT} */", f"/*M!{DROP_IT} */", f"/*M!100000{DROP_IT} */", f"/*T!{DROP_IT} */", f"#{DROP_IT}\n"),
        f"/*T! '*/{DROP_IT}; -- ' */",
    ]
)
CONTENT = st.lists(
    st.sampled_from(
        ["\\", "'", '"', "`", "/*", "*/", "; DROP TABLE victim.t; -- ", "#", "a", " ", "\n", "😀", "é", "\x00"]
    ),
    max_size=8,
).map("".join)


@st.composite
def literals(draw: st.DrawFn) -> str:
    quote = draw(st.sampled_from("'\""))
    text = draw(CONTENT)
    if draw(st.booleans()):
        text = text.replace("\\", "\\\\")
    return quote + text.replace(quote, quote * 2) + quote


@given(st.lists(st.tuples(TRIVIA, literals(), TRIVIA), min_size=1, max_size=4), MODES)
@settings(max_examples=600)
def _one_statement_arrives(
    connection: "pymysql.connections.Connection[pymysql.cursors.Cursor]",
    parts: list[tuple[str, str, str]],
    sql_mode: int,
) -> None:
    text = "DO " + ",".join("".join(part) for part in parts)
    try:
        plain = plain_statement(text, sql_mode)
        check_statement(plain)
    except UnsupportedSqlError:
        return
    with connection.cursor() as cursor:
        try:
            cursor.execute(plain)
        except pymysql.MySQLError as error:
            assert error.args[0] in {1054, 1064, 1300, 1366}  # no such column, no SQL, no such text: nothing ran
        else:
            assert cursor.nextset() is None
        cursor.execute("SELECT COUNT(*) FROM victim.t")


def test_whatever_the_text_at_most_one_statement_arrives(victim: LocalMariaDb) -> None:
    connection = pymysql.connect(
        host="127.0.0.1",
        port=victim.port,
        user=USER,
        password=PASSWORD,
        charset="utf8mb4",
        client_flag=CLIENT.MULTI_STATEMENTS,  # what the product's connection for DDL has not: the text alone must hold
    )
    try:
        with connection.cursor() as cursor:
            cursor.execute("SET SESSION sql_mode = 'NO_BACKSLASH_ESCAPES'")
        _one_statement_arrives(connection)
    finally:
        connection.close()
