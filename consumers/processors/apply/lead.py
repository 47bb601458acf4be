"""What the leader of a changefeed's processors does at a database: DDL, step by step, and syncpoints."""

import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

from consumers.processors.apply.ddl import DdlRunner
from consumers.processors.apply.destination import DestinationState
from consumers.processors.core.apply.barrier import Checked, DdlBegun, Finished, Phase, Ran, Skipped
from consumers.processors.core.apply.barriers import Answer, BarrierOrder, Barriers, DdlStep, SyncpointWritten
from consumers.processors.core.apply.partition import DdlMark
from schemas.errors import InvariantBrokenError
from schemas.ids import Ts
from schemas.sink_figures import LEAST_DDL_US, Spread, microseconds

log = logging.getLogger(__name__)


class Syncpoints(Protocol):
    """Where the destination stands still, and what is done there."""

    @property
    def interval_ms(self) -> int:
        """Between two; never 0."""
        ...

    def next(self, last: Ts) -> Ts | None:
        """Return the first after ``last`` (0: the first of all); None: there is none."""
        ...

    def write(self, ts: Ts) -> None:
        """The destination stands still at ``ts``.

        Raises:
            BusError: it could not be written.
        """
        ...


def barriers_from(state: DestinationState, syncpoints: Syncpoints | None) -> Barriers:
    """Return where all must stand still, going on from what the destination says of the leader before."""
    return Barriers(
        frozenset(state.positions),
        noted=state.ddl_noted,
        passed=max(at.position for at in state.positions.values()),  # no partition passes a ddl that has not run
        syncpoint_ts=Ts(max(state.syncpoint_ts, state.syncpoints_from - 1)),  # one is the first above this
        next_syncpoint=(lambda _: None) if syncpoints is None else syncpoints.next,
    )


FindDdl = Callable[[bytes, Mapping[int, int]], DdlMark]
"""Returns the DDL at a position, given the offset of its record in some partitions; raises BusError."""


class DatabaseLead:
    """One order at a time, in a thread of its own; indexes that are built beside the rows in another."""

    def __init__(
        self, runner: DdlRunner, find: FindDdl, *, syncpoints: Syncpoints | None, ignore_start_ts: frozenset[int]
    ) -> None:
        """Go on with the indexes of leaders before us.

        Raises:
            BusError: the destination does not answer, or refuses.
        """
        self._runner, self._find = runner, find
        self._syncpoints, self._ignored = syncpoints, ignore_start_ts
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="lead")
        self._under_way: Future[Answer] | None = None
        self._mark: DdlMark | None = None
        self.ddls_us = Spread()
        """How long DDL took that it has run."""
        runner.resume(ignore_start_ts)

    @property
    def is_busy(self) -> bool:
        """Whether an order is under way."""
        return self._under_way is not None

    @property
    def held_ts(self) -> Ts | None:
        """No checkpoint may be above it; None: nothing holds it."""
        return self._runner.indexes.held_ts

    def begin(self, order: BarrierOrder) -> None:
        """Begin to do what is ordered."""
        self._under_way = self._pool.submit(self._do, order)

    def answer(self) -> Answer | None:
        """Return the answer once the order is done; None: nothing is under way, or it is still.

        Raises:
            BusError: it could not be done, or an index cannot be built.
        """
        self._runner.indexes.check()
        if self._under_way is None or not self._under_way.done():
            return None
        done, self._under_way = self._under_way, None
        return done.result()

    def note(self, checkpoint_ts: Ts) -> None:
        """Nothing to show: positions stand in the destination."""

    def close(self) -> None:
        """Wait for what is under way, but for no index."""
        self._runner.close()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _do(self, order: BarrierOrder) -> Answer:
        if not isinstance(order, DdlStep):
            if self._syncpoints is None:
                raise InvariantBrokenError("a syncpoint where there are none", ts=order.ts)
            self._syncpoints.write(order.ts)
            log.info("syncpoint written", extra={"primary_ts": order.ts})
            return SyncpointWritten()
        if self._mark is None or self._mark.position != order.position:
            self._mark = self._find(order.position, order.offsets)
        return self._step(order, self._mark)

    def _step(self, order: DdlStep, mark: DdlMark) -> Answer:
        match order.phase:
            case Phase.BEGIN | Phase.CHECK if mark.start_ts in self._ignored:
                return Skipped()
            case Phase.BEGIN:
                self._runner.begin(mark)
                return DdlBegun()
            case Phase.CHECK:
                return Checked(self._runner.check(mark))
            case Phase.RUN:
                begun_s = time.monotonic()
                self._runner.run(mark)
                self.ddls_us = self.ddls_us.of(microseconds(time.monotonic() - begun_s), LEAST_DDL_US)
                return Ran()
            case Phase.FINISH:
                self._runner.finish(mark, dict(order.offsets))
                log.info("ddl has run", extra={"commit_ts": mark.ddl.commit_ts, "table": mark.ddl.name})
                return Finished()
            case _:
                raise InvariantBrokenError("no step of a ddl", phase=order.phase.name)
