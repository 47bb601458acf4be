"""One processor's part in one changefeed, from its registration to its end: its share of the partitions, and the lead.

    register --> agent over the share <--orders, reports--> leader (this processor or another)
             --> the lock: who gets it leads (consumers.processors.core.apply.leader) until it ends
    stop:    hand the lock over, say so, apply until the others have all partitions, end

One thread turns it all; what the destination takes its time for runs behind it. Every run registers under a new id, so
nobody takes it for the one before.
"""

import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from consumers.control.changefeeds.processor_nodes import AppliedNode, ProcessorInfo, Share
from consumers.control.core.replication.messages import Barrier
from consumers.control.core.scheduling.agent import Agent
from consumers.control.core.scheduling.coordinator import Identity
from consumers.control.peers.interface import FeedKey, Peers, Side
from consumers.processors.board import ProcessorBoard, Wanted
from consumers.processors.core.apply.barriers import Answer, BarrierOrder, Barriers
from consumers.processors.core.apply.executor import PartitionExecutor, PartitionProgress, WorkOrder
from consumers.processors.core.apply.leader import Leader
from edges.zookeeper.session import Session
from schemas.ids import CaptureId, Ts
from schemas.sink.topic import life_of
from schemas.sink_figures import Spread

log = logging.getLogger(__name__)

LOOK_S = 0.25
"""Between two looks at ZooKeeper: what is wanted, who is there; also how often the checkpoint is written."""
TICK_S = 0.05
"""Between two heartbeats of a leader, as TiCDC's owner-flush-interval."""
RESTLESS_TICK_S, RESTLESS_S = 0.005, 0.5
"""While something has just changed, the leader does not wait for its next heartbeat: a partition that begins, or a DDL
for which all stand, goes through some five steps."""
NOTHING_HEARD = Barrier(Ts(0))


class PartitionWork(Protocol):
    """The partitions of this processor; deals with the destination and with Kafka."""

    def obey(self, orders: list[WorkOrder]) -> None:
        """Begin what is ordered."""
        ...

    def turn(self, barrier: Barrier, *, is_restless: bool) -> list[WorkOrder]:
        """Do what can be done now, within some milliseconds; return the orders that are done.

        Raises:
            BusError: the run is over.
        """
        ...

    def progress(self, partition: int) -> PartitionProgress:
        """Return how far an opened partition is."""
        ...

    @property
    def rows_total(self) -> int: ...
    def finish(self) -> None:
        """Let what is under way arrive."""
        ...


class LeadWork(Protocol):
    """The leader's part at the destination, one order at a time."""

    @property
    def is_busy(self) -> bool: ...
    @property
    def held_ts(self) -> Ts | None:
        """No checkpoint may be above it; None: nothing holds it."""
        ...

    @property
    def ddls_us(self) -> Spread:
        """How long DDL took that it has run."""
        ...

    def begin(self, order: BarrierOrder) -> None: ...
    def answer(self) -> Answer | None:
        """Return the answer once an order is done.

        Raises:
            BusError: the run is over.
        """
        ...

    def note(self, checkpoint_ts: Ts) -> None:
        """Let the destination show how far it is, where it does."""
        ...

    def close(self) -> None:
        """Wait for what is under way."""
        ...


