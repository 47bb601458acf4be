"""A row message larger than the topic between sorter and processors takes: in parts, which are records of their own.

A row of TiDB may be 120 MiB, and twice that as a literal; what a topic or a broker takes is less. The parts of a
message have its position. They stand in its partition one after the other, as one sorter writes it; one that is killed
leaves the first of them, and the next one writes all of them again. Two records of one position are the same record, so
parts of both fill the same bytes of it: readers take each byte once, whoever wrote it. A part's key is, before the
message's own:

=========  =====  ======================================================
mark       5      :data:`PART_MARK`; the key of a whole message is JSON
bytes      8      of the whole value; big-endian
start      8      of this part's bytes in it
crc32      4      of the whole value
=========  =====  ======================================================

Its value is those bytes.

The format on a page: docs/formats/sink-topic.md §4.
"""

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeGuard

from schemas.errors import CorruptDataError

PART_MARK = b"\0part"
_HEAD = struct.Struct(">5sQQI")


def is_part(key: bytes | None) -> TypeGuard[bytes]:
    """Tell a part by its key."""
    return key is not None and key.startswith(PART_MARK)


def cut_message(key: bytes, value: bytes | memoryview, bytes_max: int) -> Iterator[tuple[bytes, memoryview]]:
    """Yield key and value of each part of a message, none of them larger than ``bytes_max`` together.

    A key that leaves no room for a value is not cut: the message is yielded as it is.
    """
    value = memoryview(value)
    room = bytes_max - _HEAD.size - len(key)
    if room < 1:
        yield key, value
        return
    checksum = zlib.crc32(value)
    for start in range(0, len(value), room):
        yield _HEAD.pack(PART_MARK, len(value), start, checksum) + key, value[start : start + room]


@dataclass(frozen=True, slots=True)
class JoinedMessage:
    """What parts have come to."""

    offset: int
    """Of the first part: where reading must begin to find them all."""
    key: bytes
    value: bytes


@dataclass(slots=True)
class _Open:
    """A message of which not all parts have come."""

    offset: int
    size: int
    checksum: int
    value: bytearray = field(default_factory=bytearray)


@dataclass(slots=True)
class MessageJoiner:
    """Puts the parts of one partition's messages together, in the order of its offsets."""

    _open: dict[bytes, _Open] = field(default_factory=dict)
    """By position."""

    def take(self, position: bytes, offset: int, key: bytes, value: bytes) -> JoinedMessage | None:
        """Take the next part; return the message that it completes.

        Raises:
            CorruptDataError: it is no part, or the parts do not make what was cut.
        """
        if len(key) < _HEAD.size:
            raise CorruptDataError("part of a message has no whole head", offset=offset, key=key.hex())
        _, size, start, checksum = _HEAD.unpack_from(key)
        message = self._open.get(position)
        if start == 0 and (message is None or (message.size, message.checksum) != (size, checksum)):
            # Another release of the sorter may write the row otherwise: what the last one left is worth nothing then.
            message = self._open[position] = _Open(offset, size, checksum)
        if message is None or start > len(message.value) or (message.size, message.checksum) != (size, checksum):
            return None  # behind a part that its sorter did not write, or wrote before we began to read
        # The last try may have cut elsewhere: of a part that overlaps what we have, only the rest is new.
        message.value += value[len(message.value) - start :]
        if len(message.value) < size:
            return None
        del self._open[position]
        whole = bytes(message.value)
        if len(whole) != size or zlib.crc32(whole) != checksum:
            raise CorruptDataError(
                "parts of a message do not make what was cut", offset=message.offset, bytes=len(whole)
            )
        return JoinedMessage(message.offset, key[_HEAD.size :], whole)

    def forget(self, upto: bytes) -> None:
        """Forget what is open at or below a position: it will not be asked for."""
        for position in [position for position in self._open if position <= upto]:
            del self._open[position]

    def from_offset(self, offset: int) -> int:
        """Return where reading must begin to find what stands at ``offset``, and what is open."""
        return min([offset, *(message.offset for message in self._open.values())])
