"""Who has written a record between sorter and processors: the fencing token of one attempt to write a cut.

Kafka does not keep a sorter out that was stopped, has lost its lock meanwhile and goes on: what its client still held
is written behind what its heir has written. So each record has a header, ``tidebus-fence``, by which a reader tells
records that come late (:mod:`consumers.processors.core.fence`). Its bytes compare as attempts follow one another:

==========  =====  ==========================================================================
lock        8      ZooKeeper's number (czxid) of the lock's node, which grows with each sorter that takes the lock
attempt     8      how many times the holder's process has begun to write; a cut that it repeats is another attempt
task        8      1 and Spark's number of the task's attempt; 0: the driver wrote it
==========  =====  ==========================================================================

Big-endian. A sorter of a former release writes none.

The format on a page: docs/formats/sink-topic.md §1.
"""

import struct
from dataclasses import dataclass

from schemas.errors import CorruptDataError

FENCE_HEADER = "tidebus-fence"
NO_FENCE = b""
_FENCE = struct.Struct(">QQQ")
_TASK_AT = 16


@dataclass(frozen=True, slots=True, order=True)
class Fence:
    """Field order is the order of attempts."""

    lock: int
    attempt: int
    task: int = 0

    def encode(self) -> bytes:
        """Return the header's bytes; comparing them compares fences."""
        return _FENCE.pack(self.lock, self.attempt, self.task)


def decode_fence(header: bytes) -> Fence:
    """Read a ``tidebus-fence`` header.

    Raises:
        CorruptDataError: it has another length.
    """
    try:
        return Fence(*_FENCE.unpack(header))
    except struct.error as error:
        raise CorruptDataError("fence header does not decode", header=header[:32].hex(), bytes=len(header)) from error


def fence_of_task(fence: bytes, task: int) -> bytes:
    """Return the fence of one task's attempt at what the driver has given ``fence``; without one there is none."""
    return fence and fence[:_TASK_AT] + task.to_bytes(len(fence) - _TASK_AT, "big")
