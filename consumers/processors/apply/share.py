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
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TypeVar

import pymysql

from consumers.control.core.replication.messages import Barrier
from consumers.processors.apply.connection import IDLE_MAX_S, Connection
from consumers.processors.apply.destination import DatabaseDestination, PartitionPosition
from consumers.processors.apply.opened_partition import Applying, Keeping, OpenedPartition, PartitionCounts
from consumers.processors.core.apply.executor import PartitionProgress, Work, WorkOrder
from consumers.processors.core.apply.partition import Claim, DdlMark, PartitionQueue
from consumers.processors.handover import Handover, Taken
from consumers.processors.sink_source import SinkRecord, Source
from schemas.errors import InvariantBrokenError
from schemas.ids import Ts

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
        self._partitions: dict[int, OpenedPartition] = {}
        self._counts: dict[int, PartitionCounts] = {}
        """Of all partitions that it has had."""
        self._expected: Mapping[int, PartitionPosition] = {}
        self._expected_at = 0.0
        self._pool = ThreadPoolExecutor(settings.worker_count + 1, thread_name_prefix="apply")
        self._handover = Handover(source, self._pool, self._locate, self._take)
        self._connections: queue.LifoQueue[tuple[Connection, float]] = queue.LifoQueue()
        """Those that nobody uses, and since when."""
        self._barrier = Barrier(Ts(0))
        self._kept_at = self._noted_at = clock()
        self.rows_total = 0

    # -- which partitions ----------------------------------------------------------------------------------------------

    def expect(self, positions: Mapping[int, PartitionPosition]) -> None:
        """Begin to read partitions here when they come next, without asking the destination again. Where they are
        applied from is asked in any case."""
        self._expected, self._expected_at = positions, self._clock()

    def obey(self, orders: list[WorkOrder]) -> None:
        """Begin what the executor orders; :meth:`turn` returns what is done.

        Raises:
            InvariantBrokenError: a partition is to be forgotten of which something is under way.
        """
        for order in orders:
            if order.work is Work.FORGET:
                forgotten = self._partitions.pop(order.partition, None)
                if forgotten is not None and forgotten.is_busy:
                    raise InvariantBrokenError("partition is forgotten with work under way", partition=order.partition)
            elif order.work is Work.END:
                self._partitions[order.partition].ending = order
        self._handover.obey(orders)

    def progress(self, partition: int) -> PartitionProgress:
        """Return how far an opened partition is."""
        return self._partitions[partition].progress(self._barrier.global_barrier_ts)

    def mark(self, position: bytes) -> DdlMark | None:
        """Return the DDL at ``position`` if a partition of ours stands at it."""
        marks = (at.queue.barrier for at in self._partitions.values())
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
        busy = is_restless or self._handover.is_busy or any(at.is_busy for at in self._partitions.values())
        for record in self._source.poll(BUSY_POLL_S if busy else IDLE_POLL_S):
            if (at := self._partitions.get(record.partition)) is not None:
                at.feed(record)
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
        wait([at.applying.seconds for at in self._partitions.values() if at.applying is not None])
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
        opened = OpenedPartition(
            PartitionQueue(partition, at.position, at.next_offset, settings.ignore_start_ts, settings.topic),
            at.position,
            self._counts.setdefault(partition, PartitionCounts()),
        )
        self._partitions[partition] = opened
        for record in records:
            opened.feed(record)

    def _end(self) -> list[WorkOrder]:
        """Keep where partitions that are given away stand, once nothing of them is under way."""
        done = []
        for part, at in self._partitions.items():
            if at.ending is None or at.is_busy:
                continue
            if at.may_keep(self._barrier.passed_ddl):
                self._submit_keep(part, at)
                continue
            queue = at.queue
            self._source.note({part: queue.offset})
            figures = {**queue.flow.figures, "late_records": queue.late_records}
            log.info("partition is given away", extra={"partition": part, **figures})
            done.append(at.ending)
            at.ending = None
        return done

    # Rows.

    def _hand_out(self) -> None:
        for part, at in self._partitions.items():
            if at.is_busy or at.ending is not None:
                continue
            claim = at.queue.claim(
                self._settings.max_txn_row,
                bytes_max=CLAIM_BYTES_MAX,
                barrier_ts=self._barrier.global_barrier_ts,
            )
            if claim is not None:
                at.applying = Applying(claim, self._pool.submit(self._apply, part, at.stored, claim, self._clock()))

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
        for at in self._partitions.values():
            if at.is_busy:
                self.rows_total += at.gather(self._clock())

    def _pass_ddls(self) -> None:
        for at in self._partitions.values():
            at.pass_ddl(self._barrier.passed_ddl)

    # Bounds and notes.

    def _throttle(self) -> None:
        for part, at in self._partitions.items():
            queue = at.queue
            is_full = queue.waiting_bytes > WAITING_BYTES_MAX and queue.can_wait
            if is_full and not at.is_paused:
                at.is_paused = True
                self._source.pause(part)
            elif at.is_paused and (queue.waiting_bytes < WAITING_BYTES_MAX // 2 or not queue.can_wait):
                at.is_paused = False
                self._source.resume(part)

    def _keep_and_note(self) -> None:
        now = self._clock()
        if now - self._noted_at >= NOTE_S:
            self._noted_at = now
            self._source.note({part: at.queue.offset for part, at in self._partitions.items()})
        if now - self._kept_at < KEEP_S:
            return
        self._kept_at = now
        for part, at in self._partitions.items():
            if not at.is_busy and at.may_keep(self._barrier.passed_ddl):
                self._submit_keep(part, at)

    def _submit_keep(self, part: int, at: OpenedPartition) -> None:
        position = at.position
        at.keeping = Keeping(position, self._pool.submit(self._keep, part, at.stored, position))

    def _keep(self, part: int, before: bytes, at: PartitionPosition) -> None:
        self._with_connection(lambda connection: self._destination.keep(connection, part, before, at))


def _close(connection: Connection) -> None:
    with contextlib.suppress(pymysql.MySQLError, OSError):
        connection.close()
