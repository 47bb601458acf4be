"""A DDL that a lake table cannot follow says which, of which table, why, and what helps, in its error and its node."""

from dataclasses import dataclass, field
from typing import Any
from unittest.mock import MagicMock

import pytest

from schemas.config.changefeed import load_changefeed
from schemas.config.filter.filter_rule import parse_rule
from schemas.ddl.job import DdlType
from schemas.errors import ConfigError
from schemas.ids import TableId, Ts
from schemas.nodes.failures import StoppingDdl, stopping_ddl
from schemas.redaction import Redaction, set_redaction
from sorters.core.feed.feed import compile_feed
from sorters.core.lake.commits import LakeProgress
from sorters.core.lake.errors import LakeSchemaError, LakeValueError
from sorters.core.lake.evolution import LakeField
from sorters.core.lake.refusals import filter_rule
from sorters.run.lake.ddl import LakeDdl
from sorters.run.lake.known_tables import KnownTables
from tests.support.recorded.ddl_jobs import PRIMARY, column, job, snapshot, table_info

ID = column(1, "id", not_null=True, flag=PRIMARY)
TEXT = column(2, "v", tp=15, charset="utf8mb4", collation="utf8mb4_bin")
PARTED = {"partition": {"enable": True, "definitions": [{"id": 21, "name": {"O": "p", "L": "p"}}]}}
UPSERT = "iceberg://?warehouse=file:///w&mode=upsert"


@dataclass
class _Table:
    """A lake table ``(id int, v int)``."""

    name: str = "shop.t-1"
    table_id: TableId = TableId(11)
    schema_ts: Ts = Ts(10)
    laid: set[str] = field(default_factory=set)
    evolved: list[Ts | None] = field(default_factory=list)

    def fields(self) -> list[LakeField]:
        return [LakeField("id", "int", "tidebus column 1"), LakeField("v", "int", "tidebus column 2")]

    def laid_by(self) -> set[str]:
        return self.laid

    def progress(self) -> LakeProgress:
        return LakeProgress(Ts(20), frozenset())

    def resync(self) -> None:
        return None

    def look(self) -> None:
        pass

    def evolve(self, evolution: object, table_id: TableId, schema_ts: Ts | None, emptied_at: Ts | None = None) -> None:
        self.evolved.append(schema_ts)


def _info(name: str = "t-1", *columns: dict[str, Any]) -> dict[str, Any]:
    return table_info(11, name, columns=[ID, *(columns or (column(2, "v"),))])


def _ddl(table: _Table, uri: str, config: dict[str, Any] | None = None) -> LakeDdl:
    loaded = load_changefeed(uri, config or {})
    feed, settings = compile_feed(loaded, "default"), loaded.sink.iceberg
    catalog = MagicMock(load=lambda name: table if name.table == "t-1" else None)
    tables = KnownTables(catalog, settings, feed)
    return LakeDdl(tables, MagicMock(), MagicMock(), settings, feed, lambda: None)


def _refused(
    type_: DdlType, query: str, info: dict[str, Any], *, uri: str = UPSERT, table: _Table | None = None
) -> StoppingDdl:
    store = snapshot(("shop", 1, [_info() | (PARTED if "partition" in info else {})]))
    change = store.apply(job(30, type_, schema_id=1, table_id=11, schema="shop", query=query, table_info=info))
    assert change is not None
    with pytest.raises(LakeSchemaError) as caught:
        _ddl(table or _Table(), uri).follow(change, store)
    assert "commit_ts=30" in str(caught.value) and query in str(caught.value), "the error's text says it, too"
    ddl = stopping_ddl(caught.value)
    assert ddl is not None and (ddl.query, ddl.commit_ts, ddl.start_ts) == (query, 30, 29)
    return ddl


LEAVE_OUT = 'leave it out: "!shop.`t-1`" behind the other rules under [filter], and resume'


def test_column_that_gets_a_type_that_iceberg_cannot_widen_to_names_the_setting_and_the_rule() -> None:
    query = "alter table `t-1` modify v text"
    ddl = _refused(DdlType.MODIFY_COLUMN, query, _info("t-1", TEXT))
    assert (ddl.table, ddl.reason) == ("shop.t-1", "Iceberg cannot make string of int")
    first, second, third = ddl.what_helps.split("; or ")
    assert (
        first.startswith("say type-change=new-column") and "`tidebus table backfill`" in second and third == LEAVE_OUT
    )


@pytest.mark.parametrize(
    ("uri", "table", "info"),
    [
        (UPSERT, _Table(laid={"v"}), _info("t-1", TEXT)),
        (f"{UPSERT}&type-change=new-column", _Table(laid={"v"}), _info("t-1", TEXT)),
        (UPSERT, None, table_info(11, "t-1", columns=[column(1, "id", tp=8, not_null=True, flag=PRIMARY | 32)])),
    ],
)
def test_setting_that_would_not_help_is_not_named(uri: str, table: _Table | None, info: dict[str, Any]) -> None:
    ddl = _refused(DdlType.MODIFY_COLUMN, "alter table `t-1` modify …", info, uri=uri, table=table)
    assert "new-column" not in ddl.what_helps and ddl.what_helps.endswith(LEAVE_OUT)


