"""The partitions that one processor applies to a database: read, written, and given away one by one.

One thread reads and decides (:mod:`consumers.processors.core.apply`), workers write. A partition has one transaction
under way at a time; while it is, more is read, and the next takes all that has come, so batches grow with the load. The
first error ends everything; whoever began it begins anew where the destination says.
"""

import contextlib
import logging
import queue
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TypeVar

import pymysql

from consumers.control.core.replication.messages import Barrier
from consumers.processors.apply.connection import IDLE_MAX_S, Connection
from consumers.processors.apply.destination import DatabaseDestination, PartitionPosition
from consumers.processors.core.apply.executor import PartitionProgress, Work, WorkOrder
from consumers.processors.core.apply.partition import Claim, DdlMark, PartitionQueue, covered_ts
from consumers.processors.core.flow_book import FlowBook
from consumers.processors.handover import Handover, Taken
from consumers.processors.sink_source import SinkRecord, Source
from schemas.ids import Ts
from schemas.sink.position import POSITION_CLASS_AT, PositionClass
from schemas.sink_figures import LEAST_ROWS, LEAST_US, NO_FIGURES, SinkFigures, microseconds

log = logging.getLogger(__name__)
Result = TypeVar("Result")

WAITING_BYTES_MAX = 32 * 1024 * 1024
"""Of one partition's literals in memory; they wait in the messages that they came in."""
CLAIM_BYTES_MAX = 16 * 1024 * 1024
"""Of one transaction's statements; an upstream transaction that is larger stays whole."""
KEEP_S = 10.0
"""How often a partition's position is written when it has no rows; a restart reads so many watermarks again."""
NOTE_S = 1.0
"""Between two commits of the group's offsets."""
EXPECTED_S = 5.0
"""So long positions are good for beginning to read; Kafka may have dropped what stands at older ones."""
BUSY_POLL_S, IDLE_POLL_S = 0.005, 0.02
"""How long a look at Kafka may take: so long a finished transaction waits for the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """What is needed of the changefeed."""

    worker_count: int
    max_txn_row: int
    ignore_start_ts: frozenset[int] = frozenset()
    topic: str = ""
    """For errors."""


class DatabaseShare:
    """See the module. :meth:`turn` again and again, then :meth:`close`."""

    def __init__(
        self,
        source: Source,
        destination: DatabaseDestination,
        settings: RunSettings,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin without any partition."""
        self._source, self._destination, self._settings, self._clock = source, destination, settings, clock
        self.queues: dict[int, PartitionQueue] = {}
        self._stored: dict[int, bytes] = {}
        """Where each partition stands in the destination."""
        self._read_ts: dict[int, Ts] = {}
        self._rows: dict[int, int] = {}
        self._figures: dict[int, SinkFigures] = {}
        self._done_at: dict[int, float] = {}
        """When the last transaction of each partition ended."""
        self._books: dict[int, FlowBook] = {}
        """Of all partitions that it has had."""
        self._ending: dict[int, WorkOrder] = {}
        self._expected: Mapping[int, PartitionPosition] = {}
        self._expected_at = 0.0
        self._pool = ThreadPoolExecutor(settings.worker_count + 1, thread_name_prefix="apply")
        self._handover = Handover(source, self._pool, self._locate, self._take)
        self._connections: queue.LifoQueue[tuple[Connection, float]] = queue.LifoQueue()
        """Those that nobody uses, and since when."""
        self._claims: dict[int, tuple[Future[tuple[float, float]], Claim]] = {}
        self._keeps: dict[int, tuple[Future[None], PartitionPosition]] = {}
        self._paused: set[int] = set()
        self._barrier = Barrier(Ts(0))
        self._kept_at = self._noted_at = clock()
        self.rows_total = 0

    # -- which partitions ----------------------------------------------------------------------------------------------

    def expect(self, positions: Mapping[int, PartitionPosition]) -> None:
        """Begin to read partitions here when they come next, without asking the destination again. Where they are
        applied from is asked in any case."""
        self._expected, self._expected_at = positions, self._clock()

    def obey(self, orders: list[WorkOrder]) -> None:
        """Begin what the executor orders; :meth:`turn` returns what is done."""
        for order in orders:
            if order.work is Work.FORGET:
                for known in (self.queues, self._stored, self._read_ts, self._done_at):
                    known.pop(order.partition, None)
                self._paused.discard(order.partition)
            elif order.work is Work.END:
                self._ending[order.partition] = order
        self._handover.obey(orders)

    def progress(self, partition: int) -> PartitionProgress:
        """Return how far an opened partition is."""
        at = self.queues[partition]
        # A position that is being written must not be overtaken by the leader's, who writes it when all stand.
        mark = None if partition in self._keeps else at.barrier
        barrier_ts = self._barrier.global_barrier_ts
        return PartitionProgress(
            applied_ts=at.applied_ts,
            read_ts=max(self._read_ts[partition], at.applied_ts),
            ddl=b"" if mark is None else mark.position,
            ddl_offset=0 if mark is None else mark.offset,
            stands_at=barrier_ts if at.stands_at(barrier_ts) else Ts(0),
            rows_total=self._rows[partition],
            windows_proven=at.flow.proven,
            windows_unproven=at.flow.unproven,
            sink=self._figures[partition],
        )

    def mark(self, position: bytes) -> DdlMark | None:
        """Return the DDL at ``position`` if a partition of ours stands at it."""
        marks = (at.barrier for at in self.queues.values())
        return next((mark for mark in marks if mark is not None and mark.position == position), None)

    # -- the work ------------------------------------------------------------------------------------------------------

    def turn(self, barrier: Barrier, *, is_restless: bool) -> list[WorkOrder]:
        """Do what can be done now; return the orders that are done.

        Args:
            barrier: how far partitions may go.
            is_restless: the caller waits for something else than records.

        Raises:
            BusError: everything is over.
        """
        self._barrier = barrier
        busy = bool(is_restless or self._claims or self._keeps or self._handover.is_busy)
        for record in self._source.poll(BUSY_POLL_S if busy else IDLE_POLL_S):
            if record.partition in self.queues:
                self._feed(record)
            else:
                self._handover.add(record)
        self._gather()
        done = self._handover.finished(self._begin)
        self._pass_ddls()
        self._hand_out()
        done += self._end()
        self._throttle()
        self._keep_and_note()
        return done

    def finish(self) -> None:
        """Let transactions that are under way arrive, so that a stop repeats nothing.

        Raises:
            BusError: one did not.
        """
        wait([future for future, _ in self._claims.values()])
        self._gather()

    def close(self) -> None:
        """Wait for what is under way, and close the connections."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        while not self._connections.empty():
            _close(self._connections.get_nowait()[0])

    # Partitions that come and go.

    def _locate(self, parts: list[int]) -> Mapping[int, int]:
        known, self._expected = self._expected, {}
        is_fresh = self._clock() - self._expected_at < EXPECTED_S
        positions = known if is_fresh and known.keys() >= set(parts) else self._destination.positions(parts)
        return {part: positions[part].next_offset for part in parts}

    def _take(self, parts: list[int], revision: int) -> Mapping[int, Taken[PartitionPosition]]:
        return {part: Taken(at, at.next_offset) for part, at in self._destination.take(parts, revision).items()}

    def _begin(self, partition: int, at: PartitionPosition, records: list[SinkRecord]) -> None:
        """Apply a partition from where it is now."""
        settings = self._settings
        self.queues[partition] = PartitionQueue(
            partition, at.position, at.next_offset, settings.ignore_start_ts, settings.topic
        )
        self.queues[partition].flow.go_on(self._books.get(partition))
        self._books[partition] = self.queues[partition].flow
        self._stored[partition] = at.position
        self._read_ts[partition] = covered_ts(at.position)
        self._rows.setdefault(partition, 0)
        self._figures.setdefault(partition, NO_FIGURES)
        for record in records:
            self._feed(record)

    def _end(self) -> list[WorkOrder]:
        """Keep where partitions that are given away stand, once nothing of them is under way."""
        done = []
        for part, order in list(self._ending.items()):
            if part in self._claims or part in self._keeps:
                continue
            at = self.queues[part]
            if self._may_keep(part):
                self._submit_keep(part, PartitionPosition(at.applied, at.offset))
                continue
            self._source.note({part: at.offset})
            figures = {**at.flow.figures, "late_records": at.late_records}
            log.info("partition is given away", extra={"partition": part, **figures})
            del self._ending[part]
            done.append(order)
        return done

    def _feed(self, record: SinkRecord) -> None:
        partition, position = record.partition, record.position
        is_taken = self.queues[partition].feed(
            position=position, offset=record.offset, key=record.key, value=record.value, fence=record.fence
        )
        if is_taken and position[POSITION_CLASS_AT] == PositionClass.WATERMARK:
            self._read_ts[partition] = max(self._read_ts[partition], covered_ts(position))

    # Rows.

    def _hand_out(self) -> None:
        for part, waiting in self.queues.items():
            if part in self._claims or part in self._keeps or part in self._ending:
                continue
            claim = waiting.claim(
                self._settings.max_txn_row,
                bytes_max=CLAIM_BYTES_MAX,
                barrier_ts=self._barrier.global_barrier_ts,
            )
            if claim is not None:
                before = self._stored[part]
                self._claims[part] = self._pool.submit(self._apply, part, before, claim, self._clock()), claim

    def _apply(self, part: int, before: bytes, claim: Claim, since_s: float) -> tuple[float, float]:
        """Return how long the claim has waited, and how long it took."""
        begun_s = self._clock()
        self._with_connection(lambda connection: self._destination.apply(connection, part, before, claim))
        return begun_s - since_s, self._clock() - begun_s

    def _with_connection(self, use: Callable[[Connection], Result]) -> Result:
        """Use a worker's connection; one that was in an error is closed."""
        connection = self._idle_connection() or self._destination.connect(multi_statements=True)
        try:
            result = use(connection)
        except BaseException:
            _close(connection)
            raise
        self._connections.put((connection, self._clock()))
        return result

    def _idle_connection(self) -> Connection | None:
        with contextlib.suppress(queue.Empty):
            while True:
                connection, since = self._connections.get_nowait()
                if self._clock() - since < IDLE_MAX_S / 2:
                    return connection
                _close(connection)  # the server may be about to
        return None

    def _gather(self) -> None:
        """Take in what workers have done."""
        for part, (future, claim) in list(self._claims.items()):
            if future.done():
                self._count(part, claim, *future.result())
                del self._claims[part]
                self._stored[part] = claim.position
                self.queues[part].arrived()
                self._rows[part] += len(claim.rows)
                self.rows_total += len(claim.rows)
        for part, (kept, at) in list(self._keeps.items()):
            if kept.done():
                kept.result()
                del self._keeps[part]
                self._stored[part] = at.position

    def _count(self, part: int, claim: Claim, queued_s: float, took_s: float) -> None:
        known, now = self._figures[part], self._clock()
        round_s, self._done_at[part] = now - self._done_at.get(part, now - queued_s - took_s), now
        self._figures[part] = SinkFigures(
            flushes_us=known.flushes_us.of(microseconds(took_s), LEAST_US),
            queued_us=known.queued_us.of(microseconds(queued_s), LEAST_US),
            batch_rows=known.batch_rows.of(len(claim.rows), LEAST_ROWS),
            rounds_us=known.rounds_us.of(microseconds(round_s), LEAST_US),
        )

    def _pass_ddls(self) -> None:
        """Go on behind DDLs that have run: the leader has moved these partitions' positions behind them."""
        for part, waiting in self.queues.items():
            mark = waiting.barrier
            if mark is not None and mark.position <= self._barrier.passed_ddl and part not in self._keeps:
                waiting.pass_barrier(mark.position)
                self._stored[part] = mark.position

    # Bounds and notes.

    def _throttle(self) -> None:
        for part, waiting in self.queues.items():
            full = waiting.waiting_bytes > WAITING_BYTES_MAX and waiting.can_wait
            if full and part not in self._paused:
                self._paused.add(part)
                self._source.pause(part)
            elif part in self._paused and (waiting.waiting_bytes < WAITING_BYTES_MAX // 2 or not waiting.can_wait):
                self._paused.discard(part)
                self._source.resume(part)

    def _keep_and_note(self) -> None:
        now = self._clock()
        if now - self._noted_at >= NOTE_S:
            self._noted_at = now
            self._source.note({part: waiting.offset for part, waiting in self.queues.items()})
        if now - self._kept_at < KEEP_S:
            return
        self._kept_at = now
        for part, waiting in self.queues.items():
            if part not in self._claims and part not in self._keeps and self._may_keep(part):
                self._submit_keep(part, PartitionPosition(waiting.applied, waiting.offset))

    def _may_keep(self, part: int) -> bool:
        """Tell whether a position may be written: not while the leader may be moving it behind a DDL.

        Who has read beyond all DDLs that have run stands at none of them. By what is stored that cannot be told: a new
        leader takes the highest position of all for what has run, and a partition without rows is stored below it.
        """
        at = self.queues[part]
        return at.applied != self._stored[part] and at.barrier is None and at.applied >= self._barrier.passed_ddl

    def _submit_keep(self, part: int, at: PartitionPosition) -> None:
        self._keeps[part] = self._pool.submit(self._keep, part, self._stored[part], at), at

    def _keep(self, part: int, before: bytes, at: PartitionPosition) -> None:
        self._with_connection(lambda connection: self._destination.keep(connection, part, before, at))


def _close(connection: Connection) -> None:
    with contextlib.suppress(pymysql.MySQLError, OSError):
        connection.close()
