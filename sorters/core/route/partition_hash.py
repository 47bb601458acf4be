"""TiCDC's partition hash ("position inertia"): an XOR of CRC-32 sums, over rows one by one or as columns.

``hash = crc32(schema ‖ table) ^ crc32(name1 ‖ text1) ^ …``; the partition is the hash modulo their count. XOR makes the
order of columns irrelevant. NULL's text is ``null``. Source: pingcap/tiflow ``pkg/hash/position_inertia.go``.
"""

import zlib
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from schemas.changes import BinaryArray

NULL_TEXT = b"null"
VECTOR_ROWS_MIN = 256
"""With fewer rows still to be hashed, ``zlib`` row by row is faster than numpy byte by byte; it also bounds the work
that one very long value makes."""
Sums = npt.NDArray[np.uint32]
Bytes = npt.NDArray[np.uint8]
Places = npt.NDArray[np.int64]
StringArray = BinaryArray
"""``pyarrow`` (Large)String or (Large)Binary array."""


def hash_row(schema: str, table: str, columns: Iterable[tuple[str, str | bytes | None]]) -> int:
    """Return the 32-bit hash of one row; ``columns`` are (name, value text), the text None for NULL.

    >>> hash_row("test", "t1", []) % 3
    0
    """
    state = table_hash(schema, table)
    for name, text in columns:
        value = NULL_TEXT if text is None else text.encode() if isinstance(text, str) else text
        state ^= zlib.crc32(value, zlib.crc32(name.encode()))
    return state


def table_hash(schema: str, table: str) -> int:
    """Return the hash of a row without columns."""
    return zlib.crc32(table.encode(), zlib.crc32(schema.encode()))


def hash_rows(schema: str, table: str, columns: Sequence[tuple[str, StringArray]], row_count: int) -> Sums:
    """Return the hashes of ``row_count`` rows: uint32, equal to :func:`hash_row` of each.

    ``columns`` are (name, value texts); each array has ``row_count`` items, nulls for NULL.
    """
    return hash_columns(np.full(row_count, table_hash(schema, table), np.uint32), columns)


def hash_columns(state: Sums, columns: Sequence[tuple[str, StringArray]]) -> Sums:
    """Return the hashes of rows whose :func:`table_hash` is in ``state``, which is overwritten."""
    for name, texts in columns:
        state ^= crc32_column(texts, zlib.crc32(name.encode()))
    return state


def crc32_column(texts: StringArray, state: int) -> Sums:
    """Return ``zlib.crc32(text, state)`` of each item; a null counts as ``null``. Shape: uint32, one per item."""
    if isinstance(texts, pa.ChunkedArray):
        texts = texts.combine_chunks()
    data, starts, lengths = _buffers(texts)
    sums = _crc32_spans(data, starts, lengths, state)
    if texts.null_count:
        sums[~texts.is_valid().to_numpy(zero_copy_only=False)] = zlib.crc32(NULL_TEXT, state)
    return sums


def _buffers(texts: StringArray) -> tuple[Bytes, Places, Places]:
    """Return the array's bytes with each item's start and length; both are of no meaning for nulls, and in bounds."""
    wide = pa.types.is_large_string(texts.type) or pa.types.is_large_binary(texts.type)
    _, offsets_buffer, data_buffer = texts.buffers()
    if not len(texts):
        return np.empty(0, np.uint8), np.empty(0, np.int64), np.empty(0, np.int64)
    offsets = np.frombuffer(offsets_buffer, np.int64 if wide else np.int32)[texts.offset :][: len(texts) + 1]
    data = np.frombuffer(data_buffer, np.uint8) if data_buffer is not None else np.empty(0, np.uint8)
    starts = offsets[:-1].astype(np.int64)
    return data, starts, offsets[1:].astype(np.int64) - starts


