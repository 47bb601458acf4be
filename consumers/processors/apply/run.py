"""One processor that has all partitions of a changefeed: it applies them, and runs DDL and syncpoints in their place.

    share (rows of each partition) --where they stand--> barriers --order--> lead (DDL, syncpoints at the destination)
          <-- how far they may go ------------------------+

Several processors of one changefeed share its partitions instead (:mod:`consumers.processors.run`); this is for who is
alone by order: ``tidebus recover``. The first error ends the run; whoever started it begins another one where the
destination says.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from consumers.control.core.replication.messages import Barrier
from consumers.processors.apply.ddl import DdlRunner
from consumers.processors.apply.destination import Destination, Found
from consumers.processors.apply.lead import DatabaseLead, Syncpoints, barriers_from
from consumers.processors.apply.share import DatabaseShare, RunSettings
from consumers.processors.core.apply.partition import DdlMark, PartitionQueue
from consumers.processors.sink_source import Source
from schemas.errors import InvariantBrokenError
from schemas.ids import Ts


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """How far a run is."""

    checkpoint_ts: Ts
    rows_total: int
    statements_total: int
    txns_total: int
    ddl_total: int


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
        self.destination = destination
        self._lead = DatabaseLead(runner, self._find, syncpoints=syncpoints, ignore_start_ts=settings.ignore_start_ts)
        self._share = DatabaseShare(source, destination, settings, clock=clock)
        self._share.install(found.places)
        self._barriers = barriers_from(found, syncpoints)

    @property
    def queues(self) -> Mapping[int, PartitionQueue]:
        """The partitions."""
        return self._share.queues

    @property
    def applied(self) -> Applied:
        """How far it is."""
        share, held_ts = self._share, self._lead.held_ts
        applied_ts = min(at.applied_ts for at in share.queues.values())
        return Applied(
            checkpoint_ts=applied_ts if held_ts is None else min(applied_ts, held_ts),
            rows_total=share.rows_total,
            statements_total=share.statements_total,
            txns_total=share.txns_total,
            ddl_total=self._barriers.ddls_total,
        )

    def turn(self) -> bool:
        """Do what can be done now; tell whether anything was.

        Raises:
            BusError: the run is over.
        """
        barriers, answer = self._barriers, self._lead.answer()
        if answer is not None:
            barriers.answer(answer)
        announced = Barrier(barriers.barrier_ts, passed_ddl=barriers.passed_ddl)
        before = self._share.rows_total, self._share.records_total
        self._share.turn(announced, is_restless=self._lead.is_busy or answer is not None)
        for part in self._share.queues:
            at = self._share.progress(part)
            barriers.stand(part, ddl=at.ddl, offset=at.ddl_offset, barrier_ts=at.stands_at)
        order = barriers.order()
        if order is not None:
            self._lead.begin(order)
        did = before != (self._share.rows_total, self._share.records_total)
        return did or answer is not None or order is not None

    def finish_claims(self) -> None:
        """Let transactions that are under way arrive, so that a stop repeats nothing.

        Raises:
            BusError: one did not.
        """
        self._share.finish()

    def close(self) -> None:
        """Wait for what is under way, and close the connections."""
        self._lead.close()
        self._share.close()

    def _find(self, position: bytes, _: Mapping[int, int]) -> DdlMark:
        mark = self._share.mark(position)
        if mark is None:
            raise InvariantBrokenError("order for a ddl that nobody stands at", position=position.hex())
        return mark
