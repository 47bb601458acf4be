r"""Values as SQL literals, whole columns at once, and one by one.

Numbers are digits, floats with an exponent (without one MySQL reads a DECIMAL, and its scale ends at 30); ENUM, SET and
BIT are their numbers. Times, JSON, VECTOR and texts stand in quotes with ``\\``, ``\'`` and ``\0``; bytes in hex. That
is read back as it was meant under any character set and every sql_mode but NO_BACKSLASH_ESCAPES.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas.changes import BinaryArray
from schemas.tidb.mysql_types import STRING_TYPES, MysqlType
from schemas.tidb.table import ColumnVersion
from schemas.tidb.value import Value
from sorters.core.columnar.escape import data_of, offsets_of
from sorters.core.columnar.numbers import float_text
from sorters.core.encode.wire.segments import or_else
from sorters.core.mount.column import FLOAT_TYPES, NUMBER_TYPES, Column, value_text

NULL = b"NULL"
_ESCAPES = {0x5C: b"\\\\", 0x27: b"\\'", 0x00: b"\\0"}
"""The backslash first: the others bring in new ones."""
_DIGITS = frozenset(NUMBER_TYPES | {MysqlType.DECIMAL})
_MAY_NEED_ESCAPE = STRING_TYPES | {MysqlType.JSON}
_HEX = np.frombuffer(b"".join(b"%02x" % byte for byte in range(256)), np.uint16)
"""Two letters a byte, read as one number."""


def column_literals(column: Column) -> BinaryArray:
    """Return a column's values: ``pyarrow.BinaryArray`` without nulls."""
    return or_else(_literals(column), NULL)


def value_literal(spec: ColumnVersion, value: Value) -> bytes:
    """Return one value.

    >>> _escaped(b"it's")
    b"it\\\\'s"
    """
    text = value_text(spec, value)
    if text is None:
        return NULL
    if spec.tp in FLOAT_TYPES:
        assert isinstance(value, float)
        return _float_literal(value)
    if spec.tp in _DIGITS:
        return text
    if spec.tp in STRING_TYPES and spec.binary:
        return b"x'%s'" % text.hex().encode()
    return b"'%s'" % _escaped(text)


def _literals(column: Column) -> BinaryArray:
    spec = column.spec
    if spec.tp in FLOAT_TYPES:
        # The double that a FLOAT is, to its last digit: it rounds to the same FLOAT, and equals it in a condition.
        return pc.binary_join_element_wise(float_text(column.numbers, column.valid, single=False), b"e0", b"")
    if spec.tp in _DIGITS:
        return column.text
    if spec.tp in STRING_TYPES and spec.binary:
        return pc.binary_join_element_wise(b"x'", hex_text(column.text), b"'", b"")
    text = _escaped_column(column.text) if spec.tp in _MAY_NEED_ESCAPE else column.text
    return pc.binary_join_element_wise(b"'", text, b"'", b"")


def _float_literal(value: float) -> bytes:
    text: bytes = float_text(np.array([value], np.float64), single=False)[0].as_py()
    return text + b"e0"


def _escaped(text: bytes) -> bytes:
    for byte, form in _ESCAPES.items():
        text = text.replace(bytes((byte,)), form)
    return text


def _escaped_column(array: BinaryArray) -> BinaryArray:
    data = data_of(array)
    for byte, form in _ESCAPES.items():
        if (data == byte).any():
            array = pc.replace_substring(array, bytes((byte,)), form)
    return array


def hex_text(array: BinaryArray) -> BinaryArray:
    """Return bytes as hexadecimal digits: ``pyarrow.BinaryArray``, null where they are."""
    offsets = offsets_of(array)
    letters = _HEX[data_of(array)]
    moved = (offsets.astype(np.int64) - offsets[0]) * 2
    bits = np.packbits(array.is_valid().to_numpy(zero_copy_only=False), bitorder="little")
    buffers = [pa.py_buffer(bits), pa.py_buffer(moved.astype(np.int32)), pa.py_buffer(letters)]
    return pa.Array.from_buffers(pa.binary(), len(array), buffers)
