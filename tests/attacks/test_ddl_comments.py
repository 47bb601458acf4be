"""What TiDB has skipped as a comment, or read as part of a name, never becomes SQL at a destination."""

import pytest

from sorters.core.encode.sql.rows import DdlUnsafeError, SqlRowsEncoder
from sorters.core.sql.ddl_event import ddl_events
from sorters.core.sql.features import KNOWN_FEATURES
from sorters.core.sql.restore import restore
from sorters.core.sql.statement import check_statement, plain_statement
from sorters.core.sql.tokens import UnsupportedSqlError
from tests.support.recorded.ddl_jobs import job, snapshot, table_info

CREATE_TABLE = 3
HIDDEN = [
    ("RENAME TABLE mine.a TO mine.b", " , secret.cards TO mine.c "),
    ("CREATE VIEW mine.v AS SELECT 1 AS id", " , c.pan FROM secret.cards AS c "),
    ("ALTER TABLE mine.t ADD COLUMN b INT", " , RENAME TO secret.x "),
    ("ALTER TABLE mine.t ADD COLUMN b INT", ", FOREIGN KEY (b) REFERENCES secret.cards (id) ON DELETE CASCADE"),
    ("ALTER TABLE mine.t ADD COLUMN b INT DEFAULT (EXTRACT(DAY FROM '2024-01-01'))", " , RENAME TO secret.x "),
]
"""A statement, and what its writer would like to have run beside it; the last is beyond the restorer."""
SKIPPED = ["/*", "/*M!", "/*M!100000", "/*+", "/*T", "/*t!", "/*T![nosuch]", "/*T![TTL]", "/*T![ttl,nosuch]"]
SKIPPED += ["/*T![global_index,nosuch]", "/*T![resource_group]", "/*T![a$b]", "/*T![é]"]
RUN = ["/*!", "/*!50000", "/*!99999", "/*T!", "/*T![ttl,placement]"]
RUN += [f"/*T![{name}]" for name in sorted(KNOWN_FEATURES)]


def sent(sql: str) -> str:
    """Return what a database gets of a statement."""
    try:
        query = restore(sql)
    except UnsupportedSqlError:
        query = plain_statement(sql, 0)
    check_statement(query)
    return query


@pytest.mark.parametrize(("statement", "hidden"), HIDDEN)
@pytest.mark.parametrize("opening", SKIPPED)
def test_text_that_tidb_skips_is_not_sent(statement: str, hidden: str, opening: str) -> None:
    assert sent(f"{statement} {opening}{hidden}*/") == sent(statement)


@pytest.mark.parametrize(("statement", "hidden"), HIDDEN)
@pytest.mark.parametrize("opening", RUN)
def test_text_that_every_tidb_runs_is_sent(statement: str, hidden: str, opening: str) -> None:
    assert "secret" in sent(f"{statement} {opening} {hidden}*/")


@pytest.mark.parametrize(("statement", "hidden"), HIDDEN)
@pytest.mark.parametrize("feature", ["global_index", "pre_split", "affinity", "region_split", "ttl,softdelete"])
def test_text_that_only_some_tidb_run_is_refused(statement: str, hidden: str, feature: str) -> None:
    with pytest.raises(UnsupportedSqlError):
        sent(f"{statement} /*T![{feature}]{hidden}*/")


@pytest.mark.parametrize(
    "clause",
    [
        "/*T![global_index] GLOBAL */",
        "/*T![pre_split] PRE_SPLIT_REGIONS = 4 */",
        "/*T![pre_split] pre_split_regions = (by (10000), (20000), ('x', -1.5)) */",
        "/*T![pre_split] PRE_SPLIT_REGIONS = (BETWEEN (1) AND (100) REGIONS 4) */",
    ],
)
def test_clause_that_a_newer_tidb_writes_for_itself_stays_in_its_comment(clause: str) -> None:
    text = sent(f"ALTER TABLE t ADD UNIQUE KEY k (a) {clause}")
    start = text.index("/*")
    assert text[start:].casefold().replace(" ", "") == clause.casefold().replace(" ", "")


