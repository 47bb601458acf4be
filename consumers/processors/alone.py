"""One processor that has a changefeed for itself: it leads, and applies all partitions (``tidebus recover``).

    leader <--reports, orders--> agent over the share

Leader, agent, share and lead are those of several processors (:mod:`consumers.processors.run`). Here leader and agent
hand their messages to each other, nobody registers, and whoever begins this holds the changefeed's lock. The first
error ends the run; whoever began it begins another one where the destination stands.
"""

import secrets
from collections.abc import Callable
from typing import Final

from consumers.control.core.replication.messages import Message
from consumers.control.core.scheduling.agent import Agent
from consumers.control.core.scheduling.coordinator import Identity
from consumers.processors.core.apply.executor import PartitionExecutor
from consumers.processors.core.apply.leader import Leader
from consumers.processors.processor import VERSION
from consumers.processors.run import NOTHING_HEARD, Work
from schemas.ids import CaptureId, Ts

ALONE: Final = CaptureId("alone")


class AloneRun:
    """See the module. :meth:`turn` again and again, then :meth:`finish` and :meth:`close`."""

    def __init__(
        self,
        work: Work,
        revision: int,
        checkpoint_ts: Ts,
        *,
        new_salt: Callable[[], int] = lambda: secrets.randbits(128),
    ) -> None:
        """Take the lead.

        Args:
            work: both sides of the changefeed; the caller closes it.
            revision: of the changefeed's lock; the destination refuses all earlier ones from here on.
            checkpoint_ts: the greatest that was written down; at least the changefeed's start ts.

        Raises:
            BusError: the destination does not let us.
        """
        self._work, self._new_salt = work, new_salt
        self._lead, barriers = work.lead(revision)
        me = Identity(capture=ALONE, version=VERSION, owner_revision=revision, changefeed_epoch=0)
        self.leader = Leader(me, checkpoint_ts, barriers)
        self._executor = PartitionExecutor(work.share)
        self._agent = Agent(ALONE, VERSION, str(revision), 0, self._executor, revision)
        self._executor.leader = self._agent
        self._reports: list[Message] = []

    @property
    def checkpoint_ts(self) -> Ts:
        """All up to it is in the destination, indexes that are built beside the rows too."""
        rows_ts, held_ts = self.leader.checkpoint.checkpoint_ts, self._lead.held_ts
        return rows_ts if held_ts is None else min(rows_ts, held_ts)

    @property
    def rows_total(self) -> int:
        """Rows that were applied."""
        return self._work.share.rows_total

    @property
    def ddl_total(self) -> int:
        """DDL that was run."""
        return self.leader.barriers.ddls_total

    def turn(self) -> None:
        """Take one step.

        Raises:
            BusError: the run is over.
        """
        barriers, answer = self.leader.barriers, self._lead.answer()
        if answer is not None:
            barriers.answer(answer)
        orders = self.leader.tick(self._reports, alive=frozenset({ALONE}), salt=self._new_salt())
        self._reports = self._agent.tick(orders)
        step = barriers.order()
        if step is not None:
            self._lead.begin(step)
        self._work.share.obey(self._executor.take_orders())
        is_restless = self._lead.is_busy or answer is not None or not self.leader.is_settled
        for done in self._work.share.turn(self._agent.barrier or NOTHING_HEARD, is_restless=is_restless):
            self._executor.done(done)

    def finish(self) -> None:
        """Let what is under way arrive, so that a stop repeats nothing.

        Raises:
            BusError: something did not arrive.
        """
        self._work.share.finish()

    def close(self) -> None:
        """Wait for what is under way, also after an error."""
        self._work.end_writes()
        self._lead.close()
