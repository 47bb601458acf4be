"""Columns that stand in the row key: the integer handle, or the datums of a clustered primary key, all rows at once.

A common handle is walked datum by datum; where the datums before were of one length in all rows (integers, times) the
cursor is the same everywhere, else it is a number per row. Layout: ``tidb-encoding`` in pingcap/tidb
``pkg/util/codec``.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from schemas.tidb.mysql_types import INTEGER_TYPES, STRING_TYPES, MysqlType
from schemas.tidb.table import ColumnVersion, TableVersion
from sorters.core.columnar.decimals import encoded_bytes
from sorters.core.columnar.numbers import floats_of_bits
from sorters.core.columnar.spans import BoolArray, IntArray, Spans, gather

HANDLE_AT = 11
"""Bytes in front of the handle: ``t``, the table id, ``_r``."""
INT_KEY_BYTES = HANDLE_AT + 8

FLAG_BYTES, FLAG_INT, FLAG_UINT, FLAG_FLOAT, FLAG_DECIMAL, FLAG_DURATION = 1, 3, 4, 5, 6, 7
_SIGN = np.uint64(1 << 63)
_GROUP, _MARKED_GROUP = 8, 9
_MARKER_FULL = 0xFF
GROUPS_MAX = 128
"""TiDB keys are at most 3072 bytes, so a longer datum is corrupt or very rare: such rows count as misfits here."""
_INT_ZERO, _DECIMAL_ZERO = bytes(INT_KEY_BYTES), b"\x01\x00\x80"
"""What misfits hold instead: a key of an integer, and a decimal of one digit in the form of a row value."""


@dataclass(frozen=True, slots=True, eq=False)
class KeyValues:
    """One key column: numbers, or byte ranges (strings; decimals in the form of a row value)."""

    numbers: npt.NDArray[Any] | None
    spans: Spans | None


def big_endian_words(spans: Spans, at: IntArray | int) -> npt.NDArray[np.uint64]:
    """Read 8 big-endian bytes at an offset from the start of each range."""
    return gather(spans.buffer, spans.start + at, 8).view(">u8")[:, 0].astype(np.uint64)


def decode_keys(table: TableVersion, keys: Spans) -> tuple[dict[int, KeyValues], BoolArray]:
    """Return the key's columns by offset into ``table.columns``, and which keys do not decode (values there are
    junk).
    """
    if table.pk_is_handle:
        column = table.columns[table.key_columns[0]]
        bad = keys.length != INT_KEY_BYTES
        if bad.any():
            keys = _blanked(keys, bad, _INT_ZERO)
        words = big_endian_words(keys, HANDLE_AT) ^ _SIGN
        numbers = words if column.unsigned else words.view(np.int64)
        return {table.key_columns[0]: KeyValues(numbers, None)}, bad
    return _decode_common(table, keys)


def _blanked(spans: Spans, bad: BoolArray, zero: bytes) -> Spans:
    """Point the bad ranges at a zero, so that the good ones can be read in one go."""
    at = len(spans.buffer)
    buffer = np.concatenate([spans.buffer, np.frombuffer(zero, np.uint8)])
    return Spans(buffer, np.where(bad, at, spans.start), np.where(bad, at + len(zero), spans.end))


def _decode_common(table: TableVersion, keys: Spans) -> tuple[dict[int, KeyValues], BoolArray]:
    # Rows whose key ends early read zeros behind it: flag 0 is no datum, so they turn into misfits and not into
    # crashes.
    room = np.zeros(_MARKED_GROUP * GROUPS_MAX + 1, np.uint8)
    padded = Spans(np.concatenate([keys.buffer, room]), keys.start, keys.end)
    bad = keys.length <= HANDLE_AT
    cursor = np.minimum(keys.start + HANDLE_AT, keys.end)
    values: dict[int, KeyValues] = {}
    for offset in table.key_columns:
        flags = padded.buffer[cursor]
        value, cursor, broken = _decode_datum(table.columns[offset], padded.buffer, flags, cursor + 1)
        bad |= broken | (cursor > keys.end)
        cursor = np.minimum(cursor, keys.end)
        values[offset] = value
    return _without_junk(table, values, bad), bad


def _without_junk(table: TableVersion, values: dict[int, KeyValues], bad: BoolArray) -> dict[int, KeyValues]:
    """Make the decimals of bad keys zero: a cursor that stopped within a text has read no decimals behind it, and
    whoever decodes the column would refuse them. Any other type takes any bytes.
    """
    if not bad.any():
        return values
    sound = dict(values)
    for offset, value in values.items():
        if table.columns[offset].tp is MysqlType.DECIMAL and value.spans is not None:
            sound[offset] = KeyValues(None, _blanked(value.spans, bad, _DECIMAL_ZERO))
    return sound


def _decode_datum(
    column: ColumnVersion, buffer: npt.NDArray[np.uint8], flags: npt.NDArray[np.uint8], at: IntArray
) -> tuple[KeyValues, IntArray, BoolArray]:
    """Decode one datum behind its flag; return the value, where the next datum starts, and which rows are broken."""
    if column.tp in STRING_TYPES:
        spans, after, broken = _decode_strings(buffer, at)
        return KeyValues(None, spans), after, broken | (flags != FLAG_BYTES)
    if column.tp is MysqlType.DECIMAL:
        width = encoded_bytes(gather(buffer, at, 2))
        broken = (width > 256) | (flags != FLAG_DECIMAL)
        after = at + np.where(broken, 0, width)
        return KeyValues(None, Spans(buffer, at, after)), after, broken
    words = gather(buffer, at, 8).view(">u8")[:, 0].astype(np.uint64)
    if column.tp in {MysqlType.FLOAT, MysqlType.DOUBLE}:
        numbers: npt.NDArray[Any] = floats_of_bits(words, single=column.tp is MysqlType.FLOAT)
        return KeyValues(numbers, None), at + 8, flags != FLAG_FLOAT
    signed = (column.tp in INTEGER_TYPES and not column.unsigned) or column.tp in {MysqlType.TIME, MysqlType.YEAR}
    if not signed:
        return KeyValues(words, None), at + 8, flags != FLAG_UINT
    expected = FLAG_DURATION if column.tp is MysqlType.TIME else FLAG_INT
    return KeyValues((words ^ _SIGN).view(np.int64), None), at + 8, flags != expected


def _decode_strings(buffer: npt.NDArray[np.uint8], at: IntArray) -> tuple[Spans, IntArray, BoolArray]:
    """Take memcomparable strings apart: groups of eight bytes, each with a marker that counts its padding."""
    cursor, broken = at.copy(), np.zeros(len(at), np.bool_)
    open_rows, last = np.arange(len(at)), np.zeros(len(at), np.int64)
    groups = 0
    while len(open_rows) and groups < GROUPS_MAX:
        groups += 1
        marker = buffer[np.minimum(cursor[open_rows] + _GROUP, len(buffer) - 1)]
        cursor[open_rows] += _MARKED_GROUP
        closing = marker != _MARKER_FULL
        closed = open_rows[closing]
        last[closed] = marker[closing].astype(np.int64) - (_MARKER_FULL - _GROUP)
        open_rows = open_rows[~closing]
        inside = cursor[open_rows] + _MARKED_GROUP <= len(buffer)
        broken[open_rows[~inside]] = True
        open_rows = open_rows[inside]
    broken[open_rows] = True
    broken |= last < 0
    width = np.where(broken, 0, (cursor - at) // _MARKED_GROUP)
    whole = int(width.max()) if len(width) else 0
    fits = np.where(at + whole * _MARKED_GROUP <= len(buffer), at, 0)
    matrix = gather(buffer, fits, whole * _MARKED_GROUP).reshape(len(at), whole, _MARKED_GROUP)[:, :, :_GROUP]
    flat = np.ascontiguousarray(matrix).reshape(-1)
    start = np.arange(len(at), dtype=np.int64) * (whole * _GROUP)
    length = np.where(broken, 0, np.maximum(width - 1, 0) * _GROUP + last)
    return Spans(flat, start, start + length), cursor, broken
