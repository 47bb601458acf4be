"""Ids of many rows at once: the columnar twin of :func:`schemas.flow.flow_sum.row_id`, some 30 ns a row.

Two sources: the columns of the raw log, and the position headers of output records. They share the arithmetic and no
step before it, so that a row which the sorter loses or changes in between is missing on one side.
"""

from collections.abc import Sequence
from functools import cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from schemas.changes import BinaryArray, Op, RowChanges
from schemas.flow.flow_sum import MASK, WORD_BYTES, FlowSum, add_sums, factor, row_id
from schemas.ids import TableId
from schemas.sink.position import POSITION_CLASS_AT, PositionClass, RowOp
from sorters.core.columnar.spans import BoolArray, Bytes, IntArray, spans_of

Words = npt.NDArray[np.uint64]
_START_TS_AT, _OP_AT, _KEY_AT = 9, 17, 18
"""Of a position (schemas/sink/position.py)."""
_TABLE_AT = 1
"""Of a raw key: ``t``, then the table id, 8 bytes big-endian with the sign flipped."""
_SIGN = np.uint64(1 << 63)
_S30, _S27, _S31 = np.uint64(30), np.uint64(27), np.uint64(31)
_M1, _M2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_FIRST_KEY_WORD = 4
_SUMMED_MAX = 1 << 20
"""Rows whose halves of 32 bits have a sum below 2**53."""


def ids_of_changes(parts: Sequence[RowChanges]) -> Words:
    """Return the ids of all rows, part after part."""
    if len(parts) == 1:
        rows = parts[0]
        keys, commit_ts, start_ts, op = rows.key, rows.commit_ts, rows.start_ts, rows.op
    else:
        keys = pa.concat_arrays([part.key for part in parts])
        commit_ts = np.concatenate([part.commit_ts for part in parts])
        start_ts = np.concatenate([part.start_ts for part in parts])
        op = np.concatenate([part.op for part in parts])
    spans = spans_of(keys)
    fields = _Fields(spans.buffer, spans.start, spans.end)
    return _ids(fields, commit_ts.view(np.uint64), start_ts.view(np.uint64), op == Op.DELETE)


def sums_of_changes(parts: Sequence[RowChanges]) -> list[FlowSum]:
    """Return the sum of each part; none is empty."""
    ids = ids_of_changes(parts)
    lengths = [len(part) for part in parts]
    if len(parts) == 1:
        return [FlowSum(lengths[0], int(np.add.reduce(ids)))]
    starts = np.cumsum([0, *lengths[:-1]])
    return [FlowSum(*pair) for pair in zip(lengths, np.add.reduceat(ids, starts).tolist(), strict=True)]


class RowIds:
    """Ids and tables of the rows among records with these positions, in their order; DDL and watermarks are none."""

    def __init__(self, positions: BinaryArray) -> None:
        spans = spans_of(positions)
        buffer, start, end = spans.buffer, spans.start, spans.end
        is_row = buffer[start + POSITION_CLASS_AT] == PositionClass.ROW if len(start) else np.zeros(0, np.bool_)
        if not is_row.all():
            start, end = start[is_row], end[is_row]
        self.ids: Words = np.zeros(0, np.uint64)
        self._tables: Words = self.ids
        if not len(start):
            return
        heads, keys = _Fields(buffer, start, end), _Fields(buffer, start + _KEY_AT, end)
        commit_ts, start_ts = heads.words(0, ">u8"), heads.words(_START_TS_AT, ">u8")
        self.ids = _ids(keys, commit_ts, start_ts, heads.octets(_OP_AT) == RowOp.DELETE)
        # A key that is too short for a table id is of no table.
        self._tables = keys.words(_TABLE_AT if keys.shortest > WORD_BYTES else -_KEY_AT, ">u8") ^ _SIGN

    def __len__(self) -> int:
        return len(self.ids)

    def repeats(self) -> BoolArray:
        """Tell which rows are the same as the row before them."""
        same = np.zeros(len(self.ids), np.bool_)
        same[1:] = self.ids[1:] == self.ids[:-1]
        return same

    def sums(self, chosen: BoolArray | None = None) -> dict[TableId, FlowSum]:
        """Return the sum of each table, over the rows that are chosen; None: over all."""
        ids, tables = (self.ids, self._tables) if chosen is None else (self.ids[chosen], self._tables[chosen])
        added: dict[TableId, FlowSum] = {}
        for at in range(0, len(ids), _SUMMED_MAX):
            added = add_sums(added, _table_sums(ids[at : at + _SUMMED_MAX], tables[at : at + _SUMMED_MAX]))
        return added


