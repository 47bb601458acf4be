"""Vectors of docs/formats/tidb-encoding.md: each hex text is TiDB's own."""

from zoneinfo import ZoneInfo

import pytest

from schemas.errors import CorruptDataError
from schemas.ids import TableId
from schemas.tidb import codec
from schemas.tidb.binary_json import json_size, json_text
from schemas.tidb.keys import (
    decode_meta_hash_key,
    decode_row_key,
    meta_hash_key,
    row_key,
    table_span,
)
from schemas.tidb.mysql_decimal import decode_decimal, encode_decimal
from schemas.tidb.packed_time import datetime_text, duration_text, pack_time, parse_datetime, text_in_zone
from schemas.tidb.row_v1 import decode_row_v1
from schemas.tidb.row_v2 import decode_row_v2, encode_row_v2, row_v2_checksum


def raw(text: str) -> bytes:
    return bytes.fromhex(text.replace("|", ""))


@pytest.mark.parametrize(
    ("value", "encoded"),
    [(0, "8000000000000000"), (1, "8000000000000001"), (-1, "7fffffffffffffff")],
)
def test_memcomparable_int_vector_encodes_and_decodes(value: int, encoded: str) -> None:
    assert codec.encode_int(value).hex() == encoded
    assert codec.decode_int(raw(encoded)) == (value, 8)


