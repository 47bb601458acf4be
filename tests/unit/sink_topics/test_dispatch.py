"""Dispatchers: topic and partition of rows, DDL and watermarks, with TiCDC's own hash examples."""

import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from schemas.config.changefeed import load_changefeed
from schemas.errors import Action
from schemas.ids import Ts
from schemas.tidb.table import TableVersion
from sorters.core.route.dispatch import Dispatcher, DispatchError, PartitionRule
from tests.support.recorded.tables import make_table


def dispatcher(*rules: dict[str, Any], protocol: str = "canal-json", **top: Any) -> Dispatcher:
    uri = f"kafka://h:9092/default-topic?protocol={protocol}&schema-registry=http://r:8081"
    return Dispatcher(load_changefeed(uri, {**top, "sink": {"dispatchers": list(rules)}}))


REFERENCE_RULES = (
    {"matcher": ["test1.*", "test2.*"], "topic": "Topic-expression-1", "partition": "ts"},
    {"matcher": ["test3.*"], "topic": "t_{schema}_{table}", "partition": "index-value", "index": "uk1"},
    {"matcher": ["test6.*"], "partition": "columns", "columns": ["a", "b"]},
)


@pytest.mark.parametrize(
    ("schema", "topic", "rule"),
    [
        ("test1", "Topic-expression-1", PartitionRule.TS),
        ("TEST2", "Topic-expression-1", PartitionRule.TS),
        ("test3", "t_test3_x", PartitionRule.INDEX_VALUE),
        ("test6", "default-topic", PartitionRule.COLUMNS),
        ("other", "default-topic", PartitionRule.TABLE),
    ],
)
def test_dispatcher_example_of_the_reference_takes_the_first_matching_rule(
    schema: str, topic: str, rule: PartitionRule
) -> None:
    rules = dispatcher(*REFERENCE_RULES)
    assert rules.topic(schema, "x") == topic
    assert rules.rule_for(schema, "x").partition is rule


def test_dispatcher_two_rules_match_takes_the_first() -> None:
    rules = dispatcher({"matcher": ["a.*"], "topic": "one"}, {"matcher": ["*.*"], "topic": "two"})
    assert (rules.topic("a", "t"), rules.topic("b", "t")) == ("one", "two")


def test_dispatcher_case_sensitive_feed_matches_by_case() -> None:
    feed: dict[str, Any] = {"case-sensitive": True}
    rules = dispatcher({"matcher": ["A.*"], "topic": "one"}, **feed)
    assert (rules.topic("A", "t"), rules.topic("a", "t")) == ("one", "default-topic")


@pytest.mark.parametrize(
    ("word", "rule"),
    [
        ("default", PartitionRule.TABLE),
        ("", PartitionRule.TABLE),
        ("table", PartitionRule.TABLE),
        ("ts", PartitionRule.TS),
        ("TS", PartitionRule.TS),
        ("index-value", PartitionRule.INDEX_VALUE),
        ("rowid", PartitionRule.INDEX_VALUE),
        ("no-such-rule", PartitionRule.TABLE),
    ],
)
@pytest.mark.parametrize("key", ["partition", "dispatcher"])
def test_dispatcher_partition_word_means_the_rule(key: str, word: str, rule: PartitionRule) -> None:
    assert dispatcher({"matcher": ["*.*"], key: word}).rule_for("a", "b").partition is rule


def both_ways(rules: Dispatcher, table: TableVersion, texts: list[str | None], count: int) -> int:
    """Return the partition of a row, having checked that the columnar way gives the same."""
    route = rules.route(table)
    partition = route.partition(texts, Ts(445), count)
    arrays = [pa.array([text], pa.string()) for text in texts]
    columnar = route.partitions(arrays, np.array([445], np.int64), count)
    assert columnar.dtype == np.int32
    assert columnar.tolist() == [partition]
    return partition


def test_route_table_rule_is_the_hash_of_schema_and_table() -> None:
    # crc32("test" "t1") = 1079797119, the example of the reference
    assert both_ways(dispatcher(), make_table(["a"]), [], 3) == 1079797119 % 3 == 0
    assert both_ways(dispatcher(), make_table(["a"]), [], 1000) == 119


# Expected partitions of 16: pingcap/tiflow cdc/sink/dmlsink/mq/dispatcher/partition/{columns,index_value}_test.go.
COLUMNS_RULE = {"matcher": ["*.*"], "partition": "columns", "columns": ["col2", "col1"]}


def test_route_columns_rule_gives_ticdcs_partition() -> None:
    table = make_table(["col1", "col2", "col3"])
    assert both_ways(dispatcher(COLUMNS_RULE), table, ["22", "11"], 16) == 15


