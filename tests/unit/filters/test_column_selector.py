"""Column selectors: which columns row messages hold, and the tables that a selector cannot be applied to."""

import json
import pickle
from collections.abc import Sequence
from io import BytesIO
from typing import Any, Literal

import fastavro
import numpy as np
import pytest

from schemas.config.changefeed import load_changefeed
from schemas.ddl.schema_store import SchemaStore
from schemas.errors import Action, ConfigError
from schemas.ids import TableId, Ts
from schemas.tidb.keys import row_key
from schemas.tidb.row_v2 import encode_row_v2
from schemas.tidb.table import TableVersion
from sorters.core.feed.feed import CompiledFeed, compile_feed
from sorters.core.feed.route_check import check_routes
from sorters.core.mount.mounter import SMALL_ROWS
from sorters.core.route.column_selector import ColumnSelectorError
from sorters.core.route.partition_hash import hash_row
from tests.support.control.changefeed_config import CANAL, refused
from tests.support.rawlog.row_records import records_of
from tests.support.recorded.ddl_jobs import PRIMARY, column, index, snapshot, table_info
from tests.support.recorded.mounting import row_changes
from tests.support.recorded.recording import CommittedChange
from tests.support.recorded.tables import make_table

TABLE_ID = TableId(112)
TEXT: dict[str, Any] = {"tp": 15, "flen": 32, "charset": "utf8mb4", "collation": "utf8mb4_bin"}
COLUMNS = [
    column(1, "id", not_null=True, flag=PRIMARY),
    column(2, "Name", **TEXT),
    column(3, "secret", **TEXT),
    column(4, "n", not_null=True),
]
PROTOCOLS = pytest.mark.parametrize(
    "options",
    [
        "protocol=canal-json",
        "protocol=open-protocol",
        "protocol=simple",
        "protocol=simple&encoding-format=avro",
        "protocol=debezium",
        "protocol=avro&schema-registry=http://r:1",
    ],
)
COUNTS = pytest.mark.parametrize("count", [2, 3 * SMALL_ROWS], ids=["scalar", "columnar"])


def store(columns: Sequence[dict[str, Any]] = COLUMNS, *, name: str = "t", uk: int = 3) -> SchemaStore:
    placed = [spec | {"offset": offset} for offset, spec in enumerate(columns)]
    unique = [index(1, "uk", [uk], unique=True)]
    return snapshot(("d", 1, [table_info(TABLE_ID, name, columns=placed, indexes=unique)]))


def feed(options: str, columns: Sequence[str] | None, dispatch: dict[str, Any] | None = None) -> CompiledFeed:
    sink: dict[str, Any] = {}
    if columns is not None:
        sink["column-selectors"] = [{"matcher": ["d.*", "test.*"], "columns": list(columns)}]
    if dispatch is not None:
        sink["dispatchers"] = [{"matcher": ["*.*"], **dispatch}]
    config = load_changefeed(f"kafka://h:1/t?{options}", {"sink": sink}, file="feed.toml")
    return compile_feed(config, "default", {"t": 7})


def ready(compiled: CompiledFeed, schemas: SchemaStore) -> CompiledFeed:
    """Register the schemas of the only table; the key's has id 1 and the value's 2."""
    (table,) = schemas.tables_at(Ts(10))
    for number, text in enumerate(compiled.row_schemas(table), 1):
        compiled.schema_ids[text.key] = number  # type: ignore[index] # a dict, made by feed()
    return compiled


def changes(count: int, *, unique_too: bool = False) -> list[CommittedChange]:
    """Return inserts, updates and deletes of rows that have secrets, ``count`` of each kind."""
    committed = []
    for number in range(3 * count):
        before, after = (
            encode_row_v2(
                {2: f"{word}{number}".encode(), 3: b"hidden-word", 4: bytes([number % 100 + step * unique_too])}
            )
            for word, step in (("old", 0), ("new", 1))
        )
        kind = number % 3
        value, old = (after, b"") if kind == 0 else (after, before) if kind == 1 else (b"", before)
        key = row_key(TABLE_ID, number)
        op: Literal["put", "delete"] = "delete" if kind == 2 else "put"
        committed.append(CommittedChange(100 + number, 99 + number, key, op, value, old, 0))
    return committed


def messages(options: str, columns: Sequence[str] | None, count: int, **more: Any) -> list[tuple[Any, ...]]:
    """Return (partition, key, value) of all rows, in the order of their commit_ts."""
    schemas = store()
    compiled = ready(feed(options, columns, more.pop("dispatch", None)), schemas)
    records = records_of(row_changes(TABLE_ID, changes(count, **more)), schemas, compiled, encoded_at_ms=5)
    rows = [
        (position, partition, key, value)
        for position, partition, key, value in zip(
            *(records.column(name).to_pylist() for name in ("position", "partition", "key", "value")), strict=True
        )
    ]
    return [row[1:] for row in sorted(rows)]


