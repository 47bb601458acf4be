"""Options of TiCDC's new architecture that say more, or less, of a row; in both forms of the encoders."""

import io
import json
from base64 import b64decode
from typing import Any

import fastavro
import numpy as np
import pytest

from schemas.config.changefeed import load_changefeed
from schemas.ids import TableId, Ts
from schemas.tidb.keys import row_key
from schemas.tidb.row_v2 import encode_row_v2
from schemas.tidb.table_info import table_version
from sorters.core.feed.feed import CompiledFeed, compile_feed
from sorters.core.mount import mount
from sorters.core.mount.mounted import MountedColumns
from tests.support.recorded.ddl_jobs import PRIMARY, column, index, table_info
from tests.support.recorded.mounting import row_changes
from tests.support.recorded.recording import CommittedChange

COMMIT_TS, START_TS = 445644800000000001, 445644800000000000
TEXT: dict[str, Any] = {"tp": 15, "flen": 32, "charset": "utf8mb4", "collation": "utf8mb4_bin"}
COLUMNS = [
    column(1, "id", not_null=True, flag=PRIMARY),
    column(2, "email", not_null=True, **TEXT),
    column(3, "name", **TEXT),
    column(4, "version"),
    column(5, "updated_at"),
]
TABLE = table_version(
    table_info(
        112,
        "t",
        columns=[spec | {"offset": offset} for offset, spec in enumerate(COLUMNS)],
        indexes=[index(1, "email_idx", [1], unique=True)],
    ),
    schema_id=1,
    schema="test",
    version=Ts(1),
)
PATHS = pytest.mark.parametrize("small_rows", [0, 10**9], ids=["columnar", "scalar"])
Row = tuple[str, str, int | None, int | None]
BASE: Row = ("a@example.com", "Alice", 1, 10)


def stored(row: Row | None) -> bytes:
    if row is None:
        return b""
    numbers = [None if value is None else value.to_bytes(1, "little", signed=True) for value in row[2:]]
    return encode_row_v2(dict(enumerate((row[0].encode(), row[1].encode(), *numbers), 2)))


def mounted(old: Row | None, new: Row | None, small_rows: int) -> MountedColumns:
    key = row_key(TableId(112), 1)
    change = CommittedChange(COMMIT_TS, START_TS, key, "put" if new else "delete", stored(new), stored(old), 0)
    return mount(TABLE, row_changes(112, [change]), small_rows=small_rows)


def compiled(protocol: str, **config: Any) -> CompiledFeed:
    return compile_feed(load_changefeed(f"kafka://h:1/t?protocol={protocol}", config), "default")


def value_of(feed: CompiledFeed, old: Row | None, new: Row | None, small_rows: int) -> bytes:
    ids = {text.key: 7 for text in feed.row_schemas(TABLE)}
    encoded = feed.encoder.encode_rows(mounted(old, new, small_rows), topic="t", encoded_at_ms=5, schema_ids=ids)
    (value,) = encoded.values.to_pylist()
    return bytes(value)


AVRO = "avro&schema-registry=http://r:1&avro-include-before-value=true"
NEW: Row = ("a@example.com", "Alice", 2, None)


@PATHS
@pytest.mark.parametrize("extension", [False, True])
def test_avro_value_holds_the_row_before(extension: bool, small_rows: int) -> None:
    feed = compiled(f"{AVRO}&enable-tidb-extension={str(extension).lower()}")
    schema = json.loads(feed.row_schemas(TABLE)[-1].text)
    names = [field["name"] for field in schema["fields"]]
    more = ["_tidb_commit_ts", "_tidb_commit_physical_time"] if extension else []
    assert names[5:] == ["_ticdc_before", "_tidb_op", *more]
    assert schema["fields"][5]["type"][1]["name"] == "t_before"
    reader = fastavro.parse_schema(schema)

    def read(old: Row | None, new: Row | None) -> dict[str, Any]:
        value = value_of(feed, old, new, small_rows)
        assert value[:5] == b"\0\0\0\0\7"
        data = io.BytesIO(value[5:])
        record: Any = fastavro.schemaless_reader(data, reader, None)
        assert data.read() == b""
        return dict(record)

    was = {"id": 1, "email": "a@example.com", "name": "Alice", "version": 1, "updated_at": 10}
    is_now = {**was, "version": 2, "updated_at": None}
    for (old, new), expected, before, op in (
        ((None, NEW), is_now, None, "c"),
        ((BASE, NEW), is_now, was, "u"),
        ((BASE, None), was, was, "d"),
    ):
        record = read(old, new)
        assert {name: record[name] for name in was} == expected
        assert (record["_ticdc_before"], record["_tidb_op"]) == (before, op)
        assert record.get("_tidb_commit_ts", COMMIT_TS) == COMMIT_TS


