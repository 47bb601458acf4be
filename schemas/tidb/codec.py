"""TiDB's primitives: memcomparable ("key") and compact ("value") encodings, and datums, which are a flag and one of
them.

Source: pingcap/tidb ``pkg/util/codec``. Decoders take ``(data, at)`` and return ``(value, next_at)``; data that ends
early or breaks a rule raises CorruptDataError with the offset.
"""

import struct
from dataclasses import dataclass
from enum import IntEnum

from schemas.errors import CorruptDataError
from schemas.tidb.binary_json import json_size
from schemas.tidb.mysql_decimal import decode_decimal

_SIGN = 1 << 63
_MASK = (1 << 64) - 1
_GROUP = 8
_MARKER_FULL = 0xFF
_U64 = struct.Struct(">Q")
_VARINT_BYTES_MAX = 10


class DatumFlag(IntEnum):
    """The first byte of a datum."""

    NULL = 0
    BYTES = 1
    COMPACT_BYTES = 2
    INT = 3
    UINT = 4
    FLOAT = 5
    DECIMAL = 6
    DURATION = 7
    VARINT = 8
    UVARINT = 9
    JSON = 10
    VECTOR = 20


_FLAGS = {int(flag): flag for flag in DatumFlag}


@dataclass(frozen=True, slots=True)
class Datum:
    """A decoded datum.

    ``value``: int for INT, UINT, DURATION (nanoseconds), VARINT and UVARINT; float for FLOAT; text for DECIMAL; bytes
    for BYTES and COMPACT_BYTES; the encoded bytes for JSON and VECTOR; None for NULL.
    """

    flag: DatumFlag
    value: int | float | str | bytes | None


def encode_int(value: int) -> bytes:
    """Return the 8 memcomparable bytes of a signed integer.

    >>> encode_int(-1).hex()
    '7fffffffffffffff'
    """
    return _U64.pack((value ^ _SIGN) & _MASK)


def decode_int(data: bytes, at: int = 0) -> tuple[int, int]:
    """Read a memcomparable signed integer."""
    value, end = decode_uint(data, at)
    return value - _SIGN, end


def encode_uint(value: int) -> bytes:
    """Return the 8 memcomparable bytes of an unsigned integer."""
    return _U64.pack(value)


def decode_uint(data: bytes, at: int = 0) -> tuple[int, int]:
    """Read a memcomparable unsigned integer."""
    try:
        return _U64.unpack_from(data, at)[0], at + 8
    except struct.error as error:
        raise _short(data, at) from error


def encode_float(value: float) -> bytes:
    """Return the 8 memcomparable bytes of a double.

    >>> encode_float(3.14).hex()
    'c0091eb851eb851f'
    """
    bits: int = struct.unpack(">Q", struct.pack(">d", value))[0]
    return _U64.pack(bits ^ _MASK if bits & _SIGN else bits | _SIGN)


def decode_float(data: bytes, at: int = 0) -> tuple[float, int]:
    """Read a memcomparable double."""
    bits, end = decode_uint(data, at)
    bits = bits & ~_SIGN if bits & _SIGN else bits ^ _MASK
    return struct.unpack(">d", _U64.pack(bits))[0], end


def encode_bytes(data: bytes) -> bytes:
    """Return memcomparable bytes: groups of 8, zero-padded, each with a marker of how many are padding.

    >>> encode_bytes(b"\\x01\\x02\\x03").hex()
    '0102030000000000fa'
    """
    groups = []
    for start in range(0, len(data) + 1, _GROUP):
        group = data[start : start + _GROUP]
        pad = _GROUP - len(group)
        groups.append(group + b"\0" * pad + bytes((_MARKER_FULL - pad,)))
    return b"".join(groups)


