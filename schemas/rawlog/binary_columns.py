"""Columns of byte strings as the raw log's records hold them: ``count`` end offsets (int32 little-endian), then the
joined bytes. And Avro's varint, which stands before each.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from schemas.changes import BinaryArray


def pack_binary(column: BinaryArray) -> bytes:
    """Return a column's bytes."""
    return b"".join(packed_parts(column))


def packed_parts(column: BinaryArray) -> tuple[bytes, memoryview | bytes]:
    """Return a column's bytes in two parts, the second of which is not copied."""
    offsets, joined = _parts(column)
    return (offsets[1:] - offsets[0]).astype("<i4", copy=False).tobytes(), joined


def joined_bytes(column: BinaryArray) -> memoryview | bytes:
    """Return the byte strings of a column one after the other; not copied."""
    return _parts(column)[1]


def _parts(column: BinaryArray) -> tuple[npt.NDArray[np.int32], memoryview | bytes]:
    """Return the offsets of a column, one more than it has items, and the bytes between the first and the last."""
    _, offsets_buffer, data = column.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32, len(column) + 1, column.offset * 4)
    return offsets, memoryview(data)[offsets[0] : offsets[-1]] if data is not None else b""


def unpack_binary(field: memoryview, count: int) -> BinaryArray:
    """Return the column that all of ``field`` holds; the buffer is wrapped, not copied.

    Raises:
        ValueError: it does not hold ``count`` byte strings, and nothing else.
    """
    ends = np.frombuffer(field, "<i4", count)
    data_start = 4 * count
    if count and (ends[-1] != len(field) - data_start or ends[0] < 0 or (ends[1:] < ends[:-1]).any()):
        raise ValueError(f"column ends do not fit its {len(field)} bytes")
    offsets = np.zeros(count + 1, np.int32)
    offsets[1:] = ends
    data = pa.py_buffer(field[data_start:])
    values: BinaryArray = pa.BinaryArray.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), data])
    return values


def binary_size(field: memoryview, count: int) -> int:
    """Return how many bytes the column takes with which ``field`` begins.

    Raises:
        ValueError: ``field`` ends before it does.
    """
    size = 4 * count + int(np.frombuffer(field, "<i4", 1, 4 * (count - 1))[0]) if count else 0
    if not 4 * count <= size <= len(field):
        raise ValueError(f"column of {count} ends outside {len(field)} bytes")
    return size


def read_zigzag(record: bytes | memoryview, at: int) -> tuple[int, int]:
    """Return the Avro int or long that stands at ``at``, and where the next field does.

    Raises:
        IndexError, ValueError: there is none.
    """
    result = shift = 0
    while True:
        byte = record[at]
        at += 1
        result |= (byte & 0x7F) << shift
        if not byte & 0x80:
            if result >> 64:
                raise ValueError("varint of more than 64 bits")
            return (result >> 1) ^ -(result & 1), at
        shift += 7
        if shift > 63:
            raise ValueError("varint longer than 10 bytes")


def read_bytes(record: memoryview, at: int) -> tuple[memoryview, int]:
    """Return the Avro ``bytes`` that stand at ``at``, not copied, and where the next field does.

    Raises:
        IndexError, ValueError: there are none.
    """
    size, at = read_zigzag(record, at)
    if not 0 <= size <= len(record) - at:
        raise ValueError("bytes end outside the record")
    return record[at : at + size], at + size