class Work(Protocol):
    """Both, for one changefeed."""

    @property
    def share(self) -> PartitionWork: ...
    def lead(self, revision: int) -> tuple[LeadWork, Barriers]:
        """Take the lead at the destination, and return what it says of the leader before.

        Raises:
            BusError: the run is over.
        """
        ...

    def end_writes(self) -> None:
        """Wait until nothing is on its way any more that the destination would not refuse once somebody else writes."""
        ...

    def close(self) -> None:
        """Give all connections back; called once, also after an error."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RunParts:
    """What a run works with. ``peers`` are those of :attr:`ProcessorInfo.processor`."""

    me: ProcessorInfo
    session: Session
    board: ProcessorBoard
    peers: Peers
    wanted: Wanted
    work: Work
    new_salt: Callable[[], int] = lambda: secrets.randbits(128)
    """See :meth:`consumers.control.core.scheduling.coordinator.Coordinator.tick`."""


class ProcessorRun:
    """See the module. :meth:`turn` again and again while it is wanted, then :meth:`end`."""

    def __init__(self, parts: RunParts, clock: Callable[[], float] = time.monotonic) -> None:
        """Register.

        Raises:
            BusError: ZooKeeper does not let us.
        """
        self._parts, self._clock = parts, clock
        info = parts.wanted.info
        # Of this life of the changefeed: one that is created again under the same name has another topic.
        self._feed = FeedKey(f"changefeed/{info.namespace}/{info.changefeed_id}/{life_of(info)}")
        parts.peers.take(self._feed, Side.AGENT)
        registered = parts.board.register(parts.me)
        # A former leader is not obeyed: its number is below ours.
        revision = parts.board.leader_revision() or registered
        self._executor = PartitionExecutor(parts.work.share)
        self._agent = Agent(parts.me.processor, parts.me.version, str(registered), info.epoch, self._executor, revision)
        self._executor.leader = self._agent
        self._has_lock = False
        self._term: _Term | None = None
        self._registered: dict[CaptureId, ProcessorInfo] = {}
        self._looked_at = 0.0
        self._is_leaving = False

    @property
    def checkpoint_ts(self) -> Ts:
        """The changefeed's, as far as we know."""
        return Ts(0) if self._term is None else self._term.checkpoint_ts

    def partitions(self) -> dict[int, tuple[Ts, int]]:
        """Return how far the partitions are that this processor applies: applied ts, and rows."""
        progress = {part: self._parts.work.share.progress(part) for part in self._executor.applying}
        return {part: (at.applied_ts, at.rows_total) for part, at in progress.items()}

    @property
    def ddl_total(self) -> int:
        """DDL that this processor has run."""
        return 0 if self._term is None else self._term.leader.barriers.ddls_total

    @property
    def is_leader(self) -> bool:
        return self._term is not None

    def turn(self) -> None:
        """Take one step.

        Raises:
            BusError: the run is over.
        """
        self._parts.session.check_lease()
        now = self._clock()
        if now - self._looked_at >= LOOK_S:
            self._looked_at = now
            self._look()
        share, term = self._parts.work.share, self._term
        if term is not None:
            term.tick(now)
        self._parts.peers.send(self._feed, self._agent.tick(self._parts.peers.take(self._feed, Side.AGENT)))
        orders = self._executor.take_orders()
        if orders:
            share.obey(orders)
        barrier = self._agent.barrier or NOTHING_HEARD
        done = share.turn(barrier, is_restless=term is not None and term.is_restless(now))
        for order in done:
            self._executor.done(order)
        if term is not None:
            term.rouse(now, is_changed=bool(orders or done), stands=self._stands())

    def leave(self) -> bool:
        """Hand over, turn by turn; tell whether there is nothing more to hand over, or nobody to take it.

        Raises:
            BusError: the run is over.
        """
        others = [info for info in self._registered.values() if info.processor != self._parts.me.processor]
        others = [info for info in others if not info.is_stopping]
        if not self._is_leaving:
            self._is_leaving = True
            self._parts.board.mark_stopping(self._parts.me)
            self._agent.stop()
            if others:
                self._step_down()
        return not others or not self._executor.current_spans()

    def end(self) -> None:
        """Let what is under way arrive, and leave the lock and the register.

        Raises:
            BusError: something did not arrive.
        """
        self._parts.work.share.finish()
        if self._term is not None:
            self._term.report()
        self.close()

    def close(self) -> None:
        """Leave the lock and the register; after an error, too.

        Raises:
            BusError: ZooKeeper does not answer; it forgets us with our session.
        """
        self._parts.work.end_writes()
        self._step_down()
        self._parts.peers.leave(self._feed)
        self._parts.board.unregister(self._parts.me.processor)

    # -- its term as the leader ----------------------------------------------------------------------------------------

    def _look(self) -> None:
        parts, board, begins = self._parts, self._parts.board, False
        if self._term is None and not self._is_leaving and board.leader_revision() is None:
            revision = board.lock(parts.me.processor)
            if revision is not None:
                self._has_lock = True
                self._term, begins = _Term(parts, self._feed, revision, self._clock), True
                log.info("processor leads", extra={"processor": parts.me.processor, "revision": revision})
        # After the lock: who is registered now may have partitions of the leader before. Who leaves wants to know who
        # does not.
        registered = board.processors({} if self._is_leaving else self._registered, is_exact=begins)
        self._registered = registered
        parts.peers.resolve({who: info.peer_address for who, info in registered.items()})
        if self._term is not None:
            self._term.look(registered)

    def _step_down(self) -> None:
        term, self._term = self._term, None
        if term is not None:
            term.close()
        if self._has_lock:
            self._has_lock = False
            self._parts.board.release()

    def _stands(self) -> frozenset[bytes]:
        share = self._parts.work.share
        return frozenset(share.progress(partition).ddl for partition in self._executor.applying)


