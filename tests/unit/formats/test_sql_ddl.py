"""What a database destination is told of a DDL beside its statement."""

import json
from typing import Any

import pytest

from schemas.config.changefeed import load_changefeed
from schemas.ddl.job import DdlType
from schemas.sink.sql_rows import SqlDdl, decode_ddl
from schemas.tidb.mysql_types import MysqlType
from sorters.core.encode.sql.rows import DdlUnsafeError, SqlRowsEncoder
from sorters.core.feed.ddl_route import routed_event
from sorters.core.route.table_route import TableRoutes
from sorters.core.sql.ddl_event import DdlEvent, ddl_events
from sorters.core.sql.tokens import MODE_ANSI_QUOTES
from tests.support.recorded.ddl_jobs import column, job, snapshot, table_info, view_info


def added(*columns: dict[str, Any]) -> bytes:
    """Return the record of a DDL that adds columns to ``d.t``."""
    before, store = table_info(100, "t"), snapshot(("d", 2, [table_info(100, "t")]))
    after = table_info(100, "t", columns=[*before["cols"], *columns])
    record = job(20, DdlType.ADD_COLUMN, schema_id=2, table_id=100, table_info=after, query="ALTER TABLE t ADD COLUMN")
    change = store.apply(record)
    assert change is not None
    (event,) = ddl_events(change)
    return SqlRowsEncoder().encode_ddl(event).value


def clocked(number: int, tp: MysqlType, origin: str | None, default: str = "CURRENT_TIMESTAMP") -> dict[str, Any]:
    return {**column(number, f"c{number}", tp=tp, origin_default=origin), "default": default}


UTC, LOCAL = "2026-06-01 04:00:00", "2026-06-01 12:00:00"


@pytest.mark.parametrize(
    ("columns", "clocks"),
    [
        ([clocked(3, MysqlType.TIMESTAMP, UTC)], (UTC, "")),
        ([clocked(3, MysqlType.DATETIME, LOCAL)], ("", LOCAL)),
        ([clocked(3, MysqlType.DATETIME, LOCAL), clocked(4, MysqlType.TIMESTAMP, UTC)], (UTC, LOCAL)),
        ([clocked(3, MysqlType.DATETIME, LOCAL), clocked(4, MysqlType.DATETIME, LOCAL + ".25")], ("", LOCAL + ".25")),
        ([clocked(3, MysqlType.DATETIME, LOCAL, LOCAL)], ("", "")),  # a constant
        ([clocked(3, MysqlType.DATETIME, None)], ("", "")),  # old rows have NULL
    ],
)
def test_clock_of_new_columns_goes_with_its_zone(columns: list[dict[str, Any]], clocks: tuple[str, str]) -> None:
    ddl = decode_ddl(added(*columns))
    assert (ddl.clock, ddl.local_clock) == clocks


def test_ddl_of_a_release_before_is_read_without_what_it_did_not_know() -> None:
    raw = json.loads(added(clocked(3, MysqlType.TIMESTAMP, UTC)))
    del raw["local_clock"]
    ddl: SqlDdl = decode_ddl(json.dumps(raw).encode())
    assert (ddl.clock, ddl.local_clock) == (UTC, "")


def event(kind: DdlType, query: str, info: dict[str, Any], *, like: str = "", mode: int = 0) -> DdlEvent:
    """Return the event of a job in ``e``, with ``t2``, beside ``d``, with ``t``; ``like``: what TiDB says of LIKE."""
    store = snapshot(("d", 2, [table_info(50, "t")]), ("e", 3, [table_info(60, "t2")]))
    record = job(20, kind, schema_id=3, table_id=info["id"], table_info=info, query=query)
    record.payload["sql_mode"] = mode
    if like:
        at, _, name = like.partition(".")
        record.payload["involving_schema_info"] = [{"database": at, "table": name, "mode": 1}]
    change = store.apply(record)
    assert change is not None
    (made,) = ddl_events(change)
    return made


def routes(*rules: dict[str, Any]) -> TableRoutes:
    return TableRoutes(load_changefeed("mysql://u:p@h:3306/", {"sink": {"dispatchers": rules}}))


def said(made: DdlEvent) -> str:
    ddl = decode_ddl(SqlRowsEncoder().encode_ddl(made).value)
    assert ddl.plain_backslashes and ddl.sql_mode == 0
    return ddl.query


@pytest.mark.parametrize(
    "query",
    [
        "RENAME TABLE t TO e.n",
        "RENAME TABLE d.t TO n",  # said from e
        "ALTER TABLE d.t RENAME TO n",
        "ALTER TABLE d.t RENAME AS n, ALGORITHM = INPLACE, LOCK = NONE",
        "/*! RENAME TABLE d.t TO n */",
    ],
)
def test_rename_is_written_with_the_names_of_the_job(query: str) -> None:
    made = event(DdlType.RENAME_TABLE, query, table_info(50, "n"))
    assert said(made) == "RENAME TABLE `d`.`t` TO `e`.`n`"
    given = routes({"matcher": ["d.*"], "target-schema": "x", "target-table": "{table}_r"})
    assert said(routed_event(made, given)) == "RENAME TABLE `x`.`t_r` TO `e`.`n`"


