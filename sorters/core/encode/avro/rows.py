"""One value in Avro binary: the scalar twin of :mod:`sorters.core.encode.avro.columns`."""

import struct

from schemas.redaction import redacted
from schemas.tidb.mysql_types import INTEGER_TYPES, MysqlType
from schemas.tidb.table import ColumnVersion
from schemas.tidb.value import Value
from schemas.varint import long_bytes
from sorters.core.columnar.decimals import unscaled
from sorters.core.encode.avro.schema import AvroModes, default_comes_first, is_string_type
from sorters.core.encode.wire.avro_varint import decimal_bytes
from sorters.core.encode.wire.protocol import refused
from sorters.core.mount.column import FLOAT_TYPES, value_text
from sorters.core.mount.mounted import MountedPart

NULL_FIRST, VALUE_FIRST = (b"\x02", b"\x00"), (b"\x00", b"\x02")
"""Union branch numbers of (a value, null) in ``["null", T]`` and ``[T, "null"]``."""


def enum_name(column: ColumnVersion, number: int) -> str | None:
    """Return an ENUM's name; None: the number has none (0 is MySQL's error value)."""
    return column.elems[number - 1] if 1 <= number <= len(column.elems) else None


def set_name(column: ColumnVersion, mask: int) -> str | None:
    """Return a SET's names joined by comma; None: a bit has no name."""
    if mask >> len(column.elems):
        return None
    return ",".join(elem for bit, elem in enumerate(column.elems) if mask >> bit & 1)


def field_bytes(part: MountedPart, row: int, column: ColumnVersion, value: Value, modes: AvroModes) -> bytes:
    """Encode one field.

    Raises:
        EncodeRefusedError: an ENUM or SET number has no name.
    """
    if not column.nullable:
        return _value_bytes(part, row, column, value, modes)
    value_mark, null_mark = VALUE_FIRST if default_comes_first(column, modes) else NULL_FIRST
    return null_mark if value is None else value_mark + _value_bytes(part, row, column, value, modes)


def _value_bytes(part: MountedPart, row: int, column: ColumnVersion, value: Value, modes: AvroModes) -> bytes:
    tp = column.tp
    if tp is MysqlType.DECIMAL and not is_string_type(column, modes):
        return _sized(decimal_bytes(unscaled(str(value), max(column.decimal, 0))))
    if tp in FLOAT_TYPES:
        return struct.pack("<f" if tp is MysqlType.FLOAT else "<d", value)
    if isinstance(value, int):
        return _integer_bytes(part, row, column, value, modes)
    return _sized(value_text(column, value) or b"")


def _integer_bytes(part: MountedPart, row: int, column: ColumnVersion, value: int, modes: AvroModes) -> bytes:
    match column.tp:
        case MysqlType.ENUM | MysqlType.SET:
            name = enum_name(column, value) if column.tp is MysqlType.ENUM else set_name(column, value)
            if name is None:
                raise refused(part, row, column.name, f"{redacted(str(value))} is no value of the column")
            return _sized(name.encode())
        case MysqlType.BIT:
            return _sized(value.to_bytes(max((value.bit_length() + 7) // 8, 1), "big"))
        case tp if (tp in INTEGER_TYPES or tp is MysqlType.YEAR) and not is_string_type(column, modes):
            return long_bytes(value - (1 << 64) if value >= 1 << 63 else value)
        case _:
            return _sized(b"%d" % value)


def _sized(data: bytes) -> bytes:
    return long_bytes(len(data)) + data
