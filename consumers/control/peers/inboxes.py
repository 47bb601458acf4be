"""What has come for this capture and waits to be taken: bounded, and newest wins where only the newest counts."""

import threading
from collections import deque
from collections.abc import Collection, Iterable, Mapping

from consumers.control.core.peers.landing_codec import PackedReport
from consumers.control.core.replication.messages import Message
from consumers.control.peers.interface import FeedKey, Side
from schemas.ids import CaptureId
from schemas.rawlog.frontier import FrontierRecord, LandingReport

MESSAGES_MAX = 20_000
"""Of one feed and side. A coordinator takes them every 50 ms; at 50 spans added a tick this is a minute of answers."""


class Inboxes:
    """One capture's; safe to use from any thread. A feed that nobody listens to keeps nothing."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._messages: dict[tuple[FeedKey, Side], deque[Message]] = {}
        self._alive: frozenset[CaptureId] = frozenset()
        self._reports: dict[FeedKey, dict[CaptureId, LandingReport | PackedReport]] = {}
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

    def put_report(self, feed: FeedKey, sender: CaptureId, report: LandingReport | PackedReport) -> None:
        """Keep the newest report of a capture that is known, if anybody listens."""
        with self._lock:
            if sender in self._alive and self._is_listening(feed):
                self._reports.setdefault(feed, {})[sender] = report

    def reports(self, feed: FeedKey) -> Mapping[CaptureId, LandingReport]:
        """Return the newest of each capture; the work of unpacking is done here, once a report."""
        with self._lock:
            newest = dict(self._reports.get(feed, {}))
        unpacked = {
            sender: report.unpack() if isinstance(report, PackedReport) else report for sender, report in newest.items()
        }
        with self._lock:
            kept = self._reports.get(feed, {})
            for sender, report in unpacked.items():
                if kept.get(sender) is newest[sender]:
                    kept[sender] = report
        return unpacked

    def put_record(self, feed: FeedKey, record: FrontierRecord) -> None:
        """Keep a record if anybody listens, unless a newer owner has spoken; one owner's come in its order."""
        with self._lock:
            last = self._records.get(feed)
            if self._is_listening(feed) and (last is None or record.owner_rev >= last.owner_rev):
                self._records[feed] = record

    def record(self, feed: FeedKey) -> FrontierRecord | None:
        """Return the newest record of the highest revision."""
        with self._lock:
            return self._records.get(feed)

    def keep(self, alive: Iterable[CaptureId]) -> None:
        """Take reports of these only; those of captures that are gone are forgotten, for their ids never come again."""
        with self._lock:
            self._alive = frozenset(alive)
            for feed, reports in self._reports.items():
                self._reports[feed] = {capture: report for capture, report in reports.items() if capture in self._alive}

    def leave(self, feed: FeedKey) -> None:
        """Forget a feed."""
        with self._lock:
            for side in Side:
                self._messages.pop((feed, side), None)
            self._reports.pop(feed, None)
            self._records.pop(feed, None)

    def _is_listening(self, feed: FeedKey) -> bool:
        return any((feed, side) in self._messages for side in Side)
