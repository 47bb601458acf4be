"""DATE, DATETIME and TIMESTAMP columns as Arrow's dates and moments. Pure.

A value that is no time of the calendar (``0000-00-00``, ``2024-02-31``) is null: Spark has no other word for it.
"""

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sorters.core.columnar.times import Packed, days_of_civil, no_calendar_times, unpack
from sorters.core.mount.column import Column, KeyColumn, RowColumn

_DAY_S, _SECOND_US = 86_400, 1_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def time_column(column: Column, target: Any) -> Any:
    """Return a column as ``target``: date32, or timestamp of microseconds; a TIMESTAMP was mounted in UTC."""
    if isinstance(column, RowColumn | KeyColumn):
        return _of_packed(column.numbers, target)
    return _of_texts(column.text, target)


def _of_packed(packed: Packed, target: Any) -> Any:
    year, month, day, hour, minute, second, micro = unpack(packed)
    mask = no_calendar_times(packed) | (packed == 0)
    days = days_of_civil(year, np.maximum(month, 1), day)
    if pa.types.is_date(target):
        return pa.array(days.astype(np.int32), target, mask=mask)
    moments = (days * _DAY_S + hour * 3600 + minute * 60 + second) * _SECOND_US + micro
    return pa.array(moments, pa.int64(), mask=mask).cast(target)


def _of_texts(texts: Any, target: Any) -> Any:
    """Read what TiDB prints; values of defaults, and of rows that were mounted by themselves."""
    plain = texts.cast(pa.string())
    no_date = pc.or_(pc.starts_with(plain, "0000"), pc.match_substring(plain, "-00"))
    plain = pc.if_else(no_date, pa.scalar(None, pa.string()), plain)
    try:
        moments = plain.cast(pa.timestamp("us"))
    except pa.ArrowInvalid:  # some day is none of its month
        words = plain.dictionary_encode()
        each = pa.array([_moment_us(word) for word in words.dictionary.to_pylist()], pa.int64())
        moments = each.take(words.indices).cast(pa.timestamp("us"))
    if pa.types.is_date(target):
        return moments.cast(target)
    return moments.cast(pa.int64()).cast(target)


def _moment_us(text: str) -> int | None:
    try:
        moment = datetime.fromisoformat(text).replace(tzinfo=UTC)
    except ValueError:
        return None
    since = moment - _EPOCH
    return (since.days * _DAY_S + since.seconds) * _SECOND_US + since.microseconds
