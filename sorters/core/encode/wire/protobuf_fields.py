"""Protobuf's wire form, for one message and for a column of messages: tags, varints, and what stands behind its length.

A column of messages is a :class:`MessageColumn`: segments of which each message is joined, and how long it becomes,
which is what a message around it must say before. Source: protobuf.dev, "Encoding".
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow.compute as pc

from schemas.changes import BinaryArray
from schemas.varint import uvarint
from sorters.core.columnar.spans import IntArray
from sorters.core.encode.wire.avro_varint import uvarints
from sorters.core.encode.wire.segments import Segment

_VARINT, _BYTES = 0, 2
_SEVEN_BITS = 7


def tag(number: int) -> bytes:
    """Return what stands before the length of a string, bytes or message field."""
    return uvarint(number << 3 | _BYTES)


def int_field(number: int, value: int) -> bytes:
    """Encode an integer, enum or bool field, also where it holds zero."""
    return uvarint(number << 3 | _VARINT) + uvarint(value)


def bytes_field(number: int, data: bytes) -> bytes:
    """Encode a string, bytes or message field, also where it is empty."""
    return tag(number) + uvarint(len(data)) + data


def text_field(number: int, text: bytes) -> bytes:
    """Encode a string field as proto3 does: not at all where it is empty."""
    return bytes_field(number, text) if text else b""


@dataclass(frozen=True, slots=True, eq=False)
class MessageColumn:
    """The same part of ``count`` messages."""

    segments: tuple[Segment, ...]
    size: IntArray | int
    """Bytes, by message; one number if all are of one size."""

    @classmethod
    def of(cls, *parts: "Segment | MessageColumn") -> Self:
        """Put parts one behind the other; an array has no nulls."""
        segments: list[Segment] = []
        size: IntArray | int = 0
        for part in parts:
            if isinstance(part, MessageColumn):
                segments += part.segments
                size = size + part.size
            elif isinstance(part, bytes):
                segments.append(part)
                size = size + len(part)
            else:
                segments.append(part)
                size = size + lengths_of(part)
        return cls(tuple(segments), size)

    def as_field(self, number: int) -> "MessageColumn":
        """Put it behind its tag and length."""
        if isinstance(self.size, int):
            return MessageColumn.of(tag(number) + uvarint(self.size), self)
        return MessageColumn.of(uvarints(self.size.astype(np.uint64), tag(number)), self)


def lengths_of(array: BinaryArray) -> IntArray:
    """Return the lengths of a ``pyarrow.BinaryArray``'s values; null has 0."""
    lengths: IntArray = pc.fill_null(pc.binary_length(array), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    return lengths