class _Term:
    """This processor's time as the leader."""

    def __init__(self, parts: RunParts, feed: FeedKey, revision: int, clock: Callable[[], float]) -> None:
        self._parts, self._feed = parts, feed
        info, changefeed = parts.wanted.info, parts.board.read()
        self._life, applied = life_of(info), None if changefeed is None else changefeed.applied
        known_ts = applied.checkpoint_ts if applied is not None and applied.life == self._life else info.start_ts
        self._work, barriers = parts.work.lead(revision)
        me = Identity(
            capture=parts.me.processor,
            version=parts.me.version,
            owner_revision=revision,
            changefeed_epoch=info.epoch,
        )
        self.leader = Leader(me, max(known_ts, info.start_ts), barriers)
        parts.peers.take(feed, Side.SCHEDULER)  # what came for another term
        self._reported = AppliedNode(life=self._life, checkpoint_ts=Ts(0))
        self._shown_shares: list[Share] | None = None
        self._registered: dict[CaptureId, ProcessorInfo] = {}
        self._ticked_at = 0.0
        self._restless_until = clock() + RESTLESS_S
        self._stands: frozenset[bytes] = frozenset()

    @property
    def checkpoint_ts(self) -> Ts:
        """All up to it is in the destination, indexes that are built beside the rows too."""
        rows_ts, held_ts = self.leader.checkpoint.checkpoint_ts, self._work.held_ts
        return rows_ts if held_ts is None else min(rows_ts, held_ts)

    def look(self, registered: dict[CaptureId, ProcessorInfo]) -> None:
        """Take who is there, and write down what has changed.

        Raises:
            BusError: ZooKeeper or the destination does not answer.
        """
        self._registered = registered
        self.report()
        shares = [
            Share(
                processor=who,
                capture=registered[who].capture,
                partitions=tuple(partitions),
                is_leader=who == self._parts.me.processor,
            )
            for who, partitions in self.leader.assignments.items()
            if who in registered
        ]
        if shares != self._shown_shares:
            self._parts.board.tell(shares)
            self._shown_shares = shares

    def is_restless(self, now: float) -> bool:
        """Whether more than records is waited for."""
        return self._work.is_busy or now < self._restless_until

    def rouse(self, now: float, *, is_changed: bool, stands: frozenset[bytes]) -> None:
        """Wait for no heartbeat for a while if something has changed. ``stands``: the DDLs that ours stand at."""
        if is_changed or stands != self._stands:
            self._stands = stands
            self._restless_until = now + RESTLESS_S

    def tick(self, now: float) -> None:
        """Hear the processors, tell them what to do, and go on with what all stand at.

        Raises:
            BusError: the run is over.
        """
        answer = self._work.answer()
        if answer is not None:
            self.leader.barriers.answer(answer)
            self._restless_until = now + RESTLESS_S
        elif now - self._ticked_at < (RESTLESS_TICK_S if now < self._restless_until else TICK_S):
            return
        self._ticked_at = now
        peers = self._parts.peers
        heard = peers.take(self._feed, Side.SCHEDULER)
        alive = frozenset(self._registered)
        peers.send(self._feed, self.leader.tick(heard, alive=alive, salt=self._parts.new_salt()))
        order = self.leader.barriers.order()
        if order is not None:
            self._work.begin(order)

    def report(self) -> None:
        """Write the checkpoint down if it has moved.

        Raises:
            BusError: ZooKeeper or the destination does not answer.
        """
        proven, unproven = self.leader.windows
        now = AppliedNode(
            life=self._life,
            checkpoint_ts=self.checkpoint_ts,
            rows_total=self.leader.rows_total,
            ddl_total=self.leader.barriers.ddls_total,
            windows_proven=proven,
            windows_unproven=unproven,
            sink=replace(self.leader.figures, ddls_us=self._work.ddls_us),
        )
        if now.checkpoint_ts > self._reported.checkpoint_ts:
            self._work.note(now.checkpoint_ts)
            self._parts.board.report(now)
            self._reported = now

    def close(self) -> None:
        """Let a step that is under way come to its end."""
        self._work.close()
