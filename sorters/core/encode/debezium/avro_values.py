"""Values of debezium-avro's columns in Avro binary: whole columns at once, and one by one as its twin.

Times are what debezium's JSON says them to be (:mod:`sorters.core.encode.debezium.values`), so are NULLs of columns
with a default, integers beyond their type (-1), and ENUMs and SETs without a name ('').
"""

import struct
from collections.abc import Callable
from datetime import tzinfo

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas.changes import BinaryArray
from schemas.tidb.mysql_types import INTEGER_TYPES, MysqlType
from schemas.tidb.table import ColumnVersion
from schemas.tidb.value import Value
from schemas.varint import long_bytes
from sorters.core.columnar.decimals import unscaled, unscaled_wide
from sorters.core.columnar.spans import IntArray, Spans, spans_of
from sorters.core.columnar.times import fixed_text
from sorters.core.encode.avro.columns import union_segments
from sorters.core.encode.avro.rows import NULL_FIRST
from sorters.core.encode.avro.schema import AvroModes, is_string_type
from sorters.core.encode.debezium.columns import bit_texts, forms_of, out_of_range
from sorters.core.encode.debezium.values import (
    DATE_TYPES,
    INTEGER_BITS,
    NoFormError,
    bit_bytes,
    default_value,
    enum_name,
    null_json,
    set_names,
    value_json,
)
from sorters.core.encode.wire.avro_varint import decimal_bytes, decimals, floats, lengths, longs, wide_decimals
from sorters.core.encode.wire.segments import Segment, join, or_else
from sorters.core.mount.column import FLOAT_TYPES, Column, value_text

_VALUE, _NULL = NULL_FIRST
_TIMES = DATE_TYPES | {MysqlType.DATETIME, MysqlType.TIMESTAMP, MysqlType.TIME}
"""Types whose values are made of their JSON: a number, a text between quotes, or null."""
_INT64_MAX = (1 << 63) - 1
_TOO_LARGE = "unsigned bigint is beyond avro's long; avro-bigint-unsigned-handling-mode=string takes it"


def column_avro(column: Column, modes: AvroModes, zone: tzinfo) -> list[Segment]:
    """Return the segments of a column's values, each a union of null and its type.

    Raises:
        NoFormError: a DATETIME or TIMESTAMP is no time of the calendar and not zero, or an unsigned BIGINT is no long.
    """
    if column.spec.tp in _TIMES:
        return _times(column, zone)
    null = _NULL if column.valid is None or column.valid.all() else _null(column, modes, zone)
    segments, literal = union_segments(column, lambda head: _values(column, modes, head), b"", (_VALUE, null))
    return [*segments, literal]


def _null(column: Column, modes: AvroModes, zone: tzinfo) -> bytes:
    try:
        return null_avro(column.spec, modes, zone)
    except NoFormError as error:
        assert column.valid is not None
        raise NoFormError(error.why, int(column.valid.argmin())) from None


def value_avro(spec: ColumnVersion, value: Value, modes: AvroModes, zone: tzinfo) -> bytes:
    """Return one mounted value, likewise.

    Raises:
        NoFormError: as :func:`column_avro`.
    """
    if spec.tp in _TIMES:
        return _of_json(value_json(spec, value, zone))
    return null_avro(spec, modes, zone) if value is None else _VALUE + _value(spec, value, modes)


def null_avro(spec: ColumnVersion, modes: AvroModes, zone: tzinfo) -> bytes:
    """Return what stands for NULL: the column's default, or null (:func:`~.values.null_json`)."""
    if spec.tp in _TIMES:
        return _of_json(null_json(spec, zone))
    default = None if spec.default is None or spec.default_is_expression else default_value(spec)
    return _NULL if default is None else _VALUE + _value(spec, default, modes)


def _of_json(form: bytes) -> bytes:
    if form == b"null":
        return _NULL
    return _VALUE + (_sized(form[1:-1]) if form.startswith(b'"') else long_bytes(int(form)))


