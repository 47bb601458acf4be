"""A column of every TiDB type with the values at its edges, and what a reader of its lake table must see."""

import struct
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

from schemas.tidb.codec import encode_float
from schemas.tidb.mysql_decimal import encode_decimal
from schemas.tidb.mysql_types import MysqlType
from schemas.tidb.packed_time import pack_time
from schemas.tidb.row_v2 import encode_row_v2
from tests.support.rawlog.raw_log import Change, row_key
from tests.support.recorded.ddl_jobs import PRIMARY, column, table_info

TABLE_ID, NAME = 203, "kinds"
UNSIGNED = 32
UTF8: dict[str, Any] = {"charset": "utf8mb4", "collation": "utf8mb4_bin"}
ELEMS = ["x", "y,z", "日本"]


@dataclass(frozen=True)
class Kind:
    """A column, and what stands in it: as a row has it, and as a reader sees it."""

    name: str
    tp: MysqlType
    cells: tuple[tuple[bytes | None, object], ...]
    """One a row, three of them."""
    more: dict[str, Any]


def _kind(name: str, tp: MysqlType, *cells: tuple[bytes | None, object], **more: Any) -> Kind:
    filled = (*cells, *[(None, None)] * 3)[:3]
    return Kind(name, tp, filled, more)


def _int(value: int) -> tuple[bytes, int]:
    """Return a signed integer as the shortest that holds it."""
    size = next(size for size in (1, 2, 4, 8) if -(1 << 8 * size - 1) <= value < 1 << 8 * size - 1)
    return value.to_bytes(size, "little", signed=True), value


def _uint(value: int, seen: object = None) -> tuple[bytes, object]:
    size = next(size for size in (1, 2, 4, 8) if value < 1 << 8 * size)
    return value.to_bytes(size, "little"), value if seen is None else seen


def _packed(seen: object, *parts: int) -> tuple[bytes, object]:
    return pack_time(*parts).to_bytes(8, "little"), seen


def _time(nanoseconds: int, seen: str) -> tuple[bytes, str]:
    return _int(nanoseconds)[0], seen


def _decimal(text: str, precision: int, fraction: int, seen: object = None) -> tuple[bytes, object]:
    return encode_decimal(text, precision, fraction), Decimal(text) if seen is None else seen


def _text(text: str) -> tuple[bytes, str]:
    return text.encode(), text


LONGEST = "9" * 35 + "." + "9" * 30
UINT64_MAX = 2**64 - 1
HOURS_838_NS = (838 * 3600 + 59 * 60 + 59) * 10**9

KINDS = (
    _kind("c_tiny", MysqlType.TINYINT, _int(-128), _int(127)),
    _kind("c_utiny", MysqlType.TINYINT, _uint(255), _uint(0), flag=UNSIGNED),
    _kind("c_small", MysqlType.SMALLINT, _int(-32768), _int(32767)),
    _kind("c_medium", MysqlType.MEDIUMINT, _int(-8388608), _int(8388607)),
    _kind("c_int", MysqlType.INT, _int(-2147483648), _int(2147483647)),
    _kind("c_uint", MysqlType.INT, _uint(4294967295), _uint(0), flag=UNSIGNED),
    _kind("c_big", MysqlType.BIGINT, _int(-9223372036854775808), _int(9223372036854775807)),
    _kind(
        "c_ubig",
        MysqlType.BIGINT,
        _uint(UINT64_MAX, Decimal("18446744073709551615")),
        _uint(0, Decimal(0)),
        flag=UNSIGNED,
    ),
    _kind("c_year", MysqlType.YEAR, _int(1901), _int(2155), _int(0), flag=UNSIGNED),
    _kind("c_bit1", MysqlType.BIT, _uint(1), _uint(0), flen=1, flag=UNSIGNED),
    _kind("c_bit63", MysqlType.BIT, _uint(2**63 - 1), _uint(0), flen=63, flag=UNSIGNED),
    _kind("c_bit64", MysqlType.BIT, _uint(UINT64_MAX, Decimal("18446744073709551615")), flen=64, flag=UNSIGNED),
    _kind(
        "c_float",
        MysqlType.FLOAT,
        (encode_float(0.10000000149011612), 0.10000000149011612),
        (encode_float(-3.4028234663852886e38), -3.4028234663852886e38),
        decimal=-1,
    ),
    _kind(
        "c_double",
        MysqlType.DOUBLE,
        (encode_float(1.7976931348623157e308), 1.7976931348623157e308),
        (encode_float(5e-324), 5e-324),
        decimal=-1,
    ),
    _kind("c_money", MysqlType.DECIMAL, _decimal("-999.99", 5, 2), _decimal("0.00", 5, 2), flen=5, decimal=2),
    _kind(
        "c_dec38",
        MysqlType.DECIMAL,
        _decimal("9" * 28 + "." + "9" * 10, 38, 10),
        _decimal("-0.0000000001", 38, 10),
        flen=38,
        decimal=10,
    ),
    _kind(
        "c_dec65",
        MysqlType.DECIMAL,
        _decimal(LONGEST, 65, 30, LONGEST),
        _decimal("-1.5", 65, 30, "-1.5" + "0" * 29),
        flen=65,
        decimal=30,
    ),
    _kind("c_date", MysqlType.DATE, _packed(date(1, 1, 1), 1, 1, 1), _packed(date(9999, 12, 31), 9999, 12, 31)),
    _kind("c_gap", MysqlType.DATE, _packed(date(1582, 10, 10), 1582, 10, 10), _packed(None, 0, 0, 0)),
    _kind("c_nodate", MysqlType.DATE, _packed(None, 2024, 0, 0), _packed(None, 0, 1, 1), _packed(None, 2023, 2, 30)),
    _kind(
        "c_datetime",
        MysqlType.DATETIME,
        _packed(datetime.fromisoformat("1000-01-01"), 1000, 1, 1),
        _packed(datetime.fromisoformat("9999-12-31 23:59:59.999999"), 9999, 12, 31, 23, 59, 59, 999999),
        _packed(None, 0, 0, 0),
        decimal=6,
    ),
    _kind(
        "c_stamp",
        MysqlType.TIMESTAMP,
        _packed(datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), 1970, 1, 1, 0, 0, 1),
        _packed(datetime(2038, 1, 19, 3, 14, 7, 999999, UTC), 2038, 1, 19, 3, 14, 7, 999999),
        _packed(None, 0, 0, 0),
        decimal=6,
    ),
    _kind(
        "c_time",
        MysqlType.TIME,
        _time(-HOURS_838_NS, "-838:59:59.000"),
        _time(HOURS_838_NS, "838:59:59.000"),
        _time(1_000_000, "00:00:00.001"),
        decimal=3,
    ),
    _kind("c_text", MysqlType.VARCHAR, _text("ünï\u2028\U0001f389"), _text(""), **UTF8),
    _kind("c_bytes", MysqlType.VARCHAR, (b"\x00\xff", b"\x00\xff"), (b"", b"")),
    _kind("c_blob", MysqlType.LONGBLOB, (b"\x80" * 300, b"\x80" * 300)),
    _kind("c_enum", MysqlType.ENUM, _uint(3, "日本"), _uint(2, "y,z"), _uint(0, ""), elems=ELEMS, **UTF8),
    _kind("c_set", MysqlType.SET, _uint(5, "x,日本"), _uint(7, "x,y,z,日本"), _uint(0, ""), elems=ELEMS, **UTF8),
    _kind("c_json", MysqlType.JSON, (b"\x0c\x02\xc3\xbc", '"ü"'), (b"\x04\x00", "null")),
    _kind("c_vector", MysqlType.VECTOR, (struct.pack("<I2f", 2, 1.0, 2.5), "[1,2.5]"), (struct.pack("<I", 0), "[]")),
)


