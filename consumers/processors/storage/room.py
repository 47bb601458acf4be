"""How many lines of a storage processor wait in memory, and which partitions are not read for it.

Lines of a table version that the first partition, where schema files stand, has not come to may not be written yet:
they are held, and what is read behind them waits too.

    held lines > half of the room    partitions that are held are paused, until they may be written
    held lines > all of it           all but the first partition are, until it is less
    other lines > what held ones     they are written before their time: never less than that at once, for each look
    leave, or half of the room       would make a file of what one poll brought

So no more than twice the room waits, beside what a poll brings and what a partition brings when it is taken over. The
first partition is never paused, and all that is held waits for it alone: nobody stays paused.
"""

from collections.abc import Callable, Mapping

from consumers.processors.core.apply.leader import SCHEMAS_PARTITION
from consumers.processors.core.storage.partition import PartitionLines
from consumers.processors.sink_source import Source


class Room:
    """One processor's, for all its partitions."""

    def __init__(self, source: Source, bytes_max: int) -> None:
        """``bytes_max``: the room."""
        self._source, self._bytes_max = source, bytes_max
        self._paused: set[int] = set()

    def forget(self, partition: int) -> None:
        """Take that a partition is not read any more, or anew: whoever begins to read one reads it unpaused."""
        self._paused.discard(partition)

    def is_full(self, partitions: Mapping[int, PartitionLines], may_flush: Callable[[int], bool]) -> bool:
        """Pause partitions and go on with others; tell whether what may be written is to be, before its time."""
        total, half = sum(lines.bytes_total for lines in partitions.values()), self._bytes_max // 2
        if total <= half and not self._paused:
            return False
        held = {number for number in partitions if not may_flush(number)}
        held_bytes = sum(partitions[number].bytes_total for number in held)
        if held_bytes > self._bytes_max:
            self._pause(partitions.keys() - {SCHEMAS_PARTITION})
        else:
            self._pause(held if held_bytes > half else held & self._paused)
        return total - held_bytes > self._bytes_max - min(held_bytes, half)

    def _pause(self, wanted: set[int]) -> None:
        """Let these partitions be paused, and no others."""
        for number in sorted(self._paused - wanted):
            self._source.resume(number)
        for number in sorted(wanted - self._paused):
            self._source.pause(number)
        self._paused = wanted