@pytest.mark.parametrize(
    "clause",
    [
        "/*T![affinity] AFFINITY = 'table' */",
        "/*T![softdelete] SOFTDELETE=RETENTION 7 DAY */ /*T![active_active] ACTIVE_ACTIVE='ON' */",
        "/*T![region_split] SPLIT INDEX `k` BETWEEN (-1) AND (9) REGIONS 3 */",
    ],
)
def test_option_that_a_newer_tidb_writes_for_itself_stays_in_its_comment(clause: str) -> None:
    assert clause.replace(" ", "") in sent(f"CREATE TABLE t (a INT, KEY k (a)) {clause}").replace(" ", "")


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE VIEW mine.v AS SELECT 2*/* 3, c.pan FROM secret.cards AS c -- */1",
        "CREATE VIEW mine.v AS SELECT 2*/**/1 /* , c.pan FROM secret.cards */",
    ],
)
def test_star_before_a_comment_ends_none(sql: str) -> None:
    assert restore(sql).endswith("AS SELECT 2*1")


@pytest.mark.parametrize("sql", ["DO 1 */", "DO 1 /*! /*! + 1 */ */", "DO 1 /* /* */ */", "DO 1 /*T![nosuch] 1"])
def test_end_of_no_comment_and_comment_without_an_end_are_refused(sql: str) -> None:
    with pytest.raises(UnsupportedSqlError):
        plain_statement(sql, 0)


@pytest.mark.parametrize("sql", ["DO 1 /*T![] , 1 */", "DO 1 /*T![ttl , 1 */", "DO 1 /*T![ttl x] , 1 */"])
def test_feature_without_its_form_is_sql_to_tidb_and_refused(sql: str) -> None:
    with pytest.raises(UnsupportedSqlError):
        plain_statement(sql, 0)


def test_version_of_a_comment_has_five_digits() -> None:
    """The sixth is of the text, as TiDB reads it."""
    assert restore("RENAME TABLE a TO /*!500001cards */") == "RENAME TABLE `a` TO `1cards`"


@pytest.mark.parametrize("tail", ["\xa0", "\u3000", "\x85", "\u2028", "ſ", "😀"])
def test_name_ends_only_where_it_ends_for_tidb(tail: str) -> None:
    """A space beyond ASCII is part of a name: of another database, which may be anybody's."""
    assert restore(f"DROP DATABASE secret{tail}") == f"DROP DATABASE `secret{tail}`"
    assert restore(f"TRUNCATE TABLE 1{tail}") == f"TRUNCATE TABLE `1{tail}`"
    assert plain_statement(f"DO secret{tail} + 1", 0) == f"DO secret{tail} + 1"


def test_space_beyond_ascii_begins_no_comment() -> None:
    assert restore("CREATE VIEW v AS SELECT 1 --\xa0a FROM t").endswith("AS SELECT 1--`\xa0a` FROM `t`")


@pytest.mark.parametrize("word", ["ıNDEX", "conſtraint", "ſet"])  # capitals of these letters are I and S
def test_word_with_another_letter_is_a_name_and_no_keyword(word: str) -> None:
    assert restore(f"ALTER TABLE t DROP {word}") == f"ALTER TABLE `t` DROP COLUMN `{word}`"


def test_check_refuses_a_feature_that_not_every_tidb_reads_alike() -> None:
    for text in ("a /*T![x] b */", "a /*T![ttl,x] b */", "a /*T![] b */", "a /*T![global_index] b */"):
        with pytest.raises(UnsupportedSqlError):
            check_statement(text)
    check_statement("a /*T![ttl,global_index] GLOBAL */")


def test_refusal_of_a_statement_names_it() -> None:
    query = "CREATE TABLE b (id INT PRIMARY KEY, v INT) /*T![affinity] COMMENT = 'x' */"
    store = snapshot(("mine", 2, []))
    change = store.apply(job(20, CREATE_TABLE, schema_id=2, table_id=100, table_info=table_info(100, "b"), query=query))
    assert change is not None
    (event,) = ddl_events(change)
    with pytest.raises(DdlUnsafeError) as caught:
        SqlRowsEncoder().encode_ddl(event)
    assert caught.value.fields["query"] == query
    assert "/*T![affinity]" in str(caught.value.fields["reason"])
