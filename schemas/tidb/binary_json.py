"""TiDB's binary JSON to its text.

A value is a type byte and its data; containers hold offsets from the start of their own data. Text has ``", "`` and
``": "``, keys in stored order, ``.0`` on whole doubles. Source: pingcap/tidb ``pkg/types/json_binary.go``.
"""

import base64
import math
import re
import struct
from json.encoder import encode_basestring

from schemas.errors import CorruptDataError
from schemas.tidb.packed_time import duration_text

_OBJECT, _ARRAY, _LITERAL = 0x01, 0x03, 0x04
_INT64, _UINT64, _DOUBLE = 0x09, 0x0A, 0x0B
_STRING, _OPAQUE = 0x0C, 0x0D
_DATE, _DATETIME, _TIMESTAMP, _TIME = 0x0E, 0x0F, 0x10, 0x11
_FIXED_SIZES = {_LITERAL: 1, _INT64: 8, _UINT64: 8, _DOUBLE: 8, _DATE: 8, _DATETIME: 8, _TIMESTAMP: 8, _TIME: 12}
_LITERALS = {0: "null", 1: "true", 2: "false"}
_CONTAINER_HEAD = 8
_KEY_ENTRY = 6
_VALUE_ENTRY = 5
_DEPTH_MAX = 100
_LINE_SEPARATORS = "\u2028\u2029"
_ESCAPED = re.compile("[\u2028\u2029\udc80-\udcff]")
_PLAIN_MIN, _PLAIN_END = 1e-15, 1e15


def json_text(data: bytes) -> str:
    """Return the text of a binary JSON value (type byte and data); no data at all is ``null``, as in TiDB.

    Raises:
        CorruptDataError: an unknown type, an offset outside the value, or deeper than 100 levels.
    """
    if not data:
        return "null"
    try:
        return _text(data[0], memoryview(data)[1:], 0)
    except (struct.error, IndexError, KeyError, OverflowError) as error:
        raise CorruptDataError("binary json does not decode", size=len(data), reason=repr(error)) from error


def json_size(data: bytes, at: int = 0) -> int:
    """Return the encoded size of the value at ``at``, type byte included.

    Raises:
        CorruptDataError: an unknown type, or the data ends early.
    """
    try:
        kind = data[at]
        if kind in {_OBJECT, _ARRAY}:
            size = 1 + _u32(memoryview(data), at + 5)
        elif kind == _STRING:
            length, start = _uvarint(memoryview(data), at + 1)
            size = start + length - at
        elif kind == _OPAQUE:
            length, start = _uvarint(memoryview(data), at + 2)
            size = start + length - at
        else:
            size = 1 + _FIXED_SIZES[kind]
    except (struct.error, IndexError, KeyError) as error:
        raise CorruptDataError("binary json does not decode", at=at, reason=repr(error)) from error
    if at + size > len(data):
        raise CorruptDataError("binary json ends early", at=at, size=len(data))
    return size


def _text(kind: int, data: memoryview, depth: int) -> str:
    if depth > _DEPTH_MAX:
        raise CorruptDataError("binary json is too deep", depth=depth)
    match kind:
        case 0x01:
            return "{" + ", ".join(_members(data, depth)) + "}"
        case 0x03:
            count = _u32(data, 0)
            entries = (_CONTAINER_HEAD + i * _VALUE_ENTRY for i in range(count))
            return "[" + ", ".join(_entry(data, entry, depth) for entry in entries) + "]"
        case 0x04:
            return _LITERALS[data[0]]
        case 0x09:
            return str(struct.unpack_from("<q", data)[0])
        case 0x0A:
            return str(struct.unpack_from("<Q", data)[0])
        case 0x0B:
            return _double(struct.unpack_from("<d", data)[0])
        case 0x0C:
            length, start = _uvarint(data, 0)
            return _quoted(_slice(data, start, length))
        case 0x0D:
            length, start = _uvarint(data, 1)
            return f'"base64:type{data[0]}:{base64.b64encode(_slice(data, start, length)).decode()}"'
        case 0x0E | 0x0F | 0x10:
            return f'"{_core_time(struct.unpack_from("<Q", data)[0], date_only=kind == _DATE)}"'
        case 0x11:
            return f'"{duration_text(struct.unpack_from("<q", data)[0], 6)}"'
        case _:
            raise CorruptDataError("binary json has an unknown type", type=kind)


