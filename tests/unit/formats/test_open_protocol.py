"""open-protocol by PingCAP's examples: framing, options, values; nothing is taken from what the encoder said."""

import struct
from typing import Any

import pytest

from schemas.ids import TableId, Ts
from schemas.tidb.keys import row_key
from schemas.tidb.row_v2 import encode_row_v2
from schemas.tidb.table import TableVersion
from schemas.tidb.table_info import table_version
from sorters.core.encode.open.encoder import OpenProtocolEncoder
from sorters.core.encode.wire.protocol import EncodedMessage
from sorters.core.mount import mount
from tests.support.recorded.ddl_jobs import PRIMARY, column, table_info
from tests.support.recorded.mounting import row_changes
from tests.support.recorded.recording import CommittedChange

COMMIT_TS = 445644800000000001
PATHS = pytest.mark.parametrize("small_rows", [0, 10**9], ids=["columnar", "scalar"])
VAL = column(2, "val", tp=15, flen=32, charset="utf8mb4", collation="utf8mb4_bin")
VERSION = bytes.fromhex("00 00 00 00 00 00 00 01")
NEW = b'{"id":{"t":3,"h":true,"f":11,"v":1},"val":{"t":15,"f":64,"v":"bb"}}'
OLD = NEW.replace(b"bb", b"aa")
Row = dict[int, bytes | None] | None


def table_of(*more: dict[str, Any], **info: Any) -> TableVersion:
    columns = [column(1, "id", not_null=True, flag=PRIMARY), *more]
    placed = [spec | {"offset": offset} for offset, spec in enumerate(columns)]
    raw = table_info(112, "t1", columns=placed) | info
    return table_version(raw, schema_id=1, schema="test", version=Ts(1))


def encode(
    new: Row, old: Row, small_rows: int, *, table: TableVersion | None = None, handle: int = 1, **options: Any
) -> EncodedMessage:
    table = table or table_of(VAL)
    value, before = (b"" if row is None else encode_row_v2(row) for row in (new, old))
    key = row_key(table.physical_ids[-1], handle)
    change = CommittedChange(COMMIT_TS, COMMIT_TS - 1, key, "delete" if new is None else "put", value, before, 0)
    mounted = mount(table, row_changes(table.table_id, [change]), small_rows=small_rows)
    encoded = OpenProtocolEncoder(**options).encode_rows(mounted)
    return EncodedMessage(encoded.keys[0].as_py(), encoded.values[0].as_py())


def framed(text: bytes) -> bytes:
    return len(text).to_bytes(8, "big") + text


def value_of(spec: dict[str, Any], data: bytes | None, small_rows: int) -> bytes:
    """Return the JSON of the second column's value."""
    message = encode({2: data}, None, small_rows, table=table_of(spec))
    said = message.value.rpartition(b'"v":')[2]
    return said.removesuffix(b"}}}")


@PATHS
def test_open_protocol_rows_equal_the_documented_messages(small_rows: int) -> None:
    # The example's keys have no `rid`: TiCDC leaves it out where it is 0, and so has this row's handle to be.
    insert = encode({2: b"aa"}, None, small_rows, handle=0)
    key = b'{"ts":445644800000000001,"scm":"test","tbl":"t1","t":1}'
    value = b'{"u":{"id":{"t":3,"h":true,"f":11,"v":0},"val":{"t":15,"f":64,"v":"aa"}}}'
    assert (len(key), len(value)) == (0x37, 0x49)
    assert insert.key == VERSION + bytes.fromhex("00 00 00 00 00 00 00 37") + key
    assert insert.value == bytes.fromhex("00 00 00 00 00 00 00 49") + value
    update = encode({2: b"bb"}, {2: b"aa"}, small_rows)
    assert update.key == VERSION + framed(b'{"ts":445644800000000001,"scm":"test","tbl":"t1","rid":1,"t":1}')
    assert update.value == framed(b'{"u":%s,"p":%s}' % (NEW, OLD))
    assert encode(None, {2: b"bb"}, small_rows).value == framed(b'{"d":%s}' % NEW)


def test_open_protocol_watermark_and_ddl_equal_the_documented_bytes() -> None:
    class AddColumn:
        schema, table, ddl_type, commit_ts = "test", "t1", 5, Ts(COMMIT_TS)
        query = "alter table t1 add column c int"
        pre = post = None

    encoder = OpenProtocolEncoder()
    assert encoder.encode_watermark(Ts(415508856908021766)) == EncodedMessage(
        VERSION + bytes.fromhex("00 00 00 00 00 00 00 1f") + b'{"ts":415508856908021766,"t":3}', bytes(8)
    )
    assert encoder.encode_ddl(AddColumn()) == EncodedMessage(
        VERSION + framed(b'{"ts":445644800000000001,"scm":"test","tbl":"t1","t":2}'),
        framed(b'{"q":"alter table t1 add column c int","t":5}'),
    )


