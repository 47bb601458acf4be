"""Avro's primitive encodings for whole columns: zig-zag varints, lengths, floats, two's complement bytes.

Each function builds a byte matrix, one row per value, and views it as a ``pyarrow.BinaryArray``. A ``prefix`` is put in
front of every value there and then: cheaper than one more segment when messages are joined.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from schemas.changes import BinaryArray
from sorters.core.columnar.spans import Bytes, IntArray, matrix_spans
from sorters.core.columnar.times import fixed_text

_SEVEN_BITS = 7
WIDE_BYTES = 32


def longs(values: npt.NDArray[np.int64], prefix: bytes = b"") -> BinaryArray:
    """Encode ints or longs; the wire form of both is the same."""
    return uvarints((values << 1 ^ values >> 63).view(np.uint64), prefix)


def _matrix(count: int, prefix: bytes, width: int) -> tuple[Bytes, Bytes]:
    """Return an empty matrix that starts with the prefix, and the view of its ``width`` columns behind it."""
    matrix = np.empty((count, len(prefix) + width), np.uint8)
    matrix[:, : len(prefix)] = np.frombuffer(prefix, np.uint8)
    return matrix, matrix[:, len(prefix) :]


def uvarints(bits: npt.NDArray[np.uint64], prefix: bytes = b"") -> BinaryArray:
    """Encode numbers as they are: seven bits a byte, the lowest first."""
    if not len(bits):
        return pa.array([], pa.binary())
    top = int(bits.max())
    width = max((top.bit_length() + _SEVEN_BITS - 1) // _SEVEN_BITS, 1)
    matrix, digits = _matrix(len(bits), prefix, width)
    if width == 1:
        digits[:, 0] = bits
        return fixed_text(matrix, None)
    size = np.ones(len(bits), np.int64)
    rest = bits
    for byte in range(width):
        digits[:, byte] = rest.astype(np.uint8) | 0x80  # the cast keeps the low eight bits; the top one is set anyway
        rest = rest >> np.uint64(_SEVEN_BITS)
        if byte < width - 1:
            size += rest != 0
    digits[np.arange(len(bits)), size - 1] &= 0x7F
    if (size == width).all():
        return fixed_text(matrix, None)
    return matrix_spans(matrix, np.zeros(len(bits), np.int64), size + len(prefix)).to_arrow()


def lengths(array: BinaryArray, prefix: bytes = b"") -> BinaryArray:
    """Encode the byte lengths of a ``pyarrow.BinaryArray``'s values, as Avro puts them before strings and bytes."""
    offsets = np.frombuffer(array.buffers()[1], np.int32, len(array) + 1, array.offset * 4)
    return longs(np.diff(offsets).astype(np.int64), prefix)


def floats(values: npt.NDArray[np.float64], prefix: bytes = b"", *, single: bool) -> BinaryArray:
    """Encode floats (4 bytes) or doubles (8 bytes), little-endian."""
    width = 4 if single else 8
    matrix, digits = _matrix(len(values), prefix, width)
    digits[:] = values.astype("<f4" if single else "<f8").view(np.uint8).reshape(len(values), width)
    return fixed_text(matrix, None)


def decimals(unscaled: IntArray) -> BinaryArray:
    """Encode decimals: length, then the shortest big-endian two's complement."""
    size = np.ones(len(unscaled), np.int64)
    magnitude = unscaled ^ (unscaled >> 63)
    for more in range(1, 8):
        limit = 1 << (8 * more - 1)
        above = magnitude >= limit
        if not above.any():
            break
        size += above
    matrix = np.empty((len(unscaled), 9), np.uint8)
    matrix[:, 1:] = unscaled.astype(">i8").view(np.uint8).reshape(-1, 8)
    matrix[np.arange(len(unscaled)), 8 - size] = size * 2  # the length's varint: at most 16, one byte
    return matrix_spans(matrix, 8 - size, np.full(len(unscaled), 9, np.int64)).to_arrow()


def wide_decimals(unscaled: Bytes) -> BinaryArray:
    """Encode decimals given as 32-byte little-endian two's complement, shape ``(n, 32)``."""
    count = len(unscaled)
    matrix = np.empty((count, WIDE_BYTES + 1), np.uint8)
    matrix[:, 1:] = unscaled[:, ::-1]
    fill = np.where(matrix[:, 1] & 0x80, np.uint8(0xFF), np.uint8(0))
    differs = matrix[:, 1:] != fill[:, None]
    first = np.where(differs.any(axis=1), differs.argmax(axis=1), WIDE_BYTES - 1)
    # One byte of sign stays where the first significant byte's top bit says otherwise.
    keep = (matrix[np.arange(count), first + 1] ^ fill) & 0x80 != 0
    first = first - (keep & (first > 0))
    size = WIDE_BYTES - first
    matrix[np.arange(count), first] = size * 2
    return matrix_spans(matrix, first, np.full(count, WIDE_BYTES + 1, np.int64)).to_arrow()


def decimal_bytes(unscaled: int) -> bytes:
    """Return the shortest big-endian two's complement of one decimal."""
    magnitude = unscaled if unscaled >= 0 else ~unscaled
    return unscaled.to_bytes(magnitude.bit_length() // 8 + 1, "big", signed=True)


def bits_matrix(values: npt.NDArray[np.uint64]) -> BinaryArray:
    """Return BIT values big-endian without leading zero bytes; 0 keeps one."""
    size = np.ones(len(values), np.int64)
    for more in range(1, 8):
        size += values >= np.uint64(1 << 8 * more)
    matrix = np.ascontiguousarray(values.astype(">u8").view(np.uint8).reshape(-1, 8))
    return matrix_spans(matrix, 8 - size, np.full(len(values), 8, np.int64)).to_arrow()
