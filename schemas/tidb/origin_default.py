"""What a row holds for a column that was added after the row was written.

Order (TiCDC's ``getDefaultOrZeroValue``, ``cdc/entry/mounter.go``): the column's origin default, else NULL if it may
be, else the type's zero value.
"""

import base64
import math
import re
from collections.abc import Sequence
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation, localcontext

from schemas.tidb.column_value import float_value
from schemas.tidb.info_json import JsonObject, number_in, object_in, text_in, texts_in
from schemas.tidb.mysql_types import DATETIME_TYPES, INTEGER_TYPES, STRING_TYPES, MysqlFlag, MysqlType
from schemas.tidb.packed_time import datetime_text, duration_text, parse_datetime, parse_duration
from schemas.tidb.value import Value

_FIXED_TYPES = frozenset({MysqlType.STRING})
_SIZED_TYPES = frozenset({MysqlType.STRING, MysqlType.VARCHAR, MysqlType.VAR_STRING})
_DELIMITER = r"[!-/:-@\[-`{-~]+"
_DATE_PARTS = re.compile(rf"(\d{{1,4}}){_DELIMITER}(\d{{1,2}}){_DELIMITER}(\d{{1,2}})(\D.*)?")
_DATE_DIGITS = re.compile(r"(\d{4}|\d\d)(\d\d)(\d\d)()")
_TWO_DIGITS, _NOT_ZERO = 2, re.compile("[1-9]")
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
    text = raw.get("origin_default")
    if _type(raw) is not MysqlType.BIT:
        return None if text is None else str(text)
    if raw.get("origin_default_bit") is not None:
        # No byte at all is the zero that a NOT NULL column without default gets.
        return str(int.from_bytes(base64.b64decode(text_in(raw, "origin_default_bit")), "big"))
    return None if text is None else str(int.from_bytes(str(text).encode("utf-8", "surrogateescape"), "big"))


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

    As TiDB and TiCDC read it (``Datum.ConvertTo``): it need not be in the column's form, and of old TiDBs often is not.

    Raises:
        ValueError: it is no value of the type.
    """
    tp, fsp = MysqlType(number_in(field, "Tp")), max(number_in(field, "Decimal"), 0)
    if tp in STRING_TYPES:
        return _bytes(text, tp, field)
    if tp in INTEGER_TYPES or tp is MysqlType.BIT:
        return _whole(text)
    if tp in DATETIME_TYPES:
        date_only = tp in {MysqlType.DATE, MysqlType.NEWDATE}
        return datetime_text(parse_datetime(_date(text) if date_only else text, fsp), fsp, date_only=date_only)
    return _convert_other(text, tp, fsp, field)


def _type(raw: JsonObject) -> MysqlType:
    return MysqlType(number_in(object_in(raw, "type"), "Tp"))


def _convert_other(text: str, tp: MysqlType, fsp: int, field: JsonObject) -> Value:
    match tp:
        case MysqlType.FLOAT | MysqlType.DOUBLE:
            return float_value(tp, _float(text, field))
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


def _bytes(text: str, tp: MysqlType, field: JsonObject) -> bytes:
    """Return a text or bytes; what CHAR and VARCHAR have beyond their length are blanks, which TiDB cuts off."""
    flen, is_binary = number_in(field, "Flen"), field["Charset"] == "binary"
    if tp in _SIZED_TYPES and not is_binary and flen >= 0:
        text = text[:flen]
    value = text.encode("utf-8", "surrogateescape")
    return value.ljust(flen, b"\0") if tp in _FIXED_TYPES and is_binary else value


def _date(text: str) -> str:
    """Write a date of other delimiters, of none, or of a year of two digits as ``parse_datetime`` reads it."""
    match = _DATE_PARTS.fullmatch(text.strip()) or _DATE_DIGITS.fullmatch(text.strip())
    if not match:
        return text
    year, month, day, rest = match.groups("")
    has_century = len(year) > _TWO_DIGITS or not _NOT_ZERO.search(text)
    return f"{int(year) if has_century else _adjust_year(int(year)):04d}-{month}-{day}{rest}"


def _float(text: str, field: JsonObject) -> float:
    """Read a number; of a FLOAT(M,D) to D digits, a half to the even one (``TruncateFloat``)."""
    value, digits = float(text), number_in(field, "Decimal")
    scaled = value * 10.0 ** max(digits, 0)
    if digits < 0 or number_in(field, "Flen") < 0 or not math.isfinite(scaled):
        return value
    return round(scaled) / 10.0**digits


def _decimal(text: str, scale: int) -> str:
    with localcontext() as context:
        context.prec = _DECIMAL_DIGITS_MAX
        try:
            value = Decimal(text).quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP)
        except InvalidOperation as error:
            raise ValueError(f"{text!r} is no decimal") from error
    return format(value if value else abs(value), "f")


def _year(text: str) -> int:
    """Read a YEAR as ``ConvertToMysqlYear`` does: of two digits it is 1970 to 2069, but 0000 is the year 0."""
    year, digits = _whole(text), text.strip()
    if year == 0 and (len(text) == _YEAR_DIGITS or not digits.startswith("0")):
        return 0
    return _adjust_year(year)


def _adjust_year(year: int) -> int:
    return year + (2000 if 0 <= year < _YEARS_2000 else 1900 if _YEARS_2000 <= year < _YEARS_1900 else 0)


def _whole(text: str) -> int:
    try:
        return int(Decimal(text).to_integral_value(ROUND_HALF_UP))
    except ArithmeticError as error:
        raise ValueError(f"{text!r} is no number") from error


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
