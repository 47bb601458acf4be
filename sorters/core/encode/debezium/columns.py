"""Values of debezium's columns in JSON, whole columns at once; :mod:`sorters.core.encode.debezium.values` has
their forms one by one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, tzinfo
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from schemas.changes import BinaryArray
from schemas.tidb.mysql_types import STRING_TYPES, MysqlType
from sorters.core.columnar.base64_texts import base64_texts
from sorters.core.columnar.escape import JSONITER
from sorters.core.columnar.numbers import float_text, integer_text
from sorters.core.columnar.spans import BoolArray, IntArray, constant_or_none, gather, spans_of
from sorters.core.columnar.times import (
    DATE_BYTES,
    SECONDS_BYTES,
    datetime_texts,
    days_of_civil,
    fixed_text,
    pack_epoch,
    utc_of,
)
from sorters.core.encode.debezium.values import (
    DATE_TYPES,
    INTEGER_BITS,
    MILLISECONDS_FSP_MAX,
    MIN_TIMESTAMP,
    MIN_TIMESTAMP_JSON,
    NoFormError,
    bit_bytes,
    enum_name,
    float_json,
    null_json,
    quoted,
    set_names,
    value_json,
)
from sorters.core.encode.open.values import takes_exponent
from sorters.core.encode.wire.segments import Segment, or_else
from sorters.core.mount.column import FLOAT_TYPES, Column

_DAY_S = 86_400
_MONTH_DAYS = np.array([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31, 0, 0, 0], np.int64)
_FEBRUARY, _MONTHS = 2, 12


def column_json(column: Column, zone: tzinfo) -> list[Segment]:
    """Return the segments of a column's values; ``zone``: the one in which TIMESTAMPs are mounted.

    Raises:
        NoFormError: a DATETIME or TIMESTAMP is no time of the calendar, and not zero.
    """
    spec, tp = column.spec, column.spec.tp
    if tp in STRING_TYPES or tp in {MysqlType.JSON, MysqlType.VECTOR}:
        text = _text(column)
        if not text.null_count:
            return [b'"', text, b'"']
        forms = pc.binary_join_element_wise(b'"', text, b'"', b"")
    else:
        forms = forms_of(column, zone)
    if not forms.null_count:
        return [forms]
    null = null_json(spec, zone)
    return [null] if forms.null_count == len(forms) else [or_else(forms, null)]


def _text(column: Column) -> BinaryArray:
    if column.spec.tp is MysqlType.VECTOR:
        return column.text
    if column.spec.tp in STRING_TYPES and column.spec.binary:
        return base64_texts(column.text)
    return column.escaped(JSONITER)


def forms_of(column: Column, zone: tzinfo) -> BinaryArray:
    """Return the JSON of values that are no plain texts; null for NULL.

    Raises:
        NoFormError: as :func:`column_json`.
    """
    tp = column.spec.tp
    if tp in INTEGER_BITS:
        return _integers(column)
    if tp in FLOAT_TYPES:
        return _floats(column.numbers, column.text, column.valid, single=tp is MysqlType.FLOAT)
    if tp is MysqlType.DECIMAL:
        return _decimals(column)
    if tp in {MysqlType.BIT, MysqlType.ENUM, MysqlType.SET}:
        return _named(column)
    if tp in DATE_TYPES or tp in {MysqlType.DATETIME, MysqlType.TIMESTAMP}:
        return _present(column.text, lambda text: _times(column, text, zone))
    if tp is MysqlType.TIME:
        return _by_word(column.text, lambda word: value_json(column.spec, word.decode()))
    return column.text  # YEAR


def _integers(column: Column) -> BinaryArray:
    spec, numbers = column.spec, column.numbers
    if spec.tp is MysqlType.BIGINT:
        return integer_text(numbers.view(np.int64), column.valid) if spec.unsigned else column.text
    return _with_literal(column.text, out_of_range(column), b"-1")


def out_of_range(column: Column) -> BoolArray:
    """Tell which integers (of another type than BIGINT) their type cannot hold: -1 is written for them."""
    spec, numbers = column.spec, column.numbers
    bits = INTEGER_BITS[spec.tp]
    low, high = (0, (1 << bits) - 1) if spec.unsigned else (-(1 << bits - 1), (1 << bits - 1) - 1)
    bad = numbers > high if spec.unsigned else (numbers < low) | (numbers > high)
    return bad if column.valid is None else bad & column.valid


def _floats(
    values: npt.NDArray[np.float64], text: BinaryArray, valid: BoolArray | None, *, single: bool
) -> BinaryArray:
    extreme = takes_exponent(values, single=single)
    if valid is not None:
        extreme &= valid
    if not extreme.any():
        return text
    distinct, index = np.unique(values[extreme], return_inverse=True)
    forms = pa.array([float_json(value, single=single) for value in distinct.tolist()], pa.binary())
    return pc.replace_with_mask(text, pa.array(extreme), forms.take(pa.array(index.reshape(-1))))


def _decimals(column: Column) -> BinaryArray:
    numbers = column.text.cast(pa.string()).cast(pa.float64())
    values = pc.fill_null(numbers, 0.0).to_numpy(zero_copy_only=False)
    valid = None if not numbers.null_count else numbers.is_valid().to_numpy(zero_copy_only=False)
    return _floats(values, float_text(values, valid, single=False), valid, single=False)


def _named(column: Column) -> BinaryArray:
    """Return BIT, ENUM and SET."""
    spec, numbers = column.spec, column.numbers
    mask = None if column.valid is None else ~column.valid
    if spec.tp is MysqlType.BIT and spec.flen != 1:
        texts = base64_texts(bit_texts(column))
        return pc.binary_join_element_wise(b'"', texts, b'"', b"")
    distinct, index = np.unique(numbers, return_inverse=True)
    if spec.tp is MysqlType.BIT:
        forms = [b"true" if number else b"false" for number in distinct.tolist()]
    elif spec.tp is MysqlType.ENUM:
        forms = [quoted(enum_name(spec, number)) for number in distinct.tolist()]
    else:
        forms = [quoted(set_names(spec, number)) for number in distinct.tolist()]
    return pa.array(forms, pa.binary()).take(pa.array(index.reshape(-1), mask=mask))


def bit_texts(column: Column) -> BinaryArray:
    """Return the bytes of a BIT, the least significant first; null for NULL."""
    data = np.ascontiguousarray(column.numbers.astype("<u8")).view(np.uint8).reshape(-1, 8)
    return fixed_text(np.ascontiguousarray(data[:, : bit_bytes(column.spec)]), column.valid)


def _present(text: BinaryArray, forms_of: Callable[[Any], Any]) -> BinaryArray:
    """Apply a function to the values that are not null."""
    if not text.null_count:
        return forms_of(text)
    valid = text.is_valid().to_numpy(zero_copy_only=False)
    try:
        forms = forms_of(text.drop_null())
    except NoFormError as error:
        raise NoFormError(error.why, int(np.flatnonzero(valid)[error.row])) from None
    return forms.take(pa.array(np.cumsum(valid) - 1, mask=~valid))


def _by_word(text: BinaryArray, form: Callable[[bytes], bytes]) -> BinaryArray:
    words = text.dictionary_encode()
    return pa.array([form(word) for word in words.dictionary.to_pylist()], pa.binary()).take(words.indices)


def _times(column: Column, text: BinaryArray, zone: tzinfo) -> BinaryArray:
    """Return dates, DATETIMEs and TIMESTAMPs; none is null."""
    spec = column.spec
    fields = _fields(text)
    if fields is None:
        return _one_by_one(column, text, zone)
    if spec.tp in DATE_TYPES:
        return _with_literal(integer_text(fields.days), ~fields.is_date, b"null" if spec.nullable else b"0")
    bad = np.flatnonzero(~fields.is_zero & ~fields.is_time)
    if len(bad):
        kind = "timestamp" if spec.tp is MysqlType.TIMESTAMP else "datetime"
        raise NoFormError(f"{kind} is no time of the calendar", int(bad[0]))
    if spec.tp is MysqlType.TIMESTAMP:
        in_utc = text
        if zone is not UTC:
            utc = utc_of(fields.days * _DAY_S + fields.seconds, zone)
            in_utc = datetime_texts(pack_epoch(utc, fields.microseconds), max(spec.decimal, 0))
        clock = pc.replace_substring(in_utc, b" ", b"T")
        early = pc.less(text, pa.scalar(MIN_TIMESTAMP, pa.binary())).to_numpy(zero_copy_only=False)
        return _with_literal(pc.binary_join_element_wise(b'"', clock, b'Z"', b""), early, MIN_TIMESTAMP_JSON)
    microseconds = (fields.days * _DAY_S + fields.seconds) * 1_000_000 + fields.microseconds
    numbers = microseconds // 1000 if spec.decimal <= MILLISECONDS_FSP_MAX else microseconds
    return _with_literal(integer_text(numbers), fields.is_zero, b"null" if spec.nullable else b"0")


@dataclass(frozen=True, slots=True, eq=False)
class _Fields:
    """Times of a column, as numbers. ``days`` are junk where it is no date."""

    is_zero: BoolArray
    """The date is 0000-00-00."""
    is_date: BoolArray
    is_time: BoolArray
    """Date and time of day are of the calendar."""
    days: IntArray
    """Since 1970-01-01, with years of two digits in this century or the last."""
    seconds: IntArray
    microseconds: IntArray


def _fields(text: BinaryArray) -> _Fields | None:
    """Read ``YYYY-MM-DD[ hh:mm:ss[.f]]``, all of one length and without null; None: they have another form."""
    spans = spans_of(text)
    width = constant_or_none(spans.length)
    if width is None or (width != DATE_BYTES and width < SECONDS_BYTES):
        return None
    matrix = gather(spans.buffer, spans.start, width)
    if (matrix[:, 4] != ord("-")).any() or (matrix[:, 7] != ord("-")).any():
        return None

    def number(start: int, end: int) -> IntArray:
        total = np.zeros(len(matrix), np.int64)
        for digit in range(start, end):
            total = total * 10 + (matrix[:, digit].astype(np.int64) - ord("0"))
        return total

    year, month, day = number(0, 4), number(5, 7), number(8, 10)
    is_zero = (year == 0) & (month == 0) & (day == 0)
    full = np.where(year < 70, year + 2000, np.where(year < 100, year + 1900, year))
    leap = (full % 4 == 0) & ((full % 100 != 0) | (full % 400 == 0))
    in_month = _MONTH_DAYS[np.minimum(month, _MONTHS + 1)] + (leap & (month == _FEBRUARY))
    is_date = (day >= 1) & (day <= in_month)
    days = days_of_civil(full, np.maximum(month, 1), day)
    nothing = np.zeros(len(matrix), np.int64)
    if width == DATE_BYTES:
        return _Fields(is_zero, is_date, is_date, days, nothing, nothing)
    hour, minute, second = number(11, 13), number(14, 16), number(17, 19)
    fsp = max(width - SECONDS_BYTES - 1, 0)
    micro = number(SECONDS_BYTES + 1, width) * 10 ** (6 - fsp) if fsp else nothing
    is_time = is_date & (hour < 24) & (minute < 60) & (second < 60)
    return _Fields(is_zero, is_date, is_time, days, hour * 3600 + minute * 60 + second, micro)


def _one_by_one(column: Column, text: BinaryArray, zone: tzinfo) -> BinaryArray:
    """Return the forms of times of several lengths, each distinct one made once."""
    words = text.dictionary_encode()
    forms = []
    for index, word in enumerate(words.dictionary.to_pylist()):
        try:
            forms.append(value_json(column.spec, word.decode(), zone))
        except NoFormError as error:
            row = pc.index(words.indices, index).as_py()
            raise NoFormError(error.why, row) from None
    return pa.array(forms, pa.binary()).take(words.indices)


def _with_literal(forms: BinaryArray, where: BoolArray, literal: bytes) -> BinaryArray:
    return pc.if_else(pa.array(where), pa.scalar(literal, pa.binary()), forms) if where.any() else forms
