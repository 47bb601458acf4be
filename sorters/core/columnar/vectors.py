"""VECTOR values (u32 count, then so many little-endian floats of 32 bits) to text like ``[1,2.5]``."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas.changes import BinaryArray
from sorters.core.columnar.numbers import float_text
from sorters.core.columnar.spans import BoolArray, IntArray, Spans, gather

COUNT_BYTES, ITEM_BYTES = 4, 4


def _counts(spans: Spans) -> IntArray:
    return gather(spans.buffer, spans.start, COUNT_BYTES).view("<u4")[:, 0].astype(np.int64)


def vector_misfits(spans: Spans) -> BoolArray:
    """Tell which ranges do not hold as many items as they say."""
    bad = spans.length < COUNT_BYTES
    good = np.flatnonzero(~bad)
    fits = spans.take(good)
    bad[good] = fits.length != COUNT_BYTES + ITEM_BYTES * _counts(fits)
    return bad


def vector_texts(spans: Spans) -> BinaryArray:
    """Return the texts; items are written as Go writes a float32 without exponent."""
    if not len(spans):
        return pa.array([], pa.binary())
    counts = _counts(spans)
    ends = np.concatenate([[0], np.cumsum(counts)])
    number = np.arange(ends[-1]) - np.repeat(ends[:-1], counts)
    at = np.repeat(spans.start + COUNT_BYTES, counts) + ITEM_BYTES * number
    items = gather(spans.buffer, at, ITEM_BYTES).view("<f4").reshape(-1).astype(np.float64)
    lists = pa.ListArray.from_arrays(pa.array(ends, pa.int32()), float_text(items, single=True))
    inner = pc.binary_join(lists, pa.scalar(b",", pa.binary()))
    return pc.binary_join_element_wise(b"[", inner, b"]", b"")
