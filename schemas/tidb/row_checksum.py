"""The checksums of a row: those it carries, verified, and the one over its columns that TiCDC passes on.

A row carries a CRC32 (IEEE) over its columns (version 0; while a DDL runs two, of which one must fit), or over its
bytes and its key (1) or handle (2). What is passed on is always the one over the columns, not-null ones in ascending
id; see docs/formats/tidb-encoding.md §3.2, "Checksum part". Sources: pingcap/tidb ``pkg/util/rowcodec/common.go``,
``appendDatumForChecksum``; pingcap/ticdc ``pkg/common/event``, ``verifyChecksum``.
"""

import struct
import zlib
from dataclasses import dataclass

from schemas.errors import CorruptDataError
from schemas.tidb.keys import ROW_HEAD_BYTES
from schemas.tidb.row_v2 import is_row_v2, row_v2_checksum
from schemas.tidb.table import TableVersion
from schemas.tidb.value import Value

VERSION_COLUMNS, VERSION_KEY, VERSION_HANDLE = 0, 1, 2
_U32 = struct.Struct("<I")
_F64 = struct.Struct("<d")
_U64_MASK = (1 << 64) - 1
_Side = tuple[tuple[Value, ...] | None, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class MountedChecksum:
    """``current`` is of the new columns, ``previous`` of the old ones (0: there are none, or they carry none)."""

    current: int
    previous: int
    version: int
    corrupted: bool = False


@dataclass(frozen=True, slots=True)
class _Verified:
    checksum: int
    version: int
    matched: bool


def mounted_checksum(table: TableVersion, key: bytes, new: _Side, old: _Side) -> MountedChecksum | None:
    """Verify a row change of (columns, row value) pairs, TIMESTAMPs in UTC; None: the row carries no checksum.

    A side whose bytes do not fit keeps the checksum that it carries. An old side of version 0 always counts as sound:
    its columns are read with a schema that may be another than the one it was written with, as in TiCDC. Rows of
    format v1 carry none.

    Raises:
        CorruptDataError: a row value does not decode, or has a checksum of a version that nobody knows.
    """
    current = _verified(table, key, *new, is_old=False)
    previous = _verified(table, key, *old, is_old=True)
    sides = [side for side in (current, previous) if side]
    corrupted = any(not side.matched for side in sides)
    if not corrupted and not any(side.checksum for side in sides):
        return None
    return MountedChecksum(
        current=current.checksum if current else 0,
        previous=previous.checksum if previous else 0,
        version=sides[0].version,
        corrupted=corrupted,
    )


def column_checksum(table: TableVersion, columns: tuple[Value, ...]) -> int:
    """Return the CRC32 over mounted columns, whose TIMESTAMPs must be in UTC."""
    crc = 0
    for column in sorted(table.columns, key=lambda column: column.id):
        value = columns[column.offset]
        if value is not None:
            crc = zlib.crc32(_column_bytes(value), crc)
    return crc


def _verified(
    table: TableVersion, key: bytes, columns: tuple[Value, ...] | None, value: bytes, *, is_old: bool
) -> _Verified | None:
    """Return what one side says; None: there is none, or it is in format v1."""
    if columns is None or not is_row_v2(value):
        return None
    carried = row_v2_checksum(value)
    if carried is None:
        return _Verified(0, VERSION_COLUMNS, True)
    if carried.version > VERSION_HANDLE:
        raise CorruptDataError("row checksum has an unknown version", version=carried.version)
    own = column_checksum(table, columns)
    if carried.version == VERSION_COLUMNS:
        return _Verified(own, carried.version, is_old or own in (carried.checksum, carried.extra))
    covered_key = key if carried.version == VERSION_KEY else key[ROW_HEAD_BYTES:]
    if zlib.crc32(covered_key, zlib.crc32(value[: carried.covered_end])) != carried.checksum:
        return _Verified(carried.checksum, carried.version, False)
    return _Verified(own, carried.version, True)


def _column_bytes(value: Value) -> bytes:
    if isinstance(value, int):
        return (value & _U64_MASK).to_bytes(8, "little")
    if isinstance(value, float):
        return _F64.pack(value)
    if isinstance(value, tuple):
        return vector_bytes(value)
    text = value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogateescape")
    return _U32.pack(len(text)) + text


def vector_bytes(vector: tuple[float, ...]) -> bytes:
    """Return a VECTOR as rows hold it: a count, and floats of 32 bits."""
    return _U32.pack(len(vector)) + struct.pack(f"<{len(vector)}f", *vector)
