"""Rows with a head each, for processors, which must tell rows of a message apart without looking into them.

The layout is told in :mod:`schemas.sink.sql_rows` and :mod:`schemas.sink.storage_rows`: heads, keys and rows (or
lines), each side by side.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from schemas.sink.storage_rows import HEAD_BYTES, HEADS
from sorters.core.columnar.spans import BoolArray, IntArray, gather, spans_of
from sorters.core.encode.wire.segments import join
from sorters.core.mount.mounted import ROW_OPS, MountedPart


def headed_rows(part: MountedPart, keys: Any, rows: Any, *, ops: npt.NDArray[np.uint8] | None = None) -> Any:
    """Return head, key and row of each row of a part as one value: ``pyarrow.BinaryArray``. ``ops`` stand in the heads;
    None: the part's own.
    """
    count = len(part)
    heads = np.zeros(count, HEADS)
    heads["commit_ts"], heads["start_ts"] = part.commit_ts, part.start_ts
    heads["op"] = ROW_OPS[part.kind] if ops is None else ops
    heads["key"], heads["line"] = spans_of(keys).length, spans_of(rows).length
    fixed = pa.FixedSizeBinaryArray.from_buffers(pa.binary(HEAD_BYTES), count, [None, pa.py_buffer(heads)])
    return join(count, [fixed.cast(pa.binary()), keys, rows])


@dataclass(frozen=True, slots=True)
class HeadedJoiner:
    """See :class:`sorters.core.encode.wire.protocol.Joiner`. Rows of one message have one key: their table's form, or
    folder.
    """

    rows_per_message: int
    head_bytes: int = 0
    same_key: bool = True

    def added_bytes(self, keys: Any, values: Any) -> IntArray:
        """Return how much longer each row makes a message, or more: the key is counted for each."""
        return spans_of(keys).length + spans_of(values).length

    def join(self, keys: Any, values: Any) -> tuple[Any, Any]:
        """Put heads, keys and rows of each list side by side; the key is the first one's."""
        key_starts = keys.offsets.to_numpy()
        firsts = keys.values.take(pa.array(key_starts[:-1]))
        starts = values.offsets.to_numpy().astype(np.int64)
        counts = np.diff(starts)
        joined = np.zeros(len(values.values), np.bool_)
        joined[starts[0] : starts[-1]] = np.repeat(counts > 1, counts)
        sections = _sections(values.values, joined)
        # Row r of n that begin at row s: its sections 3(s+r), +1 and +2 go to 3s+r, 3s+n+r and 3s+2n+r.
        first, count = np.repeat(starts[:-1], counts), np.repeat(counts, counts)
        row = np.arange(starts[0], starts[-1], dtype=np.int64)
        order = np.empty(3 * len(row), np.int64)
        for kind in range(3):
            order[3 * (first - starts[0]) + kind * count + (row - first)] = 3 * row + kind
        offsets = pa.array(((starts - starts[0]) * 3).astype(np.int32))
        lists = pa.ListArray.from_arrays(offsets, sections.take(pa.array(order)))
        return firsts, pc.binary_join(lists, b"")


def _sections(values: Any, joined: BoolArray) -> Any:
    """Cut each value into head, key and row: three times as many values over the same bytes.

    What is not joined with others, a watermark for one, is no row or need not be cut: it is all row.
    """
    spans = spans_of(values)
    rows = np.flatnonzero(joined)
    heads = gather(spans.buffer, spans.start[rows], HEAD_BYTES).reshape(-1).view(HEADS)
    bounds = np.repeat(spans.start[:, None], 3, axis=1)
    bounds[rows, 1] += HEAD_BYTES
    bounds[rows, 2] += HEAD_BYTES + heads["key"]
    offsets = np.append(bounds.reshape(-1), spans.end[-1:]).astype(np.int32)
    return pa.Array.from_buffers(pa.binary(), 3 * len(spans), [None, pa.py_buffer(offsets), pa.py_buffer(spans.buffer)])
