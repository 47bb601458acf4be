"""The puller and the DDL feed of a simulated capture: their books are the product's, what they pull and land is drawn.

:class:`SimPuller` and :class:`SimDdlFeed` have the methods of ``producers.pull.puller.Puller`` and
``producers.pull.ddl.ddl_feed.DdlFeed`` that captures and owners call.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from compose.simulation.broker import Broker, Producer, RowRecord, newest_ts
from compose.simulation.upstream import SimRow, Upstream, within
from producers.pull.core.ddl.book import DdlBook
from producers.pull.core.landing.book import LandingBook
from schemas.ids import CaptureId, Ts
from schemas.rawlog.ddl_record import DdlRecord
from schemas.rawlog.frontier import DdlReport, FrontierRecord, LandingReport
from schemas.tidb.spans import TableSpan


@dataclass(slots=True)
class _SimPulled:
    """``rows`` are the table's; those before ``at`` have come."""

    rows: list[SimRow]
    at: int
    received_ts: Ts
    scan_ts: Ts
    scan_left: int
    """Ticks until its regions are initialised."""
    waiting: list[SimRow] = field(default_factory=list)


class SimPuller:
    """The puller of one capture; lives as long as its capture id."""

    def __init__(self, capture: CaptureId, broker: Broker, upstream: Upstream, random: Random) -> None:
        self.capture, self.upstream, self.random = capture, upstream, random
        self.book = LandingBook(capture, broker.partitions)
        self.producer = Producer(broker, random)
        self.spans: dict[TableSpan, _SimPulled] = {}
        self.pace = 1.0
        """How likely a span gets on in a tick."""
        self.scan_ticks_max = 4

    # -- as the product's puller

    def assign(self, spans: Mapping[TableSpan, Ts]) -> None:
        """Pull spans, each from its ts; one that is pulled starts anew, and what overlaps it is pulled no more."""
        now_ts = self.upstream.next_ts()
        for span, ts in spans.items():
            self.remove([other for other in self.spans if other.overlaps(span)])
            rows = self.upstream.by_table.setdefault(span.table_id, [])
            at = bisect_right(rows, ts, key=lambda row: row.commit_ts)
            self.spans[span] = _SimPulled(rows, at, ts, now_ts, self.random.randint(0, self.scan_ticks_max))
            self.book.assign(span, ts)

    def remove(self, spans: Iterable[TableSpan]) -> None:
        """Pull spans no more; what is on its way may land."""
        for span in list(spans):
            self.spans.pop(span, None)
            self.book.remove((span,))

    def report(self) -> LandingReport:
        """Return what has landed."""
        return self.book.report()

    def published(self, record: FrontierRecord) -> None:
        """Take the owner's newest record."""
        self.book.published(record)

    # -- what happens behind

    def work(self, tick: int) -> None:
        """Let each span get on, and the broker."""
        for span, pulled in self.spans.items():
            if self.random.random() < self.pace:
                if tick >= self.upstream.stuck.get(span.table_id, 0):
                    self._receive(span, pulled)
                self._send(span, pulled)
        self.producer.append()
        self.producer.acknowledge(self.book)

    def _receive(self, span: TableSpan, pulled: _SimPulled) -> None:
        if pulled.scan_left > 0:
            pulled.scan_left -= 1
            return
        if self.random.random() < 0.01:
            # A region error: everything above what has landed comes again.
            landed_ts = self.book.landed_ts()[span]
            pulled.at = bisect_right(pulled.rows, landed_ts, key=lambda row: row.commit_ts)
            pulled.received_ts = landed_ts
            pulled.scan_ts, pulled.scan_left = self.upstream.next_ts(), self.random.randint(0, self.scan_ticks_max)
            pulled.waiting.clear()
            return
        if pulled.at < len(pulled.rows):
            pulled.waiting += [row for row in pulled.rows[pulled.at :] if within(row, span)]
            pulled.at = len(pulled.rows)
        pulled.received_ts = self.upstream.next_ts()

    def _send(self, span: TableSpan, pulled: _SimPulled) -> None:
        waiting, random = pulled.waiting, self.random
        if waiting and random.random() < 0.8:
            random.shuffle(waiting)
            count = random.randint(1, len(waiting))
            rows, pulled.waiting = waiting[:count], waiting[count:]
            partition, newest = random.randrange(len(self.producer.flights)), newest_ts(rows)
            may_repeat = any(row.commit_ts <= pulled.scan_ts for row in rows)
            sent = self.book.sent(span, partition, newest, may_repeat=may_repeat)
            self.producer.flights[partition].append(RowRecord(sent, rows))
        oldest = min((row.commit_ts for row in pulled.waiting), default=None)
        self.book.resolved(span, pulled.received_ts if oldest is None else Ts(min(oldest - 1, pulled.received_ts)))


class SimDdlFeed:
    """The DDL feed of one reign."""

    def __init__(self, broker: Broker, upstream: Upstream, random: Random, frontier: FrontierRecord | None) -> None:
        self.broker, self.upstream, self.random, self.frontier = broker, upstream, random, frontier
        self.flight: deque[DdlRecord] = deque()
        self._landed: list[DdlRecord] = []
        self._book = DdlBook(())
        self._read = 0

    def start(self, snapshot: Sequence[DdlRecord]) -> Ts:
        """Read the topic, land the snapshot if there is none; return the snapshot's ts."""
        if not self.broker.ddl:
            self.broker.ddl += snapshot
        self._book = DdlBook(enumerate(self.broker.ddl))
        self._landed = list(self.broker.ddl)
        resume_ts = self._book.resume_ts(self.frontier.resolved_ts if self.frontier else Ts(0))
        self._read = bisect_right(self.upstream.jobs, resume_ts, key=lambda job: job.ts)
        assert self._book.snapshot_ts is not None
        return self._book.snapshot_ts

    def take(self) -> list[DdlRecord]:
        """Return what has landed since the last call."""
        taken, self._landed = self._landed, []
        return taken

    def report(self) -> DdlReport:
        """Return how far it has landed."""
        return self._book.report()

    def work(self) -> None:
        """Read jobs and land them."""
        if self.random.random() < 0.6:
            for job in self.upstream.jobs[self._read :]:
                self._book.add(job)
            self._read = len(self.upstream.jobs)
            self.flight += self._book.resolved(self.upstream.next_ts())
        if self.flight and self.random.random() < 0.5:
            record = self.flight.popleft()
            self.broker.ddl.append(record)
            self._landed.append(record)
            self._book.acked(len(self.broker.ddl) - 1)