def kinds_table() -> dict[str, Any]:
    """Return the table, whose key is ``id``."""
    columns = [column(1, "id", not_null=True, flag=PRIMARY)]
    columns += [column(number, kind.name, tp=kind.tp, **kind.more) for number, kind in enumerate(KINDS, 2)]
    return table_info(TABLE_ID, NAME, columns=columns)


def kinds_changes(commit_ts: int) -> list[Change]:
    """Return the inserts of its three rows."""
    rows = [encode_row_v2({number: kind.cells[row][0] for number, kind in enumerate(KINDS, 2)}) for row in range(3)]
    return [Change(commit_ts, row_key(TABLE_ID, row), value) for row, value in enumerate(rows)]


def kinds_rows() -> list[dict[str, object]]:
    """Return what a reader sees."""
    return [{"id": row, **{kind.name: kind.cells[row][1] for kind in KINDS}} for row in range(3)]


DROPPED, RENAMED = "c_utiny", "c_text"
NEW_NAME = "say `it`"
LATER_ID, LATER_INT, LATER_MONEY = 9, 2**40, Decimal("1234567.89")


def evolved_table() -> dict[str, Any]:
    """Return the table after one DDL that drops a column, renames one and widens three."""
    columns = [column(1, "id", not_null=True, flag=PRIMARY)]
    for number, kind in enumerate(KINDS, 2):
        tp, more = kind.tp, kind.more
        if kind.name == "c_int":
            tp = MysqlType.BIGINT
        elif kind.name == "c_float":
            tp = MysqlType.DOUBLE
        elif kind.name == "c_money":
            more = {"flen": 9, "decimal": 2}
        name = NEW_NAME if kind.name == RENAMED else kind.name
        if kind.name != DROPPED:
            columns.append(column(number, name, tp=tp, **more))
    return table_info(TABLE_ID, NAME, columns=columns)


def evolved_change(commit_ts: int) -> Change:
    """Return the insert of a row that the table before could not hold."""
    cells = {
        "c_int": _int(LATER_INT)[0],
        "c_float": encode_float(1e300),
        "c_money": encode_decimal(str(LATER_MONEY), 9, 2),
        "c_text": b"new",
    }
    row = encode_row_v2({number: cells.get(kind.name) for number, kind in enumerate(KINDS, 2) if kind.name != DROPPED})
    return Change(commit_ts, row_key(TABLE_ID, LATER_ID), row)


def evolved_rows() -> list[dict[str, object]]:
    """Return what a reader sees after both."""
    rows = [{NEW_NAME if name == RENAMED else name: cell for name, cell in row.items()} for row in kinds_rows()]
    for row in rows:
        del row[DROPPED]
    later = {"id": LATER_ID, "c_int": LATER_INT, "c_float": 1e300, "c_money": LATER_MONEY, NEW_NAME: "new"}
    return [*rows, {name: later.get(name) for name in rows[0]}]
