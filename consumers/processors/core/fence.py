"""Which records of a partition come late: from a sorter, or an attempt of its, behind what a newer one has written.

A sorter that was stopped, and has lost its lock meanwhile, sends what its client still held when it goes on; so does a
task on a machine that was suspended. Each record says whose it is (:mod:`schemas.sink.fence`). Of a partition::

      offset    0    1    2    3    4    5    6    7    8
      fence     A    A    B    B    B    A    B    C    -          A < B < C
      commit_ts 21   22   11   W20  21   22   22   W30  31
                          |              late           no fence: of a former release
                          a new pass begins

      record --newer fence than the newest seen, or none--> NEW PASS: what waits at or above it comes again
             --the newest one's-----------------------> GOES ON; not above the record before it, and no part of its
                                                        message: a copy of Kafka's, passed over
             --an older one---------------------------> LATE: passed over, as if it did not stand there

**The law.** An attempt begins where everything at or below its cut's begin is acknowledged, whoever wrote it: so that
stands before the attempt's first record. What is above, the attempt or those after it write, in order and without
gaps, by the settings that hold now. So behind the first record of an attempt a record of an older one is either a
repeat of what stands before, or comes again, or is not to come any more: nothing is lost with it, and what waits must
not be forgotten for it. Before that first record, the older one goes on as if it had been slow: in order, without gaps.

**A new reader** knows no fence until it reads one, and would take a late record for a writer's. So it begins at a
record that was taken, or is shown the one before (:meth:`PartitionFence.learn`): who had that written was the newest.

**Without fences**, as while releases change, each record may begin a new pass, and late ones are taken for one; the
flow proof finds what is lost then (:mod:`consumers.processors.core.flow_book`).

A holder of the lock asks ZooKeeper before each cut, so one that lost it begins one attempt at most. Where an older lock
begins one after the other, ZooKeeper's numbers have gone back, as when it was restored from a copy: that is an error,
for nobody would hear of what a sorter writes from then on.
"""

from dataclasses import dataclass, field
from typing import Final

from schemas.errors import Action, BusError
from schemas.sink.fence import NO_FENCE, decode_fence

LATE_ATTEMPTS_MAX: Final = 8
"""Begun behind a newer lock's records. A driver that wakes up in a job may try it again, some times."""


class FenceWentBackError(BusError):
    """Records of an older lock go on coming: ZooKeeper's numbers went back, and what is written now would be lost."""

    code, action = "apply.fence_went_back", Action.STOP_CHANGEFEED


@dataclass(slots=True)
class PartitionFence:
    """See the module. Pure; fed with the partition's records in offset order."""

    partition: int
    topic: str = ""
    late: int = 0
    """Records that were passed over."""
    _newest: bytes = NO_FENCE
    _last: bytes = b""
    """Position of the newest one's last record."""
    _is_open: bool = False
    """Whether that is a message of which parts are to come."""
    _late_attempts: set[tuple[int, int]] = field(default_factory=set)
    """Lock and attempt."""

    def learn(self, fence: bytes) -> None:
        """Note who wrote the record before the first one that is taken.

        Raises:
            CorruptDataError: the fence does not decode.
        """
        if fence:
            decode_fence(fence)
        self._newest, self._last, self._is_open = fence, b"", False

    def close(self) -> None:
        """Note that the last record's message is whole."""
        self._is_open = False

    def passes(self, fence: bytes, position: bytes, *, is_part: bool = False) -> bool:
        """Take the next record's head; tell whether it is to be taken. ``is_part``: it is a part of a message.

        Raises:
            CorruptDataError: the fence does not decode.
            FenceWentBackError: a sorter writes that nobody would hear.
        """
        if fence == self._newest:
            if fence and (position < self._last or (position == self._last and not self._is_open)):
                self.late += 1
                return False
            self._last, self._is_open = position, is_part
            return True
        if fence < self._newest and fence:
            self._note_late(fence)
            return False
        if fence:
            decode_fence(fence)
        self._newest, self._last, self._is_open = fence, position, is_part
        return True

    def _note_late(self, fence: bytes) -> None:
        self.late += 1
        written_by, newest = decode_fence(fence), decode_fence(self._newest)
        if written_by.lock == newest.lock:
            return
        self._late_attempts.add((written_by.lock, written_by.attempt))
        if len(self._late_attempts) > LATE_ATTEMPTS_MAX:
            raise FenceWentBackError(
                "records of an older lock go on coming: were ZooKeeper's data restored? Resume the changefeed with "
                "--overwrite-checkpoint-ts at its checkpoint, which gives it a new topic",
                topic=self.topic,
                partition=self.partition,
                lock=written_by.lock,
                newest_lock=newest.lock,
            )
