"""Row format v2: sorted column ids, end offsets and values without flags. Source: pingcap/tidb ``pkg/util/rowcodec``.

Layout: ``80``, flags, n and m (u16), n not-null ids, m null ids, n end offsets, data, checksum part. Ids take 1 byte
and offsets 2, or 4 and 4 in a large row. All little-endian.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise

from schemas.errors import CorruptDataError

VERSION_BYTE = 0x80
_FLAG_LARGE = 0x01
_FLAG_CHECKSUM = 0x02
_CHECKSUM_VERSION_MASK = 0x07
_CHECKSUM_EXTRA = 0x08
_HEAD_BYTES = 6
_SMALL_ID_MAX = 255
_SMALL_DATA_MAX = 65535
_COUNTS = struct.Struct("<HH")

RowV2 = dict[int, bytes | None]
"""Column id to its value's bytes; None: the column is NULL; missing: the row was written without it."""


@dataclass(frozen=True, slots=True)
class RowChecksum:
    """The checksum part. ``covered_end`` is the offset after the part's header byte: what a raw checksum covers."""

    version: int
    checksum: int
    extra: int | None
    covered_end: int


def is_row_v2(value: bytes) -> bool:
    """Tell whether a row value (not empty) is in format v2; else it is v1."""
    return value[:1] == b"\x80"


def decode_row_v2(value: bytes) -> RowV2:
    """Read a row value of format v2.

    Raises:
        CorruptDataError: another version, or offsets that do not fit the value.
    """
    columns, _ = _decode(value)
    return columns


def row_v2_checksum(value: bytes) -> RowChecksum | None:
    """Return the checksum part of a v2 row; None: it has none.

    Raises:
        CorruptDataError: the row does not decode.
    """
    _, at = _decode(value)
    if not value[1] & _FLAG_CHECKSUM:
        return None
    has_extra = at < len(value) and bool(value[at] & _CHECKSUM_EXTRA)
    if at + 5 + 4 * has_extra > len(value):
        raise CorruptDataError("v2 row ends before its checksum", at=at, size=len(value))
    checksum = int.from_bytes(value[at + 1 : at + 5], "little")
    extra = int.from_bytes(value[at + 5 : at + 9], "little") if has_extra else None
    return RowChecksum(value[at] & _CHECKSUM_VERSION_MASK, checksum, extra, at + 1)


def _decode(value: bytes) -> tuple[RowV2, int]:
    """Return the columns and the offset after the data."""
    if len(value) < _HEAD_BYTES or value[0] != VERSION_BYTE:
        raise CorruptDataError("value is no v2 row", size=len(value), head=value[:2].hex())
    large = value[1] & _FLAG_LARGE
    not_null, null = _COUNTS.unpack_from(value, 2)
    id_code, id_bytes = ("I", 4) if large else ("B", 1)
    end_code, end_bytes = ("I", 4) if large else ("H", 2)
    ends_at = _HEAD_BYTES + (not_null + null) * id_bytes
    data_at = ends_at + not_null * end_bytes
    if data_at > len(value):
        raise CorruptDataError("v2 row ends inside its header", size=len(value), header=data_at)
    ids = struct.unpack_from(f"<{not_null + null}{id_code}", value, _HEAD_BYTES)
    ends = struct.unpack_from(f"<{not_null}{end_code}", value, ends_at)
    if not_null and (data_at + ends[-1] > len(value) or any(a > b for a, b in pairwise(ends))):
        raise CorruptDataError("v2 row has offsets beyond its data", size=len(value))
    columns: RowV2 = {}
    start = data_at
    for column_id, end in zip(ids, ends, strict=False):
        columns[column_id] = value[start : data_at + end]
        start = data_at + end
    columns.update(dict.fromkeys(ids[not_null:]))
    return columns, start


def encode_row_v2(columns: Mapping[int, bytes | None]) -> bytes:
    """Return a v2 row without checksum; values are the bytes that :func:`decode_row_v2` gives."""
    ids = sorted(columns)
    values = [data for column_id in ids if (data := columns[column_id]) is not None]
    nulls = len(ids) - len(values)
    if nulls:
        ids.sort(key=lambda column_id: columns[column_id] is None)  # stable: both parts stay in order
    data = b"".join(values)
    large = len(data) > _SMALL_DATA_MAX or max(ids, default=0) > _SMALL_ID_MAX
    head = _head(len(values), nulls, large=large)
    flags = _FLAG_LARGE if large else 0
    return head.pack(VERSION_BYTE, flags, len(values), nulls, *ids, *accumulate(map(len, values))) + data


@lru_cache(maxsize=1024)
def _head(values: int, nulls: int, *, large: bool) -> struct.Struct:
    """Return the form of all that stands before the data."""
    id_code, end_code = ("I", "I") if large else ("B", "H")
    return struct.Struct(f"<BBHH{values + nulls}{id_code}{values}{end_code}")
