"""A column of mounted rows in Avro binary, as segments of the messages."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas.changes import BinaryArray
from schemas.redaction import redacted
from schemas.tidb.mysql_types import INTEGER_TYPES, MysqlType
from sorters.core.columnar.decimals import unscaled_wide
from sorters.core.encode.avro.rows import NULL_FIRST, VALUE_FIRST, enum_name, set_name
from sorters.core.encode.avro.schema import AvroModes, default_comes_first, is_string_type
from sorters.core.encode.wire.avro_varint import bits_matrix, decimals, floats, lengths, longs, wide_decimals
from sorters.core.encode.wire.protocol import refused
from sorters.core.encode.wire.segments import Segment, join, or_else
from sorters.core.mount.column import FLOAT_TYPES, Column
from sorters.core.mount.mounted import MountedPart


def record_segments(
    part: MountedPart, columns: Iterable[Column], modes: AvroModes, head: Segment
) -> tuple[list[Segment], bytes]:
    """Return the segments of a record that starts with ``head``, and a literal that still has to follow them.

    Raises:
        EncodeRefusedError: an ENUM or SET number has no name.
    """
    segments: list[Segment] = [] if isinstance(head, bytes) else [head]
    literal = head if isinstance(head, bytes) else b""
    for column in columns:
        more, literal = _field_segments(part, column, modes, literal)
        segments += more
    return segments, literal


def _field_segments(part: MountedPart, column: Column, modes: AvroModes, prefix: bytes) -> tuple[list[Segment], bytes]:
    if not column.spec.nullable:
        return _value_segments(part, column, modes, prefix), b""
    marks = VALUE_FIRST if default_comes_first(column.spec, modes) else NULL_FIRST
    return union_segments(column, lambda head: _value_segments(part, column, modes, head), prefix, marks)


def union_segments(
    column: Column, values: Callable[[bytes], list[Segment]], prefix: bytes, marks: tuple[bytes, bytes]
) -> tuple[list[Segment], bytes]:
    """Return the segments of a union of null and a type, and a literal that still has to follow them.

    Args:
        values: returns the segments of all values, which begin with the bytes that it is given.
        marks: what stands before a value, and what for a null.
    """
    (value_mark, null_mark), valid = marks, column.valid
    if valid is None or valid.all():
        return values(prefix + value_mark), b""
    if not valid.any():
        return [], prefix + null_mark
    whole = join(len(column), values(value_mark))
    if not whole.null_count:  # the segments come from numbers, which know no null
        whole = pc.if_else(pa.array(valid), whole, pa.scalar(None, pa.binary()))
    return [prefix, or_else(whole, null_mark)], b""


def _value_segments(part: MountedPart, column: Column, modes: AvroModes, prefix: bytes) -> list[Segment]:
    spec, tp = column.spec, column.spec.tp
    if tp is MysqlType.DECIMAL and not is_string_type(spec, modes):
        unscaled = column.unscaled
        scale = max(spec.decimal, 0)
        return [
            prefix,
            decimals(unscaled) if unscaled is not None else wide_decimals(unscaled_wide(column.text, scale)),
        ]
    if tp in FLOAT_TYPES:
        return [floats(column.numbers, prefix, single=tp is MysqlType.FLOAT)]
    if (tp in INTEGER_TYPES or tp is MysqlType.YEAR) and not is_string_type(spec, modes):
        return [longs(column.numbers.view(np.int64), prefix)]
    text = _text(part, column)
    return [lengths(text, prefix), text]


def _text(part: MountedPart, column: Column) -> BinaryArray:
    match column.spec.tp:
        case MysqlType.ENUM:
            return _names(part, column, enum_name)
        case MysqlType.SET:
            return _names(part, column, set_name)
        case MysqlType.BIT:
            return bits_matrix(column.numbers.view(np.uint64))
        case _:
            return column.text


def _names(part: MountedPart, column: Column, name_of: Any) -> BinaryArray:
    """Look each distinct number up once."""
    numbers = column.numbers if column.valid is None else np.where(column.valid, column.numbers, 0)
    distinct, index = np.unique(numbers, return_inverse=True)
    names = [name_of(column.spec, number) for number in distinct.tolist()]
    for number, name in zip(distinct.tolist(), names, strict=True):
        if name is not None:
            continue
        holds = numbers == number if column.valid is None else (numbers == number) & column.valid
        if holds.any():
            raise refused(
                part, int(holds.argmax()), column.spec.name, f"{redacted(str(number))} is no value of the column"
            )
    texts = pa.array([None if name is None else name.encode() for name in names], pa.binary())
    return or_else(texts.take(pa.array(index.reshape(-1))), b"")
