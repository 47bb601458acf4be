"""The rows that the generator writes: three tables with the shapes of well-known benchmarks, encoded as TiDB does.

A row is a pure function of its shape, its number and a sequence number (which changes with every update), so a test can
say what must come out without asking the generator.
"""

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from schemas.ids import TableId
from schemas.tidb.codec import encode_float, encode_int, encode_uvarint
from schemas.tidb.keys import row_key
from schemas.tidb.mysql_decimal import encode_decimal
from schemas.tidb.packed_time import pack_time
from schemas.tidb.row_v2 import encode_row_v2

_KEY_INT = b"\x03"
_JSON_OBJECT, _JSON_INT64, _JSON_STRING = 0x01, 0x09, 0x0C
_SPREAD = 2_654_435_761
"""Knuth's multiplicative hash: spreads neighbouring numbers over the text pool."""
_LINES_AN_ORDER = 10
_ORDERS_A_DISTRICT = 3000
_DISTRICTS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One kind of table. ``key`` takes (table id, row number), ``value`` (row number, sequence number, text pool)."""

    name: str
    key: Callable[[TableId, int], bytes]
    value: Callable[[int, int, bytes], bytes]


def text_pool(digits: Callable[[int], str], size: int = 1 << 16) -> bytes:
    """Text to cut columns from: groups of 11 digits with dashes, as sysbench writes. ``digits(n)`` gives n digits."""
    return "-".join(digits(11) for _ in range(size // 12)).encode()


def int_value(value: int) -> bytes:
    """A signed integer of row format v2: little-endian in the smallest of 1, 2, 4, 8 bytes."""
    for size in (1, 2, 4):
        if -(1 << 8 * size - 1) <= value < 1 << 8 * size - 1:
            return value.to_bytes(size, "little", signed=True)
    return value.to_bytes(8, "little", signed=True)


def uint_value(value: int) -> bytes:
    """An unsigned integer (also packed times) of row format v2."""
    for size in (1, 2, 4):
        if value < 1 << 8 * size:
            return value.to_bytes(size, "little")
    return value.to_bytes(8, "little")


def json_value(members: Mapping[str, int | str]) -> bytes:
    """A JSON column's bytes: a flat object of 64-bit integers and strings, keys in byte order."""
    keys = sorted(members)
    names = [key.encode() for key in keys]
    head = 8 + 11 * len(keys)
    at = head + sum(map(len, names))
    entries, bodies, key_at = [], [], head
    for name in names:
        entries.append(struct.pack("<IH", key_at, len(name)))
        key_at += len(name)
    for key in keys:
        member = members[key]
        if isinstance(member, int):
            kind, body = _JSON_INT64, struct.pack("<q", member)
        else:
            kind, body = _JSON_STRING, encode_uvarint(len(member.encode())) + member.encode()
        entries.append(struct.pack("<BI", kind, at))
        bodies.append(body)
        at += len(body)
    return bytes((_JSON_OBJECT,)) + struct.pack("<II", len(keys), at) + b"".join((*entries, *names, *bodies))


def _at(number: int, sequence: int, pool: bytes, length: int) -> int:
    return (number * _SPREAD + sequence * 7919) % (len(pool) - length)


def _sbtest1(number: int, sequence: int, pool: bytes) -> bytes:
    at = _at(number, sequence, pool, 180)
    return encode_row_v2({2: int_value(at * 31 + sequence), 3: pool[at : at + 119], 4: pool[at + 120 : at + 179]})


def _order_line_key(table_id: TableId, number: int) -> bytes:
    order, line = divmod(number, _LINES_AN_ORDER)
    district, order = divmod(order, _ORDERS_A_DISTRICT)
    warehouse, district = divmod(district, _DISTRICTS)
    parts = (warehouse + 1, district + 1, order + 1, line + 1)
    return row_key(table_id, b"".join(_KEY_INT + encode_int(part) for part in parts))


def _order_line(number: int, sequence: int, pool: bytes) -> bytes:
    at = _at(number, sequence, pool, 24)
    delivered = None if sequence % 3 else uint_value(pack_time(2026, 1 + at % 12, 1 + at % 28, at % 24, at % 60))
    return encode_row_v2(
        {
            5: int_value(1 + at % 100_000),
            6: int_value(1 + number % 10),
            7: delivered,
            8: int_value(5),
            9: encode_decimal(f"{at % 9999}.{sequence % 100:02}", 6, 2),
            10: pool[at : at + 24],
        }
    )


def _wide10(number: int, sequence: int, pool: bytes) -> bytes:
    at = _at(number, sequence, pool, 64)
    micro = (number * 1009 + sequence) % 1_000_000
    day = pack_time(2026, 1 + at % 12, 1 + at % 28, at % 24, at % 60, sequence % 60)
    return encode_row_v2(
        {
            2: uint_value((number * _SPREAD) % (1 << 64)),
            3: int_value(sequence % 4_000_000 - 2_000_000),
            4: encode_decimal(f"{'-' if at % 2 else ''}{number}.{sequence % 10_000:04}", 20, 4),
            5: encode_float(at / 7),
            6: b"name-%d-" % sequence + pool[at : at + 24],
            7: uint_value(day + micro),
            8: uint_value(day),
            9: None if at % 10 == 0 else json_value({"i": number, "name": f"n{sequence}", "sequence": sequence}),
            10: struct.pack("<qq", number, sequence),
        }
    )


SHAPES = {
    shape.name: shape
    for shape in (
        Shape(name="sbtest1", key=row_key, value=_sbtest1),
        Shape(name="order_line", key=_order_line_key, value=_order_line),
        Shape(name="wide10", key=row_key, value=_wide10),
    )
}
"""Shapes by name; each has a TableInfo of the same name among the package's templates."""