def test_setting_and_rules_that_help_are_such_that_the_ddl_is_followed_by_them() -> None:
    store = snapshot(("shop", 1, [_info()]))
    retyped = job(30, DdlType.MODIFY_COLUMN, schema_id=1, table_id=11, schema="shop", table_info=_info("t-1", TEXT))
    renamed = job(40, DdlType.RENAME_TABLE, schema_id=1, table_id=11, schema="shop", table_info=_info("away", TEXT))
    changes = [store.apply(each) for each in (retyped, renamed)]
    table, route = _Table(), {"matcher": ["shop.away"], "target-schema": "shop", "target-table": "t-1"}
    followed = _ddl(table, f"{UPSERT}&type-change=new-column", {"sink": {"dispatchers": [route]}})
    for change in changes:
        assert change is not None
        followed.follow(change, store)
    assert table.evolved == [30, 40]
    for rule, change in zip(("!shop.`t-1`", "!shop.away"), changes, strict=True):
        assert change is not None
        _ddl(_Table(), UPSERT, {"filter": {"rules": ["*.*", rule]}}).follow(change, store)


def test_rename_names_the_route_that_keeps_the_lake_table() -> None:
    ddl = _refused(DdlType.RENAME_TABLE, "rename table `t-1` to away", _info("away"))
    assert ddl.table == "shop.away", "as the rules must name it behind the ddl"
    assert "matcher shop.away, target-schema shop and target-table t-1" in ddl.what_helps
    assert ddl.what_helps.endswith('"!shop.away" behind the other rules under [filter], and resume')


@pytest.mark.parametrize("type_", [DdlType.DROP_PARTITION, DdlType.TRUNCATE_PARTITION])
def test_rows_that_go_with_a_partition_name_the_resync_and_the_new_beginning(type_: DdlType) -> None:
    left = {"partition": {"enable": True, "definitions": [{"id": 22, "name": {"O": "p", "L": "p"}}]}}
    ddl = _refused(type_, "alter table `t-1` …", _info() | left)
    assert "no row change" in ddl.reason
    first, second, third = ddl.what_helps.split("; or ")
    assert first.startswith(f"add {ddl.start_ts} to ignore-txn-start-ts") and "`tidebus table resync`" in first
    assert "drop that one lake table" in second and third == LEAVE_OUT


def test_rows_behind_a_ddl_that_is_left_out_name_its_ts() -> None:
    store, table = snapshot(("shop", 1, [_info("t-1", TEXT)])), _Table(schema_ts=Ts(5))
    (version,) = store.tables_at(Ts(10))
    with pytest.raises(LakeSchemaError) as caught:
        _ddl(table, UPSERT).evolve_for_rows(table, version)  # type: ignore[arg-type]
    ddl = stopping_ddl(caught.value)
    assert ddl is not None and (ddl.table, ddl.commit_ts, ddl.query, ddl.start_ts) == ("shop.t-1", 10, "", 0)
    assert not table.evolved


@pytest.mark.parametrize("name", ["t", "t-1", "odd:name", "a.b", "ti`ck", 'qu"ote', "*", "[a-z]", "größe", "/x/"])
def test_filter_rule_leaves_out_the_table_alone(name: str) -> None:
    assert parse_rule(filter_rule(name, "t")) is not None
    config = load_changefeed(UPSERT, {"filter": {"rules": ["*.*", filter_rule("shop", name)]}})
    taken_in = compile_feed(config, "default").filter
    assert not taken_in.matches("shop", name)
    assert all(taken_in.matches("shop", f"{name}{more}") for more in ("x", "y")) and taken_in.matches("sho", name)


def test_what_users_wrote_is_redacted_as_in_logs_and_how_to_go_on_is_not() -> None:
    error = LakeSchemaError("no", table="a.b", commit_ts=7, query="DDL of a user", reason="a", what_helps="do it")
    try:
        set_redaction(Redaction.ON)
        ddl = stopping_ddl(error)
    finally:
        set_redaction(Redaction.OFF)
    assert ddl == StoppingDdl(table="a.b", query="?", start_ts=Ts(0), commit_ts=Ts(7), reason="?", what_helps="do it")


@pytest.mark.parametrize(
    "error", [LakeValueError("no", table="a.b", commit_ts=7), ConfigError("no", key="sink-uri"), LakeSchemaError("no")]
)
def test_error_that_is_of_no_ddl_names_none(error: Any) -> None:
    assert stopping_ddl(error) is None