@COUNTS
@PROTOCOLS
def test_run_column_left_out_stands_in_no_message(options: str, count: int) -> None:
    whole, chosen = (messages(options, columns, count) for columns in (None, ["*", "!SECRET"]))
    assert len(whole) == len(chosen) == 3 * count
    assert any(b"hidden-word" in (value or b"") for _, _, value in whole)
    for _, key, value in chosen:
        assert b"hidden-word" not in (value or b"") + (key or b"")
        assert b"secret" not in (value or b"") + (key or b"")
    # what hangs on the key alone is as it was
    assert [(partition, key) for partition, key, _ in chosen] == [(partition, key) for partition, key, _ in whole]


@COUNTS
def test_run_columns_left_out_leave_the_others_as_they_were(count: int) -> None:
    whole, chosen = (
        [json.loads(value) for _, _, value in messages("protocol=canal-json", columns, count)]
        for columns in (None, ["i?", "name"])
    )
    assert chosen[1]["data"] == [{"id": "1", "Name": "new1"}]
    assert chosen[1]["old"] == [{"id": "1", "Name": "old1"}]
    for before, after in zip(whole, chosen, strict=True):
        for key in ("data", "old"):
            kept = before[key] and [{name: row[name] for name in ("id", "Name")} for row in before[key]]
            assert after[key] == kept
        assert after["mysqlType"] == {"id": "int", "Name": "varchar"}
        assert after["pkNames"] == before["pkNames"] == ["id"]


@COUNTS
def test_run_avro_selected_columns_read_by_the_registered_schema(count: int) -> None:
    schemas, compiled = store(), feed("protocol=avro&schema-registry=http://r:1", ["*", "!secret", "!name"])
    (table,) = schemas.tables_at(Ts(10))
    _, value_schema = (json.loads(text.text) for text in compiled.row_schemas(table))
    assert [field["name"] for field in value_schema["fields"]] == ["id", "n"]
    records = records_of(row_changes(TABLE_ID, changes(count)), schemas, ready(compiled, schemas), encoded_at_ms=5)
    for value in records.column("value").to_pylist():
        if value is not None:
            row: Any = fastavro.schemaless_reader(BytesIO(value[5:]), value_schema, None)
            assert row["id"] % 100 == row["n"]


@COUNTS
def test_run_updates_are_split_by_whole_rows(count: int) -> None:
    # The unique key `n` changes and is left out: the halves go on all the same, as in TiCDC.
    values = [json.loads(value) for *_, value in messages("protocol=canal-json", ["id"], count, unique_too=True)]
    assert [value["type"] for value in values].count("UPDATE") == 0
    assert len(values) == 4 * count


@COUNTS
def test_run_columns_left_out_drop_out_of_the_partition_hash(count: int) -> None:
    by_index = {"partition": "index-value", "index": "uk"}
    whole = messages("protocol=canal-json", ["*", "!secret"], count, dispatch=by_index)
    chosen = messages("protocol=canal-json", ["id"], count, dispatch=by_index)
    expected = [hash_row("d", "t", [("n", str(number % 100))]) % 7 for number in range(3 * count)]
    assert [partition for partition, *_ in whole] == expected
    assert {partition for partition, *_ in chosen} == {hash_row("d", "t", []) % 7}


@pytest.mark.parametrize(
    ("rules", "kept"),
    [
        (["*"], "id Name secret n"),
        (["*", "!n*"], "id secret"),
        (["!n*", "*"], "id Name secret n"),
        (["ID", '"name"', "# no", " "], "id Name"),
        (["id", "/^N/"], "id Name n"),
        (["id", "[ns]*", "!s?cret"], "id Name n"),
    ],
)
def test_select_last_rule_that_matches_decides_and_case_does_not_count(rules: list[str], kept: str) -> None:
    (table,) = store().tables_at(Ts(10))
    _, selection = feed("protocol=canal-json", rules).select(table)
    left: TableVersion = table if selection is None else selection.table
    assert [spec.name for spec in left.columns] == kept.split()
    assert [spec.offset for spec in left.columns] == list(range(len(left.columns)))


def test_select_first_selector_whose_matcher_matches_counts() -> None:
    selectors = [
        {"matcher": ["other.*"], "columns": ["a"]},
        {"matcher": ["TEST.*"], "columns": ["a", "b"]},
        {"matcher": ["*.*"], "columns": ["a", "c"]},
    ]
    table = make_table(["a", "b", "c"], pk_is_handle="a")
    for sensitive, kept in ((False, ["a", "b"]), (True, ["a", "c"])):
        config = load_changefeed(CANAL, {"case-sensitive": sensitive, "sink": {"column-selectors": selectors}})
        _, selection = pickle.loads(pickle.dumps(compile_feed(config, "default"))).select(table)
        assert [spec.name for spec in selection.table.columns] == kept


def test_select_table_of_no_selector_is_left_as_it_is() -> None:
    assert feed("protocol=canal-json", ["a"]).select(make_table(["a", "b"], schema="other"))[1] is None


