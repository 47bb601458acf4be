"""Which tables a destination renames its job's tables say, and the statement's text only where it agrees with them."""

import pytest

from sorters.core.sql.ddl_event import DdlEvent, ddl_events
from tests.support.recorded.ddl_jobs import job, snapshot, table_info

RENAME_TABLE = 14


def renamed(query: str) -> DdlEvent:
    store = snapshot(("mine", 2, [table_info(100, "a")]))
    change = store.apply(job(20, RENAME_TABLE, schema_id=2, table_id=100, table_info=table_info(100, "b"), query=query))
    assert change is not None
    (event,) = ddl_events(change)
    return event


@pytest.mark.parametrize(
    "query",
    [
        "RENAME TABLE mine.a TO mine.b, secret.cards TO mine.c",
        "RENAME TABLE secret.cards TO mine.b",
        "RENAME TABLE a TO secret.b",
        "RENAME TABLE b TO a",
        "ALTER TABLE secret.cards RENAME TO b",
        "TRUNCATE TABLE a",
        "RENAME TABLE a TO b /*T![pre_split] , secret.cards TO c */",
        "",
    ],
)
def test_rename_of_other_tables_than_the_jobs_is_written_from_the_job(query: str) -> None:
    assert renamed(query).query == "RENAME TABLE `mine`.`a` TO `mine`.`b`"


@pytest.mark.parametrize(
    ("query", "restored"),
    [
        ("rename table MINE.A to b", "RENAME TABLE `MINE`.`A` TO `b`"),
        ("alter table a rename mine.b", "ALTER TABLE `a` RENAME AS `mine`.`b`"),
    ],
)
def test_rename_of_the_jobs_table_goes_out_as_it_was_written(query: str, restored: str) -> None:
    assert renamed(query).query == restored
