"""Flow proofs of one partition, from sorter to processor: rows that go on to the destination against those written.

A watermark says the sum of the partition's rows with ``after_ts < commit_ts <= upto_ts``, and who wrote them
(:mod:`schemas.sink.flow_mark`). The book adds up each row once, when it is taken for the destination, and notes where
its own sum stands whenever a watermark is passed::

      rows    rows    rows                    a watermark of writer A is passed
    --+-------+-------+-------> ids added up    noted: upto_ts -> sum, for A alone
      10      20      30
                      W30 of A, after_ts = 10:  sum at 30 - sum at 10 = what it says?   PROVEN, or FlowBrokenError
                      W30 of B, after_ts = 20:  no sum of B's is noted at 20            UNPROVEN, and B's begin at 30
                      W30 without a mark:                                               UNPROVEN, nothing is noted

**The law.** Sorters of one writer make the same rows of the same raw log. So between two watermarks of one writer the
rows of the partition are the same however often they were written, by whom, and how they were cut; and each is taken
once, since repeats are dropped. If all of them were taken here, both sums are equal: a row that is lost, added, or
taken at another position or key makes them differ. Where the book cannot know that it took all of them and none of
another writer's, it compares nothing:

- it began within the window (a processor that starts, a partition that moves): nothing is noted at its ``after_ts``;
- another writer's rows may be among them: what is noted for one writer does not count for the next;
- a sorter that tells no sums, or rows that are passed over by choice: whatever was noted is forgotten.
"""

from collections.abc import Sequence
from typing import Final, Protocol

from schemas.errors import Action, BusError
from schemas.flow.flow_sum import NOTHING, FlowSum
from schemas.ids import Ts
from schemas.sink.flow_mark import FlowMark
from schemas.sink.message_rows import RowSummer

NOTED_MAX: Final = 16
"""Watermarks at which the sum is known: a sorter that begins again goes back to one that was passed lately."""
WAITING_BYTES_MAX: Final = 1024 * 1024
"""Of heads and keys that are to be added up at once."""


class FlowBrokenError(BusError):
    """Rows that a processor took from its topic are not those that the sorter says it wrote."""

    code, action = "apply.flow_broken", Action.STOP_CHANGEFEED


class TakenRows(Protocol):
    """Rows of one message that are side by side."""

    def add_to(self, summer: RowSummer) -> None:
        """Give them to a summer."""
        ...


class FlowBook:
    """See the module. Pure; begins anew with each partition that a processor takes over."""

    def __init__(self, partition: int, topic: str = "") -> None:
        self.proven = self.unproven = 0
        """Windows, as far as :meth:`go_on` was told since the processor began."""
        self._partition, self._topic = partition, topic
        self._summer = RowSummer()
        self._sum = NOTHING
        self._noted: dict[Ts, FlowSum] = {}
        self._writer = ""

    def take(self, rows: Sequence[TakenRows]) -> None:
        """Add rows that go to the destination, each once."""
        for part in rows:
            part.add_to(self._summer)
            if self._summer.bytes_total > WAITING_BYTES_MAX:
                self._sum += self._summer.take()

    def pass_watermark(self, ts: Ts, mark: FlowMark | None) -> None:
        """Note that all rows up to ``ts`` are added, and none above it; compare.

        Raises:
            FlowBrokenError: the sums differ.
        """
        self._sum += self._summer.take()
        if mark is None:
            self.forget()
            return
        if mark.writer != self._writer:
            self._noted.clear()
            self._writer = mark.writer
        base = self._noted.get(mark.after_ts)
        if base is None:
            self.unproven += 1
        elif (seen := self._sum - base) == mark.rows:
            self.proven += 1
        else:
            raise FlowBrokenError(
                f"rows of a partition {_what(mark.rows, seen)} between the sorter and the destination",
                topic=self._topic,
                partition=self._partition,
                after_ts=mark.after_ts,
                upto_ts=ts,
                expected=str(mark.rows),
                seen=str(seen),
                writer=mark.writer,
            )
        while len(self._noted) >= NOTED_MAX:
            self._noted.pop(next(iter(self._noted)))
        self._noted[ts] = self._sum

    def go_on(self, before: "FlowBook | None") -> None:
        """Count on from the book of a time in which the processor had the partition before; None: there was none."""
        if before is not None:
            self.proven, self.unproven = self.proven + before.proven, self.unproven + before.unproven

    @property
    def figures(self) -> dict[str, int]:
        """What it came to, for a log."""
        return {"windows_proven": self.proven, "windows_unproven": self.unproven}

    def forget(self) -> None:
        """Compare nothing that has begun: what was taken may not be all."""
        self.unproven += 1
        self._noted.clear()


def _what(expected: FlowSum, seen: FlowSum) -> str:
    lacking = expected.count - seen.count
    return f"are lost ({lacking})" if lacking > 0 else f"are added ({-lacking})" if lacking else "are not the same"
