"""Shapes of binary JSON documents, and the comparison of many documents with one.

A shape fixes everything but numbers, string contents, and what follows from their sizes: container sizes and the
offsets of values. All else is one template of bytes per container (counts, key entries, value types, literals, the
keys), compared in one go for all rows. Layout: pingcap/tidb ``pkg/types/json_binary.go``.
"""

import struct
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from schemas.errors import CorruptDataError
from schemas.tidb.binary_json import json_size
from sorters.core.columnar.escape import JSON_TEXT
from sorters.core.columnar.spans import BoolArray, Bytes, IntArray, Spans, gather

_OBJECT, _ARRAY, _LITERAL = 0x01, 0x03, 0x04
_LITERALS = {0: b"null", 1: b"true", 2: b"false"}
_HEAD, _KEY_ENTRY, _VALUE_ENTRY, _WORD = 8, 6, 5, 8
_DEPTH_MAX, _NODES_MAX = 16, 256
"""Larger documents are read one by one: their shapes hardly repeat."""
_VARINT_BYTES_MAX = 4


class LeafKind(IntEnum):
    """Values that differ from row to row; the number is the JSON type byte."""

    INT64 = 0x09
    UINT64 = 0x0A
    DOUBLE = 0x0B
    STRING = 0x0C


@dataclass(frozen=True, slots=True, eq=False)
class Leaf:
    """Where one value of the shape stands in each row: a string's bytes, or eight bytes of a number."""

    kind: LeafKind
    spans: Spans


@dataclass(frozen=True, slots=True, eq=False)
class Container:
    """An object or array of a shape."""

    is_object: bool
    keys: tuple[bytes, ...]
    """The keys of an object, quoted as text; none of an array."""
    template: Bytes
    """Head, entries and keys."""
    fixed: Bytes
    """0xFF where rows must agree with the template, else 0."""
    children: tuple["Container | LeafKind | bytes", ...]
    """Bytes: a literal's text."""

    @property
    def entries_at(self) -> int:
        return _HEAD + (_KEY_ENTRY * len(self.children) if self.is_object else 0)


Shape = Container | LeafKind | bytes


class _OtherShapeError(Exception):
    """The document holds what shapes leave out: opaque values, times, too many or too deep nodes."""


def shape_of(document: bytes) -> Shape | None:
    """Return the shape of a document (type byte and data); None: it has none here, or does not decode."""
    try:
        if json_size(document) > len(document):
            return None
        return _shape(document[0], document, 1, [_NODES_MAX], 0)
    except (_OtherShapeError, CorruptDataError, struct.error, IndexError, KeyError):
        return None


def _shape(kind: int, data: bytes, at: int, budget: list[int], depth: int) -> Shape:
    budget[0] -= 1
    if budget[0] < 0 or depth > _DEPTH_MAX:
        raise _OtherShapeError
    if kind in {_OBJECT, _ARRAY}:
        return _container(data, at, budget, depth, is_object=kind == _OBJECT)
    if kind == _LITERAL:
        return _LITERALS[data[at]]
    if kind in {LeafKind.INT64, LeafKind.UINT64, LeafKind.DOUBLE, LeafKind.STRING}:
        return LeafKind(kind)
    raise _OtherShapeError


def _container(data: bytes, at: int, budget: list[int], depth: int, *, is_object: bool) -> Container:
    (count,) = struct.unpack_from("<I", data, at)
    if count > budget[0]:
        raise _OtherShapeError
    entries_at = at + _HEAD + (_KEY_ENTRY * count if is_object else 0)
    end = entries_at + _VALUE_ENTRY * count
    keys = []
    for number in range(count if is_object else 0):
        key_at, size = struct.unpack_from("<IH", data, at + _HEAD + _KEY_ENTRY * number)
        if at + key_at != end:  # TiDB writes keys one after the other behind the entries
            raise _OtherShapeError
        keys.append(b'"' + JSON_TEXT.value(data[end : end + size]) + b'"')
        end += size
    if end > len(data):
        raise _OtherShapeError
    template = np.frombuffer(data[at:end], np.uint8)
    fixed = np.full(len(template), 0xFF, np.uint8)
    fixed[4:_HEAD] = 0
    children = []
    for number in range(count):
        entry = entries_at + _VALUE_ENTRY * number
        if data[entry] == _LITERAL:
            children.append(_shape(_LITERAL, data, entry + 1, budget, depth + 1))
            fixed[entry - at + 2 : entry - at + _VALUE_ENTRY] = 0
            continue
        fixed[entry - at + 1 : entry - at + _VALUE_ENTRY] = 0
        (offset,) = struct.unpack_from("<I", data, entry + 1)
        children.append(_shape(data[entry], data, at + offset, budget, depth + 1))
    return Container(is_object, tuple(keys), template, fixed, tuple(children))


