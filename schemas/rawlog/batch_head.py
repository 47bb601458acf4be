"""The head of a raw record: the fields before its columns, enough to skip it. Read by every reader, of every record.

The format, for readers in other languages: docs/formats/raw-log.md §2.
"""

from dataclasses import dataclass
from typing import Final

from schemas.errors import CorruptDataError
from schemas.ids import RegionId, TableId, Ts

_MAGIC_BYTES: Final = 5
_LONGS: Final = 5
_BYTES_MAX: Final = _MAGIC_BYTES + _LONGS * 10 + 1
"""Five longs of at most ten bytes, and a boolean."""


@dataclass(frozen=True, slots=True)
class BatchHead:
    """The fields before the columns."""

    table_id: TableId
    region_id: RegionId
    count: int
    min_commit_ts: Ts
    max_commit_ts: Ts
    may_repeat: bool


def read_head(record: bytes | memoryview) -> tuple[BatchHead, int]:
    """Return the head of a record, and where its first column begins.

    Raises:
        CorruptDataError: the record does not start as a RegionBatch does.
    """
    text = bytes(record[:_BYTES_MAX])
    try:
        if text[0] != 0:
            raise ValueError("magic byte is not 0")
        longs, end = _longs(text)
        table_id, region_id, count, low, high = longs
        may_repeat = text[end] == 1
    except (IndexError, ValueError) as error:
        raise CorruptDataError("record is not a region batch", size=len(record), reason=error) from error
    return BatchHead(TableId(table_id), RegionId(region_id), count, Ts(low), Ts(high), may_repeat), end + 1


def _longs(text: bytes) -> tuple[list[int], int]:
    """Return the Avro longs (:func:`~schemas.rawlog.binary_columns.read_zigzag`), in one go, and where they end."""
    longs: list[int] = []
    value = shift = 0
    for at, byte in enumerate(text[_MAGIC_BYTES:], _MAGIC_BYTES + 1):
        if byte >= 0x80:
            value |= (byte & 0x7F) << shift
            shift += 7
            if shift > 63:
                raise ValueError("varint longer than 10 bytes")
            continue
        value |= byte << shift
        if value >> 64:
            raise ValueError("varint of more than 64 bits")
        longs.append((value >> 1) ^ -(value & 1))
        if len(longs) == _LONGS:
            return longs, at
        value = shift = 0
    raise IndexError("record ends in its head")