def decode_bytes(data: bytes, at: int = 0) -> tuple[bytes, int]:
    """Read memcomparable bytes."""
    groups = []
    while True:
        group = data[at : at + _GROUP + 1]
        if len(group) < _GROUP + 1:
            raise _short(data, at)
        at += _GROUP + 1
        pad = _MARKER_FULL - group[_GROUP]
        if pad == 0:
            groups.append(group[:_GROUP])
            continue
        if pad > _GROUP or any(group[_GROUP - pad : _GROUP]):
            raise CorruptDataError("memcomparable bytes have a bad marker or padding", at=at, group=group.hex())
        groups.append(group[: _GROUP - pad])
        return b"".join(groups), at


def encode_uvarint(value: int) -> bytes:
    """Return LEB128.

    >>> encode_uvarint(300).hex()
    'ac02'
    """
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def decode_uvarint(data: bytes, at: int = 0) -> tuple[int, int]:
    """Read LEB128 of at most 10 bytes."""
    value = 0
    for index in range(_VARINT_BYTES_MAX):
        if at + index >= len(data):
            raise _short(data, at)
        byte = data[at + index]
        value |= (byte & 0x7F) << 7 * index
        if not byte & 0x80:
            return value & _MASK, at + index + 1
    raise CorruptDataError("varint longer than 10 bytes", at=at)


def encode_varint(value: int) -> bytes:
    """Return zig-zag LEB128.

    >>> encode_varint(-1).hex()
    '01'
    """
    return encode_uvarint(value << 1 if value >= 0 else (-value << 1) - 1)


def decode_varint(data: bytes, at: int = 0) -> tuple[int, int]:
    """Read zig-zag LEB128."""
    raw, end = decode_uvarint(data, at)
    return (raw >> 1) ^ -(raw & 1), end


def encode_compact_bytes(data: bytes) -> bytes:
    """Return a varint length and the bytes.

    >>> encode_compact_bytes(b"abc").hex()
    '06616263'
    """
    return encode_varint(len(data)) + data


def decode_compact_bytes(data: bytes, at: int = 0) -> tuple[bytes, int]:
    """Read a varint length and the bytes."""
    length, start = decode_varint(data, at)
    if length < 0 or start + length > len(data):
        raise _short(data, at)
    return data[start : start + length], start + length


def decode_datum(data: bytes, at: int = 0) -> tuple[Datum, int]:
    """Read one datum, of a key or of a row in format v1.

    Raises:
        CorruptDataError: an unknown flag, or the data ends early.
    """
    if at >= len(data):
        raise _short(data, at)
    value: int | float | str | bytes | None
    start = at + 1
    match data[at]:
        case DatumFlag.NULL:
            value, end = None, start
        case DatumFlag.BYTES:
            value, end = decode_bytes(data, start)
        case DatumFlag.COMPACT_BYTES:
            value, end = decode_compact_bytes(data, start)
        case DatumFlag.INT | DatumFlag.DURATION:
            value, end = decode_int(data, start)
        case DatumFlag.UINT:
            value, end = decode_uint(data, start)
        case DatumFlag.FLOAT:
            value, end = decode_float(data, start)
        case DatumFlag.DECIMAL:
            value, end = decode_decimal(data, start)
        case DatumFlag.VARINT:
            value, end = decode_varint(data, start)
        case DatumFlag.UVARINT:
            value, end = decode_uvarint(data, start)
        case DatumFlag.JSON:
            end = start + json_size(data, start)
            value = data[start:end]
        case DatumFlag.VECTOR:
            end = start + vector_size(data, start)
            value = data[start:end]
        case unknown:
            raise CorruptDataError("unknown datum flag", flag=unknown, at=at)
    return Datum(_FLAGS[data[at]], value), end


def vector_size(data: bytes, at: int = 0) -> int:
    """Return the encoded size of a VECTOR: a u32 count and as many f32.

    Raises:
        CorruptDataError: the data ends early.
    """
    if at + 4 > len(data):
        raise _short(data, at)
    size = 4 + 4 * int.from_bytes(data[at : at + 4], "little")
    if at + size > len(data):
        raise _short(data, at)
    return size


def _short(data: bytes, at: int) -> CorruptDataError:
    return CorruptDataError("encoded data ends early", at=at, size=len(data))
