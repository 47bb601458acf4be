"""Table routes, by TiCDC's own cases (``tests/data/ticdc-route``)."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from schemas.config.changefeed import load_changefeed
from schemas.ddl.job import DdlType
from schemas.ddl.schema_store import SchemaStore
from schemas.errors import ConfigError
from schemas.ids import Ts
from sorters.core.feed.companions import bootstrap_records, ddl_records
from sorters.core.feed.feed import CompiledFeed, compile_feed
from sorters.core.feed.route_check import check_routes
from sorters.core.route.table_route import TableRouteConflictError, TableRoutes, TableRoutingError
from sorters.core.sql.table_names import StatementNames, with_other_names
from sorters.core.sql.tokens import UnsupportedSqlError, split_statements
from tests.support.recorded.ddl_jobs import job, snapshot, table_info

DATA = Path(__file__).parents[2] / "data" / "ticdc-route"
CASES = [json.loads(line) for line in (DATA / "cases.jsonl").read_text().splitlines()]
URI = "kafka://h:1/t?protocol=canal-json"


REFUSED = (
    "alter database collate utf8mb4_general_ci",
    "alter table `t1` partition by system_time (partition x history, partition y current)",
)
"""Which schema is meant does not stand in the first (TiCDC sends it as it is), and TiDB runs no such second."""


def of_kind(kind: str) -> list[Any]:
    cases = [case for case in CASES if case["case"] == kind]
    assert cases
    return cases


def routes(rules: list[dict[str, Any]], *, case_sensitive: bool = False) -> TableRoutes:
    return TableRoutes(load_changefeed(URI, {"case-sensitive": case_sensitive, "sink": {"dispatchers": rules}}))


@pytest.mark.parametrize("case", of_kind("name"), ids=lambda case: ".".join(case["source"]))
def test_route_of_a_name_is_ticdcs(case: dict[str, Any]) -> None:
    given = routes(case["rules"], case_sensitive=case["case-sensitive"])
    if case["target"] is None:
        with pytest.raises(TableRoutingError) as caught:
            given.name(*case["source"])
        assert caught.value.fields["targets"] == "orders_db,users_db"
    else:
        assert list(given.name(*case["source"])) == case["target"]


@pytest.mark.parametrize("case", of_kind("expression"), ids=lambda case: case["expression"])
@pytest.mark.parametrize("key", ["target-schema", "target-table"])
def test_target_holds_what_ticdc_allows(case: dict[str, Any], key: str) -> None:
    rules = [{"matcher": ["d.*"], key: case["expression"]}]
    if case["allowed"]:
        routes(rules)
    else:
        with pytest.raises(ConfigError, match=key):
            routes(rules)


@pytest.mark.parametrize("case", of_kind("statement"), ids=lambda case: case["query"][:60])
def test_statement_gets_other_names_as_from_ticdc(case: dict[str, Any]) -> None:
    targets = {tuple(name): tuple(target) for name, target in zip(case["names"], case["targets"], strict=True)}
    names = StatementNames(
        route=lambda schema, table: targets.get((schema, table), (schema, table)),
        tables=[tuple(case["names"][0])] if case["query"] in REFUSED else (),
    )
    if case["query"] in REFUSED:
        with pytest.raises(UnsupportedSqlError):
            with_other_names(case["query"], names)
    else:
        # The job's character set stands before each literal.
        assert with_other_names(case["query"], names) == re.sub(r"(?<= DEFAULT )'", "_UTF8MB4'", case["routed"])


def parts(case: dict[str, Any]) -> tuple[TableRoutes, list[str]]:
    return routes(case["rules"]), case["queries"]


@pytest.mark.parametrize("case", of_kind("ddl type"), ids=lambda case: case["name"])
def test_ddl_of_each_type_names_targets_and_no_sources(case: dict[str, Any]) -> None:
    given, queries = parts(case)
    sent = [with_other_names(query, StatementNames(route=given.name, tables=())) for query in queries]
    assert None not in sent
    text = " ".join(query or "" for query in sent)
    assert [part for part in case["holds"] if part not in text] == []
    assert [part for part in case["lacks"] if part in text] == []


@pytest.mark.parametrize("case", of_kind("query"), ids=lambda case: case["query"][:60])
def test_query_is_sent_with_the_targets_of_all_its_tables(case: dict[str, Any]) -> None:
    names = StatementNames(
        route=routes(case["rules"]).name,
        tables=[(case["schema"], "")],
        referred={table: schema for schema, table in case.get("referred", ())},
    )
    assert with_other_names(case["query"], names) == case["routed"]


ROUTED = [
    {"matcher": ["source_db.*"], "target-schema": "target_db", "target-table": "{table}_routed"},
    {"matcher": ["source_extra_db.*"], "target-schema": "target_extra_db", "target-table": "{table}_routed"},
]


def test_every_ddl_of_ticdcs_integration_test_is_routed() -> None:
    given = routes(ROUTED)
    text = "\n".join(line for line in (DATA / "upstream.sql").read_text().splitlines() if not line.startswith("--"))
    statements = [statement.strip() for statement in text.split(";") if statement.strip()]
    ddl = [text for text in statements if re.match(r"(CREATE|ALTER|DROP|RENAME|TRUNCATE)\b", text)]
    assert len(ddl) == 35
    for query in ddl:
        (tokens,) = split_statements(query)
        assert tokens
        sent = with_other_names(query, StatementNames(route=given.name, tables=[("source_db", "")])) or ""
        assert "target_" in sent and "source_" not in sent.replace("cross_move_source", ""), (query, sent)


def feed(rules: list[dict[str, Any]], uri: str = URI, **config: Any) -> CompiledFeed:
    return compile_feed(load_changefeed(uri, {**config, "sink": {"dispatchers": rules}}), "default", {"t": 1})


def sent_ddl(store: SchemaStore, given: CompiledFeed, upto: int = 100) -> list[dict[str, Any]]:
    records = ddl_records(store, Ts(10), Ts(upto), given, encoded_at_ms=1)
    return [json.loads(value) for value in records.column("value").to_pylist()]


def test_rename_across_schemas_is_sent_under_both_targets_and_keeps_its_topic() -> None:
    store = snapshot(("d", 1, [table_info(100, "a")]), ("e", 2, []))
    query = "RENAME TABLE A TO e.b"
    store.apply(
        job(
            20,
            DdlType.RENAME_TABLE,
            schema_id=2,
            table_id=100,
            schema="e",
            query=query,
            table_info=table_info(100, "b"),
        )
    )
    rules = [
        {"matcher": ["d.*"], "target-schema": "x", "topic": "{schema}-{table}"},
        {"matcher": ["e.*"], "target-table": "{schema}_{table}"},
    ]
    given = feed(rules)
    given.partitions["d-a"] = 1  # type: ignore[index]
    records = ddl_records(store, Ts(10), Ts(30), given, encoded_at_ms=1)
    (message,) = [json.loads(value) for value in records.column("value").to_pylist()]
    assert records.column("topic").to_pylist() == ["d-a"]
    assert message["sql"] == "RENAME TABLE `x`.`a` TO `e`.`e_b`"
    assert (message["database"], message["table"]) == ("e", "e_b")


def test_view_is_sent_with_the_schemas_that_tidb_stored() -> None:
    store = snapshot(("d", 1, [table_info(100, "a")]), ("e", 2, []))
    view = {**table_info(200, "v", pk_is_handle=False), "view": {"view_select": "SELECT `a`.`id` AS `i` FROM `d`.`a`"}}
    query = "create view e.v as select a.id as i from a"
    store.apply(job(20, DdlType.CREATE_VIEW, schema_id=2, table_id=200, schema="e", query=query, table_info=view))
    (message,) = sent_ddl(store, feed([{"matcher": ["d.*"], "target-schema": "x", "target-table": "{table}_r"}]))
    assert message["sql"] == (
        "CREATE ALGORITHM = UNDEFINED DEFINER = CURRENT_USER SQL SECURITY DEFINER VIEW `e`.`v` "
        "AS SELECT `x`.`a_r`.`id` AS `i` FROM `x`.`a_r`"
    )


def test_ddl_that_cannot_be_written_anew_stops_the_changefeed_only_where_a_route_would_change_it() -> None:
    store = snapshot(("d", 1, [table_info(100, "a")]), ("e", 2, []))
    view = {**table_info(200, "v", pk_is_handle=False), "view": {"view_security": 0}}
    query = "create view e.v as select (select max(id) from d.a) m"
    store.apply(job(20, DdlType.CREATE_VIEW, schema_id=2, table_id=200, schema="e", query=query, table_info=view))
    (message,) = sent_ddl(store, feed([{"matcher": ["d.b"], "target-schema": "x"}]))
    assert message["sql"] == query
    with pytest.raises(TableRoutingError) as caught:
        sent_ddl(store, feed([{"matcher": ["d.a"], "target-schema": "x"}]))
    assert caught.value.fields["table"] == "e.v" and caught.value.fields["query"] == query


def test_ddl_of_a_schema_with_several_targets_stops_the_changefeed() -> None:
    store = snapshot(("d", 1, []))
    info = {"id": 2, "db_name": {"O": "e", "L": "e"}}
    store.apply(job(20, DdlType.CREATE_SCHEMA, schema_id=2, schema="e", query="CREATE DATABASE e", db_info=info))
    rules = [{"matcher": ["e.a"], "target-schema": "x"}, {"matcher": ["e.b"], "target-schema": "y"}]
    with pytest.raises(TableRoutingError) as caught:
        sent_ddl(store, feed(rules))
    assert caught.value.fields["keys"] == "sink.dispatchers[0],sink.dispatchers[1]"


MERGE = [{"matcher": ["d.*", "e.*"], "target-schema": "x"}]


def test_two_tables_under_one_name_are_refused_at_creation() -> None:
    store = snapshot(("d", 1, [table_info(100, "a")]), ("e", 2, [table_info(200, "A"), table_info(201, "b")]))
    with pytest.raises(TableRouteConflictError) as caught:
        check_routes(store, Ts(10), feed(MERGE))
    assert caught.value.fields["tables"] in ("d.a,e.A", "e.A,d.a")
    check_routes(store, Ts(10), feed(MERGE, filter={"rules": ["*.*", "!e.a"]}))
    check_routes(store, Ts(10), feed([{**MERGE[0], "target-table": "{schema}_{table}"}]))


def test_table_that_is_made_or_renamed_onto_anothers_name_stops_the_changefeed() -> None:
    def of(name: str) -> SchemaStore:
        store = snapshot(("d", 1, [table_info(100, "a")]), ("e", 2, [table_info(200, "c")]))
        info = table_info(300, name)
        store.apply(
            job(
                20,
                DdlType.CREATE_TABLE,
                schema_id=2,
                table_id=300,
                schema="e",
                query=f"CREATE TABLE {name} (id INT)",
                table_info=info,
            )
        )
        return store

    assert len(sent_ddl(of("b"), feed(MERGE))) == 1
    with pytest.raises(TableRouteConflictError):
        sent_ddl(of("a"), feed(MERGE))
    renamed = of("b")
    renamed.apply(
        job(
            30,
            DdlType.RENAME_TABLE,
            schema_id=2,
            table_id=300,
            schema="e",
            query="RENAME TABLE b TO a",
            table_info=table_info(300, "a"),
        )
    )
    with pytest.raises(TableRouteConflictError):
        sent_ddl(renamed, feed(MERGE))


def test_name_is_free_again_once_its_table_is_dropped() -> None:
    store = snapshot(("d", 1, [table_info(100, "a")]), ("e", 2, []))
    store.apply(
        job(20, DdlType.DROP_TABLE, schema_id=1, table_id=100, query="DROP TABLE a", table_info=table_info(100, "a"))
    )
    info = table_info(300, "a")
    store.apply(
        job(
            30,
            DdlType.CREATE_TABLE,
            schema_id=2,
            table_id=300,
            schema="e",
            query="CREATE TABLE a (id INT)",
            table_info=info,
        )
    )
    messages = sent_ddl(store, feed(MERGE))
    assert [message["sql"] for message in messages] == ["DROP TABLE `x`.`a`", "CREATE TABLE `x`.`a` (`id` INT)"]


@pytest.mark.parametrize("protocol", ["simple", "csv", "canal-json"])
def test_schemas_that_consumers_are_told_have_the_targets_names(protocol: str) -> None:
    uri = f"kafka://h:1/t?protocol={protocol}" if protocol == "simple" else f"file:///d?protocol={protocol}"
    store = snapshot(("d", 1, [table_info(100, "a")]))
    given = feed([{"matcher": ["d.*"], "target-schema": "x", "target-table": "{table}_r"}], uri)
    given.partitions[given.default_topic] = 1  # type: ignore[index]
    records = bootstrap_records(store, Ts(10), Ts(20), given, 1, at_start=True)
    (value,) = records.column("value").to_pylist()
    assert b"a_r" in value and b'"x"' in value.replace(b" ", b"").replace(b"\\", b"") and b'"d"' not in value


def test_table_after_like_is_told_by_its_name_at_the_destination() -> None:
    store = snapshot(("d", 1, [table_info(100, "a")]))
    made = job(20, DdlType.CREATE_TABLE, schema_id=1, table_id=101, table_info=table_info(101, "b"))
    made.payload["query"] = "CREATE TABLE b LIKE a"
    involved = [{"database": "d", "table": "b"}, {"database": "d", "table": "a", "mode": 1}]
    made.payload["involving_schema_info"] = involved
    store.apply(made)
    rules = [{"matcher": ["d.*"], "target-schema": "to", "target-table": "{table}_r"}]
    given = feed(rules, "mysql://root@h/")
    (ddl,) = sent_ddl(store, replace(given, partitions={given.default_topic: 1}))
    assert (ddl["ddl"], ddl["referred"]) == ("CREATE TABLE `to`.`b_r` LIKE `to`.`a_r`", [["to", "a_r"]])
