"""debezium's options and quirks, from the changefeed's settings to the bytes; expected messages are the reference's.

Source: reference of the Kafka protocols, table ``test.t1 (id int primary key clustered, val varchar(32))`` and its
table of types; nothing here is taken from what the encoder said.
"""

import json
from datetime import UTC, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from schemas.config.changefeed import load_changefeed
from schemas.ddl.schema_change import StoredTable, stored_table
from schemas.ids import Ts
from schemas.tidb.keys import row_key
from schemas.tidb.packed_time import pack_time
from schemas.tidb.row_v2 import encode_row_v2
from schemas.tidb.table import TableVersion
from schemas.tidb.table_info import table_version
from sorters.core.encode.debezium.encoder import DebeziumEncoder
from sorters.core.encode.wire.protocol import Encoder, EncodeRefusedError
from sorters.core.feed.feed import compile_feed
from sorters.core.mount import mount
from tests.support.recorded.ddl_jobs import PRIMARY, column, table_info
from tests.support.recorded.mounting import row_changes
from tests.support.recorded.recording import CommittedChange

COMMIT_TS, ENCODED_AT_MS = 445644800000000001, 1_700_000_000_100
TEXT = {"tp": 15, "flen": 32, "charset": "utf8mb4", "collation": "utf8mb4_bin"}
INT_KEY = column(1, "id", not_null=True, flag=PRIMARY)
PATHS = pytest.mark.parametrize("small_rows", [0, 10**9], ids=["columnar", "scalar"])
SOURCE = (
    '"source":{"version":"2.4.0.Final","connector":"TiCDC","name":"default","ts_ms":1700000000000,"snapshot":"false",'
    '"db":"%s","table":"%s","server_id":0,"gtid":null,"file":"","pos":0,"row":0,"thread":0,"query":null,'
    '"commit_ts":445644800000000001,"cluster_id":"default"},"ts_ms":1700000000100'
)
KEY = (
    '{"payload":{"id":1},"schema":{"type":"struct","name":"default.test.t1.Key","optional":false,"fields":['
    '{"type":"int32","optional":false,"field":"id"}]}}'
)
FIELDS = '[{"type":"int32","optional":false,"field":"id"},{"type":"string","optional":true,"field":"val"}]'


def table_of(*columns: dict[str, Any], name: str = "t1") -> TableVersion:
    specs = [spec | {"offset": offset} for offset, spec in enumerate((INT_KEY, *columns))]
    return table_version(table_info(112, name, columns=specs), schema_id=1, schema="test", version=Ts(1))


T1 = table_of(column(2, "val", **TEXT))  # type: ignore[arg-type]


def encoder(options: str = "", text: dict[str, Any] | None = None) -> Encoder:
    return compile_feed(load_changefeed(f"kafka://h:1/t?protocol=debezium{options}", text or {}), "default").encoder


def message_of(
    by: Encoder,
    new: dict[int, bytes | None] | None,
    old: dict[int, bytes | None] | None,
    small_rows: int,
    *,
    table: TableVersion = T1,
    zone: tzinfo = UTC,
) -> tuple[str, str]:
    """Return key and value of one row change; rows are column id to value bytes."""
    value, before = (b"" if row is None else encode_row_v2(row) for row in (new, old))
    key = row_key(table.table_id, 1)
    change = CommittedChange(COMMIT_TS, COMMIT_TS - 1, key, "delete" if new is None else "put", value, before, 0)
    mounted = mount(table, row_changes(table.table_id, [change]), zone=zone, small_rows=small_rows)
    encoded = by.encode_rows(mounted, topic="t", encoded_at_ms=ENCODED_AT_MS, schema_ids={})
    return encoded.keys[0].as_py().decode(), encoded.values[0].as_py().decode()


def payload(value: str) -> str:
    """Cut a value off behind its payload."""
    return value[: value.index(',"schema":{"type":"struct","optional":false,"name":"default.')]


