"""Values of debezium's columns in JSON, one by one: times are numbers since the epoch, decimals are floats.

Sources: Debezium's mapping of MySQL types, and pingcap/tiflow ``pkg/sink/codec/debezium`` for where TiCDC differs: a
NULL whose column has a default is written as the default; numbers are json-iterator's.
"""

import base64
import re
from datetime import UTC, date, datetime, timedelta, tzinfo

import numpy as np

from schemas.tidb.column_value import float_value
from schemas.tidb.mysql_types import STRING_TYPES, MysqlType
from schemas.tidb.origin_default import value_of_text
from schemas.tidb.packed_time import datetime_text, parse_datetime, parse_duration
from schemas.tidb.table import ColumnVersion
from schemas.tidb.value import Value
from sorters.core.columnar.escape import JSONITER
from sorters.core.columnar.numbers import plain_digits
from sorters.core.encode.open.values import takes_exponent
from sorters.core.mount.column import FLOAT_TYPES, value_text

INTEGER_BITS = {
    MysqlType.TINYINT: 8,
    MysqlType.SMALLINT: 16,
    MysqlType.MEDIUMINT: 24,
    MysqlType.INT: 32,
    MysqlType.BIGINT: 64,
}
DATE_TYPES = frozenset({MysqlType.DATE, MysqlType.NEWDATE})
MIN_TIMESTAMP = b"1970-01-01 00:00:01"
"""TiDB's ``types.MinTimestamp``; compared with the text in the changefeed's zone, as TiCDC does."""
MIN_TIMESTAMP_JSON = b'"1970-01-01T00:00:00Z"'
"""What stands for anything before it."""
CURRENT_TIMESTAMP = "CURRENT_TIMESTAMP"
MILLISECONDS_FSP_MAX = 3
"""A DATETIME with more fraction digits is in microseconds."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIME = re.compile(rb"(\d{4})-(\d\d)-(\d\d)(?: (\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?)?")
_TWO_DIGITS_AS_2000, _TWO_DIGITS = 70, 100


class NoFormError(ValueError):
    """The protocol cannot say a value, and classic TiCDC's changefeed fails too; the new one (pingcap/ticdc) fails at a
    TIMESTAMP alone, and a DATETIME is 0 or null there. ``row`` is its number among the values.
    """

    def __init__(self, why: str, row: int = 0) -> None:
        super().__init__(why)
        self.why, self.row = why, row


def value_json(spec: ColumnVersion, value: Value, zone: tzinfo = UTC) -> bytes:
    """Return one mounted value; ``zone``: the one in which TIMESTAMPs are mounted.

    Raises:
        NoFormError: a DATETIME or TIMESTAMP is no time of the calendar, and not zero.
    """
    if value is None:
        return null_json(spec, zone)
    if spec.tp in INTEGER_BITS or spec.tp in {MysqlType.BIT, MysqlType.ENUM, MysqlType.SET}:
        assert isinstance(value, int)
        return _number_json(spec, value)
    text = value_text(spec, value)
    assert text is not None
    match spec.tp:
        case MysqlType.FLOAT | MysqlType.DOUBLE | MysqlType.DECIMAL:
            return float_json(float(text), single=spec.tp is MysqlType.FLOAT)
        case MysqlType.DATE | MysqlType.NEWDATE:
            return _date_json(spec, text)
        case MysqlType.DATETIME:
            return _datetime_json(spec, text)
        case MysqlType.TIMESTAMP:
            return timestamp_json(text, zone)
        case MysqlType.TIME:
            return time_json(text)
        case MysqlType.YEAR:
            return text
        case tp if tp in STRING_TYPES and spec.binary:
            return b'"%s"' % base64.b64encode(text)
    return b'"%s"' % JSONITER.value(text)


def quoted(text: str) -> bytes:
    """Return a JSON string."""
    return b'"%s"' % JSONITER.value(text.encode("utf-8", "surrogateescape"))


def null_json(spec: ColumnVersion, zone: tzinfo = UTC) -> bytes:
    """Return what stands for NULL: the column's default, or ``null`` where there is none that is a value of the type,
    as an expression is not, nor CURRENT_DATE.

    TiCDC reads the default of a TIMESTAMP, which is in UTC, as a time of ``zone``.

    Raises:
        NoFormError: the default is no time of the calendar.
    """
    if spec.default is None or spec.default_is_expression:
        return b"null"
    if spec.default.upper() == CURRENT_TIMESTAMP and spec.tp in {MysqlType.DATETIME, MysqlType.TIMESTAMP}:
        return b"0" if spec.tp is MysqlType.DATETIME else b"null"
    value = default_value(spec)
    if value is None:
        return b"null"
    made = value_json(spec, value, zone)
    return b"null" if spec.tp is MysqlType.TIMESTAMP and made == MIN_TIMESTAMP_JSON else made


def default_value(spec: ColumnVersion) -> Value:
    """Return the column's DEFAULT in mounted form, a TIMESTAMP's in UTC; None: the type has no such value.

    TiCDC (``getValueFromDefault``) reads its text, but does not fit it to the column as TiDB does in a row: YEAR 70
    stays the year 70, a FLOAT has all its digits, and a date is one in the form of ISO 8601 only.
    """
    assert spec.default is not None
    if spec.tp is MysqlType.BIT:
        return int.from_bytes(spec.default.encode("latin-1"), "big")
    if spec.tp in STRING_TYPES:
        return spec.default.encode("utf-8", "surrogateescape")
    field = {
        "Tp": int(spec.tp),
        "Decimal": spec.decimal,
        "Flen": spec.flen,
        "Charset": spec.charset,
        "Elems": list(spec.elems),
    }
    try:
        if spec.tp in FLOAT_TYPES:
            return float_value(MysqlType.DOUBLE, float(spec.default))
        if spec.tp is MysqlType.YEAR:
            return int(spec.default)
        if spec.tp in DATE_TYPES:
            return datetime_text(parse_datetime(spec.default, 0), 0, date_only=True)
        return value_of_text(spec.default, field)
    except (ValueError, ArithmeticError):
        return None


def float_json(value: float, *, single: bool = False) -> bytes:
    """Return the shortest digits, with an exponent of two digits or more below 1e-6 and from 1e21 on.

    >>> float_json(1.5e-7), float_json(250.0), float_json(-0.0)
    (b'1.5e-07', b'250', b'-0')
    """
    if takes_exponent(np.array([value]), single=single)[0]:
        return (str(np.float32(value)) if single else repr(value)).encode()
    return plain_digits(str(np.float32(value)) if single else repr(value)).encode()


def enum_name(spec: ColumnVersion, number: int) -> str:
    """Return an element's name; '' for a number that no element has, as MySQL's error value 0."""
    return spec.elems[number - 1] if 1 <= number <= len(spec.elems) else ""


def set_names(spec: ColumnVersion, mask: int) -> str:
    """Return the names of the bits, joined; '' if there is a bit without name."""
    if mask >> len(spec.elems):
        return ""
    return ",".join(elem for bit, elem in enumerate(spec.elems) if mask >> bit & 1)


def bit_bytes(spec: ColumnVersion) -> int:
    """Return how many bytes a BIT takes, of which the least significant comes first."""
    return max((spec.flen + 7) // 8, 1)


def timestamp_json(text: bytes, zone: tzinfo) -> bytes:
    """Return a TIMESTAMP as UTC.

    Raises:
        NoFormError: it is no time of the calendar, and not zero.
    """
    if text.startswith(b"0000-00-00"):
        return MIN_TIMESTAMP_JSON
    moment = _moment(text)
    if moment is None:
        raise NoFormError("timestamp is no time of the calendar")
    if text < MIN_TIMESTAMP:
        return MIN_TIMESTAMP_JSON
    if zone is not UTC:
        moment = _in_utc(moment, zone)
    fraction = text.partition(b".")[2]
    clock = moment.strftime("%Y-%m-%dT%H:%M:%S").encode()
    return b'"%s%sZ"' % (clock, b"." + fraction if fraction else b"")


def _in_utc(local: datetime, zone: tzinfo) -> datetime:
    """Return what :func:`sorters.core.columnar.times.utc_of` returns."""
    shown = local.replace(tzinfo=UTC)
    try:
        guess = shown - (shown.astimezone(zone).utcoffset() or timedelta())
        return shown - (guess.astimezone(zone).utcoffset() or timedelta())
    except OverflowError:
        raise NoFormError("timestamp is no time of the calendar") from None


def time_json(text: bytes) -> bytes:
    """Return a TIME in microseconds."""
    fsp = len(text.partition(b".")[2])
    nanoseconds = parse_duration(text.decode(), fsp)
    return b"%d" % (nanoseconds // 1000 if nanoseconds >= 0 else -(-nanoseconds // 1000))


def _number_json(spec: ColumnVersion, value: int) -> bytes:
    if spec.tp is MysqlType.BIT:
        if spec.flen == 1:
            return b"true" if value else b"false"
        return b'"%s"' % base64.b64encode(value.to_bytes(8, "little")[: bit_bytes(spec)])
    if spec.tp is MysqlType.ENUM:
        return quoted(enum_name(spec, value))
    if spec.tp is MysqlType.SET:
        return quoted(set_names(spec, value))
    bits = INTEGER_BITS[spec.tp]
    if spec.unsigned:
        # A BIGINT wraps around, and its largest value is -1 either way.
        signed = value - (1 << 64) if value >> 63 else value
        return b"%d" % (signed if value < 1 << bits else -1)
    return b"%d" % (value if -(1 << bits - 1) <= value < 1 << bits - 1 else -1)


def _date_json(spec: ColumnVersion, text: bytes) -> bytes:
    match = _TIME.fullmatch(text)
    try:
        year, month, day = (int(part) for part in match.groups()[:3]) if match else (0, 0, 0)
        days = (date(_full_year(year), month, day) - _EPOCH.date()).days
    except ValueError:
        return b"null" if spec.nullable else b"0"
    return b"%d" % days


def _datetime_json(spec: ColumnVersion, text: bytes) -> bytes:
    if text.startswith(b"0000-00-00"):
        return b"null" if spec.nullable else b"0"
    moment = _moment(text)
    if moment is None:
        raise NoFormError("datetime is no time of the calendar")
    moment = moment.replace(year=_full_year(int(text[:4])))
    unit = timedelta(milliseconds=1) if spec.decimal <= MILLISECONDS_FSP_MAX else timedelta(microseconds=1)
    return b"%d" % ((moment - _EPOCH) // unit)


def _moment(text: bytes) -> datetime | None:
    """Return a time of the calendar, its year 4 where it is 0; None: it is none."""
    match = _TIME.fullmatch(text)
    if not match:
        return None
    year, month, day, hour, minute, second = (int(part or 0) for part in match.groups()[:6])
    try:
        return datetime(year or 4, month, day, hour, minute, second, int((match[7] or b"").ljust(6, b"0")), tzinfo=UTC)
    except ValueError:
        return None


def _full_year(year: int) -> int:
    """0 to 69 are years of this century, 70 to 99 of the last one; both keep 29 February where it was."""
    if year < _TWO_DIGITS_AS_2000:
        return year + 2000
    return year + 1900 if year < _TWO_DIGITS else year