def match_shape(shape: Shape, rows: Spans) -> tuple[BoolArray, list[bytes | Leaf]]:
    """Compare rows with a shape.

    Returns:
        Which rows fit, and the text as literals and leaves; a leaf has a range for every row, sound where the row fits.
    """
    matcher = _Matcher(rows)
    matcher.match_root(shape)
    return matcher.fits, matcher.segments


class _Matcher:
    def __init__(self, rows: Spans) -> None:
        self.rows = rows
        self.fits: BoolArray = rows.length > 0
        self.segments: list[bytes | Leaf] = []

    def match_root(self, shape: Shape) -> None:
        kind = self._bytes(self.rows.start, 1)[:, 0]
        if isinstance(shape, bytes):
            code = next(code for code, text in _LITERALS.items() if text == shape)
            self.fits &= kind == _LITERAL
            self.fits &= self._bytes(self.rows.start + 1, 1)[:, 0] == code
        else:
            expected = int(shape) if isinstance(shape, LeafKind) else _OBJECT if shape.is_object else _ARRAY
            self.fits &= kind == expected
        self._match(shape, self.rows.start + 1)

    def _bytes(self, at: IntArray, width: int) -> Bytes:
        """Read bytes in all rows; a row in which they are not there does not fit, and yields junk."""
        inside = at + width <= self.rows.end
        if not inside.all():
            self.fits &= inside
        if not self.fits.all():
            at = np.where(self.fits, at, 0)
        if width > len(self.rows.buffer):
            return np.zeros((len(at), width), np.uint8)
        return gather(self.rows.buffer, at, width)

    def _match(self, shape: Shape, at: IntArray) -> None:
        if isinstance(shape, bytes):
            self._literal(shape)
        elif shape is LeafKind.STRING:
            self._string(at)
        elif isinstance(shape, LeafKind):
            self._number(shape, at)
        else:
            self._container(shape, at)

    def _literal(self, text: bytes) -> None:
        if self.segments and isinstance(self.segments[-1], bytes):
            self.segments[-1] += text
        else:
            self.segments.append(text)

    def _number(self, kind: LeafKind, at: IntArray) -> None:
        data = self._bytes(at, _WORD)
        if kind is LeafKind.DOUBLE:
            self.fits &= np.isfinite(data.view("<f8")[:, 0])
        # Junk ranges still end at 8 or later, so that a word can be read in front of their end.
        end = np.where(self.fits, at + _WORD, _WORD)
        self.segments.append(Leaf(kind, Spans(self.rows.buffer, end - _WORD, end)))

    def _string(self, at: IntArray) -> None:
        length, cursor = np.zeros(len(at), np.int64), at
        going = np.ones(len(at), np.bool_)
        for number in range(_VARINT_BYTES_MAX):
            byte = self._bytes(cursor if going.all() else np.where(going, cursor, at), 1)[:, 0]
            length |= np.where(going, (byte & 0x7F).astype(np.int64) << 7 * number, 0)
            cursor = cursor + going
            going = going & (byte >= 0x80) & self.fits
            if not going.any():
                break
        self.fits &= ~going & (cursor + length <= self.rows.end)
        start = np.where(self.fits, cursor, 0)
        end = np.where(self.fits, start + length, 0)
        self._literal(b'"')
        self.segments.append(Leaf(LeafKind.STRING, Spans(self.rows.buffer, start, end)))
        self._literal(b'"')

    def _container(self, shape: Container, at: IntArray) -> None:
        matrix = self._bytes(at, len(shape.template))
        differs = (matrix ^ shape.template) & shape.fixed
        if differs.any():  # one scan over all rows is cheap, telling which row it was is not
            self.fits &= ~differs.any(axis=1)
        self._literal(b"{" if shape.is_object else b"[")
        for number, child in enumerate(shape.children):
            if number:
                self._literal(b", ")
            if shape.is_object:
                self._literal(shape.keys[number] + b": ")
            entry = shape.entries_at + _VALUE_ENTRY * number + 1
            offset = np.ascontiguousarray(matrix[:, entry : entry + 4]).view("<u4")[:, 0].astype(np.int64)
            self._match(child, at + offset)
        self._literal(b"}" if shape.is_object else b"]")
