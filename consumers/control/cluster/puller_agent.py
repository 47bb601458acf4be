"""The agent of a capture's puller with what is around it: messages, reports, published records, starts of the upstream.

Deterministic, but for what its parts do behind it: a simulation ticks it as a capture does.

A header with another changefeed epoch begins the upstream anew: this capture drops all its spans, and another agent
begins. The same owner only ever raises the epoch, so a lower one of its is of the past; an owner that is new here may
have any (it keeps it in ZooKeeper, where it could get lost).
"""

import logging
from collections.abc import Callable
from dataclasses import replace

from consumers.control.cluster.puller_executor import PullerExecutor
from consumers.control.core.replication.messages import Header, Liveness, Message, Request
from consumers.control.core.scheduling.agent import Agent
from consumers.control.peers.interface import FeedKey, Peers, Side
from schemas.ids import CaptureId
from schemas.rawlog.frontier import FrontierRecord
from schemas.rawlog.pull_figures import PullFigures

log = logging.getLogger(__name__)


class PullerAgent:
    """One life of a capture as a puller. One thread owns it, the same that ticks the capture's reigns."""

    def __init__(
        self,
        capture: CaptureId,
        version: str,
        revision: int,
        executor: PullerExecutor,
        peers: Peers,
        feed: FeedKey,
        *,
        new_epoch: Callable[[], str],
        figures: Callable[[], PullFigures | None] = lambda: None,
    ) -> None:
        """Listen from now on.

        Args:
            capture: a new id at each start.
            version: of this program.
            revision: the owner revision that stood in ZooKeeper *after* the capture had registered.
            executor: over the capture's puller.
            peers: the way to the owner.
            feed: names the upstream.
            new_epoch: gives an id to each start of an agent, never the same twice.
            figures: what the puller is doing, for people.
        """
        self._figures = figures
        self._executor, self._peers, self._feed, self._new_epoch = executor, peers, feed, new_epoch
        self._agent = Agent(capture, version, new_epoch(), 0, executor, revision)
        self._record: FrontierRecord | None = None
        peers.take(feed, Side.AGENT)

    @property
    def owner(self) -> CaptureId | None:
        """Whom it obeys; None before it has heard of one."""
        return self._agent.owner

    @property
    def spans(self) -> int:
        """How many spans this capture has."""
        return len(self._executor.current_spans())

    @property
    def is_settled(self) -> bool:
        """Whether nothing that the owner has asked for is under way."""
        return self._agent.is_settled

    def stop(self) -> None:
        """Take no new spans; the owner moves those away that are here."""
        self._agent.stop()

    @property
    def is_stopping(self) -> bool:
        """Whether it, or its owner who drains it, has said that it leaves."""
        return self._agent.liveness is Liveness.STOPPING

    def tick(self) -> None:
        """Take the newest frontier record, do what the owner says, and tell it how far everything has landed.

        Raises:
            TwoOwnersError: two captures command with one revision.
            BusError: what the puller refuses.
        """
        record = self._peers.published(self._feed)
        if record is not None and record is not self._record:
            self._executor.published(record)
            self._record = record
        report = self._executor.look()
        waiting: list[Message] = []
        answers: list[Message] = []
        for message in self._peers.take(self._feed, Side.AGENT):
            if self._begins_anew(message):
                answers += self._agent.tick(waiting)
                waiting.clear()
                self._begin_anew(message.header)
            waiting.append(message)
        answers += self._agent.tick(waiting)
        self._peers.send(self._feed, answers)
        if self._agent.owner is not None:
            self._peers.report(self._feed, self._agent.owner, replace(report, figures=self._figures()))

    def _begins_anew(self, message: Message) -> bool:
        agent, header = self._agent, message.header
        if message.receiver != agent.capture or not isinstance(message.body, Request):
            return False
        if header.owner_revision == agent.owner_revision:
            return header.changefeed_epoch > agent.changefeed_epoch
        return header.owner_revision > agent.owner_revision and header.changefeed_epoch != agent.changefeed_epoch

    def _begin_anew(self, header: Header) -> None:
        before, spans = self._agent, self.spans
        self._executor.drop_all()
        self._agent = Agent(
            before.capture,
            before.version,
            self._new_epoch(),
            header.changefeed_epoch,
            self._executor,
            header.owner_revision,
            before.liveness,
            sequence=before.sequence,
        )
        if spans:
            extra = {"owner_rev": header.owner_revision, "epoch": header.changefeed_epoch, "spans": spans}
            log.warning("owner begins the upstream anew; spans are dropped", extra=extra)
