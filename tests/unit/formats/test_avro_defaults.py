"""Defaults of BIT, binary and float columns in Avro schemas, worked out by hand from TiCDC's rule.

TiCDC (``getDefaultValue`` in ``pkg/sink/codec/avro/arvo.go``) keeps such a default as Go's ``[]byte``, which
``encoding/json`` writes in base64, and a FLOAT's as the double that ``ParseFloat(v, 32)`` returns; the recording holds
no such column.
"""

import base64
import json
from typing import Any

import pytest

from schemas.ids import Ts
from schemas.tidb.table import TableVersion
from schemas.tidb.table_info import table_version
from sorters.core.encode.avro.encoder import AvroEncoder
from sorters.core.mount import mount
from tests.support.recorded.ddl_jobs import NOT_NULL, PRIMARY, column, table_info
from tests.support.recorded.mounting import row_changes
from tests.support.recorded.recording import CommittedChange

FLOAT, DOUBLE, BIT, VARBINARY, UNSIGNED = 4, 5, 16, 15, 32


def table_of(spec: dict[str, Any]) -> TableVersion:
    columns = [column(1, "id", not_null=True, flag=PRIMARY), spec | {"offset": 1}]
    return table_version(table_info(7, "t", columns=columns), schema_id=1, schema="d", version=Ts(1))


def field_of(spec: dict[str, Any]) -> dict[str, Any]:
    """Return the second field of the value's schema."""
    *_, value = AvroEncoder().schemas(table_of(spec), "t")
    field: dict[str, Any] = json.loads(value.text)["fields"][1]
    return field


def bit(flen: int, default: bytes | None, *, not_null: bool = False) -> dict[str, Any]:
    """Return a BIT column as TiDB keeps it: the text is damaged where a byte is no UTF-8, ``default_bit`` never."""
    spec = column(2, "b", tp=BIT, flen=flen, flag=UNSIGNED, not_null=not_null)
    if default is not None:
        spec |= {"default": default.decode(errors="replace"), "default_bit": base64.b64encode(default).decode()}
    return spec


@pytest.mark.parametrize(
    ("flen", "default", "text"),
    [
        (1, b"\x01", "AQ=="),  # b'1'
        (1, b"\x00", "AA=="),  # b'0'
        (10, b"\x02\xab", "Aqs="),  # b'1010101011', which is no UTF-8
        (64, b"\xff" * 8, "//////////8="),
        (16, b"\x00\x05", "AAU="),  # leading zero bytes stay
    ],
)
def test_avro_schema_of_a_bit_column_with_a_default_has_it_in_base64(flen: int, default: bytes, text: str) -> None:
    bytes_type = {"type": "bytes", "connect.parameters": {"length": str(flen), "tidb_type": "BIT"}}
    assert field_of(bit(flen, default, not_null=True)) == {"name": "b", "type": bytes_type, "default": text}
    assert field_of(bit(flen, default)) == {"name": "b", "type": [bytes_type, "null"], "default": text}


def test_avro_schema_of_a_bit_column_without_default_has_null_or_none() -> None:
    bytes_type = {"type": "bytes", "connect.parameters": {"length": "3", "tidb_type": "BIT"}}
    assert field_of(bit(3, None)) == {"name": "b", "type": ["null", bytes_type], "default": None}
    assert field_of(bit(3, None, not_null=True)) == {"name": "b", "type": bytes_type}


@pytest.mark.parametrize(
    ("tp", "default", "text"),
    [
        (FLOAT, "0.1", "0.10000000149011612"),
        (FLOAT, "0.5", "0.5"),
        (FLOAT, "16777217", "16777216"),
        (FLOAT, "1e30", "1.0000000150474662e+30"),
        (DOUBLE, "0.1", "0.1"),
        (DOUBLE, "-5", "-5"),
        (DOUBLE, "-0", "-0"),
        (DOUBLE, "0.00001", "0.00001"),
        (DOUBLE, "0.0000001", "1e-7"),
        (DOUBLE, "123456789012345680000", "123456789012345680000"),
        (DOUBLE, "1e30", "1e+30"),
    ],
)
def test_avro_schema_of_a_float_column_with_a_default_has_it_as_go_writes_it(tp: int, default: str, text: str) -> None:
    spec = column(2, "f", tp=tp) | {"default": default}
    *_, value = AvroEncoder(avro_include_before_value=True).schemas(table_of(spec), "t")
    assert value.text.count(f'{{"default":{text},"name":"f","type":[') == 2, "in the row and in the row before"


def test_avro_schema_of_a_binary_column_with_a_default_has_it_in_base64() -> None:
    spec = column(2, "b", tp=VARBINARY, flen=10, flag=NOT_NULL) | {"default": "ab"}
    bytes_type = {"type": "bytes", "connect.parameters": {"tidb_type": "BLOB"}}
    assert field_of(spec) == {"name": "b", "type": bytes_type, "default": "YWI="}
    text = column(2, "b", tp=VARBINARY, flen=10, flag=NOT_NULL, charset="utf8mb4", collation="utf8mb4_bin")
    assert field_of(text | {"default": "ab"})["default"] == "ab"


@pytest.mark.parametrize("small_rows", [0, 10**9], ids=["columnar", "scalar"])
def test_avro_row_written_before_a_bit_column_came_holds_its_origin_default(small_rows: int) -> None:
    spec = bit(10, b"\x02\xab") | {"origin_default_bit": base64.b64encode(b"\x02\xab").decode()}
    table = table_of(spec)
    encoder = AvroEncoder()
    ids = {schema.key: 1 for schema in encoder.schemas(table, "t")}
    key = b"t" + (7 + (1 << 63)).to_bytes(8, "big") + b"_r" + (1 + (1 << 63)).to_bytes(8, "big")
    empty_row = bytes([128, 0, 0, 0, 0, 0])
    rows = row_changes(7, [CommittedChange(9, 8, key, "put", empty_row, b"", 0)])
    encoded = encoder.encode_rows(mount(table, rows, small_rows=small_rows), topic="t", schema_ids=ids)
    # Magic, schema id 1, id = 1; branch 0 is the type, as the default is not NULL; two bytes.
    assert encoded.values.to_pylist() == [bytes.fromhex("00 00000001 02 00 04 02ab")]