@PATHS
def test_debezium_insert_update_and_delete_are_the_documented_messages(small_rows: int) -> None:
    by, source = encoder(), SOURCE % ("test", "t1")
    changes: list[tuple[dict[int, bytes | None] | None, dict[int, bytes | None] | None, str]] = [
        ({2: b"aa"}, None, '"op":"c","before":null,"after":{"id":1,"val":"aa"}}'),
        ({2: b"bb"}, {2: b"aa"}, '"op":"u","before":{"id":1,"val":"aa"},"after":{"id":1,"val":"bb"}}'),
        (None, {2: b"bb"}, '"op":"d","after":null,"before":{"id":1,"val":"bb"}}'),
    ]
    for new, old, end in changes:
        key, value = message_of(by, new, old, small_rows)
        assert key == KEY
        assert payload(value) == f'{{"payload":{{{source},"transaction":null,{end}'
        schema = json.loads(value)["schema"]
        assert (schema["type"], schema["optional"], schema["version"]) == ("struct", False, 1)
        assert schema["name"] == "default.test.t1.Envelope"
        names = [field["field"] for field in schema["fields"]]
        assert names == ["before", "after", "source", "op", "ts_ms", "transaction"]
        for side in ("before", "after"):
            said = (
                f'{{"type":"struct","optional":true,"name":"default.test.t1.Value","field":"{side}","fields":{FIELDS}}}'
            )
            assert said in value


@PATHS
def test_debezium_disable_schema_leaves_payloads_only(small_rows: int) -> None:
    source = SOURCE % ("test", "t1")
    for by in (encoder("&debezium-disable-schema=true"), encoder(text={"sink": {"debezium-disable-schema": True}})):
        key, value = message_of(by, {2: b"aa"}, None, small_rows)
        assert key == '{"payload":{"id":1}}'
        assert value == (
            f'{{"payload":{{{source},"transaction":null,"op":"c","before":null,"after":{{"id":1,"val":"aa"}}}}}}'
        )


@PATHS
def test_debezium_without_old_values_leaves_before_out_of_updates_only(small_rows: int) -> None:
    by = encoder(text={"sink": {"debezium": {"output-old-value": False}}})
    updated = payload(message_of(by, {2: b"bb"}, {2: b"aa"}, small_rows)[1])
    assert updated.endswith('"transaction":null,"op":"u","after":{"id":1,"val":"bb"}}')
    assert payload(message_of(by, None, {2: b"bb"}, small_rows)[1]).endswith(
        '"after":null,"before":{"id":1,"val":"bb"}}'
    )


@PATHS
def test_debezium_tidb_extension_names_types_first(small_rows: int) -> None:
    table = table_of(column(2, "n", tp=8, flag=32), column(3, "d", tp=246, flen=10, decimal=2, flag=32))
    key, value = message_of(
        encoder("&enable-tidb-extension=true"), {2: b"\x01", 3: None}, None, small_rows, table=table
    )
    assert '"fields":[{"tidb_type":"int","type":"int32","optional":false,"field":"id"}]' in key
    assert '{"tidb_type":"bigint unsigned","type":"int64","optional":true,"field":"n"}' in value
    assert '{"tidb_type":"decimal","type":"double","optional":true,"field":"d"}' in value


def packed(*fields: int) -> bytes:
    return pack_time(*fields).to_bytes(8, "little")