def _crc32_spans(data: Bytes, starts: Places, lengths: Places, state: int) -> Sums:
    """Walk all spans together, four bytes at a time; the longest come first, so that those under way are a prefix."""
    if len(starts) < VECTOR_ROWS_MIN:
        return _zlib_spans(data, starts, starts + lengths, np.full(len(starts), state, np.uint32))
    shortfall = lengths.max() - lengths
    order = None
    if shortfall.any():
        # numpy sorts 16-bit integers by radix.
        order = np.argsort(shortfall.astype(np.uint16) if shortfall.max() < 1 << 16 else shortfall, kind="stable")
        starts, lengths = starts[order], lengths[order]
    sums, summed, active = _crc32_words(data, starts, lengths, state)
    # Rows of the prefix are long and few: their rest goes row by row. The others have less than four bytes left.
    sums[:active] = _zlib_spans(data, starts[:active] + summed, (starts + lengths)[:active], sums[:active])
    rest, ends = lengths & 3, starts + lengths
    rest[:active] = 0
    for left in (3, 2, 1):
        rows = np.flatnonzero(rest >= left)
        sums[rows] = _step(sums[rows], data[ends[rows] - left])
    if order is None:
        return sums
    unsorted = np.empty_like(sums)
    unsorted[order] = sums
    return unsorted


def _crc32_words(data: Bytes, starts: Places, lengths: Places, state: int) -> tuple[Sums, int, int]:
    """Sum whole groups of four bytes, until the rest is not worth a vector.

    ``lengths`` descend. Returns the sums, and (summed, active): the first ``active`` rows are summed up to ``summed``,
    and may be long; the others have less than four bytes left.
    """
    words: Sums = np.ndarray((max(len(data) - 3, 0),), "<u4", data.data, 0, (1,))  # one at every byte
    sums: Sums = np.full(len(starts), state ^ 0xFFFFFFFF, np.uint32)
    shortest, longest, summed, active = int(lengths[-1]), int(lengths[0]), 0, len(starts)
    ascending = lengths[::-1]
    while summed + 4 <= longest:
        if summed + 4 > shortest:
            active = len(lengths) - int(np.searchsorted(ascending, summed + 4))
            if active < VECTOR_ROWS_MIN:
                return ~sums, summed, active
        mixed = sums[:active] ^ words[starts[:active] + summed]
        sums[:active] = _LOW_TABLE[mixed & 0xFFFF] ^ _HIGH_TABLE[mixed >> np.uint32(16)]
        summed += 4
    return ~sums, summed, 0


def _step(sums: Sums, byte: Bytes) -> Sums:
    """Add one byte to each sum."""
    open_sums = ~sums
    stepped: Sums = ~(_BYTE_TABLE[(open_sums ^ byte) & 0xFF] ^ (open_sums >> np.uint32(8)))
    return stepped


def _zlib_spans(data: Bytes, starts: Places, ends: Places, sums: Sums) -> Sums:
    """Add a span to each sum, row by row."""
    view = memoryview(data.data)
    spans = zip(starts.tolist(), ends.tolist(), sums.tolist(), strict=True)
    return np.array([zlib.crc32(view[start:end], state) for start, end, state in spans], np.uint32)


def _crc_tables() -> tuple[Sums, Sums, Sums]:
    """Tables of CRC-32-IEEE, reflected: of one byte, and of the low and the high half of a four-byte group."""
    byte: Sums = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        byte = np.where(byte & 1, (byte >> 1) ^ np.uint32(0xEDB88320), byte >> 1).astype(np.uint32)

    def shifted(sums: Sums, count: int) -> Sums:
        for _ in range(count):
            sums = byte[sums & 0xFF] ^ (sums >> np.uint32(8))
        return sums

    halves: Sums = np.arange(1 << 16, dtype=np.uint32)
    high = shifted(halves, 2)
    return byte, shifted(high, 2), high


_BYTE_TABLE, _LOW_TABLE, _HIGH_TABLE = _crc_tables()
