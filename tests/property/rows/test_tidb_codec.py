"""TiDB's encodings: what is written reads back, order is kept, and junk is an error that says so."""

import json
import struct
from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import CorruptDataError
from schemas.tidb import codec
from schemas.tidb.binary_json import json_size, json_text
from schemas.tidb.keys import decode_row_key
from schemas.tidb.mysql_decimal import decode_decimal, encode_decimal
from schemas.tidb.packed_time import (
    datetime_text,
    duration_text,
    pack_time,
    parse_datetime,
    parse_duration,
    unpack_time,
)
from schemas.tidb.row_v1 import decode_row_v1
from schemas.tidb.row_v2 import decode_row_v2, encode_row_v2, row_v2_checksum

I64 = st.integers(-(1 << 63), (1 << 63) - 1)
U64 = st.integers(0, (1 << 64) - 1)
FLOATS = st.floats(allow_nan=False)


@given(I64, I64)
def test_memcomparable_int_any_pair_reads_back_and_keeps_order(a: int, b: int) -> None:
    assert codec.decode_int(codec.encode_int(a)) == (a, 8)
    assert (codec.encode_int(a) < codec.encode_int(b)) == (a < b)


@given(FLOATS, FLOATS)
def test_memcomparable_float_any_pair_reads_back_and_keeps_order(a: float, b: float) -> None:
    back, _ = codec.decode_float(codec.encode_float(a))
    assert struct.pack(">d", back) == struct.pack(">d", a)
    if a != b:
        assert (codec.encode_float(a) < codec.encode_float(b)) == (a < b)


@given(st.binary(max_size=40), st.binary(max_size=40), st.binary(max_size=5))
def test_memcomparable_bytes_any_pair_reads_back_and_keeps_order(a: bytes, b: bytes, tail: bytes) -> None:
    encoded = codec.encode_bytes(a)
    assert codec.decode_bytes(encoded + tail) == (a, len(encoded))
    assert (encoded < codec.encode_bytes(b)) == (a < b)


@given(I64, U64, st.binary(max_size=300))
def test_compact_forms_any_value_read_back(signed: int, unsigned: int, data: bytes) -> None:
    assert codec.decode_varint(codec.encode_varint(signed))[0] == signed
    assert codec.decode_uvarint(codec.encode_uvarint(unsigned))[0] == unsigned
    assert codec.decode_compact_bytes(codec.encode_compact_bytes(data) + b"x")[0] == data


@given(st.integers(1, 65), st.data())
def test_decimal_any_value_reads_back_and_keeps_order(precision: int, data: st.DataObject) -> None:
    fraction = data.draw(st.integers(0, min(30, precision)))
    number = st.integers(-(10**precision) + 1, 10**precision - 1)
    a, b = (_point(data.draw(number), fraction) for _ in "ab")
    encoded = encode_decimal(a, precision, fraction)
    text, end = decode_decimal(encoded + b"\x99")
    assert (Decimal(text), end) == (Decimal(a), len(encoded))
    assert len(text.partition(".")[2]) == fraction
    assert (encoded < encode_decimal(b, precision, fraction)) == (Decimal(a) < Decimal(b))


def _point(digits: int, fraction: int) -> str:
    text = str(abs(digits)).rjust(fraction + 1, "0")
    whole, part = text[: len(text) - fraction], text[len(text) - fraction :]
    return ("-" if digits < 0 else "") + (f"{whole}.{part}" if fraction else whole)


@given(st.dictionaries(st.integers(1, 70_000), st.none() | st.binary(max_size=30), max_size=12), st.binary(max_size=9))
def test_row_v2_any_columns_read_back(columns: dict[int, bytes | None], tail: bytes) -> None:
    row = encode_row_v2(columns)
    assert decode_row_v2(row) == columns
    assert decode_row_v2(row + tail) == columns


@given(st.dictionaries(st.integers(1, 300), st.integers(0, 50_000), max_size=4))
def test_row_v2_data_beyond_64_kib_reads_back(sizes: dict[int, int]) -> None:
    columns = {column_id: b"x" * size for column_id, size in sizes.items()}
    assert decode_row_v2(encode_row_v2(columns)) == columns


@given(st.binary(max_size=200))
def test_decoders_any_junk_reads_or_is_corrupt(junk: bytes) -> None:
    """No decoder raises anything but CorruptDataError, whatever the bytes are."""
    decoders = (
        codec.decode_datum, codec.decode_bytes, codec.decode_compact_bytes, codec.vector_size, decode_decimal,
        decode_row_v1, decode_row_v2, row_v2_checksum, json_text, json_size, decode_row_key,
    )  # fmt: skip
    for decode in decoders:
        for data in (junk, b"\x80\x02" + junk, b"\x0a" + junk, b"\x01" + junk):
            try:
                decode(data)
            except CorruptDataError:
                continue


@given(
    st.integers(0, 9999), st.integers(0, 12), st.integers(0, 31), st.integers(0, 23), st.integers(0, 59),
    st.integers(0, 59), st.integers(0, 999_999),
)  # fmt: skip
def test_packed_time_any_parts_read_back(
    year: int, month: int, day: int, hour: int, minute: int, second: int, micro: int
) -> None:
    packed = pack_time(year, month, day, hour, minute, second, micro)
    assert unpack_time(packed) == (year, month, day, hour, minute, second, micro)
    assert parse_datetime(datetime_text(packed, 6), 6) == packed


@given(st.integers(-3_020_399_999_999, 3_020_399_999_999))
def test_duration_any_microseconds_read_back(micro: int) -> None:
    assert parse_duration(duration_text(micro * 1000, 6), 6) == micro * 1000


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | I64 | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)


@given(JSON_VALUES)
def test_binary_json_any_document_prints_what_was_stored(document: object) -> None:
    encoded = _encode_json(document)
    assert json_size(encoded + b"tail") == len(encoded)
    assert json.loads(json_text(encoded)) == document


def _encode_json(value: object) -> bytes:
    """Write binary JSON as docs/formats/tidb-encoding.md §3.4 has it."""
    kind, data = _encode_value(value)
    return bytes((kind,)) + data


def _encode_value(value: object) -> tuple[int, bytes]:
    match value:
        case None:
            return 4, b"\0"
        case bool():
            return 4, b"\1" if value else b"\2"
        case int():
            return 9, value.to_bytes(8, "little", signed=True)
        case float():
            return 11, struct.pack("<d", value)
        case str():
            raw = value.encode()
            return 12, codec.encode_uvarint(len(raw)) + raw
        case list():
            return 3, _encode_container([], value)
        case dict():
            ordered = sorted(value.items(), key=lambda item: item[0].encode())
            return 1, _encode_container([key.encode() for key, _ in ordered], [item for _, item in ordered])
        case _:
            raise TypeError(value)


def _encode_container(keys: list[bytes], values: list[object]) -> bytes:
    head = 8 + 6 * len(keys) + 5 * len(values)
    key_entries, value_entries, data = b"", b"", b""
    for key in keys:
        key_entries += struct.pack("<IH", head + len(data), len(key))
        data += key
    for value in values:
        kind, encoded = _encode_value(value)
        if kind == 4:
            value_entries += bytes((kind,)) + encoded.ljust(4, b"\0")
        else:
            value_entries += bytes((kind,)) + struct.pack("<I", head + len(data))
            data += encoded
    return struct.pack("<II", len(values), head + len(data)) + key_entries + value_entries + data
