"""The partitions that one processor has, as its agent drives them (:mod:`consumers.control.core.replication.executor`).

               located                add, to apply             opened                    remove
    LOCATING ----------> PREPARED --------------------> OPENING --------> APPLYING ---------------> ENDING
        |                   |                              |                                          |
        |      remove       |   remove                     |  remove, when it is opened               | ended
        +-------------------+-------------> ENDED <--------+--------------> ENDING ------------> ENDED

LOCATING asks the destination how far the partition is, and begins to read there: PREPARED, it reads on within a quota.
OPENING takes the partition over in the destination: from then on nobody who had it before writes, and where it stands
then is where applying begins. ENDING lets arrive what is under way, and keeps where it is.

What is asked of the destination goes out as orders, and comes back as answers that carry the order's ticket: an answer
to what was asked for a partition that was removed since, and perhaps added again, is dropped.

**What is reported.** ``resolved_ts`` of a partition: all of it up to there stands in the topic, and was read.
``checkpoint_ts``: all of it up to there is in the destination, but never above the global resolved_ts that the leader
has announced, which is the least resolved_ts of all partitions. So with the leader's own minimum (``leader.py``) always

    partition's resolved_ts >= global resolved_ts >= partition's checkpoint_ts >= global checkpoint_ts
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from consumers.control.core.replication.messages import Barrier, Checkpoint, Standing, TableState, TableStatus
from schemas.errors import InvariantBrokenError
from schemas.ids import TableId, Ts
from schemas.sink_figures import NO_FIGURES, SinkFigures
from schemas.tidb.spans import TableSpan

Phase = Enum("Phase", ["LOCATING", "PREPARED", "OPENING", "APPLYING", "ENDING", "ENDED"])
_STATES = {
    Phase.LOCATING: TableState.PREPARING,
    Phase.PREPARED: TableState.PREPARED,
    Phase.OPENING: TableState.PREPARED,
    Phase.APPLYING: TableState.REPLICATING,
    Phase.ENDING: TableState.STOPPING,
    Phase.ENDED: TableState.STOPPED,
}
Work = Enum("Work", ["LOCATE", "OPEN", "END", "FORGET"])


@dataclass(frozen=True, slots=True)
class WorkOrder:
    """Out. LOCATE: ask how far the partition is, and read on from there. OPEN: take it over, in the term of the leader
    of ``revision``, and apply. END: hand out nothing more, and let arrive what is under way. FORGET: drop what was
    read; needs no answer."""

    work: Work
    partition: int
    ticket: int
    revision: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionProgress:
    """How far the work on an opened partition is."""

    applied_ts: Ts
    """All up to here is in the destination."""
    read_ts: Ts
    """All up to here was read."""
    ddl: bytes = b""
    """Position of the DDL that it stands at."""
    ddl_offset: int = 0
    stands_at: Ts = Ts(0)
    """The barrier up to which all is applied, DDL too, and nothing is still to be read; 0: it does not stand at it."""
    rows_total: int = 0
    windows_proven: int = 0
    windows_unproven: int = 0
    """Of flow proofs, since this processor had the partition first."""
    sink: SinkFigures = NO_FIGURES
    """Of its writes, likewise."""


class Follows(Protocol):
    """What is asked of :class:`consumers.control.core.scheduling.agent.Agent`: what it knows of the leader."""

    @property
    def owner_revision(self) -> int: ...
    @property
    def barrier(self) -> Barrier | None: ...


class Works(Protocol):
    """What is asked of whoever does the work."""

    def progress(self, partition: int) -> PartitionProgress:
        """Return how far an opened partition is."""
        ...


@dataclass(slots=True)
class _Part:
    phase: Phase
    ticket: int
    checkpoint: Checkpoint
    """Of the last report."""
    is_removed: bool = False
    """While it is OPENING."""


def partition_span(partition: int) -> TableSpan:
    """Return the span that stands for a partition: a table of its number."""
    return TableSpan.of_table(TableId(partition))


@dataclass(slots=True)
class PartitionExecutor:
    """A :class:`consumers.control.core.replication.executor.TableExecutor`; deterministic. The shell does what
    :meth:`take_orders` returns and tells when it is done. ``leader`` is set before the first add."""

    works: Works
    leader: Follows | None = None
    _parts: dict[TableSpan, _Part] = field(default_factory=dict)
    _orders: list[WorkOrder] = field(default_factory=list)
    _tickets: int = 0

    # -- the shell's side ----------------------------------------------------------------------------------------------

    def take_orders(self) -> list[WorkOrder]:
        """Return what is to be done since the last call."""
        taken, self._orders = self._orders, []
        return taken

    def done(self, order: WorkOrder) -> bool:
        """Take that an order is done; False: nobody waits for it any more."""
        part = self._parts.get(partition_span(order.partition))
        if part is None or part.ticket != order.ticket:
            return False
        match order.work, part.phase:
            case Work.LOCATE, Phase.LOCATING:
                part.phase = Phase.PREPARED
            case Work.OPEN, Phase.OPENING:
                part.phase = Phase.APPLYING
                if part.is_removed:
                    self._end(order.partition, part)
            case Work.END, Phase.ENDING:
                self._report(order.partition, part)
                part.phase = Phase.ENDED
                self._order(Work.FORGET, order.partition, part)
            case Work.LOCATE, _:
                return False  # removed meanwhile
            case _:
                raise InvariantBrokenError("answer to an order that was not given", order=order, phase=part.phase.name)
        return True

    @property
    def applying(self) -> frozenset[int]:
        """The partitions that this processor applies."""
        phases = (Phase.APPLYING, Phase.ENDING)
        return frozenset(span.table_id for span, part in self._parts.items() if part.phase in phases)

    # -- TableExecutor -------------------------------------------------------------------------------------------------

    def add_table_span(self, span: TableSpan, checkpoint: Checkpoint, *, is_prepare: bool) -> None:
        """Locate a partition and begin to read it; or take it over and apply."""
        if is_prepare:
            self._tickets += 1
            start = Checkpoint(checkpoint.checkpoint_ts, checkpoint.checkpoint_ts)
            part = self._parts[span] = _Part(Phase.LOCATING, self._tickets, start)
            self._order(Work.LOCATE, span.table_id, part)
            return
        part = self._parts[span]
        if part.phase is Phase.PREPARED:
            part.phase = Phase.OPENING
            self._order(Work.OPEN, span.table_id, part)

    def is_add_finished(self, span: TableSpan, *, is_prepare: bool) -> bool:
        """Tell whether it is located, or applied."""
        phase = self._parts[span].phase
        return phase is not Phase.LOCATING if is_prepare else phase is Phase.APPLYING

    def remove_table_span(self, span: TableSpan) -> None:
        """Begin to end."""
        part = self._parts[span]
        match part.phase:
            case Phase.LOCATING | Phase.PREPARED:
                part.phase = Phase.ENDED
                self._order(Work.FORGET, span.table_id, part)
            case Phase.OPENING:
                part.is_removed = True
            case Phase.APPLYING:
                self._end(span.table_id, part)
            case _:
                pass

    def is_remove_finished(self, span: TableSpan) -> Checkpoint | None:
        """Return the final checkpoint and forget the partition, if it has ended."""
        part = self._parts[span]
        if part.phase is not Phase.ENDED:
            return None
        del self._parts[span]
        return self._as_announced(part.checkpoint)

    def current_spans(self) -> Collection[TableSpan]:
        """Return the partitions that were added and are not forgotten."""
        return self._parts.keys()

    def status(self, span: TableSpan, *, collect_stats: bool = False) -> TableStatus:
        """Return where a partition has come to."""
        part, standing = self._parts[span], None
        if part.phase in (Phase.APPLYING, Phase.ENDING):
            standing = self._report(span.table_id, part)
        return TableStatus(span, _STATES[part.phase], self._as_announced(part.checkpoint), standing=standing)

    def _report(self, partition: int, part: _Part) -> Standing:
        at = self.works.progress(partition)
        part.checkpoint = self._as_announced(Checkpoint(at.applied_ts, max(at.read_ts, at.applied_ts)))
        return Standing(
            ddl=at.ddl,
            offset=at.ddl_offset,
            barrier_ts=at.stands_at,
            rows_total=at.rows_total,
            windows_proven=at.windows_proven,
            windows_unproven=at.windows_unproven,
            sink=at.sink,
        )

    def _as_announced(self, at: Checkpoint) -> Checkpoint:
        """Return a checkpoint as far as this leader's global resolved_ts allows to say it: what the leader before had
        announced is not known to this one, who begins at the checkpoint that was written down.
        """
        barrier = None if self.leader is None else self.leader.barrier
        announced = Ts(0) if barrier is None else barrier.resolved_ts
        return Checkpoint(min(at.checkpoint_ts, announced), at.resolved_ts, at.last_synced_ts)

    def _end(self, partition: int, part: _Part) -> None:
        part.phase = Phase.ENDING
        self._order(Work.END, partition, part)

    def _order(self, work: Work, partition: int, part: _Part) -> None:
        revision = 0 if self.leader is None else self.leader.owner_revision
        self._orders.append(WorkOrder(work, partition, part.ticket, revision))
