"""canal-json's options, on the complete example of PingCAP's table ``test.t1``."""

import json
from typing import Any

import pytest

from schemas.ids import Ts, compose_ts
from schemas.tidb.codec import encode_int
from schemas.tidb.keys import row_key
from schemas.tidb.row_v2 import encode_row_v2
from schemas.tidb.table import TableVersion
from schemas.tidb.table_info import table_version
from sorters.core.encode.canal.json import CanalJsonEncoder
from sorters.core.mount import mount
from tests.support.recorded.mounting import row_changes
from tests.support.recorded.recording import CommittedChange, Op

COMMIT_TS = compose_ts(1_700_000_000_000, 1)
ENCODED_AT_MS = 1_700_000_000_100
HEAD = '{"id":0,"database":"test","table":"t1","pkNames":["id"],"isDdl":false,"type":"%s","es":1700000000000,'
HEAD += '"ts":1700000000100,"sql":"","sqlType":{"id":4,"val":12},"mysqlType":{"id":"int","val":"varchar"},'
TAIL = f',"_tidb":{{"commitTs":{COMMIT_TS}}}}}'
PATHS = pytest.mark.parametrize("small_rows", [0, 10**9], ids=["columnar", "scalar"])


def column(column_id: int, name: str, **field: Any) -> dict[str, Any]:
    """Return ColumnInfo JSON; ``field`` overrides FieldType."""
    field_type = {"Tp": 3, "Flag": 0, "Flen": 11, "Decimal": 0, "Charset": "binary", "Collate": "binary", "Elems": None}
    return {
        "id": column_id,
        "name": {"O": name, "L": name},
        "offset": column_id - 1,
        "state": 5,
        "type": field_type | field,
    }


def table_of(*columns: dict[str, Any]) -> TableVersion:
    info = {"id": 112, "name": {"O": "t1", "L": "t1"}, "cols": list(columns), "pk_is_handle": True, "state": 5}
    return table_version(info, schema_id=1, schema="test", version=Ts(1))


TEXT = {"Charset": "utf8mb4", "Collate": "utf8mb4_bin"}
T1 = table_of(column(1, "id", Flag=3), column(2, "val", Tp=15, Flen=32, **TEXT))


def change(value: bytes | None, old_value: bytes | None) -> CommittedChange:
    def row(text: bytes | None) -> bytes:
        return b"" if text is None else encode_row_v2({2: text})

    op: Op = "delete" if value is None else "put"
    return CommittedChange(COMMIT_TS, COMMIT_TS - 1, row_key(T1.table_id, 1), op, row(value), row(old_value), 0)


INSERT, UPDATE, DELETE = change(b"aa", None), change(b"bb", b"aa"), change(None, b"bb")


def encode(encoder: CanalJsonEncoder, change: CommittedChange, small_rows: int, table: TableVersion = T1) -> str:
    mounted = mount(table, row_changes(table.table_id, [change]), small_rows=small_rows)
    (value,) = encoder.encode_rows(mounted, encoded_at_ms=ENCODED_AT_MS).values.to_pylist()
    assert isinstance(value, bytes)
    return value.decode()


@PATHS
def test_canal_json_rows_equal_the_documented_example(small_rows: int) -> None:
    encoder = CanalJsonEncoder(enable_tidb_extension=True)
    assert encode(encoder, INSERT, small_rows) == HEAD % "INSERT" + '"old":null,"data":[{"id":"1","val":"aa"}]' + TAIL
    assert (
        encode(encoder, UPDATE, small_rows)
        == HEAD % "UPDATE" + '"old":[{"id":"1","val":"aa"}],"data":[{"id":"1","val":"bb"}]' + TAIL
    )
    assert encode(encoder, DELETE, small_rows) == HEAD % "DELETE" + '"old":null,"data":[{"id":"1","val":"bb"}]' + TAIL


@PATHS
def test_canal_json_only_updated_columns_leaves_equal_columns_out_of_old(small_rows: int) -> None:
    encoder = CanalJsonEncoder(only_output_updated_columns=True)
    assert '"old":[{"val":"aa"}],"data":[{"id":"1","val":"bb"}]' in encode(encoder, UPDATE, small_rows)
    assert '"old":[{}],' in encode(encoder, change(b"same", b"same"), small_rows)
    assert '"old":null,' in encode(encoder, INSERT, small_rows)