@pytest.mark.parametrize(
    ("value", "encoded"),
    [(1.0, "bff0000000000000"), (-1.0, "400fffffffffffff"), (0.0, "8000000000000000"), (3.14, "c0091eb851eb851f")],
)
def test_memcomparable_float_vector_encodes_and_decodes(value: float, encoded: str) -> None:
    assert codec.encode_float(value).hex() == encoded
    assert codec.decode_float(raw(encoded)) == (value, 8)


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        ("", "0000000000000000f7"),
        ("010203", "0102030000000000fa"),
        ("0102030405060708", "0102030405060708ff0000000000000000f7"),
        ("010203040506070809", "0102030405060708ff0900000000000000f8"),
    ],
)
def test_memcomparable_bytes_vector_encodes_and_decodes(value: str, encoded: str) -> None:
    assert codec.encode_bytes(raw(value)).hex() == encoded
    assert codec.decode_bytes(raw(encoded)) == (raw(value), len(encoded) // 2)


@pytest.mark.parametrize("encoded", ["0102030000000001fa", "0102030000000000f6", "010203000000"])
def test_memcomparable_bytes_bad_padding_marker_or_end_is_corrupt(encoded: str) -> None:
    with pytest.raises(CorruptDataError):
        codec.decode_bytes(raw(encoded))


@pytest.mark.parametrize(("value", "encoded"), [(1, "02"), (-1, "01"), (64, "8001"), (300, "d804")])
def test_varint_vector_encodes_and_decodes(value: int, encoded: str) -> None:
    assert codec.encode_varint(value).hex() == encoded
    assert codec.decode_varint(raw(encoded)) == (value, len(encoded) // 2)


def test_row_key_vectors_of_table_45() -> None:
    table = TableId(45)
    assert row_key(table, 1) == raw("74800000000000002d5f728000000000000001")
    assert codec.encode_bytes(row_key(table, 1)) == raw("7480000000000000ff2d5f728000000000ff0000010000000000fa")
    start, end = table_span(table)
    assert codec.encode_bytes(start) == raw("7480000000000000ff2d5f720000000000fa")
    assert codec.encode_bytes(end) == raw("7480000000000000ff2d5f730000000000fa")
    common = decode_row_key(raw("74800000000000002d5f72016162630000000000fa038000000000000007"))
    assert [datum.value for datum in common.common_handle()] == [b"abc", 7]
    assert decode_row_key(row_key(table, -5)).int_handle() == -5


def test_row_key_short_common_handle_is_padded_and_told_from_an_integer() -> None:
    key = row_key(TableId(1), codec.encode_varint(0))
    assert len(key) == 20
    assert not decode_row_key(key).is_int


def test_row_key_of_an_index_or_meta_key_is_refused() -> None:
    for key in (raw("74800000000000002d5f698000000000000001"), meta_hash_key(b"DBs", b"DB:1"), b""):
        with pytest.raises(CorruptDataError):
            decode_row_key(key)


def test_meta_hash_key_vectors() -> None:
    databases = raw("6d4442730000000000fa000000000000006844423a3100000000fb")
    table = raw("6d44423a3200000000fb00000000000000685461626c653a3435ff0000000000000000f7")
    assert meta_hash_key(b"DBs", b"DB:1") == databases
    assert meta_hash_key(b"DB:2", b"Table:45") == table
    assert decode_meta_hash_key(table) == (b"DB:2", b"Table:45")
    assert decode_meta_hash_key(raw("6d536368656d615665ff7273696f6e4b6579ff0000000000000000f70000000000000073")) is None


def test_row_v1_vector() -> None:
    assert decode_row_v1(raw("08020802|080402046162|080600")) == {1: 1, 2: b"ab", 3: None}
    assert decode_row_v1(b"\0") == {}


def test_row_v2_small_vector() -> None:
    row = raw("8000|0300|0100|010204|03|010003000500|0161622c01")
    assert decode_row_v2(row) == {1: b"\x01", 2: b"ab", 3: None, 4: b"\x2c\x01"}
    assert encode_row_v2({1: b"\x01", 2: b"ab", 3: None, 4: b"\x2c\x01"}) == row


def test_row_v2_large_vector() -> None:
    row = raw("8001|0200|0000|010000002c010000|0100000002000000|01ff")
    assert decode_row_v2(row) == {1: b"\x01", 300: b"\xff"}
    assert encode_row_v2({1: b"\x01", 300: b"\xff"}) == row


def test_row_v2_checksum_vector() -> None:
    checksum = row_v2_checksum(raw("8002|0100|0000|02|0200|6162|02281a7230"))
    assert checksum is not None
    assert (checksum.version, checksum.checksum, checksum.extra) == (2, 0x30721A28, None)
    assert row_v2_checksum(raw("8000|0100|0000|02|0200|6162")) is None


@pytest.mark.parametrize("row", ["", "80", "8000ff00", "8000010000000105000102", "8002010000000202006162"])
def test_row_v2_cut_off_is_corrupt(row: str) -> None:
    with pytest.raises(CorruptDataError):
        row_v2_checksum(raw(row))


@pytest.mark.parametrize(
    ("text", "precision", "fraction", "encoded"),
    [
        ("1234567890.1234", 14, 4, "0e04810dfb38d204d2"),
        ("-1234567890.1234", 14, 4, "0e047ef204c72dfb2d"),
        ("1.20", 4, 2, "04028114"),
        ("0.00", 10, 2, "0a028000000000"),
    ],
)
def test_decimal_vector_encodes_and_decodes(text: str, precision: int, fraction: int, encoded: str) -> None:
    assert decode_decimal(raw(encoded)) == (text, len(encoded) // 2)
    assert encode_decimal(text, precision, fraction) == raw(encoded)


@pytest.mark.parametrize(
    ("encoded", "text"),
    [
        ("01010000001c000000130000000100091400000061" + "0100000000000000", '{"a": 1}'),
        ("030200000014000000" + "0401000000" + "0c12000000" + "0178", '[true, "x"]'),
        ("0b000000000000f03f", "1.0"),
        ("0b00003426f56b1c43", "2e15"),
        ("0bbbbdd7d9df7cdb3d", "0.0000000001"),
        ("0d0f03616263", '"base64:type15:YWJj"'),
        ("0c02e280", '"\\ufffd\\ufffd"'),
        ("0c03e280a8", '"\\u2028"'),
    ],
)
def test_binary_json_vector_prints_as_tidb(encoded: str, text: str) -> None:
    assert json_text(raw(encoded)) == text
    assert json_size(raw(encoded)) == len(encoded) // 2


@pytest.mark.parametrize("encoded", ["ff", "0901", "0101000000", "0c05ab", "030100000000000000ff00000000"])
def test_binary_json_cut_off_or_unknown_is_corrupt(encoded: str) -> None:
    with pytest.raises(CorruptDataError):
        json_text(raw(encoded))


def test_packed_time_vector_and_its_texts() -> None:
    packed = pack_time(2020, 3, 24, 12, 34, 56, 789000)
    assert packed == 0x19A5F0C8B80C0A08
    assert datetime_text(packed, 0) == "2020-03-24 12:34:56"
    assert datetime_text(packed, 6) == "2020-03-24 12:34:56.789000"
    assert datetime_text(packed, 0, date_only=True) == "2020-03-24"
    assert datetime_text(0, 0) == "0000-00-00 00:00:00"
    assert parse_datetime("2020-03-24 12:34:56.789", 3) == packed


def test_packed_time_zero_month_and_day_survive() -> None:
    assert datetime_text(pack_time(2024, 0, 0), 0, date_only=True) == "2024-00-00"


def test_timestamp_text_moves_into_the_zone_but_zero_stays() -> None:
    shanghai = ZoneInfo("Asia/Shanghai")
    assert text_in_zone("2024-01-01 20:00:00.500", shanghai) == "2024-01-02 04:00:00.500"
    assert text_in_zone("0000-00-00 00:00:00", shanghai) == "0000-00-00 00:00:00"


def test_duration_beyond_a_day_and_below_zero_prints() -> None:
    assert duration_text(3_020_399_000_000_000, 0) == "838:59:59"
    assert duration_text(-500_000_000, 2) == "-00:00:00.50"
