"""What a row holds for a column that was added after the row was written.

Order (TiCDC's ``getDefaultOrZeroValue``, ``cdc/entry/mounter.go``): the column's origin default, else NULL if it may
be, else the type's zero value.
"""

import base64
from collections.abc import Sequence
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation, localcontext

from schemas.tidb.column_value import float_value
from schemas.tidb.info_json import JsonObject, number_in, object_in, text_in, texts_in
from schemas.tidb.mysql_types import DATETIME_TYPES, INTEGER_TYPES, STRING_TYPES, MysqlFlag, MysqlType
from schemas.tidb.packed_time import datetime_text, duration_text, parse_datetime, parse_duration
from schemas.tidb.value import Value

_FIXED_TYPES = frozenset({MysqlType.STRING})
_DECIMAL_DIGITS_MAX = 81
"""MyDecimal's word buffer holds nine words of nine digits."""
_YEAR_DIGITS, _YEARS_2000, _YEARS_1900 = 4, 70, 100


def default_text(raw: JsonObject) -> str | None:
    """Return a column's DEFAULT as TiDB keeps it; a BIT's bytes as ISO-8859-1, for its text in ``default`` is damaged.

    Source: pingcap/tidb ``pkg/meta/model/column.go``, ``GetDefaultValue`` and ``DefaultValueBit``.
    """
    if _type(raw) is MysqlType.BIT and raw.get("default_bit") is not None:
        return base64.b64decode(text_in(raw, "default_bit")).decode("latin-1")
    text = raw.get("default")
    return None if text is None else str(text)


def origin_default_text(raw: JsonObject) -> str | None:
    """Return a column's origin default as TiDB keeps it; a BIT's as its number."""
    if _type(raw) is MysqlType.BIT and (bits := text_in(raw, "origin_default_bit")):
        return str(int.from_bytes(base64.b64decode(bits), "big"))
    text = raw.get("origin_default")
    return None if text is None else str(text)


def absent_value(raw: JsonObject) -> Value:
    """Return the mounted value of a column (ColumnInfo JSON) that a row does not hold; a TIMESTAMP's in UTC.

    Raises:
        ValueError: the origin default is no value of the column's type.
    """
    text = origin_default_text(raw)
    if text is not None:
        return value_of_text(text, object_in(raw, "type"))
    if not number_in(object_in(raw, "type"), "Flag") & MysqlFlag.NOT_NULL:
        return None
    return _zero_value(_type(raw))


def value_of_text(text: str, field: JsonObject) -> Value:
    """Return the mounted value of a default's text; ``field`` is the column's FieldType JSON.

    Raises:
        ValueError: it is no value of the type.
    """
    tp, fsp = MysqlType(number_in(field, "Tp")), max(number_in(field, "Decimal"), 0)
    if tp in STRING_TYPES:
        value = text.encode("utf-8", "surrogateescape")
        pads = tp in _FIXED_TYPES and field["Charset"] == "binary"
        return value.ljust(number_in(field, "Flen"), b"\0") if pads else value
    if tp in INTEGER_TYPES or tp is MysqlType.BIT:
        return _whole(text)
    if tp in DATETIME_TYPES:
        return datetime_text(parse_datetime(text, fsp), fsp, date_only=tp in {MysqlType.DATE, MysqlType.NEWDATE})
    return _convert_other(text, tp, fsp, field)


def _type(raw: JsonObject) -> MysqlType:
    return MysqlType(number_in(object_in(raw, "type"), "Tp"))


def _convert_other(text: str, tp: MysqlType, fsp: int, field: JsonObject) -> Value:
    match tp:
        case MysqlType.FLOAT | MysqlType.DOUBLE:
            return float_value(tp, float(text))
        case MysqlType.YEAR:
            return _year(text)
        case MysqlType.DECIMAL:
            return _decimal(text, fsp)
        case MysqlType.ENUM:
            return _enum(text, texts_in(field, "Elems"))
        case MysqlType.SET:
            return _set(text, texts_in(field, "Elems"))
        case MysqlType.TIME:
            return duration_text(parse_duration(text, fsp), fsp)
        case MysqlType.VECTOR:
            inner = text.strip()[1:-1].strip()
            return tuple(float_value(MysqlType.FLOAT, float(item)) for item in inner.split(",")) if inner else ()
        case _:
            return text


def _decimal(text: str, scale: int) -> str:
    with localcontext() as context:
        context.prec = _DECIMAL_DIGITS_MAX
        try:
            return format(Decimal(text).quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP), "f")
        except InvalidOperation as error:
            raise ValueError(f"{text!r} is no decimal") from error


def _year(text: str) -> int:
    """Read a YEAR as ``ConvertToMysqlYear`` does: of two digits it is 1970 to 2069, but 0000 is the year 0."""
    year, digits = _whole(text), text.strip()
    if year == 0 and (len(text) == _YEAR_DIGITS or not digits.startswith("0")):
        return 0
    return year + (2000 if 0 <= year < _YEARS_2000 else 1900 if _YEARS_2000 <= year < _YEARS_1900 else 0)


def _whole(text: str) -> int:
    return int(Decimal(text).to_integral_value(ROUND_HALF_UP))


def _enum(text: str, elems: Sequence[str]) -> int:
    number = _number_of(text, elems)
    return int(text) if number is None else number


def _set(text: str, elems: Sequence[str]) -> int:
    if not text:
        return 0
    mask = 0
    for name in text.split(","):
        number = _number_of(name, elems)
        if number is None:
            return int(text)
        mask |= 1 << number - 1
    return mask


def _number_of(name: str, elems: Sequence[str]) -> int | None:
    """Return which element a name is, from 1 on; None: none.

    TiDB compares by the collation, under which all elements differ. So a name as it is written comes first, and
    letters of the other case count only where no element has them.
    """
    for number, elem in enumerate(elems, 1):
        if elem == name:
            return number
    for number, elem in enumerate(elems, 1):
        if elem.casefold().rstrip(" ") == name.casefold().rstrip(" "):
            return number
    return None


def _zero_value(tp: MysqlType) -> Value:
    if tp in STRING_TYPES:
        return b""
    if tp in {MysqlType.DATETIME, MysqlType.TIMESTAMP}:
        return "0000-00-00 00:00:00"
    zeros: dict[MysqlType, Value] = {
        MysqlType.ENUM: 1,
        MysqlType.DATE: "0000-00-00",
        MysqlType.NEWDATE: "0000-00-00",
        MysqlType.TIME: "00:00:00",
        MysqlType.DECIMAL: "0",
        MysqlType.JSON: "null",
        MysqlType.VECTOR: (),
        MysqlType.FLOAT: 0.0,
        MysqlType.DOUBLE: 0.0,
    }
    return zeros.get(tp, 0)
