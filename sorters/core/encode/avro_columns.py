"""A column of mounted rows in Avro binary, as segments of the messages."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas.tidb.mysql_types import INTEGER_TYPES, MysqlType
from sorters.core.columnar.column import FLOAT_TYPES, Column
from sorters.core.columnar.decimals import unscaled_wide
from sorters.core.columnar.mounted import MountedPart
from sorters.core.encode.avro_rows import NULL_FIRST, VALUE_FIRST, enum_name, set_name
from sorters.core.encode.avro_schema import AvroModes, default_comes_first, is_string_type
from sorters.core.encode.avro_varint import bits_matrix, decimals, floats, lengths, longs, wide_decimals
from sorters.core.encode.protocol import refused
from sorters.core.encode.segments import Segment, join, or_else


def column_segments(part: MountedPart, column: Column, modes: AvroModes) -> list[Segment]:
    """Return the segments of one field.

    Raises:
        EncodeRefusedError: an ENUM or SET number has no name.
    """
    segments = _value_segments(part, column, modes)
    if not column.spec.nullable:
        return segments
    value_mark, null_mark = VALUE_FIRST if default_comes_first(column.spec, modes) else NULL_FIRST
    valid = column.valid
    if valid is None:
        return [value_mark, *segments]
    if not valid.any():
        return [null_mark]
    whole = join(len(column), [value_mark, *segments])
    if not whole.null_count:  # the segments come from numbers, which know no null
        whole = pc.if_else(pa.array(valid), whole, pa.scalar(None, pa.binary()))
    return [or_else(whole, null_mark)]


def _value_segments(part: MountedPart, column: Column, modes: AvroModes) -> list[Segment]:
    spec, tp = column.spec, column.spec.tp
    if tp is MysqlType.DECIMAL and not is_string_type(spec, modes):
        unscaled = column.unscaled
        scale = max(spec.decimal, 0)
        return [decimals(unscaled) if unscaled is not None else wide_decimals(unscaled_wide(column.text, scale))]
    if tp in FLOAT_TYPES:
        return [floats(column.numbers, single=tp is MysqlType.FLOAT)]
    if (tp in INTEGER_TYPES or tp is MysqlType.YEAR) and not is_string_type(spec, modes):
        return [longs(column.numbers.view(np.int64))]
    text = _text(part, column)
    return [lengths(text), text]


def _text(part: MountedPart, column: Column) -> Any:
    match column.spec.tp:
        case MysqlType.ENUM:
            return _names(part, column, enum_name)
        case MysqlType.SET:
            return _names(part, column, set_name)
        case MysqlType.BIT:
            return bits_matrix(column.numbers.view(np.uint64))
        case _:
            return column.text


def _names(part: MountedPart, column: Column, name_of: Any) -> Any:
    """Look each distinct number up once."""
    numbers = column.numbers if column.valid is None else np.where(column.valid, column.numbers, 0)
    distinct, place = np.unique(numbers, return_inverse=True)
    names = [name_of(column.spec, number) for number in distinct.tolist()]
    for number, name in zip(distinct.tolist(), names, strict=True):
        if name is not None:
            continue
        holds = numbers == number if column.valid is None else (numbers == number) & column.valid
        if holds.any():
            raise refused(part, int(holds.argmax()), column.spec.name, f"{number} is no value of the column")
    texts = pa.array([None if name is None else name.encode() for name in names], pa.binary())
    return or_else(texts.take(pa.array(place.reshape(-1))), b"")
