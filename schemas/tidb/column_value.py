"""One column's bytes, datum or key part, to its mounted value (:data:`schemas.tidb.value.Value`)."""

import math
import struct
from datetime import UTC, tzinfo

from schemas.errors import CorruptDataError
from schemas.tidb.binary_json import json_text
from schemas.tidb.codec import decode_float, vector_size
from schemas.tidb.mysql_decimal import decode_decimal
from schemas.tidb.mysql_types import DATETIME_TYPES, INTEGER_TYPES, STRING_TYPES, MysqlType
from schemas.tidb.packed_time import datetime_text, duration_text, in_zone, text_in_zone
from schemas.tidb.table import ColumnVersion
from schemas.tidb.value import Value

_INT_SIZES = frozenset({1, 2, 4, 8})
_U64_MASK = (1 << 64) - 1
_UNSIGNED_TYPES = frozenset({MysqlType.ENUM, MysqlType.SET, MysqlType.BIT})
_F32 = struct.Struct("<f")


def value_of_v2(column: ColumnVersion, data: bytes, zone: tzinfo = UTC) -> Value:
    """Decode a not-null column of a v2 row; a TIMESTAMP moves into ``zone``.

    Raises:
        CorruptDataError: the bytes are no value of the column's type.
    """
    tp = column.tp
    if tp in STRING_TYPES:
        return data
    if tp in INTEGER_TYPES or tp in _UNSIGNED_TYPES or tp is MysqlType.YEAR:
        unsigned = tp in _UNSIGNED_TYPES or (column.unsigned and tp is not MysqlType.YEAR)
        return _integer(data, signed=not unsigned)
    if tp in DATETIME_TYPES:
        return _time(column, _integer(data, signed=False), zone)
    match tp:
        case MysqlType.TIME:
            return duration_text(_integer(data, signed=True), max(column.decimal, 0))
        case MysqlType.FLOAT | MysqlType.DOUBLE:
            return float_value(tp, decode_float(data)[0])
        case MysqlType.DECIMAL:
            return decode_decimal(data)[0]
        case MysqlType.JSON:
            return json_text(data)
        case MysqlType.VECTOR:
            return decode_vector(data)
        case _:
            raise CorruptDataError("column type has no row encoding", column=column.name, type=int(tp))


def value_of_datum(column: ColumnVersion, value: int | float | str | bytes, zone: tzinfo = UTC) -> Value:
    """Turn the datum of a v1 row or of a row key into the mounted value.

    Raises:
        CorruptDataError: the datum's kind does not fit the column's type.
    """
    tp = column.tp
    if isinstance(value, bool):
        raise TypeError("a datum is no bool")
    if isinstance(value, int):
        return _value_of_int(column, value, zone)
    if isinstance(value, float) and tp in {MysqlType.FLOAT, MysqlType.DOUBLE}:
        return float_value(tp, value)
    if isinstance(value, str) and tp is MysqlType.DECIMAL:
        return value
    if isinstance(value, bytes):
        if tp in STRING_TYPES:
            return value
        if tp is MysqlType.JSON:
            return json_text(value)
        if tp is MysqlType.VECTOR:
            # TiCDC knows no vector in format v1: it gives an empty one, whatever is stored, and so do we.
            return ()
    raise CorruptDataError("datum does not fit the column", column=column.name, type=int(tp), datum=repr(value)[:100])


def absent_value_in_zone(column: ColumnVersion, zone: tzinfo = UTC) -> Value:
    """Return what a row without this column holds; a TIMESTAMP moves into ``zone``."""
    if column.tp is MysqlType.TIMESTAMP and isinstance(column.absent_value, str):
        return text_in_zone(column.absent_value, zone)
    return column.absent_value


def float_value(tp: MysqlType, value: float) -> float:
    """Return what a FLOAT or DOUBLE holds: NaN and infinity become 0, as in TiCDC; a FLOAT is rounded to 32 bits."""
    if not math.isfinite(value):
        return 0.0
    if tp is MysqlType.DOUBLE:
        return value
    try:
        rounded: float = _F32.unpack(_F32.pack(value))[0]
    except OverflowError:
        return 0.0
    return rounded


def decode_vector(data: bytes) -> tuple[float, ...]:
    """Read a u32 count and as many f32.

    Raises:
        CorruptDataError: the data ends early.
    """
    size = vector_size(data)
    return struct.unpack_from(f"<{(size - 4) // 4}f", data, 4)


def _value_of_int(column: ColumnVersion, value: int, zone: tzinfo) -> Value:
    tp = column.tp
    if tp in INTEGER_TYPES:
        return value & _U64_MASK if column.unsigned else value
    if tp in _UNSIGNED_TYPES:
        return value & _U64_MASK
    if tp is MysqlType.YEAR:
        return value
    if tp in DATETIME_TYPES:
        return _time(column, value, zone)
    if tp is MysqlType.TIME:
        return duration_text(value, max(column.decimal, 0))
    raise CorruptDataError("integer datum does not fit the column", column=column.name, type=int(tp))


def _integer(data: bytes, *, signed: bool) -> int:
    if len(data) not in _INT_SIZES:
        raise CorruptDataError("integer has none of 1, 2, 4, 8 bytes", size=len(data))
    return int.from_bytes(data, "little", signed=signed)


def _time(column: ColumnVersion, packed: int, zone: tzinfo) -> str:
    if column.tp is MysqlType.TIMESTAMP:
        packed = in_zone(packed, zone)
    date_only = column.tp in {MysqlType.DATE, MysqlType.NEWDATE}
    return datetime_text(packed, max(column.decimal, 0), date_only=date_only)
