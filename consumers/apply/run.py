"""One run of a processor: reads its partitions, writes what may be applied, takes DDL and syncpoints in their place.

One thread reads and decides (:mod:`consumers.core.apply`), workers write. A partition has one transaction under way at
a time; while it is, more is read, and the next takes all that has come, so batches grow with the load. The first error
ends the run; whoever started it begins another one where the destination says.
"""

import contextlib
import logging
import queue
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Protocol, TypeVar

import pymysql

from consumers.apply.connection import Connection
from consumers.apply.ddl import DdlRunner
from consumers.apply.destination import Destination, Found, Place
from consumers.apply.source import Source
from consumers.core.apply.barrier import (
    Barrier,
    Begun,
    Checked,
    Finished,
    Message,
    Order,
    Phase,
    Ran,
    Skipped,
    Stands,
    step,
)
from consumers.core.apply.partition import Claim, DdlMark, PartitionQueue
from schemas.errors import InvariantBrokenError
from schemas.ids import Ts

log = logging.getLogger(__name__)
Result = TypeVar("Result")

WAITING_BYTES_MAX = 32 * 1024 * 1024
"""Of one partition's literals in memory, about; Python objects around short rows take some five times as much."""
CLAIM_BYTES_MAX = 16 * 1024 * 1024
"""Of one transaction's statements; an upstream transaction that is larger stays whole."""
KEEP_S = 10.0
"""How often a partition's position is written when it has no rows; a restart reads so many watermarks again."""
NOTE_S = 1.0
"""Between two commits of the group's offsets."""
BUSY_POLL_S, IDLE_POLL_S = 0.005, 0.02
"""How long a look at Kafka may take: so long a finished transaction waits for the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """What a run needs of the changefeed."""

    worker_count: int
    max_txn_row: int
    ignore_start_ts: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """How far a run is."""

    checkpoint_ts: Ts
    rows_total: int
    statements_total: int
    txns_total: int
    ddl_total: int


class Syncpoints(Protocol):
    """Where the destination stands still, and what is done there."""

    def next(self, last: Ts) -> Ts | None:
        """Return the first after ``last`` (0: the first of all); None: there is none."""
        ...

    def write(self, ts: Ts) -> None:
        """The destination stands still at ``ts``.

        Raises:
            BusError: it could not be written.
        """
        ...


class ApplyRun:
    """See the module. :meth:`turn` again and again, then :meth:`close`."""

    def __init__(
        self,
        *,
        source: Source,
        destination: Destination,
        runner: DdlRunner,
        found: Found,
        settings: RunSettings,
        syncpoints: Syncpoints | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``found`` is what :meth:`Destination.open` said; ``source`` reads from its offsets."""
        self._source, self._destination, self._runner = source, destination, runner
        self._settings, self._syncpoints, self._clock = settings, syncpoints, clock
        ignored = settings.ignore_start_ts
        self.queues = {
            part: PartitionQueue(part, place.position, place.next_offset, ignored)
            for part, place in found.places.items()
        }
        self._stored = {part: place.position for part, place in found.places.items()}
        """Where each partition stands in the destination."""
        self._barrier = Barrier(frozenset(self.queues), noted=found.ddl_noted)
        self._mark: DdlMark | None = None
        self._sync_ts = None if syncpoints is None else syncpoints.next(found.syncpoint_ts)
        self._pool = ThreadPoolExecutor(settings.worker_count, thread_name_prefix="apply")
        self._connections: queue.LifoQueue[Connection] = queue.LifoQueue()
        self._claims: dict[int, tuple[Future[int], Claim]] = {}
        self._keeps: dict[int, tuple[Future[None], Place]] = {}
        self._step: Future[Message] | None = None
        """Of the barrier, under way."""
        self._sync: Future[None] | None = None
        self._paused: set[int] = set()
        self._kept_at = self._noted_at = clock()
        self._rows = self._statements = self._txns = self._ddls = 0

    @property
    def applied(self) -> Applied:
        """How far it is."""
        return Applied(
            checkpoint_ts=min(queue.applied_ts for queue in self.queues.values()),
            rows_total=self._rows,
            statements_total=self._statements,
            txns_total=self._txns,
            ddl_total=self._ddls,
        )

    def turn(self) -> bool:
        """Do what can be done now; tell whether anything was.

        Raises:
            BusError: the run is over.
        """
        busy = bool(self._claims or self._keeps or self._step or self._sync)
        records = self._source.poll(BUSY_POLL_S if busy else IDLE_POLL_S)
        for record in records:
            self.queues[record.partition].feed(
                position=record.position, offset=record.offset, key=record.key, value=record.value
            )
        did = self._gather()
        did |= self._hand_out()
        did |= self._stand_at_ddl()
        did |= self._stand_at_syncpoint()
        self._throttle()
        self._keep_and_note()
        return did or bool(records)

    def close(self) -> None:
        """Wait for what is under way, and close the connections."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        while not self._connections.empty():
            _close(self._connections.get_nowait())

    def finish_claims(self) -> None:
        """Let transactions that are under way arrive, so that a stop repeats nothing.

        Raises:
            BusError: one did not.
        """
        wait([future for future, _ in self._claims.values()])
        self._gather()

    # Rows.

    def _hand_out(self) -> bool:
        did = False
        for part, waiting in self.queues.items():
            if part in self._claims or part in self._keeps:
                continue
            claim = waiting.claim(self._settings.max_txn_row, bytes_max=CLAIM_BYTES_MAX, barrier_ts=self._sync_ts)
            if claim is not None:
                before = self._stored[part]
                self._claims[part] = self._pool.submit(self._apply, part, before, claim), claim
                did = True
        return did

    def _apply(self, part: int, before: bytes, claim: Claim) -> int:
        return self._with_connection(lambda connection: self._destination.apply(connection, part, before, claim))

    def _with_connection(self, use: Callable[[Connection], Result]) -> Result:
        """Use a worker's connection; one that was in an error is closed."""
        try:
            connection = self._connections.get_nowait()
        except queue.Empty:
            connection = self._destination.connect()
        try:
            result = use(connection)
        except BaseException:
            _close(connection)
            raise
        self._connections.put(connection)
        return result

    def _gather(self) -> bool:
        """Take in what workers have done."""
        did = False
        for part, (future, claim) in list(self._claims.items()):
            if future.done():
                self._statements += future.result()
                del self._claims[part]
                self._stored[part] = claim.position
                self.queues[part].arrived()
                self._rows, self._txns, did = self._rows + len(claim.rows), self._txns + claim.txns, True
        for part, (kept, place) in list(self._keeps.items()):
            if kept.done():
                kept.result()
                del self._keeps[part]
                self._stored[part] = place.position
        return did

    # DDL.

    def _stand_at_ddl(self) -> bool:
        if self._step is not None:
            if not self._step.done():
                return False
            message, self._step = self._step.result(), None
            self._take(message)
            return True
        did = False
        for part, waiting in self.queues.items():
            mark = waiting.barrier
            if mark is None or part in self._keeps or part in self._barrier.standing:
                continue
            if self._sync_ts is not None and mark.ddl.commit_ts > self._sync_ts:
                continue
            self._mark = mark
            self._take(Stands(part, mark.position))
            did = True
        return did

    def _take(self, message: Message) -> None:
        self._barrier, orders = step(self._barrier, message)
        for order in orders:
            self._obey(order)

    def _obey(self, order: Order) -> None:
        mark = self._mark
        if mark is None or mark.position != order.position:
            raise InvariantBrokenError("order for a ddl that nobody stands at", position=order.position.hex())
        if order.phase is Phase.GATHER:
            for part, waiting in self.queues.items():
                waiting.pass_barrier(order.position)
                self._stored[part] = order.position
            self._ddls, self._mark = self._ddls + 1, None
            log.info("ddl has run", extra={"commit_ts": mark.ddl.commit_ts, "table": mark.ddl.name})
            return
        offsets = {part: waiting.barrier.offset for part, waiting in self.queues.items() if waiting.barrier is not None}
        self._step = self._pool.submit(self._do, order.phase, mark, offsets)

    def _do(self, phase: Phase, mark: DdlMark, offsets: Mapping[int, int]) -> Message:
        """One step of the barrier at the destination."""
        match phase:
            case Phase.BEGIN | Phase.CHECK if mark.start_ts in self._settings.ignore_start_ts:
                return Skipped()
            case Phase.BEGIN:
                self._runner.begin(mark)
                return Begun()
            case Phase.CHECK:
                return Checked(self._runner.check(mark))
            case Phase.RUN:
                self._runner.run(mark)
                return Ran()
            case _:
                self._runner.finish(mark, dict(offsets))
                return Finished()

    # Syncpoints.

    def _stand_at_syncpoint(self) -> bool:
        if self._sync_ts is None or self._syncpoints is None:
            return False
        if self._sync is not None:
            if not self._sync.done():
                return False
            self._sync.result()
            self._sync = None
            log.info("syncpoint written", extra={"primary_ts": self._sync_ts})
            self._sync_ts = self._syncpoints.next(self._sync_ts)
            return True
        if self._claims or self._step is not None or not all(q.stands_at(self._sync_ts) for q in self.queues.values()):
            return False
        self._sync = self._pool.submit(self._syncpoints.write, self._sync_ts)
        return True

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
        if now - self._kept_at < KEEP_S or self._step is not None:
            return
        self._kept_at = now
        for part, waiting in self.queues.items():
            if part in self._claims or part in self._keeps or waiting.applied == self._stored[part]:
                continue
            if part in self._barrier.standing:
                continue
            place = Place(waiting.applied, waiting.offset)
            self._keeps[part] = self._pool.submit(self._keep, part, self._stored[part], place), place

    def _keep(self, part: int, before: bytes, place: Place) -> None:
        self._with_connection(lambda connection: self._destination.keep(connection, part, before, place))


def _close(connection: Connection) -> None:
    with contextlib.suppress(pymysql.MySQLError, OSError):
        connection.close()