def test_rename_within_the_sessions_schema_stays_as_ticdc_sends_it() -> None:
    made = event(DdlType.RENAME_TABLE, "rename table t2 to n", table_info(60, "n"))
    assert said(made) == "RENAME TABLE `t2` TO `n`"
    assert said(event(DdlType.RENAME_TABLE, "RENAME TABLE e.t2 TO n", table_info(60, "n"))).endswith("TO `e`.`n`")


@pytest.mark.parametrize(
    ("query", "like", "text"),
    [
        ("CREATE TABLE e.c LIKE t", "d.t", "CREATE TABLE `e`.`c` LIKE `d`.`t`"),
        ("create table if not exists e.c (like T)", "d.t", "CREATE TABLE IF NOT EXISTS `e`.`c` LIKE `d`.`T`"),
        ("CREATE TABLE e.c LIKE t2", "e.t2", "CREATE TABLE `e`.`c` LIKE `t2`"),  # of the schema that USE says
        ("CREATE TABLE c LIKE t2", "", "CREATE TABLE `c` LIKE `t2`"),  # the session was in e
        ("CREATE TABLE e.c LIKE d.t", "", "CREATE TABLE `e`.`c` LIKE `d`.`t`"),
        ("CREATE TABLE e.c LIKE t", "", "CREATE TABLE `e`.`c` LIKE `t`"),  # an older TiDB notes none
    ],
)
def test_table_is_made_like_the_one_that_the_session_meant(query: str, like: str, text: str) -> None:
    assert said(event(DdlType.CREATE_TABLE, query, table_info(100, "c"), like=like)).startswith(text)


STORED = "SELECT `d`.`t`.`id` AS `id` FROM `d`.`t` WHERE `v`='\\'"


@pytest.mark.parametrize(
    ("query", "mode", "text"),
    [
        ("CREATE VIEW e.v AS SELECT id FROM t WHERE v = '\\\\'", 0, "CREATE VIEW e.v AS"),
        (
            'create or replace view "e"."v" as (select t.id from t)',
            MODE_ANSI_QUOTES,
            "create or replace view `e`.`v` as",
        ),
        (
            "CREATE DEFINER = 'view'@'as' VIEW e.`v` (id) AS SELECT max(id) FROM (SELECT id AS id FROM t) x",
            0,
            "CREATE DEFINER = 'view'@'as' VIEW e.`v` (id) AS",
        ),
    ],
)
def test_view_reads_the_tables_that_the_session_meant(query: str, mode: int, text: str) -> None:
    made = event(DdlType.CREATE_VIEW, query, view_info(100, "v", STORED), mode=mode)
    assert said(made) == f"{text} {STORED}"


def test_view_keeps_its_local_check_option() -> None:
    query = "CREATE VIEW e.v AS SELECT id FROM t WITH LOCAL CHECK OPTION"
    made = event(DdlType.CREATE_VIEW, query, view_info(100, "v", STORED, view_checkoption=0))
    assert said(made) == f"CREATE VIEW e.v AS {STORED} WITH LOCAL CHECK OPTION"


def test_view_whose_name_has_no_schema_is_of_the_sessions_own_and_stays_as_it_is() -> None:
    made = event(DdlType.CREATE_VIEW, "CREATE VIEW v AS SELECT id FROM t2", view_info(100, "v", STORED))
    assert said(made).endswith(" VIEW `v` AS SELECT `id` FROM `t2`")


def test_view_of_which_tidb_stored_no_select_stays_as_it_is() -> None:
    made = event(DdlType.CREATE_VIEW, "CREATE VIEW e.v AS SELECT id FROM e.t2", view_info(100, "v", ""))
    assert said(made).endswith(" VIEW `e`.`v` AS SELECT `id` FROM `e`.`t2`")


def test_view_that_is_routed_has_the_names_of_its_route() -> None:
    view = view_info(100, "v", "SELECT `id` FROM `d`.`t`")
    made = event(DdlType.CREATE_VIEW, "CREATE VIEW e.v AS SELECT id FROM t", view)
    given = routes({"matcher": ["d.*"], "target-schema": "x"})
    assert said(routed_event(made, given)).endswith(" VIEW `e`.`v` AS SELECT `id` FROM `x`.`t`")
    elsewhere = routes({"matcher": ["y.*"], "target-schema": "x"})
    assert said(routed_event(made, elsewhere)) == "CREATE VIEW e.v AS SELECT `id` FROM `d`.`t`"


def test_view_whose_head_cannot_be_read_is_refused() -> None:
    made = event(DdlType.CREATE_VIEW, "/*! CREATE VIEW e.v AS SELECT id FROM t */", view_info(100, "v", STORED))
    with pytest.raises(DdlUnsafeError):
        said(made)