@PATHS
def test_open_protocol_options_take_away_what_they_say(small_rows: int) -> None:
    only_new = framed(b'{"u":%s}' % NEW)
    assert encode({2: b"bb"}, {2: b"aa"}, small_rows, output_old_value=False).value == only_new
    updated = encode({2: b"bb"}, {2: b"aa"}, small_rows, only_output_updated_columns=True)
    assert updated.value == framed(b'{"u":%s,"p":{"val":{"t":15,"f":64,"v":"aa"}}}' % NEW)
    # Nothing changed: Go's omitempty leaves the empty map out.
    assert encode({2: b"bb"}, {2: b"bb"}, small_rows, only_output_updated_columns=True).value == only_new
    deleted = encode(None, {2: b"bb"}, small_rows, delete_only_output_handle_key_columns=True)
    assert deleted.value == framed(b'{"d":{"id":{"t":3,"h":true,"f":11,"v":1}}}')


@PATHS
def test_open_protocol_row_of_a_partition_names_its_id_and_a_negative_handle(small_rows: int) -> None:
    definitions = [{"id": 300, "name": {"O": "p0", "L": "p0"}}, {"id": 301, "name": {"O": "p1", "L": "p1"}}]
    parted = table_of(VAL, partition={"enable": True, "definitions": definitions})
    assert parted.physical_ids == (TableId(300), TableId(301))
    key = encode({2: b"aa"}, None, small_rows, table=parted, handle=-5).key
    assert key == VERSION + framed(b'{"ts":445644800000000001,"scm":"test","tbl":"t1","rid":-5,"ptn":301,"t":1}')


TEXT: dict[str, Any] = {"charset": "utf8mb4", "collation": "utf8mb4_bin"}


@PATHS
@pytest.mark.parametrize(
    ("spec", "data", "said"),
    [
        (column(2, "v", tp=252, **TEXT), b"text", b'"dGV4dA=="'),
        (column(2, "v", tp=251), b"\x00\xff", b'"AP8="'),
        (column(2, "v", tp=15, flen=9), b"\x89PNG\r\n\x1a\n", rb'"\\x89PNG\\r\\n\\x1a\\n"'),
        (column(2, "v", tp=15, flen=9, **TEXT), b'<a&"\\\n\x01', rb'"\u003ca\u0026\"\\\n\u0001"'),
        (column(2, "v", tp=8, flag=32), b"\xff" * 8, b"18446744073709551615"),
        (column(2, "v", tp=16, flen=10, flag=32), b"\xaa\x02", b"682"),
        (column(2, "v", tp=247, elems=["a", "b"], **TEXT), b"\x02", b"2"),
        (column(2, "v", tp=13, flen=4, flag=32), b"\x6b\x08", b"2155"),
        (column(2, "v"), None, b"null"),
        (column(2, "v", tp=252, **TEXT), b"", b'""'),
    ],
)
def test_open_protocol_values_have_the_documented_forms(
    spec: dict[str, Any], data: bytes | None, said: bytes, small_rows: int
) -> None:
    assert value_of(spec, data, small_rows) == said


def comparable(value: float) -> bytes:
    """Return a double as a row holds it: big-endian, ordered."""
    bits: int
    (bits,) = struct.unpack(">Q", struct.pack(">d", value))
    return (bits ^ (1 << 63) if value >= 0 and bits < 1 << 63 else ~bits & (1 << 64) - 1).to_bytes(8, "big")


# Go's encoding/json: 'f' within [1e-6, 1e21), else 'e' without a leading zero in the exponent.
@PATHS
@pytest.mark.parametrize(
    ("tp", "value", "said"),
    [
        (5, 0.0, b"0"),
        (5, 1e300, b"1e+300"),
        (5, 1e21, b"1e+21"),
        (5, 999999999999999868928.0, b"999999999999999900000"),
        (5, 1e-6, b"0.000001"),
        (5, 9.5e-7, b"9.5e-7"),
        (5, -1.25e-10, b"-1.25e-10"),
        (5, 0.1, b"0.1"),
        (4, 3.4028234663852886e38, b"3.4028235e+38"),
        (4, 1e-7, b"1e-7"),
        (4, 0.10000000149011612, b"0.1"),
    ],
)
def test_open_protocol_floats_are_written_as_go_does(tp: int, value: float, said: bytes, small_rows: int) -> None:
    assert value_of(column(2, "v", tp=tp, flen=12, decimal=-1), comparable(value), small_rows) == said
