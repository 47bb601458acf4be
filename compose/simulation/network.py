"""The network between captures: loss, delay, repeats and overtaking, below the product's own inboxes."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random

from consumers.control.core.replication.messages import Message
from consumers.control.peers.inboxes import Inboxes
from consumers.control.peers.interface import FeedKey, Side, side_of
from schemas.ids import CaptureId
from schemas.rawlog.frontier import FrontierRecord, LandingReport


@dataclass(slots=True)
class Network:
    """``delay`` in ticks. What goes on a detour is overtaken."""

    random: Random
    delay: int = 1
    detours: float = 0.0
    loss: float = 0.0
    repeats: float = 0.0
    cut_off: dict[CaptureId, int] = field(default_factory=dict)
    """Captures that reach nobody and that nobody reaches, and until when."""
    inboxes: dict[CaptureId, Inboxes] = field(default_factory=dict)
    sent: int = 0
    _wire: list[tuple[int, int, CaptureId, Callable[[Inboxes], None]]] = field(default_factory=list)
    _records: dict[tuple[CaptureId, CaptureId], int] = field(default_factory=dict)
    """The number of the newest record that came from one to another."""

    def send(self, now: int, sender: CaptureId, receiver: CaptureId, put: Callable[[Inboxes], None]) -> None:
        """Let ``put`` be done to the receiver's inboxes at some time, or never, or twice."""
        random = self.random
        if sender != receiver and now < max(self.cut_off.get(sender, 0), self.cut_off.get(receiver, 0)):
            return
        copies = 0 if random.random() < self.loss else 2 if random.random() < self.repeats else 1
        for _ in range(copies):
            detour = random.randint(0, 3 * self.delay + 3) if random.random() < self.detours else 0
            self.sent += 1
            heappush(self._wire, (now + self.delay + detour, self.sent, receiver, put))

    def send_record(
        self, now: int, sender: CaptureId, receiver: CaptureId, feed: FeedKey, record: FrontierRecord
    ) -> None:
        """Send a frontier record; one that is overtaken by a newer one of its sender is thrown away."""
        number = self.sent

        def put(inboxes: Inboxes) -> None:
            if number >= self._records.get((sender, receiver), -1):
                self._records[sender, receiver] = number
                inboxes.put_record(feed, record)

        self.send(now, sender, receiver, put)

    def deliver(self, now: int) -> None:
        """Let arrive what is due. What is for nobody is lost."""
        while self._wire and self._wire[0][0] <= now:
            _, _, receiver, put = heappop(self._wire)
            inboxes = self.inboxes.get(receiver)
            if inboxes is not None:
                put(inboxes)


class SimPeers:
    """One capture's :class:`consumers.control.peers.interface.Peers`."""

    address = "simulated"

    def __init__(self, me: CaptureId, network: Network, now: Callable[[], int]) -> None:
        self._me, self._network, self._now = me, network, now
        self._inboxes = network.inboxes[me] = Inboxes()
        self._known: Mapping[CaptureId, str] = {}
        self.sending: Callable[[], None] = lambda: None
        """Called before anything is sent: there a process may be paused."""
        self.telling: Callable[[FrontierRecord], None] = lambda _: None
        """Called with a record that everybody shall hear of."""

    def resolve(self, captures: Mapping[CaptureId, str]) -> None:
        """Take the registered captures."""
        if captures != self._known:
            self._known = dict(captures)
            self._inboxes.keep(captures)

    def send(self, feed: FeedKey, messages: Iterable[Message]) -> None:
        """Send each to its receiver; what is for nobody that is known goes nowhere."""
        self.sending()
        for message in messages:
            if message.receiver in self._known:
                self._send_one(feed, message)

    def _send_one(self, feed: FeedKey, message: Message) -> None:
        side, messages = side_of(message), (message,)
        self._network.send(self._now(), self._me, message.receiver, lambda inboxes: inboxes.put(feed, side, messages))

    def take(self, feed: FeedKey, side: Side) -> list[Message]:
        """Return what has come since the last call."""
        return self._inboxes.take(feed, side)

    def report(self, feed: FeedKey, owner: CaptureId, report: LandingReport) -> None:
        """Tell the owner how far this capture has landed."""
        self._network.send(self._now(), self._me, owner, lambda inboxes: inboxes.put_report(feed, self._me, report))

    def reports(self, feed: FeedKey) -> Mapping[CaptureId, LandingReport]:
        """Return the newest report of each capture."""
        return self._inboxes.reports(feed)

    def publish(self, feed: FeedKey, record: FrontierRecord) -> None:
        """Tell everybody of a record."""
        self.telling(record)
        self.sending()
        for capture in self._known:
            self._network.send_record(self._now(), self._me, capture, feed, record)

    def published(self, feed: FeedKey) -> FrontierRecord | None:
        """Return the newest record heard of."""
        return self._inboxes.record(feed)

    def leave(self, feed: FeedKey) -> None:
        """Forget a feed."""
        self._inboxes.leave(feed)

    def close(self) -> None:
        """Hear nothing more."""
        self._network.inboxes.pop(self._me, None)