def test_route_columns_rule_hashes_the_names_as_the_table_spells_them() -> None:
    shouting = {**COLUMNS_RULE, "columns": ["COL2", "Col1"]}
    assert both_ways(dispatcher(shouting), make_table(["col1", "col2"]), ["22", "11"], 16) == 15
    assert both_ways(dispatcher(COLUMNS_RULE), make_table(["Col1", "COL2"]), ["22", "11"], 16) == 5


@pytest.mark.parametrize("name", ["index1", "INDEX1"])
def test_route_named_index_gives_ticdcs_partition(name: str) -> None:
    rule = {"matcher": ["*.*"], "partition": "index-value", "index": name}
    assert both_ways(dispatcher(rule), make_table(["a"], unique={"index1": ["a"]}), ["11"], 16) == 2


INDEX_RULE = {"matcher": ["*.*"], "partition": "index-value"}


def test_route_index_value_without_index_uses_the_handle_key() -> None:
    table = make_table(["col1", "col2", "col3"], unique={"u": ["col2", "col1"]})
    route = dispatcher(INDEX_RULE).route(table)
    assert (route.column_offsets, route.column_names) == ((1, 0), ("col2", "col1"))
    assert both_ways(dispatcher(INDEX_RULE), table, ["22", "11"], 16) == 15
    assert dispatcher(INDEX_RULE).route(make_table(["x", "id"], pk_is_handle="id")).column_names == ("id",)


def test_route_index_value_without_handle_key_is_the_hash_of_the_table() -> None:
    assert both_ways(dispatcher(INDEX_RULE), make_table(["a"]), [], 1000) == 119


def test_route_null_counts_as_the_word_null() -> None:
    rules = dispatcher({**COLUMNS_RULE, "columns": ["a"]})
    table = make_table(["a"], nullable=["a"])
    assert both_ways(rules, table, [None], 1 << 20) == both_ways(rules, table, ["null"], 1 << 20)


def test_route_ts_rule_is_commit_ts_modulo_partitions() -> None:
    assert both_ways(dispatcher({"matcher": ["*.*"], "partition": "ts"}), make_table(["a"]), [], 7) == 445 % 7


@pytest.mark.parametrize(
    ("rule", "message", "key"),
    [
        ({"partition": "index-value", "index": "nope"}, "table has no index `nope`; unique ones are: u", "index"),
        ({"partition": "index-value", "index": "k"}, "index `k` is not unique", "index"),
        ({"partition": "index-value", "index": "u"}, "virtual generated column", "index"),
        ({"partition": "columns", "columns": ["a", "x"]}, "table has no column `x`", "columns[1]"),
        ({"partition": "columns", "columns": ["v"]}, "column `v` is virtual and generated", "columns[0]"),
    ],
)
def test_route_column_or_index_missing_stops_the_feed_naming_table_and_rule(
    rule: dict[str, Any], message: str, key: str
) -> None:
    table = make_table(["a", "v"], unique={"u": ["a", "v"]}, plain={"k": ["a"]}, virtual=["v"])
    with pytest.raises(DispatchError) as caught:
        dispatcher({"matcher": ["test.*"], **rule}).route(table)
    assert message in str(caught.value)
    assert caught.value.fields["table"] == "test.t1"
    assert caught.value.fields["key"] == f"sink.dispatchers[0].{key}"
    assert caught.value.action is Action.STOP_CHANGEFEED


def test_ddl_topic_goes_by_the_old_name_then_the_new_then_the_default() -> None:
    rules = dispatcher({"matcher": ["*.*"], "topic": "{schema}_{table}"})
    assert rules.ddl_topic(pre=("a", "old"), post=("a", "new")) == "a_old"
    assert rules.ddl_topic(pre=None, post=("a", "new")) == "a_new"
    assert rules.ddl_topic(pre=("a", ""), post=("a", "new")) == "a_new"
    assert rules.ddl_topic(pre=None, post=("a", "")) == "default-topic"
    assert rules.ddl_topic(pre=None, post=None) == "default-topic"


def test_watermark_topics_are_the_tables_and_always_the_default() -> None:
    rules = dispatcher({"matcher": ["a.*"], "topic": "{table}"})
    assert rules.watermark_topics([("a", "y"), ("a", "x"), ("b", "z"), ("a", "x")]) == ("default-topic", "x", "y")
    assert rules.watermark_topics([]) == ("default-topic",)


def test_dispatcher_pickled_routes_the_same() -> None:
    again = pickle.loads(pickle.dumps(dispatcher(COLUMNS_RULE)))
    assert again.route(make_table(["col1", "col2"])).partition(["22", "11"], Ts(1), 16) == 15
