"""What waits for one peer: bounded, oldest out first; a peer that takes nothing costs this and no more."""

import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from consumers.control.core.replication.messages import Heartbeat, HeartbeatResponse, Message
from schemas.rawlog.frontier import LandingReport

WEIGHT_MAX = 500_000
"""Messages and the spans in them, some 100 bytes each. What is older than that many is asked for again anyway. A first
answer about 100,000 spans goes through whole."""


@dataclass(slots=True)
class Outgoing:
    """What is to be sent next: reports and records once a topic, the newest."""

    messages: list[tuple[str, Message]] = field(default_factory=list)
    reports: dict[str, LandingReport] = field(default_factory=dict)
    records: dict[str, bytes] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.messages or self.reports or self.records)


class Outbox:
    """Safe to use from any thread; only :meth:`take` waits."""

    def __init__(self) -> None:
        self._filled = threading.Condition()
        self._messages: deque[tuple[str, Message]] = deque()
        self._weight = 0
        self._next = Outgoing()
        self.dropped = 0

    def put(self, messages: Iterable[tuple[str, Message]]) -> None:
        """Add messages with their topics."""
        with self._filled:
            for topic, message in messages:
                self._messages.append((topic, message))
                self._weight += _weight(message)
            while self._weight > WEIGHT_MAX and len(self._messages) > 1:
                self._weight -= _weight(self._messages.popleft()[1])
                self.dropped += 1
            self._filled.notify_all()

    def put_report(self, topic: str, report: LandingReport) -> None:
        """Replace the report that waits, if any."""
        with self._filled:
            self._next.reports[topic] = report
            self._filled.notify_all()

    def put_record(self, topic: str, record: bytes) -> None:
        """Replace the record that waits, if any."""
        with self._filled:
            self._next.records[topic] = record
            self._filled.notify_all()

    def take(self, is_over: Callable[[], bool]) -> Outgoing | None:
        """Wait for something and return all of it; None once ``is_over``, which :meth:`wake` makes it look at."""
        with self._filled:
            self._filled.wait_for(lambda: is_over() or self._messages or self._next)
            if is_over():
                return None
            taken, self._next = self._next, Outgoing()
            taken.messages = list(self._messages)
            self._messages.clear()
            self._weight = 0
            return taken

    def wake(self) -> None:
        """Let whoever waits look whether it is over."""
        with self._filled:
            self._filled.notify_all()


def _weight(message: Message) -> int:
    match message.body:
        case Heartbeat(spans):
            return 1 + len(spans)
        case HeartbeatResponse(tables):
            return 1 + len(tables)
        case _:
            return 1
