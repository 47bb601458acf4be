"""A processor of a storage sink that its leader gives all partitions."""

import time

from consumers.control.core.replication.messages import Barrier
from consumers.processors.core.apply.executor import Work, WorkOrder
from consumers.processors.storage.begin import FilesLead, FilesShare
from schemas.ids import Ts

PATIENCE_S = 600.0


class WholeStorage:
    """Share and lead of one processor, driven by the test."""

    def __init__(self, share: FilesShare, lead: FilesLead, partitions: int) -> None:
        """Take all partitions over.

        Raises:
            BusError
        """
        self._share, self._lead, self._partitions = share, lead, range(partitions)
        for ticket, work in enumerate((Work.LOCATE, Work.OPEN)):
            self._order(work, ticket)

    @property
    def checkpoint_ts(self) -> Ts:
        """Everything up to here is in files."""
        return min(self._share.progress(partition).applied_ts for partition in self._partitions)

    @property
    def rows_total(self) -> int:
        return self._share.rows_total

    def turn(self) -> None:
        """Do what can be done now; the leader notes how far all are."""
        self._share.turn(Barrier(Ts(0)), is_restless=False)
        self._lead.note(self.checkpoint_ts)

    def finish(self) -> None:
        """Write all that waits."""
        self._share.finish()
        self._lead.note(self.checkpoint_ts)

    def _order(self, work: Work, ticket: int) -> None:
        left = [WorkOrder(work, partition, ticket, revision=1) for partition in self._partitions]
        self._share.obey(left)
        deadline = time.monotonic() + PATIENCE_S
        while left:
            done = self._share.turn(Barrier(Ts(0)), is_restless=True)
            left = [order for order in left if order not in done]
            assert time.monotonic() < deadline, left