def _table_sums(ids: Words, tables: Words) -> dict[TableId, FlowSum]:
    if bool((tables == tables[0]).all()):
        return {_table(int(tables[0])): FlowSum(len(ids), int(np.add.reduce(ids)))}
    words = pa.array(tables).dictionary_encode()
    number, count = words.indices.to_numpy(), len(words.dictionary)
    # In halves of 32 bits, of which a double holds the sum exactly.
    low = np.bincount(number, (ids & np.uint64(0xFFFF_FFFF)).astype(np.float64), count)
    high = np.bincount(number, (ids >> np.uint64(32)).astype(np.float64), count)
    columns = (words.dictionary.to_pylist(), np.bincount(number, minlength=count).tolist(), low, high)
    return {
        _table(table): FlowSum(rows, (int(lower) + (int(upper) << 32)) & MASK)
        for table, rows, lower, upper in zip(*columns, strict=True)
    }


def _table(word: int) -> TableId:
    return TableId(word - (1 << 64) if word >= 1 << 63 else word)


class _Fields:
    """Ranges of a buffer, read at one place of each: by stride where they lie evenly, else by index."""

    def __init__(self, buffer: Bytes, start: IntArray, end: IntArray) -> None:
        self.buffer, self.start, self.end, self.length = buffer, start, end, end - start
        count, first, length = len(start), int(start[0]), int(self.length[0])
        self.shortest = self.longest = length
        if not (self.length == length).all():
            self.shortest, self.longest = int(self.length.min()), int(self.length.max())
        step = int(start[1]) - first if count > 1 else 1
        is_even = self.shortest == self.longest and step > 0 and int(start[-1]) - first == (count - 1) * step
        # Ranges that do not overlap, are of one length and span no more than so many steps cannot lie otherwise.
        self._step = step if is_even and step - self.shortest in (0, _KEY_AT) else 0

    def words(self, at: int, dtype: str) -> Words:
        """Return the 8 bytes at ``at`` of each range, native."""
        if self._step:
            shape, where = (len(self.start),), int(self.start[0]) + at
            return np.ndarray(shape, dtype, self.buffer, where, (self._step,)).astype(np.uint64)
        return _words(self.buffer, dtype)[self.start + at].astype(np.uint64, copy=False)

    def octets(self, at: int) -> Bytes:
        """Return the byte at ``at`` of each range."""
        if self._step:
            return np.ndarray((len(self.start),), np.uint8, self.buffer, int(self.start[0]) + at, (self._step,))
        return self.buffer[self.start + at]


def _words(buffer: Bytes, dtype: str) -> Words:
    """View the 8 bytes from each offset on as a word."""
    return np.ndarray((max(len(buffer) - WORD_BYTES + 1, 0),), dtype=dtype, buffer=buffer, strides=(1,))


def _ids(keys: _Fields, commit_ts: Words, start_ts: Words, deletes: BoolArray) -> Words:
    if keys.shortest < WORD_BYTES:  # no key of a row is; a word that ends with it could begin before the buffer
        each = zip(
            keys.start.tolist(), keys.end.tolist(), commit_ts.tolist(), start_ts.tolist(), deletes.tolist(), strict=True
        )
        scalars = [row_id(keys.buffer[a:b].tobytes(), ts, begun, deletes=gone) for a, b, ts, begun, gone in each]
        return np.array(scalars, np.uint64)
    sums = commit_ts * _factor(0)
    sums += start_ts * _factor(1)
    if keys.shortest == keys.longest:
        sums += _length_word(keys.longest)
        if deletes.any():
            sums[deletes] += _factor(2)
        if keys.longest % WORD_BYTES:
            sums += keys.words(keys.longest - WORD_BYTES, "<u8") * _factor(3)
    else:
        sums += (keys.length.view(np.uint64) * np.uint64(2) + deletes) * _factor(2)
        last = _words(keys.buffer, "<u8")[keys.end - WORD_BYTES]
        sums += np.where(keys.length % WORD_BYTES != 0, last, np.uint64(0)) * _factor(3)
    for number in range(keys.longest // WORD_BYTES):
        at, least = number * WORD_BYTES, (number + 1) * WORD_BYTES
        if keys.shortest >= least:
            sums += keys.words(at, "<u8") * _factor(_FIRST_KEY_WORD + number)
        else:
            longer = np.flatnonzero(keys.length >= least)
            words = _words(keys.buffer, "<u8")[keys.start[longer] + at]
            sums[longer] += words * _factor(_FIRST_KEY_WORD + number)
    return _mixed(sums)


@cache
def _length_word(length: int) -> np.uint64:
    return np.uint64(2 * length * factor(2) & MASK)


@cache
def _factor(number: int) -> np.uint64:
    return np.uint64(factor(number))


def _mixed(words: Words) -> Words:
    """See :func:`schemas.flow.flow_sum.mix`; in place."""
    words ^= words >> _S30
    words *= _M1
    words ^= words >> _S27
    words *= _M2
    words ^= words >> _S31
    return words
