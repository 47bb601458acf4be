"""A partition while its processor applies it: what waits of it, where it stands, and what is under way."""

from concurrent.futures import Future
from dataclasses import dataclass, field

from consumers.processors.apply.destination import PartitionPosition
from consumers.processors.core.apply.executor import PartitionProgress, WorkOrder
from consumers.processors.core.apply.partition import Claim, PartitionQueue, covered_ts
from consumers.processors.core.flow_book import FlowBook
from consumers.processors.sink_source import SinkRecord
from schemas.ids import Ts
from schemas.sink.position import POSITION_CLASS_AT, PositionClass
from schemas.sink_figures import LEAST_ROWS, LEAST_US, NO_FIGURES, SinkFigures, microseconds


@dataclass(slots=True)
class PartitionCounts:
    """What a processor counts of a partition over all the times that it has it."""

    rows: int = 0
    figures: SinkFigures = NO_FIGURES
    book: FlowBook | None = None
    """Of the last time; None: it has not had the partition yet."""


@dataclass(frozen=True, slots=True)
class Applying:
    """Transactions on their way to the destination."""

    claim: Claim
    seconds: Future[tuple[float, float]]
    """How long they have waited for a worker, and how long they took."""


@dataclass(frozen=True, slots=True)
class Keeping:
    """A position on its way to the destination, without rows."""

    at: PartitionPosition
    kept: Future[None]


@dataclass(slots=True, eq=False)
class OpenedPartition:
    """See the module. One thing is under way at a time: transactions, or a position."""

    queue: PartitionQueue
    stored: bytes
    """Where it stands in the destination."""
    counts: PartitionCounts = field(default_factory=PartitionCounts)
    read_ts: Ts = field(init=False)
    """All up to here was read."""
    applying: Applying | None = None
    keeping: Keeping | None = None
    ending: WorkOrder | None = None
    """What gives it away, once nothing is under way; None: it stays."""
    is_paused: bool = False
    """Whether its records are not read for now."""
    done_at: float | None = None
    """When its last transaction ended, by the share's clock."""

    def __post_init__(self) -> None:
        """Count on from the last time."""
        self.read_ts = covered_ts(self.stored)
        self.queue.flow.go_on(self.counts.book)
        self.counts.book = self.queue.flow

    @property
    def is_busy(self) -> bool:
        """Whether something is under way."""
        return self.applying is not None or self.keeping is not None

    @property
    def position(self) -> PartitionPosition:
        """Where it stands here."""
        return PartitionPosition(self.queue.applied, self.queue.offset)

    def progress(self, barrier_ts: Ts) -> PartitionProgress:
        """Return how far it is; ``barrier_ts`` is how far it may go."""
        queue = self.queue
        # A position that is being written must not be overtaken by the leader's, who writes it when all stand.
        mark = None if self.keeping is not None else queue.barrier
        return PartitionProgress(
            applied_ts=queue.applied_ts,
            read_ts=max(self.read_ts, queue.applied_ts),
            ddl=b"" if mark is None else mark.position,
            ddl_offset=0 if mark is None else mark.offset,
            stands_at=barrier_ts if queue.stands_at(barrier_ts) else Ts(0),
            rows_total=self.counts.rows,
            windows_proven=queue.flow.proven,
            windows_unproven=queue.flow.unproven,
            sink=self.counts.figures,
        )

    def feed(self, record: SinkRecord) -> None:
        """Take its next record.

        Raises:
            BusError: as :meth:`PartitionQueue.feed`.
        """
        position = record.position
        is_taken = self.queue.feed(
            position=position, offset=record.offset, key=record.key, value=record.value, fence=record.fence
        )
        if is_taken and position[POSITION_CLASS_AT] == PositionClass.WATERMARK:
            self.read_ts = max(self.read_ts, covered_ts(position))

    def gather(self, now_s: float) -> int:
        """Take in what a worker has done; return how many rows have arrived.

        Raises:
            BusError: it could not be done.
        """
        rows = 0
        if self.applying is not None and self.applying.seconds.done():
            claim, (queued_s, took_s) = self.applying.claim, self.applying.seconds.result()
            self.applying, self.stored, rows = None, claim.position, len(claim.rows)
            self.queue.arrived()
            self.count(rows, queued_s, took_s, now_s)
        if self.keeping is not None and self.keeping.kept.done():
            self.keeping.kept.result()
            self.stored, self.keeping = self.keeping.at.position, None
        return rows

    def count(self, rows: int, queued_s: float, took_s: float, now_s: float) -> None:
        """Count transactions that have arrived by ``now_s``."""
        figures = self.counts.figures
        round_s = queued_s + took_s if self.done_at is None else now_s - self.done_at
        self.done_at = now_s
        self.counts.rows += rows
        self.counts.figures = SinkFigures(
            flushes_us=figures.flushes_us.of(microseconds(took_s), LEAST_US),
            queued_us=figures.queued_us.of(microseconds(queued_s), LEAST_US),
            batch_rows=figures.batch_rows.of(rows, LEAST_ROWS),
            rounds_us=figures.rounds_us.of(microseconds(round_s), LEAST_US),
        )

    def pass_ddl(self, passed_ddl: bytes) -> None:
        """Go on behind a DDL that has run: the leader has moved this partition's position behind it.

        Args:
            passed_ddl: position of the last DDL that has run.
        """
        mark = self.queue.barrier
        if mark is not None and mark.position <= passed_ddl and self.keeping is None:
            self.queue.pass_barrier(mark.position)
            self.stored = mark.position

    def may_keep(self, passed_ddl: bytes) -> bool:
        """Tell whether a position may be written: not while the leader may be moving it behind a DDL.

        A partition that has applied all up to the last DDL that has run stands at none of them. What is stored does not
        show that: a new leader takes the highest stored position of all partitions for what has run, and one without
        rows is stored below it.
        """
        queue = self.queue
        return queue.applied != self.stored and queue.barrier is None and queue.applied >= passed_ddl