def _times(column: Column, zone: tzinfo) -> list[Segment]:
    forms = forms_of(column, zone)
    if forms.null_count:
        forms = or_else(forms, null_json(column.spec, zone))
    is_null = pc.equal(forms, pa.scalar(b"null", pa.binary()))
    if pc.all(is_null).as_py():
        return [_NULL]
    if column.spec.tp is MysqlType.TIMESTAMP:
        quoted = spans_of(forms)
        texts = Spans(quoted.buffer, quoted.start + 1, quoted.end - 1).to_arrow()
        whole = join(len(forms), [lengths(texts, _VALUE), texts])
    else:
        digits = pc.if_else(is_null, pa.scalar(b"0", pa.binary()), forms)
        whole = longs(digits.cast(pa.string()).cast(pa.int64()).to_numpy(), _VALUE)
    return [pc.if_else(is_null, pa.scalar(_NULL, pa.binary()), whole)]


def _values(column: Column, modes: AvroModes, prefix: bytes) -> list[Segment]:
    """Return the values that begin with ``prefix``; what stands where there is none does not matter."""
    spec, tp = column.spec, column.spec.tp
    if tp is MysqlType.DECIMAL and not is_string_type(spec, modes):
        numbers = column.unscaled
        exact = decimals(numbers) if numbers is not None else None
        return [prefix, wide_decimals(unscaled_wide(column.text, max(spec.decimal, 0))) if exact is None else exact]
    if tp in FLOAT_TYPES:
        return [floats(column.numbers, prefix, single=_is_single(spec))]
    if tp is MysqlType.YEAR or (tp in INTEGER_TYPES and not is_string_type(spec, modes)):
        return [longs(_integers(column), prefix)]
    if tp is MysqlType.BIT and spec.flen == 1:
        return [prefix, fixed_text((column.numbers != 0).astype(np.uint8).reshape(-1, 1), None)]
    text = _text(column)
    return [lengths(text, prefix), text]


def _integers(column: Column) -> IntArray:
    spec, numbers = column.spec, column.numbers
    if spec.tp is MysqlType.BIGINT and spec.unsigned:
        beyond = numbers > np.uint64(_INT64_MAX)
        if column.valid is not None:
            beyond &= column.valid
        if beyond.any():
            raise NoFormError(_TOO_LARGE, int(beyond.argmax()))
    if spec.tp in INTEGER_BITS and spec.tp is not MysqlType.BIGINT:
        return np.where(out_of_range(column), -1, numbers.view(np.int64))
    return numbers.view(np.int64)


def _text(column: Column) -> BinaryArray:
    names: Callable[[ColumnVersion, int], str]
    match column.spec.tp:
        case MysqlType.BIT:
            return bit_texts(column)
        case MysqlType.ENUM:
            names = enum_name
        case MysqlType.SET:
            names = set_names
        case _:
            return column.text
    distinct, index = np.unique(column.numbers, return_inverse=True)
    texts = pa.array([names(column.spec, number).encode() for number in distinct.tolist()], pa.binary())
    mask = None if column.valid is None else ~column.valid
    return texts.take(pa.array(index.reshape(-1), mask=mask))


def _value(spec: ColumnVersion, value: Value, modes: AvroModes) -> bytes:
    tp = spec.tp
    if tp is MysqlType.DECIMAL and not is_string_type(spec, modes):
        return _sized(decimal_bytes(unscaled(str(value), max(spec.decimal, 0))))
    if tp in FLOAT_TYPES:
        return struct.pack("<f" if _is_single(spec) else "<d", value)
    if isinstance(value, int) and not is_string_type(spec, modes):
        return _number(spec, value)
    return _sized(value_text(spec, value) or b"")


def _number(spec: ColumnVersion, value: int) -> bytes:
    match spec.tp:
        case MysqlType.BIT if spec.flen == 1:
            return b"\1" if value else b"\0"
        case MysqlType.BIT:
            return _sized(value.to_bytes(8, "little")[: bit_bytes(spec)])
        case MysqlType.ENUM:
            return _sized(enum_name(spec, value).encode())
        case MysqlType.SET:
            return _sized(set_names(spec, value).encode())
        case MysqlType.BIGINT if value > _INT64_MAX:
            raise NoFormError(_TOO_LARGE)
        case tp if tp in INTEGER_BITS and tp is not MysqlType.BIGINT:
            return long_bytes(int(value_json(spec, value)))
    return long_bytes(value)


def _is_single(spec: ColumnVersion) -> bool:
    """Tell whether the type is float: a FLOAT(m, d) is a double, as in debezium's schemas."""
    return spec.tp is MysqlType.FLOAT and spec.decimal == -1


def _sized(data: bytes) -> bytes:
    return long_bytes(len(data)) + data
