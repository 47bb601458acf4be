"""What a capture's parts ask of the way to the other captures.

**Guaranteed**: what one capture sends another on one side of one feed comes in the order in which it was sent, each at
most once. Nothing that is for another capture id comes at all, also where a restarted capture has the same address.
No call waits for a peer or for the network, and a peer that is dead, stopped or slow costs a queue of bounded size.

**Not guaranteed**: that anything arrives. A full queue forgets its oldest messages; a broken connection loses what was
on its way, and what is sent to an id that :meth:`Peers.resolve` has not named goes nowhere. The machines ask again.

Reports and records are told of the newest only: what a slow peer has not taken is replaced, never queued.

Messages of a zombie or a stranger come through as everybody else's; versions, revisions and epochs are for the machines
to judge (:mod:`consumers.control.core.replication.staleness`). The transport only sees to it that a message's
``sender`` is the capture that its stream belongs to, and its ``receiver`` this one.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import NewType, Protocol

from consumers.control.core.replication.messages import Message, Request
from schemas.ids import CaptureId, UpstreamId
from schemas.rawlog.frontier import FrontierRecord, LandingReport

FeedKey = NewType("FeedKey", str)
"""Whose coordinator and agents talk: ``upstream/{id}`` or ``changefeed/{namespace}/{id}``."""


class Side(StrEnum):
    """Who hears a message. An owner's capture has both, of one feed."""

    AGENT = "agent"
    """Hears requests."""
    SCHEDULER = "scheduler"
    """The owner's coordinator: hears responses."""


def upstream_feed(upstream: UpstreamId) -> FeedKey:
    """Return the key of those who pull an upstream."""
    return FeedKey(f"upstream/{upstream}")


def side_of(message: Message) -> Side:
    """Return who hears a message: agents are asked, the coordinator is answered."""
    return Side.AGENT if isinstance(message.body, Request) else Side.SCHEDULER


class Peers(Protocol):
    """One capture's connections; safe to use from any thread.

    What is sent to this capture itself takes the same way round without a socket.
    """

    @property
    def address(self) -> str:
        """Where others reach this capture, for its node in ZooKeeper."""

    def resolve(self, captures: Mapping[CaptureId, str]) -> None:
        """Take the registered captures with their addresses; connect to new ones, forget those that are gone.

        Cheap when nothing has changed: call it with each look at ZooKeeper. This capture may be among them.
        """

    def send(self, feed: FeedKey, messages: Iterable[Message]) -> None:
        """Send each message to its ``receiver``: requests to its agent, responses to its coordinator."""

    def take(self, feed: FeedKey, side: Side) -> list[Message]:
        """Return what has come since the last call, in order of arrival.

        The first call for a feed and side begins to listen; what came before is lost, reports and records of the feed,
        too. :meth:`leave` ends it.
        """

    def report(self, feed: FeedKey, owner: CaptureId, report: LandingReport) -> None:
        """Tell the owner how far this capture has landed. Takes the report as it is: do not change its maps later.

        Report before you send an answer that leans on it: the owner then has the report, or a newer one, with it.
        """

    def reports(self, feed: FeedKey) -> Mapping[CaptureId, LandingReport]:
        """Return the newest report of each capture that has sent one and is not gone by :meth:`resolve`.

        The same object as before for a capture that has sent none since.
        """

    def publish(self, feed: FeedKey, record: FrontierRecord) -> None:
        """Tell all resolved captures, and this one, of a frontier record.

        Only records that count for every reader may go out, for agents forget what a record makes needless: one that
        the frontier topic has acknowledged, by an owner that checked its lease *after* the acknowledgement. Whoever was
        paused between check and publishing may have published after its successor's first record, and that counts for
        nobody though it was acknowledged.
        """

    def published(self, feed: FeedKey) -> FrontierRecord | None:
        """Return the newest record heard of, of the highest owner revision heard of; None: none yet."""

    def leave(self, feed: FeedKey) -> None:
        """Forget what has come for a feed, and listen no more; reports and records of it, too."""

    def close(self) -> None:
        """Stop talking and listening; safe to call twice."""