@PATHS
def test_avro_without_the_option_sends_no_value_of_a_delete(small_rows: int) -> None:
    feed = compiled(AVRO.replace("=true", "=false"))
    encoded = feed.encoder.encode_rows(
        mounted(BASE, None, small_rows),
        topic="t",
        encoded_at_ms=5,
        schema_ids={("t-key", TABLE.table_id, TABLE.version): 7},
    )
    assert encoded.values.to_pylist() == [None]


@PATHS
@pytest.mark.parametrize("extension", [False, True])
def test_debezium_source_holds_the_start_ts_and_its_schema_says_so(extension: bool, small_rows: int) -> None:
    feed = compiled(f"debezium&debezium-include-start-ts=true&enable-tidb-extension={str(extension).lower()}")
    for old, new in ((None, NEW), (BASE, NEW), (BASE, None)):
        message = json.loads(value_of(feed, old, new, small_rows))
        source = message["payload"]["source"]
        assert list(source)[-3:] == ["commit_ts", "start_ts", "cluster_id"]
        assert (source["commit_ts"], source["start_ts"]) == (COMMIT_TS, START_TS)
        (schema,) = [field for field in message["schema"]["fields"] if field["field"] == "source"]
        fields = [field["field"] for field in schema["fields"]]
        assert fields[15:] == (["commit_ts", "cluster_id", "start_ts"] if extension else ["start_ts"])
    watermark = feed.encoder.encode_watermark(Ts(5), encoded_at_ms=1)
    assert watermark is None or b"start_ts" not in (watermark.value or b"")


@PATHS
def test_canal_json_extension_holds_the_row_key(small_rows: int) -> None:
    feed = compiled("canal-json&enable-tidb-extension=true&output-row-key=true")
    for old, new in ((None, NEW), (BASE, NEW), (BASE, None)):
        extension = json.loads(value_of(feed, old, new, small_rows))["_tidb"]
        assert list(extension) == ["commitTs", "rowkey"]
        assert b64decode(extension["rowkey"]) == row_key(TableId(112), 1)
    plain = compiled("canal-json&output-row-key=true")
    assert b"rowkey" not in value_of(plain, BASE, NEW, small_rows)


# The cases of pingcap/ticdc pkg/filter/filter_test.go, TestShouldIgnoreDMLByUpdateOnlyColumns, Apache License 2.0.
CASES = [
    ("only ignored columns changed", ["version", "updated_at"], BASE, ("a@example.com", "Alice", 2, 11), True),
    ("another one changed too", ["version", "updated_at"], BASE, ("a@example.com", "Bob", 2, 11), False),
    ("a unique key changed", ["email", "version"], BASE, ("b@example.com", "Alice", 1, 10), False),
    ("a name that is missing", ["missing", "version"], BASE, ("a@example.com", "Alice", 2, 10), True),
    ("only names that are missing", ["missing"], BASE, BASE, False),
    ("another case", ["VERSION"], BASE, ("a@example.com", "Alice", 2, 10), True),
    ("insert", ["version"], None, BASE, False),
    ("delete", ["version"], BASE, None, False),
    ("null stays null", ["updated_at"], ("a@example.com", "Alice", 1, None), ("a@example.com", "Alice", 1, None), True),
    ("null to a value", ["updated_at"], ("a@example.com", "Alice", 1, None), BASE, True),
    ("a value to null", ["updated_at"], BASE, ("a@example.com", "Alice", 1, None), True),
    ("another one to null", ["updated_at"], BASE, ("a@example.com", "Alice", None, 10), False),
    ("nothing changed", ["version"], BASE, BASE, True),
]


@PATHS
@pytest.mark.parametrize(("columns", "old", "new", "ignored"), [case[1:] for case in CASES], ids=[c[0] for c in CASES])
def test_update_of_only_these_columns_is_ignored(
    columns: list[str], old: Row | None, new: Row | None, ignored: bool, small_rows: int
) -> None:
    rules = [{"matcher": ["TEST.*"], "ignore-update-only-columns": columns}]
    feed = compiled("canal-json", filter={"event-filters": rules})
    (part,) = mounted(old, new, small_rows).parts
    marked = feed.update_columns.ignored(part)
    assert (marked is not None and bool(np.all(marked))) is ignored
    assert feed.update_columns.concern("test", "t") and not feed.update_columns.concern("d", "t")


def test_update_filter_follows_case_sensitive() -> None:
    (part,) = mounted(BASE, ("a@example.com", "Alice", 2, 10), 0).parts
    for matcher, name, ignored in (
        ("test.t", "version", True),
        ("test.t", "VERSION", False),
        ("TEST.t", "version", False),
    ):
        rules = [{"matcher": [matcher], "ignore-update-only-columns": [name]}]
        feed = compiled("canal-json", **{"case-sensitive": True}, filter={"event-filters": rules})
        assert (feed.update_columns.ignored(part) is not None) is ignored