KEYED = make_table(["a", "b", "c", "v"], unique={"u": ["b", "c"], "w": ["a", "v"]}, virtual=["v"])


@pytest.mark.parametrize(
    ("table", "rules", "dispatch", "said"),
    [
        (KEYED, ["b"], None, "neither the primary key nor a unique key whole; keys are: b, c"),
        (KEYED, ["a", "v"], None, "neither the primary key nor a unique key whole"),
        (make_table(["a", "b"], pk_is_handle="a"), ["*", "!a"], None, "neither the primary key nor a unique key whole"),
        (make_table(["a", "b"]), ["x"], None, "leaves no column of the table"),
        (
            KEYED,
            ["b", "c"],
            {"partition": "columns", "columns": ["B", "A"]},
            "leaves out column `a`, which is one that",
        ),
    ],
)
def test_select_misfit_stops_the_feed_naming_table_and_selector(
    table: TableVersion, rules: list[str], dispatch: dict[str, Any] | None, said: str
) -> None:
    with pytest.raises(ColumnSelectorError) as caught:
        feed("protocol=canal-json", rules, dispatch).select(table)
    assert said in caught.value.message
    assert caught.value.action is Action.STOP_CHANGEFEED
    assert caught.value.code == "sorter.column_selector_failed"
    assert caught.value.fields["table"] == "test.t1"
    assert caught.value.fields["key"] == "sink.column-selectors[0].columns"


@pytest.mark.parametrize("protocol", ["avro&schema-registry=http://r:1", "debezium"])
def test_select_half_of_the_handle_key_is_refused_where_it_keys_messages(protocol: str) -> None:
    table = make_table(["a", "b"], pk_is_handle="a", unique={"u": ["b"]})
    with pytest.raises(ColumnSelectorError, match="column `a`, which is of the handle key"):
        feed(f"protocol={protocol}", ["b"]).select(table)
    assert feed("protocol=canal-json", ["b"]).select(table)[1] is not None


@pytest.mark.parametrize(
    ("sink", "name"),
    [
        ({"delete-only-output-handle-key-columns": True}, "delete-only-output-handle-key-columns"),
        (
            {"kafka-config": {"large-message-handle": {"large-message-handle-option": "handle-key-only"}}},
            "large-message-handle-option handle-key-only",
        ),
    ],
)
def test_select_half_of_the_handle_key_is_refused_where_it_stands_alone(sink: dict[str, Any], name: str) -> None:
    selectors = [{"matcher": ["*.*"], "columns": ["b"]}]
    config = load_changefeed(f"{CANAL}&enable-tidb-extension=true", {"sink": {"column-selectors": selectors, **sink}})
    with pytest.raises(ColumnSelectorError, match=f"column `a`, which is of the handle key, which {name} writes alone"):
        compile_feed(config, "default").select(make_table(["a", "b"], pk_is_handle="a", unique={"u": ["b"]}))


def test_select_table_without_a_key_may_keep_any_column() -> None:
    _, selection = feed("protocol=canal-json", ["b"]).select(make_table(["a", "b"]))
    assert selection is not None
    assert np.array_equal(selection.offsets, [1])


def test_check_routes_selector_misfits_are_named_in_one_error_after_those_of_dispatchers() -> None:
    infos = [table_info(number, name) for number, name in enumerate(("b", "a", "c"), 100)]
    schemas = snapshot(("d", 1, infos))
    with pytest.raises(ColumnSelectorError) as caught:
        check_routes(schemas, Ts(10), feed("protocol=canal-json", ["v"]))
    assert caught.value.message.startswith("column selectors do not fit 3 tables: d.a: column selector leaves neither")
    assert caught.value.fields == {"tables": 3, "keys": "sink.column-selectors[0].columns"}


def test_row_schemas_table_that_does_not_fit_has_none_until_its_first_row() -> None:
    assert feed("protocol=avro&schema-registry=http://r:1", ["b"]).row_schemas(KEYED) == ()


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("a.b", "unexpected `.` at character 2"),
        ("!", "the column part is empty"),
        ("@f", "@path"),
        ("a-b", "unexpected"),
    ],
)
def test_load_changefeed_illegal_column_rule_is_refused_with_its_place(rule: str, said: str) -> None:
    error = refused(CANAL, f"[[sink.column-selectors]]\nmatcher = ['a.*']\ncolumns = ['*', '{rule}']")
    assert f"column rule `{rule}` is illegal: " in error.message
    assert said in error.message
    assert error.fields["key"] == "sink.column-selectors[0].columns[1]"


def test_compile_feed_column_rule_too_large_without_case_is_refused_with_the_rule_in_the_text() -> None:
    with pytest.raises(ConfigError, match=r"column rule `/.*pattern too large"):
        feed("protocol=canal-json", ["/(?:" + "ks" * 80 + "){1000}/"])
