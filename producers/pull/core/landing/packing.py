"""Matched changes to the columns of the raw log, in slices that fit its records."""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from producers.pull.core.match.change_columns import ChangeColumns, Int64s, JoinedBytes
from schemas.changes import BinaryArray, RowChanges
from schemas.ids import TableId

ROW_BYTES_FIXED = 40
"""commit_ts, start_ts, op and three end offsets of a row, and some for Avro."""


def pack(table_id: TableId, parts: Sequence[ChangeColumns], bytes_max: int) -> Iterator[RowChanges]:
    """Yield the changes as columns, in slices of at most ``bytes_max`` (a larger row makes a slice of its own)."""
    if not parts:
        return
    changes = ChangeColumns.concatenated(parts)
    key, value, old_value = changes.key, changes.value, changes.old_value
    ends = [np.cumsum(column.lengths) for column in (key, value, old_value)]
    sizes = key.lengths + value.lengths + old_value.lengths + ROW_BYTES_FIXED
    for first, last in _slices(sizes, bytes_max):
        yield RowChanges(
            table_id=table_id,
            commit_ts=changes.commit_ts[first:last],
            start_ts=changes.start_ts[first:last],
            op=changes.op[first:last],
            key=_binary(key, ends[0], first, last),
            value=_binary(value, ends[1], first, last),
            old_value=_binary(old_value, ends[2], first, last),
            txn_source=changes.txn_source[first:last],
        )


def _slices(sizes: Int64s, bytes_max: int) -> Iterator[tuple[int, int]]:
    ends = np.cumsum(sizes)
    first, count = 0, len(sizes)
    while first < count:
        before = int(ends[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(ends, before + bytes_max, side="right")))
        yield first, last
        first = last


def _binary(column: JoinedBytes, ends: Int64s, first: int, last: int) -> BinaryArray:
    # By hand, as the lengths are known: a third of what pa.array takes. The bytes are shared, not copied.
    start, end = int(ends[first - 1]) if first else 0, int(ends[last - 1])
    offsets = np.zeros(last - first + 1, np.int32)
    offsets[1:] = ends[first:last] - start
    data = pa.py_buffer(memoryview(column.data)[start:end])
    values: BinaryArray = pa.BinaryArray.from_buffers(pa.binary(), last - first, [None, pa.py_buffer(offsets), data])
    return values
