"""A column of mounted rows as an Arrow column of Spark's type. Pure; no Python per row but for odd values."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas.errors import CorruptDataError
from schemas.tidb.mysql_types import DATETIME_TYPES, INTEGER_TYPES, STRING_TYPES, MysqlType
from schemas.tidb.table import ColumnVersion
from sorters.core.columnar.decimals import unscaled
from sorters.core.columnar.spans import BoolArray, IntArray, spans_of
from sorters.core.mount.column import FLOAT_TYPES, Column
from sorters.core.source.arrow_times import time_column

_DECIMAL_BYTES, _COUNT_BYTES, _ITEM_BYTES = 16, 4, 4


def arrow_column(column: Column, target: Any) -> Any:
    """Return the values of a column as a ``pyarrow.Array`` of type ``target``, its own or a wider one.

    Args:
        column: mounted in UTC.
        target: :func:`sorters.core.source.row_shape.arrow_type` of it, or of a later version of it.

    Raises:
        CorruptRowError: a value does not decode.
        CorruptDataError: an ENUM or SET has a value that its column does not list.
    """
    spec, tp = column.spec, column.spec.tp
    if tp in INTEGER_TYPES or tp in {MysqlType.YEAR, MysqlType.BIT}:
        return _integers(column, target)
    if tp in FLOAT_TYPES:
        numbers = column.numbers
        return pa.array(numbers.astype(np.float32) if tp is MysqlType.FLOAT else numbers, target, mask=_nulls(column))
    if tp is MysqlType.DECIMAL and pa.types.is_decimal(target):
        return _decimals(column, target)
    if tp in DATETIME_TYPES:
        return time_column(column, target)
    if tp is MysqlType.ENUM:
        return _names(column, _enum_name, pa.string())
    if tp is MysqlType.SET:
        return _names(column, _set_names, pa.list_(pa.string()))
    if tp is MysqlType.VECTOR:
        return _vectors(column)
    if tp in STRING_TYPES and spec.binary:
        return column.text
    return _strings(column.text)


def _nulls(column: Column) -> BoolArray | None:
    valid = column.valid
    return None if valid is None else ~valid


def _integers(column: Column, target: Any) -> Any:
    numbers = column.numbers
    if pa.types.is_decimal(target):
        return _wide(numbers.view(np.int64), _nulls(column), target, signed=numbers.dtype != np.uint64)
    return pa.array(numbers.astype(target.to_pandas_dtype()), target, mask=_nulls(column))


def _wide(low: IntArray, nulls: BoolArray | None, target: Any, *, signed: bool) -> Any:
    """Return 64-bit numbers as decimals, whose unscaled values they are."""
    words = np.zeros((len(low), 2), np.int64)
    words[:, 0] = low
    if signed:
        words[:, 1] = low >> 63
    bits = None if nulls is None else pa.py_buffer(np.packbits(~nulls, bitorder="little"))
    return pa.Array.from_buffers(target, len(low), [bits, pa.py_buffer(words)])


def _decimals(column: Column, target: Any) -> Any:
    numbers = column.unscaled
    if numbers is not None:
        return _wide(numbers, _nulls(column), target, signed=True)
    texts = column.text.cast(pa.string())
    try:
        return texts.cast(target)
    except pa.ArrowInvalid:  # digits beyond the scale, from before a MODIFY COLUMN
        each = [None if text is None else unscaled(text, target.scale) for text in texts.to_pylist()]
        wide = (None if number is None else number.to_bytes(_DECIMAL_BYTES, "little", signed=True) for number in each)
        joined = b"".join(number or bytes(_DECIMAL_BYTES) for number in wide)
        bits = pa.py_buffer(np.packbits([number is not None for number in each], bitorder="little"))
        return pa.Array.from_buffers(target, len(each), [bits, pa.py_buffer(joined)])


def _names(column: Column, name_of: Callable[[ColumnVersion, int], Any], target: Any) -> Any:
    """Look each distinct number up once."""
    nulls = _nulls(column)
    numbers = column.numbers if nulls is None else np.where(nulls, 0, column.numbers)
    distinct, index = np.unique(numbers, return_inverse=True)
    names = pa.array([name_of(column.spec, number) for number in distinct.tolist()], target)
    return names.take(pa.array(index.reshape(-1), mask=nulls))


def _enum_name(spec: ColumnVersion, number: int) -> str:
    if number > len(spec.elems):
        raise _no_value(spec, number)
    return spec.elems[number - 1] if number else ""  # MySQL's error value


def _set_names(spec: ColumnVersion, mask: int) -> list[str]:
    if mask >> len(spec.elems):
        raise _no_value(spec, mask)
    return [name for bit, name in enumerate(spec.elems) if mask >> bit & 1]


def _no_value(spec: ColumnVersion, number: int) -> CorruptDataError:
    return CorruptDataError("number is no value of the column", column=spec.name, number=number, values=len(spec.elems))


def _strings(texts: Any) -> Any:
    try:
        return texts.cast(pa.string())
    except pa.ArrowInvalid:  # TiDB was told not to check: what is no UTF-8 becomes U+FFFD, as in its JSON
        each = texts.to_pylist()
        return pa.array([None if text is None else text.decode("utf-8", "replace") for text in each], pa.string())


def _vectors(column: Column) -> Any:
    vectors = column.vectors
    present = vectors.drop_null()
    spans = spans_of(present)
    counts = (spans.length - _COUNT_BYTES) // _ITEM_BYTES
    ends = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    number = np.arange(ends[-1]) - np.repeat(ends[:-1], counts)
    at = np.repeat(spans.start + _COUNT_BYTES, counts) + _ITEM_BYTES * number
    chosen = (at[:, None] + np.arange(_ITEM_BYTES)).reshape(-1)
    items = spans.buffer[chosen].view("<f4") if len(chosen) else np.zeros(0, np.float32)
    lists = pa.ListArray.from_arrays(pa.array(ends), pa.array(items, pa.float32()))
    here = pc.is_valid(vectors).to_numpy(zero_copy_only=False)
    return lists.take(pa.array(np.cumsum(here) - 1, mask=~here))
