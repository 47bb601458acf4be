"""Rows with a head each, for processors, which must tell rows of a message apart without looking into them.

The layout is told in :mod:`schemas.sql_rows` and :mod:`schemas.storage_rows`.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from schemas.storage_rows import HEAD_BYTES, HEADS
from sorters.core.columnar.mounted import ROW_OPS, MountedPart
from sorters.core.columnar.spans import IntArray, spans_of
from sorters.core.encode.segments import join


def headed_rows(part: MountedPart, keys: Any, rows: Any, *, op_bits: npt.NDArray[np.uint8] | int = 0) -> Any:
    """Return head, key and row of each row of a part as one value: ``pyarrow.BinaryArray``; ``op_bits`` go into op."""
    count = len(part)
    heads = np.zeros(count, HEADS)
    heads["commit_ts"], heads["start_ts"], heads["op"] = part.commit_ts, part.start_ts, ROW_OPS[part.kind] | op_bits
    heads["key"], heads["line"] = spans_of(keys).length, spans_of(rows).length
    fixed = pa.FixedSizeBinaryArray.from_buffers(pa.binary(HEAD_BYTES), count, [None, pa.py_buffer(heads)])
    return join(count, [fixed.cast(pa.binary()), keys, rows])


def keyed_bytes(keys: Any, values: Any) -> IntArray:
    """Return how much longer each row makes a message of one key, or more: the key is counted for each."""
    return spans_of(keys).length + spans_of(values).length
