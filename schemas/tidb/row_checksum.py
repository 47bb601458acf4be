"""The column checksum of a row, as TiCDC computes it with its integrity check on.

CRC32 (IEEE) over the not-null columns in ascending id; see reference/tidb-encoding.md §3.2, "Checksum part".
Source: pingcap/tidb ``pkg/util/rowcodec/common.go``, ``appendDatumForChecksum``.
"""

import struct
import zlib
from dataclasses import dataclass

from schemas.tidb.row_v2 import is_row_v2, row_v2_checksum
from schemas.tidb.table import TableVersion
from schemas.tidb.value import Value

_U32 = struct.Struct("<I")
_F64 = struct.Struct("<d")
_U64_MASK = (1 << 64) - 1
_Side = tuple[tuple[Value, ...] | None, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class MountedChecksum:
    """``current`` is of the new columns, ``previous`` of the old ones (0: there are none)."""

    current: int
    previous: int
    version: int
    corrupted: bool = False


def mounted_checksum(table: TableVersion, new: _Side, old: _Side) -> MountedChecksum | None:
    """Return the checksum of a row change of (columns, row value) pairs; None: the row carries none.

    Raises:
        CorruptDataError: a row value does not decode.
    """
    sides = [_side(table, *side) for side in (new, old)]
    versions = [side[1] for side in sides if side]
    if not versions:
        return None
    current, previous = (side[0] if side else 0 for side in sides)
    return MountedChecksum(current=current, previous=previous, version=versions[0])


def column_checksum(table: TableVersion, columns: tuple[Value, ...]) -> int:
    """Return the CRC32 over mounted columns, whose TIMESTAMPs must be in UTC."""
    crc = 0
    for column in sorted(table.columns, key=lambda column: column.id):
        value = columns[column.offset]
        if value is not None:
            crc = zlib.crc32(_column_bytes(value), crc)
    return crc


def _side(table: TableVersion, columns: tuple[Value, ...] | None, value: bytes) -> tuple[int, int] | None:
    if columns is None or not is_row_v2(value):
        return None
    checksum = row_v2_checksum(value)
    return (column_checksum(table, columns), checksum.version) if checksum else None


def _column_bytes(value: Value) -> bytes:
    if isinstance(value, int):
        return (value & _U64_MASK).to_bytes(8, "little")
    if isinstance(value, float):
        return _F64.pack(value)
    if isinstance(value, tuple):
        return _U32.pack(len(value)) + struct.pack(f"<{len(value)}f", *value)
    text = value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogateescape")
    return _U32.pack(len(text)) + text
