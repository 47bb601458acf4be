"""Ranges of a clustered key as SQL conditions: which rows of a destination a chunk of a table image lacks.

A chunk has all rows of ``[start, end)`` of TiKV's keys. What the destination has there beside them is what it holds too
much, and a condition says so: the range in the words of the key's columns, and none of the keys that the chunk has. A
chunk comes to several conditions, side by side, so that none is longer than some 10 KiB::

    start        keys 1 to 512        key 513 ...                      end
      |------------------------|------------------------|---------------|
       id > 7 AND id <= 900     id > 900 AND id <= ...
       AND id NOT IN (...)

What is not said goes by order, so the destination must order its keys as TiKV does. Of whole numbers that is sure; of
texts it hangs on collations, and of tables whose row key is no column there is nothing to go by: their rows cannot be
deleted so (:func:`range_misfit`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from schemas.changes import BinaryArray
from schemas.errors import CorruptDataError
from schemas.rawlog.images import KeyRange
from schemas.tidb.mysql_types import INTEGER_TYPES
from schemas.tidb.table import ColumnVersion, HandleKind, TableVersion
from sorters.core.columnar.spans import spans_of
from sorters.core.mount.keys import FLAG_INT, FLAG_UINT, HANDLE_AT, decode_keys
from sorters.core.sql.tokens import quote_name

KEYS_MAX: Final = 512
"""Of one condition."""
_NUMBER_BYTES: Final = 8
_SIGN: Final = 1 << 63
Numbers = npt.NDArray[Any]
"""int64, or uint64 of an unsigned column."""


@dataclass(frozen=True, slots=True)
class KeyBound:
    """A place in the order of keys: before all that begin with these values, or behind them."""

    values: tuple[int, ...] = ()
    """Of the key's first columns."""
    is_after: bool = False


FIRST, LAST = KeyBound(), KeyBound(is_after=True)


@dataclass(frozen=True, slots=True)
class LackingRange:
    """Rows that a chunk lacks."""

    start: bytes
    """Raw TiKV key, from which on they are: another one for each range of a chunk."""
    condition: bytes
    """SQL, in parentheses."""


def range_misfit(table: TableVersion) -> str | None:
    """Return why rows of a table cannot be deleted by ranges of keys, for people; None: they can."""
    if table.partitions:
        return "it is partitioned, and keys of its partitions lie within each other"
    if table.handle_kind is HandleKind.ROW_ID:
        return "its primary key is not clustered, so no column tells the order in which its rows are read"
    names = [column.name for column in _key(table) if column.tp not in INTEGER_TYPES]
    return f"its key has a column that is no whole number: {', '.join(names)}" if names else None


def lacking_ranges(table: TableVersion, keys: KeyRange, present: BinaryArray) -> Iterator[LackingRange]:
    """Yield what of a range the destination may hold beside the keys that are present: ascending, and none where no
    key is left between two that are.

    Args:
        table: one that :func:`range_misfit` has nothing against.
        keys: raw TiKV keys of its records.
        present: the raw keys that there are, ascending.

    Raises:
        CorruptDataError: a key does not decode.
    """
    if keys.start >= keys.end or key_bound(table, keys.start) == LAST or key_bound(table, keys.end) == FIRST:
        return
    for within, chosen in _of_one_sign(table, keys, present):
        yield from _ranges(table, within, chosen)


def key_bound(table: TableVersion, key: bytes) -> KeyBound:
    """Return where a raw key stands among the values of the key's columns; it need not be a row's, nor a whole one.

    Of an unsigned integer key the value is what TiKV's order takes it for: signed.
    """
    head = KeyRange.of_table(table.table_id).start
    if key <= head:
        return FIRST
    if not key.startswith(head):
        return LAST
    return _int_bound(table, key[HANDLE_AT:]) if table.pk_is_handle else _common_bound(table, key[HANDLE_AT:])


# -- where a key stands


def _key(table: TableVersion) -> list[ColumnVersion]:
    return [table.columns[offset] for offset in table.key_columns]


def _int_bound(table: TableVersion, tail: bytes) -> KeyBound:
    return KeyBound((_number(tail, is_signed=True, is_flipped=True),), len(tail) > _NUMBER_BYTES)


def _common_bound(table: TableVersion, tail: bytes) -> KeyBound:
    values: list[int] = []
    at = 0
    for column in _key(table):
        if at == len(tail):
            return KeyBound(tuple(values))
        flag = FLAG_UINT if column.unsigned else FLAG_INT
        if tail[at] != flag:
            return KeyBound(tuple(values), tail[at] > flag)
        part = tail[at + 1 : at + 1 + _NUMBER_BYTES]
        values.append(_number(part, is_signed=not column.unsigned, is_flipped=not column.unsigned))
        at += 1 + len(part)
        if len(part) < _NUMBER_BYTES:
            return KeyBound(tuple(values))
    return KeyBound(tuple(values), at < len(tail))


def _number(encoded: bytes, *, is_signed: bool, is_flipped: bool) -> int:
    """Return the number whose encoding this is, or begins so: the least of them."""
    word = int.from_bytes(encoded[:_NUMBER_BYTES].ljust(_NUMBER_BYTES, b"\0"), "big")
    word ^= _SIGN if is_flipped else 0
    return word - (1 << 64) if is_signed and word >= _SIGN else word


