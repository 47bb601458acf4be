"""What has come for this capture and waits to be taken: bounded, and newest wins where only the newest counts."""

import threading
from collections import deque
from collections.abc import Collection, Iterable, Mapping

from consumers.core.scheduling.messages import Message
from consumers.peers.interface import FeedKey, Side
from schemas.ids import CaptureId
from schemas.rawlog.frontier import FrontierRecord, LandingReport

MESSAGES_MAX = 20_000
"""Of one feed and side. A coordinator takes them every 50 ms; at 50 spans added a tick this is a minute of answers."""


class Inboxes:
    """One capture's; safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._messages: dict[tuple[FeedKey, Side], deque[Message]] = {}
        self._reports: dict[FeedKey, dict[CaptureId, LandingReport]] = {}
        self._records: dict[FeedKey, FrontierRecord] = {}
        self.dropped = 0
        """Messages that came for nobody, or were pushed out by newer ones."""

    def put(self, feed: FeedKey, side: Side, messages: Collection[Message]) -> None:
        """Add messages of one sender, in its order, if anybody listens."""
        with self._lock:
            waiting = self._messages.get((feed, side))
            if waiting is None:
                self.dropped += len(messages)
                return
            self.dropped += max(0, len(waiting) + len(messages) - MESSAGES_MAX)
            waiting.extend(messages)

    def take(self, feed: FeedKey, side: Side) -> list[Message]:
        """Return what waits; listen from now on."""
        with self._lock:
            waiting = self._messages.get((feed, side))
            if waiting is None:
                self._messages[feed, side] = deque(maxlen=MESSAGES_MAX)
                return []
            taken = list(waiting)
            waiting.clear()
            return taken

    def is_listening(self, feed: FeedKey) -> bool:
        """Tell whether anybody has taken messages of this feed."""
        with self._lock:
            return any((feed, side) in self._messages for side in Side)

    def put_report(self, feed: FeedKey, report: LandingReport) -> None:
        """Keep the newest report of its capture."""
        with self._lock:
            self._reports.setdefault(feed, {})[report.capture] = report

    def reports(self, feed: FeedKey) -> Mapping[CaptureId, LandingReport]:
        """Return the newest of each capture."""
        with self._lock:
            return dict(self._reports.get(feed, {}))

    def put_record(self, feed: FeedKey, record: FrontierRecord) -> None:
        """Keep a record, unless a newer owner has spoken; one owner's come in its order."""
        with self._lock:
            last = self._records.get(feed)
            if last is None or record.owner_rev >= last.owner_rev:
                self._records[feed] = record

    def record(self, feed: FeedKey) -> FrontierRecord | None:
        """Return the newest record of the highest revision."""
        with self._lock:
            return self._records.get(feed)

    def keep(self, alive: Iterable[CaptureId]) -> None:
        """Forget the reports of captures that are gone: their ids never come again."""
        kept = frozenset(alive)
        with self._lock:
            for feed, reports in self._reports.items():
                self._reports[feed] = {capture: report for capture, report in reports.items() if capture in kept}

    def leave(self, feed: FeedKey) -> None:
        """Forget a feed."""
        with self._lock:
            for side in Side:
                self._messages.pop((feed, side), None)
            self._reports.pop(feed, None)
            self._records.pop(feed, None)