@PATHS
@pytest.mark.parametrize(
    ("spec", "value", "said"),
    [
        ({"tp": 8, "flag": 32}, (2**64 - 1).to_bytes(8, "little"), "-1"),
        ({"tp": 8, "flag": 32}, (2**63 + 5).to_bytes(8, "little"), "-9223372036854775803"),
        ({"tp": 8, "flag": 32}, (2**63 - 1).to_bytes(8, "little"), "9223372036854775807"),
        ({"tp": 16, "flen": 1}, b"\x01", "true"),
        ({"tp": 16, "flen": 10}, b"\x03\x02", '"AwI="'),
        ({"tp": 10}, packed(1970, 1, 2), "1"),
        ({"tp": 10}, packed(69, 1, 1), "36160"),
        ({"tp": 10}, packed(70, 1, 1), "0"),
        ({"tp": 10}, packed(2024, 2, 30), "null"),
        ({"tp": 10, "not_null": True}, packed(0, 0, 0), "0"),
        ({"tp": 12, "decimal": 3}, packed(1970, 1, 1, 0, 0, 1, 5000), "1005"),
        ({"tp": 12, "decimal": 4}, packed(1970, 1, 1, 0, 0, 1, 5000), "1005000"),
        ({"tp": 12, "decimal": 0}, packed(1969, 12, 31, 23, 59, 59), "-1000"),
        ({"tp": 12, "decimal": 0}, packed(0, 0, 0), "null"),
        ({"tp": 12, "decimal": 0, "not_null": True}, packed(0, 0, 0), "0"),
        ({"tp": 7, "decimal": 2}, packed(2024, 2, 29, 1, 2, 3, 450000), '"2024-02-29T01:02:03.45Z"'),
        ({"tp": 7, "decimal": 0}, packed(0, 0, 0), '"1970-01-01T00:00:00Z"'),
        ({"tp": 11, "decimal": 1}, (-3_600_500_000_000).to_bytes(8, "little", signed=True), "-3600500000"),
        ({"tp": 13}, b"\x6b\x08", "2155"),
        ({"tp": 247, "elems": ["a", "b"]}, b"\x00", '""'),
        ({"tp": 248, "elems": ["a", "b", "c"]}, b"\x05", '"a,c"'),
    ],
)
def test_debezium_value_is_as_the_table_of_types_says(
    spec: dict[str, Any], value: bytes, said: str, small_rows: int
) -> None:
    _, message = message_of(DebeziumEncoder(), {2: value}, None, small_rows, table=table_of(column(2, "v", **spec)))
    assert payload(message).endswith(f'"after":{{"id":1,"v":{said}}}}}')


@PATHS
def test_debezium_null_of_a_column_with_default_is_the_default(small_rows: int) -> None:
    table = table_of(
        column(2, "i") | {"default": "5"},
        column(3, "s", **TEXT) | {"default": 'a"b'},  # type: ignore[arg-type]
        column(4, "d", tp=12, decimal=0) | {"default": "1970-01-01 00:00:01"},
        column(5, "c", tp=12, decimal=0) | {"default": "CURRENT_TIMESTAMP"},
        column(6, "t", tp=7, decimal=0) | {"default": "CURRENT_TIMESTAMP"},
    )
    _, value = message_of(DebeziumEncoder(), dict.fromkeys(range(2, 7)), None, small_rows, table=table)
    assert payload(value).endswith('"after":{"id":1,"i":5,"s":"a\\"b","d":1000,"c":0,"t":null}}')
    assert '{"type":"int32","optional":true,"field":"i","default":5}' in value
    assert '{"type":"string","optional":true,"field":"s","default":"a\\"b"}' in value


@PATHS
def test_debezium_null_is_the_default_as_its_text_says_it(small_rows: int) -> None:
    """``getValueFromDefault`` does not fit it to the column, as TiDB does where a row lacks it."""
    table = table_of(
        column(2, "y", tp=13, flen=4) | {"default": "70"},
        column(3, "f", tp=4, decimal=-1) | {"default": "3.14"},
        column(4, "s", **TEXT | {"flen": 2}) | {"default": "ab "},  # type: ignore[arg-type]
    )
    _, value = message_of(DebeziumEncoder(), dict.fromkeys(range(2, 5)), None, small_rows, table=table)
    assert payload(value).endswith('"after":{"id":1,"y":70,"f":3.14,"s":"ab "}}')
    assert '"field":"y","default":1970}' in value
    assert '"field":"f","default":3.14}' in value


@PATHS
def test_debezium_timestamp_mounted_in_another_zone_is_in_utc(small_rows: int) -> None:
    zone = ZoneInfo("Asia/Shanghai")
    table = table_of(column(2, "t", tp=7, decimal=0))
    _, value = message_of(
        DebeziumEncoder(zone=zone), {2: packed(2024, 6, 1, 20)}, None, small_rows, table=table, zone=zone
    )
    assert '"t":"2024-06-01T20:00:00Z"' in value


@PATHS
@pytest.mark.parametrize("fields", [(2024, 0, 5), (2024, 2, 30), (0, 0, 5)])
def test_debezium_datetime_out_of_the_calendar_is_refused_by_table_key_and_column(
    fields: tuple[int, ...], small_rows: int
) -> None:
    table = table_of(column(2, "dt", tp=12, decimal=0))
    with pytest.raises(EncodeRefusedError) as caught:
        message_of(DebeziumEncoder(), {2: packed(*fields)}, None, small_rows, table=table)
    key = row_key(table.table_id, 1).hex()
    assert caught.value.fields == {"table": "test.t1", "key": key, "commit_ts": COMMIT_TS, "column": "dt"}


