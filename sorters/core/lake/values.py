"""Mounted columns as Arrow columns of lake types."""

from collections.abc import Callable
from datetime import date, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas.tidb.mysql_types import MysqlType
from schemas.tidb.table import ColumnVersion
from sorters.core.lake.columns import arrow_type
from sorters.core.lake.errors import LakeValueError
from sorters.core.mount.column import NUMBER_TYPES, Column

ArrowColumn = Any
"""``pyarrow.Array``, which has no stubs."""


def lake_array(column: Column, type_name: str, table: str) -> ArrowColumn:
    """Return a mounted column as its lake type: null for NULL, and for a date or time that no calendar has.

    Raises:
        LakeValueError: a value does not fit, such as a text that is no UTF-8.
    """
    spec, target = column.spec, arrow_type(type_name)
    try:
        if spec.tp in (MysqlType.ENUM, MysqlType.SET):
            return _names(column)
        if spec.tp in NUMBER_TYPES:
            mask = None if column.valid is None else ~column.valid
            return _cast_numbers(pa.array(column.numbers, mask=mask), target)
        if pa.types.is_date(target) or pa.types.is_timestamp(target):
            return _times(column.text.cast(pa.string()), target)
        if target == pa.binary():
            return column.text
        return column.text.cast(pa.string()).cast(target)
    except pa.ArrowInvalid as error:
        where = {"table": table, "column": spec.name, "type": type_name, "reason": str(error)[:200]}
        raise LakeValueError("a value does not fit its lake column", **where) from error


def _cast_numbers(numbers: ArrowColumn, target: pa.DataType) -> ArrowColumn:
    return numbers.cast(pa.float64()).cast(target) if pa.types.is_floating(target) else numbers.cast(target)


def _names(column: Column) -> ArrowColumn:
    """Return ENUM and SET as their names; each distinct number is looked up once."""
    numbers = column.numbers if column.valid is None else np.where(column.valid, column.numbers, 0)
    distinct, index = np.unique(numbers, return_inverse=True)
    name_of = _enum_name if column.spec.tp is MysqlType.ENUM else _set_names
    texts = pa.array([name_of(column.spec, int(number)) for number in distinct.tolist()], pa.string())
    names = texts.take(pa.array(index.reshape(-1)))
    return names if column.valid is None else pc.if_else(pa.array(column.valid), names, pa.scalar(None, pa.string()))


def _enum_name(spec: ColumnVersion, number: int) -> str:
    """Return a name; '' for 0, which MySQL stores for what was no name."""
    return spec.elems[number - 1] if 1 <= number <= len(spec.elems) else ""


def _set_names(spec: ColumnVersion, mask: int) -> str:
    return ",".join(name for bit, name in enumerate(spec.elems) if mask >> bit & 1)


def _times(texts: ArrowColumn, target: pa.DataType) -> ArrowColumn:
    """The year 0, which TiDB has and Arrow would take, is none of a calendar: many readers fail at it."""
    texts = pc.if_else(pc.starts_with(texts, "0000-"), pa.scalar(None, pa.string()), texts)
    try:
        return _parsed(texts, target)
    except pa.ArrowInvalid:
        distinct = pc.dictionary_encode(texts)
        known = [text if _is_calendar_time(text) else None for text in distinct.dictionary.to_pylist()]
        return _parsed(pa.array(known, pa.string()).take(distinct.indices), target)


def _parsed(texts: ArrowColumn, target: pa.DataType) -> ArrowColumn:
    if pa.types.is_date(target):
        return texts.cast(target)
    moments = texts.cast(pa.timestamp("us"))
    return moments if target.tz is None else pc.assume_timezone(moments, "UTC")


def _is_calendar_time(text: str | None) -> bool:
    """Tell whether a date or time is one: not 0000-00-00, and no 31st of February."""
    parse: Callable[[str], object] = (
        date.fromisoformat if text is not None and len(text) == 10 else datetime.fromisoformat
    )
    try:
        return text is not None and parse(text) is not None
    except ValueError:
        return False