def _members(data: memoryview, depth: int) -> list[str]:
    count, members = _u32(data, 0), []
    values_at = _CONTAINER_HEAD + count * _KEY_ENTRY
    for i in range(count):
        key_at, key_size = struct.unpack_from("<IH", data, _CONTAINER_HEAD + i * _KEY_ENTRY)
        key = _quoted(_slice(data, key_at, key_size))
        members.append(f"{key}: {_entry(data, values_at + i * _VALUE_ENTRY, depth)}")
    return members


def _entry(data: memoryview, at: int, depth: int) -> str:
    kind = data[at]
    if kind == _LITERAL:
        return _LITERALS[data[at + 1]]
    offset = _u32(data, at + 1)
    if offset >= len(data):
        raise IndexError(f"offset {offset} is outside the container")
    return _text(kind, data[offset:], depth + 1)


def _double(value: float) -> str:
    """Return the shortest digits, with a point or (below 1e-15 and from 1e15 on, as MySQL prints) an exponent."""
    size = abs(value)
    if not math.isfinite(value):
        raise CorruptDataError("json number is not finite", value=value)
    if size and not _PLAIN_MIN <= size < _PLAIN_END:
        mantissa, exponent = _scientific(repr(value))
        return f"{mantissa}e{exponent}"
    text = plain_float(value)
    return text if "." in text else text + ".0"


def _scientific(digits: str) -> tuple[str, int]:
    """Split Python's shortest float text into a mantissa with one digit before the point, and an exponent."""
    plain = expand_exponent(digits).lstrip("-")
    whole, _, part = plain.partition(".")
    if whole.strip("0"):
        exponent, figures = len(whole) - 1, (whole + part).rstrip("0")
    else:
        exponent, figures = len(part.lstrip("0")) - len(part) - 1, part.lstrip("0")
    sign = "-" if digits.startswith("-") else ""
    return sign + figures[0] + ("." + figures[1:] if figures[1:] else ""), exponent


def plain_float(value: float) -> str:
    """Return the shortest digits that read back as ``value``, never with an exponent nor a needless ``.0``.

    >>> plain_float(1e21), plain_float(-1.5e-10)
    ('1000000000000000000000', '-0.00000000015')
    """
    return expand_exponent(repr(value))


def expand_exponent(digits: str) -> str:
    """Turn Python's shortest float text into plain digits."""
    mantissa, _, exponent = digits.partition("e")
    if not exponent:
        return mantissa.removesuffix(".0")
    sign = "-" if mantissa.startswith("-") else ""
    whole, _, part = mantissa.lstrip("-").partition(".")
    shift = int(exponent)
    if shift < 0:
        return f"{sign}0.{'0' * (-shift - 1)}{whole}{part}"
    return f"{sign}{whole}{part.ljust(shift, '0')}"


def _quoted(raw: bytes) -> str:
    """Quote as Go's encoding/json: the line separators escaped, a byte that is no UTF-8 as ``\\ufffd``."""
    if raw.isascii():
        return encode_basestring(raw.decode("ascii"))
    return _ESCAPED.sub(_escape, encode_basestring(raw.decode("utf-8", "surrogateescape")))


def _escape(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}" if match[0] in _LINE_SEPARATORS else "\\ufffd"


def _core_time(bits: int, *, date_only: bool) -> str:
    year, month, day = bits >> 50, bits >> 46 & 15, bits >> 41 & 31
    date = f"{year:04d}-{month:02d}-{day:02d}"
    if date_only:
        return date
    return f"{date} {bits >> 36 & 31:02d}:{bits >> 30 & 63:02d}:{bits >> 24 & 63:02d}.{bits >> 4 & 0xFFFFF:06d}"


def _slice(data: memoryview, start: int, size: int) -> bytes:
    if start + size > len(data):
        raise IndexError(f"bytes {start} to {start + size} are outside the value")
    return bytes(data[start : start + size])


def _u32(data: memoryview, at: int) -> int:
    value: int = struct.unpack_from("<I", data, at)[0]
    return value


def _uvarint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return value, at
        shift += 7
