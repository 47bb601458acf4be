r"""Binary strings as open-protocol writes them: Go's ``strconv.Quote`` without its quotes, inside a JSON string.

``Quote`` leaves printable characters of UTF-8 as they are, and writes a byte that is not UTF-8 as ``\x89``, an ASCII
control as ``\x00`` or a short form, and another character that does not print as ``\u00a0`` or ``\U000e0001``. What
prints: the Unicode categories L, M, N, P and S, and the blank (Go ``strconv.IsPrint``); Python's tables may be a
Unicode version older or newer than Go's, which then differ in characters that are new to one of them.

The columnar form knows each byte by a code: itself, or for the bytes of a valid character one that says so.
"""

import unicodedata

import numpy as np
import numpy.typing as npt

from schemas.changes import BinaryArray
from sorters.core.columnar.escape import GO_JSON, byte_map, data_of, map_codes, offsets_of

_SHORT = {7: "\\a", 8: "\\b", 9: "\\t", 10: "\\n", 11: "\\v", 12: "\\f", 13: "\\r", 0x22: '\\"', 0x5C: "\\\\"}
_ASCII_END, _LEAD_MIN = 0x80, 0xC2
_AS_IT_IS = 256
"""Plus the byte: the code of a byte of a valid character that prints."""
_WIDTHS = {2: (0xC2, 0xE0), 3: (0xE0, 0xF0), 4: (0xF0, 0xF5)}
"""Bytes of a character by its first one, ``[start, end)``."""
_LEAST = {2: 0x80, 3: 0x800, 4: 0x10000}
Codes = npt.NDArray[np.int32]


def quoted(value: bytes) -> bytes:
    r"""Quote and escape one value.

    >>> quoted(b'\x89P"\n')
    b'\\\\x89P\\\\\\"\\\\n'
    """
    return GO_JSON.value("".join(map(_form, value.decode("utf-8", "surrogateescape"))).encode())


def _form(char: str) -> str:
    code = ord(char)
    if 0xDC80 <= code < 0xDD00:  # where surrogateescape puts bytes that are no UTF-8
        return f"\\x{code - 0xDC00:02x}"
    if code in _SHORT:
        return _SHORT[code]
    if char == " " or unicodedata.category(char)[0] in "LMNPS":
        return char
    if code < 0x20 or code == 0x7F:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


_ALONE = [quoted(bytes((byte,))) for byte in range(256)]
_BYTES = [bytes((byte,)) for byte in range(256)]
_ASCII_MAP = byte_map(_ALONE)


def quoted_column(array: BinaryArray) -> BinaryArray:
    """Return :func:`quoted` of each value of a ``pyarrow.BinaryArray``; nulls stay null."""
    data = data_of(array)
    if not len(data):
        return array
    if data.max() < _ASCII_END:
        return map_codes(array, data, *_ASCII_MAP)
    codes, forms = data.astype(np.int32), [*_ALONE, *_BYTES]
    leads = np.flatnonzero(data >= _LEAD_MIN)
    offsets = offsets_of(array) - offsets_of(array)[0]
    ends = offsets[np.searchsorted(offsets, leads, "right")]
    for width, (first, end) in _WIDTHS.items():
        chosen = (data[leads] >= first) & (data[leads] < end) & (leads + width <= ends)
        _mark(data, leads[chosen], width, codes, forms)
    return map_codes(array, codes, *byte_map(forms))


def _mark(data: npt.NDArray[np.uint8], at: npt.NDArray[np.int64], width: int, codes: Codes, forms: list[bytes]) -> None:
    """Give the bytes of the valid characters that start at ``at`` their codes."""
    rest = [data[at + offset].astype(np.int32) for offset in range(1, width)]
    points = data[at].astype(np.int32) & (0xFF >> (width + 1))
    valid = np.ones(len(at), np.bool_)
    for byte in rest:
        valid &= byte & 0xC0 == 0x80
        points = points << 6 | byte & 0x3F
    valid &= (points >= _LEAST[width]) & (points < 0x110000) & ((points < 0xD800) | (points >= 0xE000))
    at, points = at[valid], points[valid]
    for offset in range(width):
        codes[at + offset] += _AS_IT_IS
    distinct, which = np.unique(points, return_inverse=True)
    texts = [_form(chr(point)) for point in distinct.tolist()]
    hidden = np.array([len(text) > 1 for text in texts], np.bool_)
    if not hidden.any():
        return
    numbers = np.zeros(len(texts), np.int32)
    for offset in np.flatnonzero(hidden).tolist():
        numbers[offset] = len(forms)
        forms.append(GO_JSON.value(texts[offset].encode()))
    nothing = len(forms)
    forms.append(b"")
    chosen = hidden[which]
    codes[at[chosen]] = numbers[which[chosen]]
    for offset in range(1, width):
        codes[at[chosen] + offset] = nothing
