"""Captures of one process that talk without sockets: for tests of what stands above the transport."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from consumers.control.core.replication.messages import Message
from consumers.control.peers.inboxes import Inboxes
from consumers.control.peers.interface import FeedKey, Side, side_of
from schemas.ids import CaptureId
from schemas.rawlog.frontier import FrontierRecord, LandingReport


@dataclass(slots=True)
class LocalNet:
    """Everybody, by id. Take a capture out of ``inboxes`` to make it unreachable."""

    inboxes: dict[CaptureId, Inboxes] = field(default_factory=dict)

    def join(self, capture: CaptureId) -> "LocalPeers":
        """Return a new capture's connections."""
        self.inboxes[capture] = Inboxes()
        return LocalPeers(self, capture)


@dataclass(slots=True)
class LocalPeers:
    """A :class:`consumers.control.peers.interface.Peers` that loses nothing."""

    net: LocalNet
    capture: CaptureId
    known: set[CaptureId] = field(default_factory=set)

    @property
    def address(self) -> str:
        return f"{self.capture}.local:1"

    def resolve(self, captures: Mapping[CaptureId, str]) -> None:
        self.known = set(captures)
        self._mine().keep({*self.known, self.capture})

    def send(self, feed: FeedKey, messages: Iterable[Message]) -> None:
        for message in messages:
            if message.receiver in {*self.known, self.capture} and message.receiver in self.net.inboxes:
                self.net.inboxes[message.receiver].put(feed, side_of(message), [message])

    def take(self, feed: FeedKey, side: Side) -> list[Message]:
        return self._mine().take(feed, side)

    def report(self, feed: FeedKey, owner: CaptureId, report: LandingReport) -> None:
        if owner in {*self.known, self.capture} and owner in self.net.inboxes:
            self.net.inboxes[owner].put_report(feed, self.capture, report)

    def reports(self, feed: FeedKey) -> Mapping[CaptureId, LandingReport]:
        return self._mine().reports(feed)

    def publish(self, feed: FeedKey, record: FrontierRecord) -> None:
        for capture in sorted({*self.known, self.capture} & self.net.inboxes.keys()):
            self.net.inboxes[capture].put_record(feed, record)

    def published(self, feed: FeedKey) -> FrontierRecord | None:
        return self._mine().record(feed)

    def leave(self, feed: FeedKey) -> None:
        self._mine().leave(feed)

    def close(self) -> None:
        self.net.inboxes.pop(self.capture, None)

    def _mine(self) -> Inboxes:
        return self.net.inboxes.get(self.capture) or Inboxes()
