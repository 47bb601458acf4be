"""A string of a statement goes out as one literal, or not at all, whichever option it is of."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sorters.core.sql.restore import restore
from sorters.core.sql.statement import check_statement, plain_statement
from sorters.core.sql.tokens import MODE_NO_BACKSLASH_ESCAPES, UnsupportedSqlError
from tests.attacks.test_ddl_comments import sent

TABLE_OPTIONS = """CHARSET|CHARACTER SET =|DEFAULT CHARSET =|COLLATE|COLLATE =|ENGINE|ENGINE =|COMMENT|COMMENT =
COMPRESSION =|CONNECTION =|ENCRYPTION =|PASSWORD =|ROW_FORMAT =|PLACEMENT POLICY =|TTL_ENABLE =|TTL_JOB_INTERVAL =
SECONDARY_ENGINE =|ENGINE_ATTRIBUTE =|DATA DIRECTORY =|INDEX DIRECTORY =|STORAGE MEDIA|AFFINITY =|STATS_OPTIONS =
AUTOEXTEND_SIZE =|KEY_BLOCK_SIZE =|TTL = d + INTERVAL|NODEGROUP =|TABLESPACE =|UNION =|INSERT_METHOD ="""
COLUMN_OPTIONS = """COMMENT|DEFAULT|DEFAULT _utf8mb4|DEFAULT -|CHARSET|CHARACTER SET|COLLATE|COLUMN_FORMAT|STORAGE
ENGINE_ATTRIBUTE =|REFERENCES|ON UPDATE|AUTO_RANDOM|GENERATED|CHECK"""
INDEX_OPTIONS = "COMMENT|USING|WITH PARSER|KEY_BLOCK_SIZE =|ENGINE_ATTRIBUTE =|WHERE a =|PRE_SPLIT_REGIONS ="
OF_TABLE, OF_COLUMN, OF_INDEX = (re.split(r"[|\n]", text) for text in (TABLE_OPTIONS, COLUMN_OPTIONS, INDEX_OPTIONS))
ELSEWHERE = """ALTER TABLE t CONVERT TO CHARACTER SET $
ALTER TABLE t CONVERT TO CHARACTER SET utf8mb4 COLLATE $
ALTER TABLE t ALGORITHM = $
ALTER TABLE t LOCK $
ALTER TABLE t ADD COLUMN b ENUM('a', $)
ALTER TABLE t ADD COLUMN b SET($, 'a') DEFAULT 'a'
ALTER TABLE t ADD COLUMN b INT AS (CONCAT(a, $)) STORED
ALTER TABLE t ADD COLUMN b INT AS (a->$)
ALTER TABLE t ADD COLUMN b INT DEFAULT (LOWER($))
ALTER TABLE t ADD COLUMN b INT DEFAULT (EXTRACT(DAY FROM $))
ALTER TABLE t ADD COLUMN b INT CHECK (b LIKE $)
ALTER TABLE t ADD CHECK (b IN (1, $, 2))
ALTER TABLE t ADD INDEX k ((CONCAT(a, $)))
ALTER TABLE t ALTER COLUMN a SET DEFAULT $
ALTER TABLE t PARTITION BY LIST COLUMNS (a) (PARTITION p VALUES IN ($, 'a'))
ALTER TABLE t PARTITION BY RANGE COLUMNS (a) (PARTITION p VALUES LESS THAN ($))
ALTER TABLE t LAST PARTITION LESS THAN ($)
CREATE DATABASE d CHARSET $
CREATE DATABASE d COLLATE = $
CREATE DATABASE d ENCRYPTION = $
CREATE DATABASE d PLACEMENT POLICY = $
CREATE VIEW v AS SELECT $ AS a FROM t WHERE a = $
CREATE VIEW v AS SELECT a COLLATE $ AS a FROM t
CREATE DEFINER = $ VIEW v AS SELECT 1
CREATE DEFINER = 'a'@$ VIEW v AS SELECT 1""".splitlines()
PARTITION = "(PARTITION p VALUES LESS THAN (9) {})"
TEMPLATES = [
    *(f"CREATE TABLE t (a INT) {option} $" for option in OF_TABLE),
    *(f"CREATE TABLE t (a INT) PARTITION BY RANGE (a) {PARTITION.format(option + ' $')}" for option in OF_TABLE),
    *(f"ALTER TABLE t {option} $" for option in OF_TABLE),
    *(f"ALTER TABLE t ADD PARTITION {PARTITION.format(option + ' $')}" for option in OF_TABLE),
    *(f"ALTER TABLE t REORGANIZE PARTITION p INTO {PARTITION.format(option + ' $')}" for option in OF_TABLE),
    *(f"CREATE TABLE t (a VARCHAR(9) {option} $ NOT NULL)" for option in OF_COLUMN),
    *(f"ALTER TABLE t MODIFY a VARCHAR(9) {option} $ FIRST" for option in OF_COLUMN),
    *(f"CREATE TABLE t (a INT, KEY k (a) {option} $)" for option in OF_INDEX),
    *(f"CREATE INDEX k ON t (a) {option} $" for option in OF_INDEX),
    *ELSEWHERE,
]
"""Statements with a string at each $; TiDB takes most of them."""
PIECES = ["'", "''", '"', "`", "\\", "\\'", "(", ")", ";", ",", "/*", "*/", "/*!", "/*T!", "--", "-- ", "#", "\n", "\0"]
PIECES += [" ", "=", "a", "1", "é", "InnoDB", ") AS (SELECT user FROM mysql.user", "; DROP TABLE victim.t; -- "]
HOSTILE = st.lists(st.sampled_from(PIECES), min_size=1, max_size=6).map("".join).filter(lambda text: not text.isalnum())
_QUOTED = re.compile(r"'((?:[^']|'')*+)'")
_NAMES = re.compile(r"`(?:[^`]|``)*+`")


def outside(text: str) -> str:
    """Return what of a statement stands outside of its literals, as a server in NO_BACKSLASH_ESCAPES reads it."""
    return _QUOTED.sub("?", text)


def literal(text: str, quote: str, sql_mode: int) -> str:
    escaped = text if sql_mode & MODE_NO_BACKSLASH_ESCAPES else text.replace("\\", "\\\\")
    return quote + escaped.replace(quote, quote * 2) + quote


@pytest.mark.parametrize("way", [restore, plain_statement])
@given(st.data())
@settings(max_examples=400)
def test_string_stays_one_literal(way: object, data: st.DataObject) -> None:
    template, hostile = data.draw(st.sampled_from(TEMPLATES)), data.draw(HOSTILE)
    sql_mode = data.draw(st.sampled_from([0, MODE_NO_BACKSLASH_ESCAPES]))
    written = literal(hostile, data.draw(st.sampled_from("'\"")), sql_mode)

    def out(text: str) -> str:
        return restore(text, sql_mode=sql_mode) if way is restore else plain_statement(text, sql_mode)

    try:
        text = out(template.replace("$", written))
    except UnsupportedSqlError:
        return
    assert _NAMES.sub("", outside(text)) == _NAMES.sub("", outside(out(template.replace("$", "'x y'"))))
    kept = {content.replace("''", "'") for content in _QUOTED.findall(text)}
    names = {name[1:-1].replace("``", "`") for name in _NAMES.findall(text)}
    dropped = "PLACEMENT" in template or "TTL_ENABLE" in template
    assert hostile in kept | names or dropped


@given(st.sampled_from(TEMPLATES), HOSTILE)
def test_string_stays_one_literal_to_a_server_that_skips_tidbs_comments(template: str, hostile: str) -> None:
    def skipped(text: str) -> str:
        return _NAMES.sub("", outside(re.sub(r"/\*T!.*?\*/", "", text, flags=re.DOTALL)))

    try:
        text = sent(template.replace("$", literal(hostile, "'", 0)))
    except UnsupportedSqlError:
        return
    assert skipped(text) == skipped(sent(template.replace("$", "'x y'")))


ENGINES = [
    "InnoDB) AS (SELECT user, @a:=0 AS id FROM mysql.user LIMIT 1",
    "InnoDB), whatever (x",
    "a b",
    "a'b",
    "1a",
    "é",
    "a\n",
]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "head",
    [
        "CREATE TABLE t (a INT) PARTITION BY RANGE (a)",
        "ALTER TABLE t ADD PARTITION",
        "ALTER TABLE t REORGANIZE PARTITION p INTO",
    ],
)
def test_engine_of_a_partition_that_is_no_word_goes_out_in_quotes(head: str, engine: str) -> None:
    sql = f"{head} (PARTITION p VALUES LESS THAN (9) ENGINE = {literal(engine, chr(39), 0)})"
    with pytest.raises(UnsupportedSqlError):
        restore(sql)
    text = sent(sql)
    assert f"ENGINE = {literal(engine, chr(39), MODE_NO_BACKSLASH_ESCAPES)})" in text
    check_statement(text)


def test_engine_of_a_partition_that_is_a_word_goes_out_as_ticdc_writes_it() -> None:
    sql = "ALTER TABLE t ADD PARTITION (PARTITION p VALUES LESS THAN (9) ENGINE = {})"
    for written, restored in (("'InnoDB'", "InnoDB"), ("InnoDB", "InnoDB"), ("''", "''")):
        assert restore(sql.format(written)).endswith(f"VALUES LESS THAN (9) ENGINE = {restored})")


def test_string_behind_a_default_that_looks_like_a_charset_is_of_it() -> None:
    """TiDB joins the two; nothing is lost of them."""
    with pytest.raises(UnsupportedSqlError):
        restore("CREATE TABLE t (a VARCHAR(9) DEFAULT '_a' 'b')")