# -- an unsigned integer key: TiKV has its upper half first, as if it were negative


def _of_one_sign(table: TableVersion, keys: KeyRange, present: BinaryArray) -> Iterator[tuple["_Within", BinaryArray]]:
    lower, upper = key_bound(table, keys.start), key_bound(table, keys.end)
    if not (table.pk_is_handle and _key(table)[0].unsigned):
        yield _Within(keys.start, lower, upper), present
        return
    middle = KeyRange.of_table(table.table_id).start + _SIGN.to_bytes(_NUMBER_BYTES, "big")
    is_upper_half = pc.less(present, pa.scalar(middle, pa.binary()))
    least = KeyBound((-_SIGN,)) if lower == FIRST else lower
    most = KeyBound((_SIGN - 1,), is_after=True) if upper == LAST else upper
    if least.values[0] < 0:
        until = most if most.values[0] < 0 else KeyBound((-1,), is_after=True)
        yield _Within(keys.start, _unsigned(least), _unsigned(until)), present.filter(is_upper_half)
    if most.values[0] >= 0:
        since = least if least.values[0] >= 0 else KeyBound((0,))
        yield _Within(max(keys.start, middle), since, most), present.filter(pc.invert(is_upper_half))


def _unsigned(bound: KeyBound) -> KeyBound:
    return replace(bound, values=(bound.values[0] + (1 << 64),))


@dataclass(frozen=True, slots=True)
class _Within:
    """A range in which the columns' own order is TiKV's."""

    start: bytes
    lower: KeyBound
    upper: KeyBound


def _ranges(table: TableVersion, within: _Within, present: BinaryArray) -> Iterator[LackingRange]:
    columns = _columns(table, present)
    names = [quote_name(column.name).encode("utf-8", "surrogateescape") for column in _key(table)]
    count = len(present)
    for first in range(0, max(count, 1), KEYS_MAX):
        end = min(first + KEYS_MAX, count)
        part = replace(
            within,
            start=within.start if first == 0 else present[first - 1].as_py() + b"\0",
            lower=within.lower if first == 0 else _behind(columns, first - 1),
            upper=within.upper if end == count else _behind(columns, end - 1),
        )
        if _is_empty(part, columns, first, end):
            continue
        conditions = [*_conditions(names, part), *_none_of(names, columns, first, end)]
        yield LackingRange(part.start, b"(%s)" % (b" AND ".join(conditions) or b"TRUE"))


def _columns(table: TableVersion, keys: BinaryArray) -> list[Numbers]:
    values, bad = decode_keys(table, spans_of(keys))
    if bad.any():
        key = keys[int(np.flatnonzero(bad)[0])].as_py()
        raise CorruptDataError("row key of a table image does not decode", table=table.name, key=key.hex())
    columns = [values[offset].numbers for offset in table.key_columns]
    return [column for column in columns if column is not None]


def _behind(columns: Sequence[Numbers], row: int) -> KeyBound:
    return KeyBound(tuple(int(column[row]) for column in columns), is_after=True)


def _is_empty(part: _Within, columns: Sequence[Numbers], first: int, end: int) -> bool:
    """Tell whether the keys that are present leave no number out, or the range has none."""
    if part.lower == part.upper:
        return True
    if len(columns) > 1 or not part.lower.values or not part.upper.values:
        return False
    lowest = part.lower.values[0] + part.lower.is_after
    highest = part.upper.values[0] - (not part.upper.is_after)
    return highest - lowest + 1 <= end - first


# -- a range as SQL


def _conditions(names: Sequence[bytes], part: _Within) -> Iterator[bytes]:
    for bound, strict, also in ((part.lower, b">", b">="), (part.upper, b"<", b"<=")):
        values = bound.values
        if not values:
            continue
        # At the bound's values themselves: above it where it stands before them, below it where behind.
        takes_equal = bound.is_after if strict == b"<" else not bound.is_after
        if len(values) > 1:
            yield names[0] + also + b"%d" % values[0]  # for the destination, which looks for a range in the index
        yield _beyond(names, values, strict, also if takes_equal else strict)


def _beyond(names: Sequence[bytes], values: Sequence[int], strict: bytes, last: bytes) -> bytes:
    name, value = names[0], b"%d" % values[0]
    if len(values) == 1:
        return name + last + value
    rest = _beyond(names[1:], values[1:], strict, last)
    return b"(%s%s%s OR (%s=%s AND %s))" % (name, strict, value, name, value, rest)


def _none_of(names: Sequence[bytes], columns: Sequence[Numbers], first: int, end: int) -> Iterator[bytes]:
    if first == end:
        return
    texts = [pa.array(column[first:end]).cast(pa.string()) for column in columns]
    name, listed = names[0], texts[0]
    if len(names) > 1:
        name = b"(" + b",".join(names) + b")"
        listed = pc.binary_join_element_wise("(", pc.binary_join_element_wise(*texts, ","), ")", "")
    together = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, end - first], pa.int32()), listed), ",")
    yield name + b" NOT IN (" + together[0].as_py().encode() + b")"
