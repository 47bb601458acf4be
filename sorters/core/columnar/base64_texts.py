"""Base64 of a whole column: three bytes to four letters, for all rows with a fixed number of numpy calls."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from schemas.changes import BinaryArray
from sorters.core.columnar.spans import spans_of

_LETTERS = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8)
_PAD = ord("=")


def base64_texts(array: BinaryArray) -> BinaryArray:
    """Return the values of a ``pyarrow.BinaryArray`` in standard base64 with padding; nulls stay null."""
    spans = spans_of(array)
    groups = (spans.length + 2) // 3
    ends = np.cumsum(groups)
    total = int(ends[-1]) if len(ends) else 0
    # Where each group of three starts in the data: a row's start, and three on for each group before it in the row.
    at = np.repeat(spans.start - 3 * (ends - groups), groups) + 3 * np.arange(total, dtype=np.int64)
    data = np.concatenate([spans.buffer, np.zeros(2, np.uint8)])
    word = data[at].astype(np.uint32) << 16 | data[at + 1].astype(np.uint32) << 8 | data[at + 2]
    some = np.flatnonzero(groups)
    last, left = ends[some] - 1, spans.length[some] % 3
    word[last[left == 1]] &= np.uint32(0xFF0000)
    word[last[left == 2]] &= np.uint32(0xFFFF00)
    letters = np.empty((total, 4), np.uint8)
    for letter in range(4):
        letters[:, letter] = _LETTERS[word >> (18 - 6 * letter) & 63]
    letters[last[left == 1], 2:] = _PAD
    letters[last[left == 2], 3] = _PAD
    return _array(array, 4 * ends, letters.reshape(-1))


def _array(like: BinaryArray, ends: npt.NDArray[np.int64], data: npt.NDArray[np.uint8]) -> BinaryArray:
    offsets = np.concatenate([[0], ends]).astype(np.int32)
    bits = np.packbits(like.is_valid().to_numpy(zero_copy_only=False), bitorder="little")
    buffers = [pa.py_buffer(bits), pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(like), buffers)
