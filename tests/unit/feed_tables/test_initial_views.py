"""Views that go out with the schemas of a changefeed's start, and those that do not and are named."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from schemas.config.changefeed import load_changefeed
from schemas.ddl.job import DdlType
from schemas.ddl.schema_store import SchemaStore
from schemas.ids import Ts, UpstreamId
from schemas.nodes.changefeed import ChangefeedInfo
from schemas.sink.position import PositionClass, decode_position
from schemas.sink.sql_rows import SqlDdl, decode_ddl
from schemas.sink.topic import sorter_config
from sorters.core.feed.explain import explain
from sorters.core.feed.feed import CompiledFeed, compile_feed
from sorters.core.feed.initial_schemas import initial_schemas, initial_topics, not_told
from tests.support.recorded.ddl_jobs import job, snapshot, table_info, view_info
from tests.support.recorded.mounting import recorded_store

START = Ts(100)
MYSQL = "mysql://u:p@h:3306/"
HEAD = "CREATE ALGORITHM = UNDEFINED DEFINER = CURRENT_USER SQL SECURITY DEFINER VIEW"


def sequence(table_id: int, name: str) -> dict[str, Any]:
    return {
        **table_info(table_id, name, columns=[], pk_is_handle=False),
        "sequence": {"sequence_start": 1, "sequence_increment": 1},
    }


def store_of(*views: dict[str, Any], other: tuple[dict[str, Any], ...] = ()) -> SchemaStore:
    tables = [table_info(11, "a"), table_info(12, "B"), table_info(13, "keyless", pk_is_handle=False)]
    return snapshot(("d", 1, [*tables, *views]), ("e", 2, list(other)))


def feed_of(config: dict[str, Any] | None = None, uri: str = MYSQL) -> CompiledFeed:
    info = ChangefeedInfo(changefeed_id="f", upstream=UpstreamId("u"), sink_uri="", config={}, start_ts=START)
    loaded = load_changefeed(uri, {"initial": "snapshot", **(config or {})})
    feed = compile_feed(sorter_config(loaded, info, "h:1"), "default")
    return replace(feed, partitions={feed.default_topic: 1})


def views_sent(store: SchemaStore, feed: CompiledFeed) -> list[SqlDdl]:
    """What is told behind the schemas and tables."""
    records = [record for batch in initial_schemas(store, START, feed, 0) for record in batch.to_pylist()]
    positions = [decode_position(record["position"]) for record in records]
    assert {(at.commit_ts, at.position_class) for at in positions} == {(START, PositionClass.BOOTSTRAP)}
    raw = [record["position"] for record in records]
    assert raw == sorted(set(raw))
    ddls = [decode_ddl(record["value"]) for record in records]
    kinds = [ddl.ddl_type for ddl in ddls]
    last_table = max(at for at, kind in enumerate(kinds) if kind == DdlType.CREATE_TABLE)
    assert set(kinds[last_table + 1 :]) <= {DdlType.CREATE_VIEW}
    return ddls[last_table + 1 :]


def queries(store: SchemaStore, feed: CompiledFeed) -> list[str]:
    return [ddl.query for ddl in views_sent(store, feed)]


def left_out(store: SchemaStore, feed: CompiledFeed) -> str:
    note = not_told(store, START, feed)
    if note is None:
        return ""
    assert note.code == "sorter.not_told"
    return str(note.fields["not_told"])


def test_view_is_told_behind_the_tables_with_the_schema_that_it_stands_in() -> None:
    store = store_of(view_info(20, "v", "SELECT `d`.`a`.`id` AS `id` FROM `d`.`a`"))
    (ddl,) = views_sent(store, feed_of())
    assert ddl.query == f"{HEAD} `d`.`v` (`id`) AS SELECT `d`.`a`.`id` AS `id` FROM `d`.`a`"
    assert (ddl.schema, ddl.name, ddl.plain_backslashes) == ("d", "d.v", True)
    assert left_out(store, feed_of()) == ""


def test_recorded_view_is_told_as_tidb_stored_it() -> None:
    """Job 178 of the recording, ``CREATE VIEW v1 AS SELECT id FROM t_like``; 179 drops it."""
    made = 470615985533222912
    feed = feed_of({"filter": {"rules": ["d1.v1", "d1.t_like"]}})
    ts = Ts(made + 1)
    records = [record for batch in initial_schemas(recorded_store(), ts, feed, 0) for record in batch.to_pylist()]
    assert [decode_ddl(record["value"]).query for record in records][-1] == (
        f"{HEAD} `d1`.`v1` (`id`) AS SELECT `id` AS `id` FROM `d1`.`t_like`"
    )
    assert not_told(recorded_store(), ts, feed) is None


SELECT = "SELECT `id` AS `x`,'it''s\\' AS `y``z` FROM `d`.`a`"


@pytest.mark.parametrize(
    ("fields", "options", "check"),
    [
        ({"view_security": 1}, "ALGORITHM = UNDEFINED DEFINER = CURRENT_USER SQL SECURITY INVOKER", ""),
        (
            {"view_algorithm": 1, "view_checkoption": 0},
            "ALGORITHM = MERGE DEFINER = CURRENT_USER SQL SECURITY DEFINER",
            " WITH LOCAL CHECK OPTION",
        ),
        ({"view_algorithm": 2}, "ALGORITHM = TEMPTABLE DEFINER = CURRENT_USER SQL SECURITY DEFINER", ""),
    ],
    ids=["invoker", "merge with a check option", "temptable"],
)
@pytest.mark.parametrize("is_routed", [False, True])
def test_view_has_its_columns_security_algorithm_and_check_option(
    fields: dict[str, int], options: str, check: str, is_routed: bool
) -> None:
    store = store_of(view_info(20, "v", SELECT, "x", "y`z", **fields))
    rules = {"sink": {"dispatchers": [{"matcher": ["d.*"], "target-schema": "to_{schema}"}]}}
    text = f"CREATE {options} VIEW `d`.`v` (`x`,`y``z`) AS {SELECT}{check}"
    routed = text.replace("`d`.", "`to_d`.").replace("'it''s\\'", "_UTF8MB4'it''s\\'")
    assert queries(store, feed_of(rules if is_routed else {})) == [routed if is_routed else text]


def test_views_over_views_come_behind_what_they_read_whatever_their_ids() -> None:
    store = store_of(
        view_info(
            20, "top", "SELECT `d`.`middle`.`id` AS `id` FROM `d`.`middle` JOIN `d`.`low` ON `middle`.`id`=`low`.`id`"
        ),
        view_info(21, "middle", "SELECT `id` AS `id` FROM `e`.`Low2` WHERE `id` IN (SELECT `id` FROM `d`.`b`)"),
        view_info(22, "low", "SELECT `id` AS `id` FROM ((`d`.`a`) JOIN `d`.`B`)"),
        other=(view_info(30, "low2", "WITH `c` AS (SELECT `id` FROM `d`.`low`) SELECT `id` AS `id` FROM `c`"),),
    )
    assert [ddl.name for ddl in views_sent(store, feed_of())] == ["d.low", "e.low2", "d.middle", "d.top"]
    assert left_out(store, feed_of()) == ""


def test_view_has_the_names_that_routes_give_it_and_what_it_reads() -> None:
    store = store_of(
        other=(view_info(30, "v", "SELECT `a`.`id` AS `i`,`x`.`v` AS `v` FROM `d`.`a` JOIN `d`.`B` AS `x`", "i", "v"),)
    )
    rules = [
        {"matcher": ["d.*"], "target-schema": "x", "target-table": "{table}_r"},
        {"matcher": ["e.v"], "target-schema": "views"},
    ]
    feed = feed_of({"sink": {"dispatchers": rules}})
    (ddl,) = views_sent(store, feed)
    assert ddl.query == (
        f"{HEAD} `views`.`v` (`i`,`v`) AS SELECT `x`.`a_r`.`id` AS `i`,`x`.`v` AS `v` "
        "FROM `x`.`a_r` JOIN `x`.`B_r` AS `x`"
    )
    records = [record for batch in initial_schemas(store, START, feed, 0) for record in batch.to_pylist()]
    made = [decode_ddl(record["value"]).query for record in records]
    assert "CREATE DATABASE IF NOT EXISTS `views`" in made


def test_schema_that_only_a_view_is_routed_to_is_made_before_it() -> None:
    store = store_of(view_info(20, "v", "SELECT `id` AS `id` FROM `d`.`a`"))
    feed = feed_of({"sink": {"dispatchers": [{"matcher": ["d.v"], "target-schema": "views"}]}})
    records = [record for batch in initial_schemas(store, START, feed, 0) for record in batch.to_pylist()]
    assert "CREATE DATABASE IF NOT EXISTS `views`" in [decode_ddl(record["value"]).query for record in records]
    assert queries(store, feed) == [f"{HEAD} `views`.`v` (`id`) AS SELECT `id` AS `id` FROM `d`.`a`"]


SUBQUERY = "SELECT (SELECT MAX(`id`) FROM `d`.`a`) AS `m`"


def test_view_whose_text_cannot_get_other_names_is_named_and_not_told() -> None:
    store = store_of(view_info(20, "v", SUBQUERY, "m"), view_info(21, "over", "SELECT `m` AS `id` FROM `d`.`v`"))
    assert queries(store, feed_of())[0] == f"{HEAD} `d`.`v` (`m`) AS {SUBQUERY}"
    elsewhere = feed_of({"sink": {"dispatchers": [{"matcher": ["e.*"], "target-schema": "x"}]}})
    assert queries(store, elsewhere)[0] == f"{HEAD} `d`.`v` (`m`) AS {SUBQUERY}"
    routed = feed_of({"sink": {"dispatchers": [{"matcher": ["d.a"], "target-table": "x"}]}})
    assert queries(store, routed) == []
    said = left_out(store, routed)
    assert said.startswith("d.v: found ") and "; d.over: it reads d.v, which is not told" in said


@pytest.mark.parametrize(
    ("select", "config", "reason"),
    [
        ("SELECT `id` AS `id` FROM `d`.`keyless`", {}, "it reads d.keyless, which is not told"),
        ("SELECT `id` AS `id` FROM `d`.`a`", {"filter": {"rules": ["d.v", "d.B"]}}, "it reads d.a, which is not told"),
        (
            "SELECT `id` AS `id` FROM `d`.`a`",
            {"initial-rules": [{"matcher": ["d.a"], "initial": "none"}]},
            "it reads d.a, which is not told",
        ),
        ("SELECT `User` AS `id` FROM `mysql`.`user`", {}, "it reads mysql.user, which is not told"),
        ("SELECT `id` AS `id` FROM `d`.`v`", {}, "it reads d.v, which is not told"),
        ("SELECT 1 AS `id`; DROP TABLE `d`.`a`", {}, "more than one statement"),
        ("SELECT 1 /* AS `id`", {}, "no token at '/* AS `id`'"),
    ],
    ids=["no key", "filtered", "no image", "a system table", "itself", "two statements", "no statement"],
)
def test_view_that_the_destination_would_refuse_is_named_and_not_told(
    select: str, config: dict[str, Any], reason: str
) -> None:
    store = store_of(view_info(20, "v", select))
    assert queries(store, feed_of(config)) == []
    assert left_out(store, feed_of(config)) == f"d.v: {reason}"


@pytest.mark.parametrize(
    ("select", "config"),
    [
        ("SELECT EXTRACT(YEAR FROM `x`.`v`) AS `id` FROM `d`.`a` AS `x`", {}),
        ("SELECT TRIM(BOTH 'b' FROM `x`.`v`) AS `id` FROM `d`.`a` AS `x`", {}),
        ("SELECT 'FROM `d`.`gone`' AS `id`", {}),
        ("SELECT 1 AS `id` FROM `d`.`keyless`", {"force-replicate": True}),
    ],
)
def test_from_that_names_no_table_takes_no_view_away(select: str, config: dict[str, Any]) -> None:
    store = store_of(view_info(20, "v", select))
    assert queries(store, feed_of(config)) == [f"{HEAD} `d`.`v` (`id`) AS {select}"]
    assert left_out(store, feed_of(config)) == ""


@pytest.mark.parametrize(
    "config",
    [
        {"filter": {"rules": ["d.a", "d.B"]}},
        {"filter": {"event-filters": [{"matcher": ["d.v"], "ignore-event": ["create view"]}]}},
        {"filter": {"event-filters": [{"matcher": ["*.*"], "ignore-sql": ["SECURITY DEFINER VIEW"]}]}},
    ],
)
def test_what_filters_take_is_neither_told_nor_named(config: dict[str, Any]) -> None:
    store = store_of(view_info(20, "v", "SELECT `id` AS `id` FROM `d`.`a`"))
    assert queries(store, feed_of(config)) == []
    assert left_out(store, feed_of(config)) == ""


@pytest.mark.parametrize("config", [{"initial": "none"}, {"initial-schema": False}])
def test_changefeed_that_tells_no_schemas_tells_and_names_no_views(config: dict[str, Any]) -> None:
    store = store_of(view_info(20, "v", "SELECT `id` AS `id` FROM `d`.`gone`"), sequence(21, "s"))
    feed = feed_of(config)
    assert list(initial_schemas(store, START, feed, 0)) == []
    assert not_told(store, START, feed) is None
    assert initial_topics(store, START, feed) == set()


def test_sequences_are_named_as_the_stream_sends_none_and_explained_beforehand() -> None:
    store = store_of(sequence(20, "s"), sequence(21, "t"), view_info(22, "v", "SELECT `id` AS `id` FROM `d`.`a`"))
    said = "d.s: ddl of sequences is not replicated; d.t: ddl of sequences is not replicated"
    feed = feed_of({"filter": {"rules": ["*.*", "!d.u"]}})
    assert left_out(store, feed) == said
    config = load_changefeed("kafka://h:1/t?protocol=canal-json", {"initial": "snapshot"})
    explained = explain(store, START, config, compile_feed(config, "default"))
    assert [note for note in explained.notes if "sequences" in note and said in note]


def test_view_made_later_or_dropped_before_is_left_to_the_stream() -> None:
    store = store_of(view_info(20, "old", "SELECT `id` AS `id` FROM `d`.`a`"))
    later = view_info(21, "new", "SELECT `id` AS `id` FROM `d`.`a`")
    for ts, kind, table_id, info in (
        (START - 1, DdlType.DROP_VIEW, 20, None),
        (START + 1, DdlType.CREATE_VIEW, 21, later),
    ):
        assert store.apply(job(ts, kind, schema="d", schema_id=1, table_id=table_id, table_info=info)) is not None
    assert queries(store, feed_of()) == []


def messages(store: SchemaStore, protocol: str) -> Iterator[tuple[str, bytes]]:
    rule = {"matcher": ["*.*"], "topic": "of_{schema}_{table}"}
    config = {"sink": {"dispatchers": [rule], "send-bootstrap-interval-in-sec": 0}}
    feed = feed_of(config, f"kafka://h:1/t?protocol={protocol}")
    topics = initial_topics(store, START, feed)
    feed = replace(feed, partitions={**feed.partitions, **dict.fromkeys(topics, 1)})
    last = b""
    for batch in initial_schemas(store, START, feed, 0):
        for record in batch.to_pylist():
            at = decode_position(record["position"])
            assert (at.commit_ts, at.start_ts, at.position_class) == (START, START, PositionClass.DDL)
            assert record["position"] > last
            last = record["position"]
            yield record["topic"], record["key"] or b"" + record["value"]


@pytest.mark.parametrize("protocol", ["canal-json", "open-protocol", "debezium", "canal", "simple"])
def test_consumers_of_topics_are_told_of_a_view_in_its_own_topic(protocol: str) -> None:
    store = store_of(view_info(20, "v", "SELECT `d`.`a`.`id` AS `id` FROM `d`.`a`"))
    sent = list(messages(store, protocol))
    assert [topic for topic, _ in sent] == ["t", "t", "of_d_a", "of_d_B", "of_d_v"]


def test_canal_json_has_the_statement_of_a_view() -> None:
    store = store_of(view_info(20, "v", "SELECT `d`.`a`.`id` AS `id` FROM `d`.`a`"))
    *_, (_, message) = messages(store, "canal-json")
    assert f"{HEAD} `d`.`v` (`id`) AS SELECT `d`.`a`.`id` AS `id` FROM `d`.`a`".encode() in message
