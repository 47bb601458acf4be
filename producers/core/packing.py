"""Matched changes to the columns of the raw log, in slices that fit its records."""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from producers.core.matcher import Change
from schemas.changes import BinaryArray, RowChanges
from schemas.ids import TableId

ROW_BYTES_FIXED = 40
"""commit_ts, start_ts, op and three end offsets of a row, and some for Avro."""


def pack(table_id: TableId, changes: Sequence[Change], bytes_max: int) -> Iterator[RowChanges]:
    """Yield the changes as columns, in slices of at most ``bytes_max`` (a larger row makes a slice of its own)."""
    if not changes:
        return
    commit_ts, start_ts, op, key, value, old_value, txn_source = zip(*changes, strict=True)
    lengths = [_lengths(column) for column in (key, value, old_value)]
    sizes = lengths[0] + lengths[1] + lengths[2] + ROW_BYTES_FIXED
    for first, last in _slices(sizes, bytes_max):
        yield RowChanges(
            table_id=table_id,
            commit_ts=np.fromiter(commit_ts[first:last], np.int64, last - first),
            start_ts=np.fromiter(start_ts[first:last], np.int64, last - first),
            op=np.fromiter(op[first:last], np.int8, last - first),
            key=_binary(key[first:last], lengths[0][first:last]),
            value=_binary(value[first:last], lengths[1][first:last]),
            old_value=_binary(old_value[first:last], lengths[2][first:last]),
            txn_source=np.fromiter(txn_source[first:last], np.int64, last - first),
        )


def _slices(sizes: npt.NDArray[np.int64], bytes_max: int) -> Iterator[tuple[int, int]]:
    ends = np.cumsum(sizes)
    first, count = 0, len(sizes)
    while first < count:
        before = int(ends[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(ends, before + bytes_max, side="right")))
        yield first, last
        first = last


def _lengths(column: Sequence[bytes]) -> npt.NDArray[np.int64]:
    return np.fromiter(map(len, column), np.int64, len(column))


def _binary(column: Sequence[bytes], lengths: npt.NDArray[np.int64]) -> BinaryArray:
    # By hand, as the lengths are known: a third of what pa.array takes.
    offsets = np.zeros(len(column) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return pa.BinaryArray.from_buffers(
        pa.binary(), len(column), [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(column))]
    )
