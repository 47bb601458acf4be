r"""Escaping of JSON strings as Go's encoders do it, for one value and for whole columns.

``CANAL``: mailru/easyjson ``jwriter.Writer.String``, which canal-json uses: ``\t \r \n \\ \"`` have short forms, other
controls and ``< > &`` become ``\u00xx``. ``JSON_TEXT``: encoding/json without HTML escaping, in which TiDB prints JSON
values: ``\b`` and ``\f`` are short too, ``< > &`` stay. ``GO_JSON``: encoding/json as it is, of which open-protocol is
made. These write U+2028 and U+2029 as ``\u2028``, and a byte that is no UTF-8 as ``\ufffd``. ``JSONITER``: debezium's
json-iterator without HTML escaping: as ``CANAL``, but ``< > &`` and all that is not ASCII stay as they are.

The columnar form looks for special bytes in a whole column with a few vectorised scans and mostly finds none.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from schemas.changes import BinaryArray

_SHORT = {0x09: "\\t", 0x0A: "\\n", 0x0D: "\\r", 0x22: '\\"', 0x5C: "\\\\"}
_MORE_SHORT = {0x08: "\\b", 0x0C: "\\f"}
_CONTROLS_END, _ASCII_END = 0x20, 0x80
_HTML = (0x3C, 0x3E, 0x26)
_LINE_SEPARATORS = {b"\xe2\x80\xa8": b"\\u2028", b"\xe2\x80\xa9": b"\\u2029"}
_SUBSTITUTIONS_MAX = 3
"""With more distinct specials than this, one pass that maps byte by byte is cheaper than one pass for each."""
Lengths = npt.NDArray[np.int64]
Forms = npt.NDArray[np.uint8]


class Escaper:
    """One set of escapes."""

    def __init__(self, *, html: bool, short: dict[int, str], ascii_only: bool = False) -> None:
        """``ascii_only``: what is not ASCII stays as it is, U+2028 and broken UTF-8 included."""
        self._ascii_only = ascii_only
        # The backslash first: replacing the others brings in new ones.
        self._printable = (0x5C, 0x22, *(_HTML if html else ()))
        table = {byte: self._ascii_form(byte, short) for byte in range(_ASCII_END)}
        if not ascii_only:
            table |= {0x2028: "\\u2028", 0x2029: "\\u2029"}
            table |= dict.fromkeys(range(0xDC80, 0xDD00), "\\ufffd")  # surrogateescape: bytes that are no UTF-8
        self._table = table
        self._forms = [table.get(byte, chr(byte)).encode() for byte in range(256)]
        self._blob_map = byte_map(self._forms)
        self._text_map = byte_map([*self._forms[:_ASCII_END], *(bytes((byte,)) for byte in range(_ASCII_END, 256))])

    def _ascii_form(self, byte: int, short: dict[int, str]) -> str:
        if byte in short:
            return short[byte]
        return f"\\u{byte:04x}" if byte < _CONTROLS_END or byte in self._printable else chr(byte)

    def value(self, value: bytes, *, blob: bool = False) -> bytes:
        r"""Escape one value, without quotes; a ``blob``'s bytes are read as ISO-8859-1.

        >>> CANAL.value(b'a<"b')
        b'a\\u003c\\"b'
        """
        text = value.decode("latin-1") if blob else value.decode("utf-8", "surrogateescape")
        return text.translate(self._table).encode("utf-8", "surrogateescape")

    def column(self, array: BinaryArray, *, blob: bool = False) -> BinaryArray:
        """Escape the values of a ``pyarrow.BinaryArray``; nulls stay null."""
        data = data_of(array)
        if not len(data):
            return array
        high = not self._ascii_only and bool(data.max() >= _ASCII_END)
        if high and blob:
            return map_codes(array, data, *self._blob_map)
        if high and not _is_utf8(array):
            return self._broken(array)
        specials = [byte for byte in self._printable if (data == byte).any()]
        if data.min() < _CONTROLS_END:
            specials += np.unique(data[data < _CONTROLS_END]).tolist()
        if len(specials) > _SUBSTITUTIONS_MAX:
            array = map_codes(array, data, *self._text_map)
        else:
            for byte in specials:
                array = pc.replace_substring(array, bytes((byte,)), self._forms[byte])
        if high and (data == 0xE2).any():
            for separator, form in _LINE_SEPARATORS.items():
                array = pc.replace_substring(array, separator, form)
        return array

    def _broken(self, array: BinaryArray) -> BinaryArray:
        """Escape a text column in which some value is no UTF-8: so rare that it goes distinct value by distinct
        value.
        """
        words = array.dictionary_encode()
        escaped = pa.array([self.value(word) for word in words.dictionary.to_pylist()], pa.binary())
        return escaped.take(words.indices)


def byte_map(forms: list[bytes]) -> tuple[Lengths, Forms]:
    """Return the lengths of the forms, and the forms as rows of a matrix."""
    lengths = np.array([len(form) for form in forms], np.int64)
    width = int(lengths.max())
    return lengths, np.frombuffer(b"".join(form.ljust(width, b"\0") for form in forms), np.uint8).reshape(-1, width)


def offsets_of(array: BinaryArray) -> npt.NDArray[np.int32]:
    """Return the offsets of a ``pyarrow.BinaryArray``, one more than values."""
    return np.frombuffer(array.buffers()[1], np.int32, len(array) + 1, array.offset * 4)


def data_of(array: BinaryArray) -> npt.NDArray[np.uint8]:
    """Return the bytes of all values, one after the other."""
    data = array.buffers()[2]
    if data is None or not data.size:
        return np.zeros(0, np.uint8)
    offsets = offsets_of(array)
    return np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]]


def _is_utf8(array: BinaryArray) -> bool:
    try:
        array.cast(pa.string())
    except pa.ArrowInvalid:
        return False
    return True


def map_codes(array: BinaryArray, codes: npt.NDArray[Any], form_lengths: Lengths, forms: Forms) -> BinaryArray:
    """Write a form for each byte of a column one after the other (about 20 ns a byte); ``codes`` say which forms."""
    offsets = offsets_of(array)
    lengths = form_lengths[codes]
    ends = np.concatenate([[0], np.cumsum(lengths)])
    out = np.empty(int(ends[-1]), np.uint8)
    for offset in range(int(lengths.max())):
        chosen = np.flatnonzero(lengths > offset)
        out[ends[:-1][chosen] + offset] = forms[codes[chosen], offset]
    bits = np.packbits(array.is_valid().to_numpy(zero_copy_only=False), bitorder="little")
    moved = ends[offsets - offsets[0]].astype(np.int32)
    return pa.Array.from_buffers(pa.binary(), len(array), [pa.py_buffer(bits), pa.py_buffer(moved), pa.py_buffer(out)])


CANAL = Escaper(html=True, short=_SHORT)
JSON_TEXT = Escaper(html=False, short=_SHORT | _MORE_SHORT)
GO_JSON = Escaper(html=True, short=_SHORT | _MORE_SHORT)
JSONITER = Escaper(html=False, short=_SHORT, ascii_only=True)