@PATHS
def test_debezium_schema_names_are_legal_and_texts_keep_what_json_allows(small_rows: int) -> None:
    table = table_of(column(2, "<v>", **TEXT), name="1-t.ü")  # type: ignore[arg-type]
    key, value = message_of(
        DebeziumEncoder(cluster_id="1c"), {2: "<&>\u2028\x01\t".encode()}, None, small_rows, table=table
    )
    assert '"name":"_1c.test.1_t._.Key"' in key
    assert '"after":{"id":1,"<v>":"<&>\u2028\\u0001\\t"}' in value
    assert '"table":"1-t.ü"' in value


def stored(*columns: dict[str, Any], name: str = "t1") -> StoredTable:
    specs = [spec | {"offset": offset} for offset, spec in enumerate((INT_KEY, *columns))]
    return stored_table(table_info(112, name, columns=specs), schema_id=1, schema="test", version=Ts(1))


class Ddl:
    """A DDL event as encoders read it."""

    schema, commit_ts = "test", Ts(COMMIT_TS)

    def __init__(self, ddl_type: int, query: str, pre: StoredTable | None, post: StoredTable | None) -> None:
        self.ddl_type, self.query, self.pre, self.post = ddl_type, query, pre, post
        table = post or pre
        self.table = table.table if table else ""


def test_debezium_drop_table_is_the_documented_message() -> None:
    by = encoder("&debezium-disable-schema=true")
    message = by.encode_ddl(Ddl(4, "drop table t1", stored(), None), encoded_at_ms=ENCODED_AT_MS)
    assert message is not None
    assert message.key == b'{"payload":{"databaseName":"test"}}'
    assert message.value.decode() == (
        f'{{"payload":{{{SOURCE % ("test", "t1")},"databaseName":"test","schemaName":null,"ddl":"drop table t1",'
        '"tableChanges":[{"type":"DROP","id":"\\"test\\".\\"t1\\"","table":null}]}}'
    )


def changed(ddl: Ddl) -> dict[str, Any]:
    message = encoder().encode_ddl(ddl, encoded_at_ms=1)
    assert message is not None
    (change,) = json.loads(message.value)["payload"]["tableChanges"]
    assert isinstance(change, dict)
    return change


def test_debezium_ddl_tells_columns_that_it_defines_as_the_statement_does() -> None:
    table = stored(
        column(2, "a", tp=12, decimal=0) | {"comment": "x", "default": "2020-01-01 00:00:00"},
        column(3, "b", tp=12, decimal=0) | {"comment": "y", "default": "2020-01-01 00:00:00"},
        column(4, "_V$_k_0") | {"hidden": True},
        column(5, "c", tp=13, flen=4) | {"default": "2001"},
    )
    query = "ALTER TABLE `t1` ADD COLUMN `a` DATETIME DEFAULT _UTF8MB4'2020-01-01' COMMENT 'x', ADD COLUMN `c` YEAR(4)"
    columns = changed(Ddl(61, query, table, table))["table"]["columns"]
    said = [(c["name"], c["position"], c["length"], c["defaultValueExpression"], c["comment"]) for c in columns]
    assert said == [
        ("id", 1, None, None, None),
        ("a", 2, None, "2020-01-01", None),
        ("b", 3, 0, "2020-01-01 00:00:00", "y"),
        ("c", 5, 4, "2001", None),
    ]


def test_debezium_rename_has_both_names_and_schemas_no_table() -> None:
    rename = changed(Ddl(14, "RENAME TABLE `t1` TO `t2`", stored(), stored(name="t2")))
    assert (rename["type"], rename["id"]) == ("ALTER", '"test"."t1","test"."t2"')
    message = encoder().encode_ddl(Ddl(1, "CREATE DATABASE `test`", None, None), encoded_at_ms=1)
    assert message is not None
    assert json.loads(message.value)["payload"]["tableChanges"] == []
    assert encoder().encode_ddl(Ddl(25, "RECOVER TABLE t1", None, stored()), encoded_at_ms=1) is None
