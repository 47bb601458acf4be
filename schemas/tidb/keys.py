"""TiDB's keys: rows ``t{table}_r{handle}``, meta hashes ``m{key}h{field}``, and the spans that are pulled.

Source: pingcap/tidb ``pkg/tablecodec``, ``pkg/structure``. All keys here are raw; TiKV's regions and PD know them
through ``codec.encode_bytes`` of the whole key.
"""

from dataclasses import dataclass
from typing import Any

from schemas.errors import CorruptDataError
from schemas.ids import TableId
from schemas.json_text import read_json
from schemas.tidb.codec import (
    Datum,
    decode_bytes,
    decode_datum,
    decode_int,
    decode_uint,
    encode_bytes,
    encode_int,
    encode_uint,
)

ROW_HEAD_BYTES = 11
_INT_HANDLE_BYTES = 8
_HASH = ord("h")
_META_PREFIX = b"m"


@dataclass(frozen=True, slots=True)
class RowKey:
    """A row key taken apart. ``handle`` is what stands after ``_r``: 8 bytes for an integer, else a common handle."""

    table_id: TableId
    handle: bytes

    @property
    def is_int(self) -> bool:
        return len(self.handle) == _INT_HANDLE_BYTES

    def int_handle(self) -> int:
        """Return the integer handle, signed (an unsigned key has the same bits).

        Raises:
            CorruptDataError: it is a common handle.
        """
        if not self.is_int:
            raise CorruptDataError("row key has no integer handle", handle=self.handle.hex())
        return decode_int(self.handle)[0]

    def common_handle(self) -> list[Datum]:
        """Return the datums of a common handle; zero bytes at the end are padding.

        Raises:
            CorruptDataError: a datum does not decode.
        """
        datums, at = list[Datum](), 0
        while at < len(self.handle) and self.handle[at] != 0:
            datum, at = decode_datum(self.handle, at)
            datums.append(datum)
        return datums


def decode_row_key(key: bytes) -> RowKey:
    """Take a row key apart.

    Raises:
        CorruptDataError: it is no row key.
    """
    if len(key) < ROW_HEAD_BYTES + _INT_HANDLE_BYTES or key[:1] != b"t" or key[9:ROW_HEAD_BYTES] != b"_r":
        raise CorruptDataError("key is no row key", key=key.hex())
    return RowKey(TableId(decode_int(key, 1)[0]), key[ROW_HEAD_BYTES:])


def row_key(table_id: TableId, handle: int | bytes) -> bytes:
    """Return a row's key; a common handle is padded to at least 9 bytes, which tells it from an integer.

    >>> row_key(TableId(45), 1).hex()
    '74800000000000002d5f728000000000000001'
    """
    tail = encode_int(handle) if isinstance(handle, int) else handle.ljust(_INT_HANDLE_BYTES + 1, b"\0")
    return b"t" + encode_int(table_id) + b"_r" + tail


def table_span(table_id: TableId) -> tuple[bytes, bytes]:
    """Return the raw ``[start, end)`` of a table's rows; index keys are outside."""
    prefix = b"t" + encode_int(table_id)
    return prefix + b"_r", prefix + b"_s"


def meta_hash_key(key: bytes, field: bytes) -> bytes:
    """Return the key of a field of a meta hash, such as ``DBs``/``DB:1`` or ``DB:2``/``Table:45``."""
    return meta_hash_prefix(key) + encode_bytes(field)


def meta_hash_prefix(key: bytes) -> bytes:
    """Return what all fields of a meta hash start with."""
    return _META_PREFIX + encode_bytes(key) + encode_uint(_HASH)


def decode_meta_hash_key(key: bytes) -> tuple[bytes, bytes] | None:
    """Return (hash, field) of a meta hash key; None for any other key.

    Raises:
        CorruptDataError: a meta key whose bytes do not decode.
    """
    if key[:1] != _META_PREFIX:
        return None
    name, at = decode_bytes(key, 1)
    kind, at = decode_uint(key, at)
    if kind != _HASH:
        return None
    return name, decode_bytes(key, at)[0]


def decode_meta_json(value: bytes) -> dict[str, Any]:
    """Read a DBInfo or TableInfo as the meta keys hold it.

    Raises:
        CorruptDataError: it is no JSON object.
    """
    try:
        info = read_json(value)
    except ValueError as error:
        raise CorruptDataError("meta value is no json", value=value[:100].hex(), reason=error) from error
    if not isinstance(info, dict):
        raise CorruptDataError("meta value is no json object", value=value[:100].hex())
    return info
