"""simple's messages of one table, as the reference writes them, and what the recording has no value for.

Source: docs/formats/kafka-sink-protocols.md §9, table ``test.t1 (id int primary key clustered, val varchar(32))``;
nothing here is taken from what the encoders said.
"""

import base64
from typing import Any

import pytest

from schemas.ddl.schema_change import StoredTable, stored_table
from schemas.ids import TableId, Ts
from schemas.tidb.keys import row_key
from schemas.tidb.packed_time import pack_time
from schemas.tidb.row_v2 import encode_row_v2
from schemas.tidb.table import TableVersion
from schemas.tidb.table_info import table_version
from sorters.core.encode.simple.json import SimpleJsonEncoder
from sorters.core.mount import mount
from tests.support.recorded.ddl_jobs import PRIMARY, column, table_info
from tests.support.recorded.mounting import row_changes
from tests.support.recorded.recording import CommittedChange

COMMIT_TS, UPDATE_TS, ENCODED_AT_MS = 445644800000000001, 445644700000000000, 1_700_000_000_100
TEXT: dict[str, Any] = {"tp": 15, "flen": 32, "charset": "utf8mb4", "collation": "utf8mb4_bin"}
BINARY: dict[str, Any] = {"tp": 15, "flen": 32, "charset": "binary", "collation": "binary"}
TIMESTAMP: dict[str, Any] = {"tp": 7, "flen": 19}
PATHS = pytest.mark.parametrize("small_rows", [0, 10**9], ids=["columnar", "scalar"])
HEAD = '{"version":1,"database":"test","table":"t1","tableID":112,'
MIDDLE = '"commitTs":445644800000000001,"buildTs":1700000000100,"schemaVersion":445644700000000000,'
SCHEMA = (
    '{"schema":"test","table":"t1","tableID":112,"version":445644700000000000,"columns":[{"name":"id","dataType":'
    '{"mysqlType":"int","charset":"binary","collate":"binary","length":11},"nullable":false,"default":null},'
    '{"name":"val","dataType":{"mysqlType":"varchar","charset":"utf8mb4","collate":"utf8mb4_bin","length":32},'
    '"nullable":true,"default":null}],"indexes":[{"name":"primary","unique":true,"primary":true,"nullable":false,'
    '"columns":["id"]}]}'
)


def t1_info(spec: dict[str, Any] = TEXT, **changes: Any) -> dict[str, Any]:
    columns = [column(1, "id", not_null=True, flag=PRIMARY), column(2, "val", **spec) | {"offset": 1} | changes]
    return table_info(112, "t1", columns=columns) | {"update_timestamp": UPDATE_TS}


def t1(spec: dict[str, Any] = TEXT, **changes: Any) -> TableVersion:
    return table_version(t1_info(spec, **changes), schema_id=1, schema="test", version=Ts(1))


def stored(info: dict[str, Any]) -> StoredTable:
    return stored_table(info, schema_id=1, schema="test", version=Ts(1))


def message_of(
    new: bytes | None, old: bytes | None, small_rows: int, table: TableVersion, location: str = "UTC"
) -> str:
    """Return the message of a change of the row with id 1; ``new`` and ``old`` are val's bytes, None: no row."""
    value, before = (b"" if val is None else encode_row_v2({2: val}) for val in (new, old))
    change = CommittedChange(
        COMMIT_TS, COMMIT_TS - 1, row_key(TableId(112), 1), "delete" if new is None else "put", value, before, 0
    )
    mounted = mount(table, row_changes(112, [change]), small_rows=small_rows)
    (message,) = (
        SimpleJsonEncoder(location=location).encode_rows(mounted, encoded_at_ms=ENCODED_AT_MS).values.to_pylist()
    )
    return str(message.decode())


@PATHS
def test_simple_json_rows_equal_the_documented_messages(small_rows: int) -> None:
    table = t1()
    insert, update = message_of(b"aa", None, small_rows, table), message_of(b"bb", b"aa", small_rows, table)
    assert insert == HEAD + '"type":"INSERT",' + MIDDLE + '"data":{"id":"1","val":"aa"}}'
    assert update == HEAD + '"type":"UPDATE",' + MIDDLE + '"data":{"id":"1","val":"bb"},"old":{"id":"1","val":"aa"}}'
    assert (
        message_of(None, b"bb", small_rows, table)
        == HEAD + '"type":"DELETE",' + MIDDLE + '"old":{"id":"1","val":"bb"}}'
    )


def test_simple_json_ddl_bootstrap_and_watermark_equal_the_documented_messages() -> None:
    class CreateTable:
        schema, table, ddl_type, commit_ts = "test", "t1", 3, Ts(UPDATE_TS)
        query = "create table t1 (id int primary key, val varchar(32))"
        pre: StoredTable | None = None
        post: StoredTable | None = stored(t1_info())

    encoder = SimpleJsonEncoder()
    assert encoder.encode_ddl(CreateTable(), encoded_at_ms=ENCODED_AT_MS).value.decode() == (
        '{"version":1,"type":"CREATE","sql":"create table t1 (id int primary key, val varchar(32))",'
        '"commitTs":445644700000000000,"buildTs":1700000000100,"tableSchema":' + SCHEMA + "}"
    )
    assert encoder.encode_bootstrap(t1(), encoded_at_ms=ENCODED_AT_MS).value.decode() == (
        '{"version":1,"type":"BOOTSTRAP","commitTs":0,"buildTs":1700000000100,"tableSchema":' + SCHEMA + "}"
    )
    assert encoder.encode_watermark(Ts(COMMIT_TS), encoded_at_ms=ENCODED_AT_MS).value == (
        b'{"version":1,"type":"WATERMARK","commitTs":445644800000000001,"buildTs":1700000000100}'
    )


@PATHS
def test_simple_json_binary_values_are_base64_and_texts_escaped_as_go_does(small_rows: int) -> None:
    data = bytes(range(256))
    shown = base64.b64encode(data).decode()
    assert message_of(data, None, small_rows, t1(BINARY)).endswith(f'"data":{{"id":"1","val":"{shown}"}}}}')
    assert message_of(b"", None, small_rows, t1(BINARY)).endswith('"data":{"id":"1","val":""}}')
    said = message_of(b'<"\\\x01\xff>', None, small_rows, t1())
    assert said.endswith(r'"data":{"id":"1","val":"\u003c\"\\\u0001\ufffd\u003e"}}')


@PATHS
def test_simple_json_timestamp_names_its_zone(small_rows: int) -> None:
    noon = pack_time(2024, 1, 1, 12, 0, 0, 0).to_bytes(8, "little")
    said = message_of(noon, None, small_rows, t1(TIMESTAMP), location="Asia/Shanghai")
    assert said.endswith('"val":{"location":"Asia/Shanghai","value":"2024-01-01 12:00:00"}}}')


def test_simple_json_default_of_a_bit_column_is_its_number() -> None:
    table = t1({"tp": 16, "flen": 10}, default="\x02\x01", default_bit=base64.b64encode(b"\x02\x01").decode())
    said = SimpleJsonEncoder().encode_bootstrap(table, encoded_at_ms=1).value.decode()
    assert '"mysqlType":"bit"' in said
    assert '"nullable":true,"default":513}' in said