@PATHS
def test_canal_json_delete_with_handle_keys_only_drops_the_other_columns_everywhere(small_rows: int) -> None:
    encoder = CanalJsonEncoder(delete_only_output_handle_key_columns=True)
    assert '"sqlType":{"id":4},"mysqlType":{"id":"int"},"old":null,"data":[{"id":"1"}]}' in encode(
        encoder, DELETE, small_rows
    )
    assert '"data":[{"id":"1","val":"aa"}]' in encode(encoder, INSERT, small_rows)


@PATHS
def test_canal_json_content_compatible_adds_parameters_and_keeps_only_updated_columns(small_rows: int) -> None:
    encoder = CanalJsonEncoder(content_compatible=True)
    message = encode(encoder, UPDATE, small_rows)
    assert '"mysqlType":{"id":"int(11)","val":"varchar(32)"},"old":[{"val":"aa"}],' in message


def test_canal_json_content_compatible_names_types_as_tidb_does() -> None:
    wanted: dict[str, dict[str, Any]] = {
        "int(11)": {"Tp": 3},
        "bigint(20) unsigned": {"Tp": 8, "Flen": 20, "Flag": 32},
        "tinyint(4) unsigned zerofill": {"Tp": 1, "Flen": 4, "Flag": 96},
        "bit(10)": {"Tp": 16, "Flen": 10, "Flag": 32},
        "year(4)": {"Tp": 13, "Flen": 4, "Flag": 32},
        "decimal(20,6)": {"Tp": 246, "Flen": 20, "Decimal": 6},
        "decimal(10,0)": {"Tp": 246, "Flen": 10, "Decimal": 0},
        "float": {"Tp": 4, "Flen": 12, "Decimal": -1},
        "double(10,2)": {"Tp": 5, "Flen": 10, "Decimal": 2},
        "datetime(6)": {"Tp": 12, "Flen": 26, "Decimal": 6},
        "timestamp": {"Tp": 7, "Flen": 19},
        "time(3)": {"Tp": 11, "Flen": 14, "Decimal": 3},
        "date": {"Tp": 10, "Flen": 10},
        "enum('a','b''c')": {"Tp": 247, "Elems": ["a", "b'c"], **TEXT},
        "set('x','y')": {"Tp": 248, "Elems": ["x", "y"], **TEXT},
        "varbinary(100)": {"Tp": 15, "Flen": 100},
        "char(20)": {"Tp": 254, "Flen": 20, **TEXT},
        "binary(16)": {"Tp": 254, "Flen": 16},
        "json": {"Tp": 245, "Flen": 4294967295},
        "text": {"Tp": 252, "Flen": 65535, **TEXT},
        "longblob": {"Tp": 251, "Flen": 4294967295},
        "vector(3)": {"Tp": 225, "Flen": 3},
        "vector": {"Tp": 225, "Flen": -1},
    }
    columns = [column(number, f"c{number}", **field) for number, field in enumerate(wanted.values(), 2)]
    table = table_of(column(1, "id", Flag=3), *columns)
    nulls = encode_row_v2(dict.fromkeys(range(2, len(wanted) + 2)))
    row = CommittedChange(COMMIT_TS, COMMIT_TS - 1, row_key(table.table_id, 1), "put", nulls, b"", 0)
    message = json.loads(encode(CanalJsonEncoder(content_compatible=True), row, 0, table))
    assert list(message["mysqlType"].values())[1:] == list(wanted)


def test_canal_json_unsigned_numbers_beyond_the_signed_type_are_promoted_row_by_row() -> None:
    table = table_of(column(1, "id", Flag=3), column(2, "tiny", Tp=1, Flag=32), column(3, "big", Tp=8, Flag=32))
    values = [(b"\x7f", b"\x01"), (b"\x80", b"\xff" * 8)]
    changes = [
        CommittedChange(
            COMMIT_TS, COMMIT_TS - 1, b"t" + encode_int(112) + b"_r" + encode_int(number), "put", row, b"", 0
        )
        for number, row in enumerate(encode_row_v2({2: tiny, 3: big}) for tiny, big in values)
    ]
    for small_rows in (0, 10**9):
        mounted = mount(table, row_changes(112, changes), small_rows=small_rows)
        values_out = CanalJsonEncoder().encode_rows(mounted, encoded_at_ms=1).values.to_pylist()
        assert [json.loads(value)["sqlType"] for value in values_out] == [
            {"id": 4, "tiny": -6, "big": -5},
            {"id": 4, "tiny": 5, "big": 3},
        ]
