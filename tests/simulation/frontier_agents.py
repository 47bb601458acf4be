"""Agents of the frontier's simulation: what a capture receives, sends, hears of and reports, every step apart.

:class:`Agent` is the model, in a few lines to be read beside docs/architecture.md; :class:`BookAgent` does the
same by the producer's own landing book.
"""

from collections import deque
from dataclasses import dataclass, field
from random import Random

from producers.pull.core.landing.book import LandingBook
from producers.pull.core.landing.book import Sent as LandedRecord
from schemas.ids import CaptureId, TableId, Ts
from schemas.rawlog.frontier import Chunk, FrontierRecord, LandingReport
from schemas.tidb.keys import table_span
from schemas.tidb.spans import TableSpan

KEY_INDEXES = 8


def key_at(table: TableId, index: int) -> bytes:
    return table_span(table)[0] + bytes([index])


@dataclass(frozen=True, slots=True, order=True)
class Row:
    """A committed change: the upstream never has two equal ones."""

    commit_ts: Ts
    table: TableId
    key: int
    key_index: int
    """Where in its table its key lies: KEY_INDEXES of them, and a span holds some neighbouring ones."""

    def within(self, span: TableSpan) -> bool:
        return self.table == span.table_id and span.start <= key_at(self.table, self.key_index) < span.end


@dataclass(slots=True)
class Sent:
    """A batch on its way to one partition; ``reached`` is where its sender knew that partition to end."""

    rows: tuple[Row, ...]
    may_repeat: bool
    reached: int
    offset: int | None = None


@dataclass(slots=True)
class Pulled:
    """One span on one agent: what it has received and not sent, and what is not acknowledged yet."""

    start_ts: Ts
    scan_ts: Ts
    received_ts: Ts
    waiting: list[Row] = field(default_factory=list)
    unacked: list[Row] = field(default_factory=list)

    def landed_ts(self) -> Ts:
        """Just below the first row that is not acknowledged, else all that was received."""
        behind = [row.commit_ts for row in (*self.waiting, *self.unacked)]
        return min([Ts(ts - 1) for ts in behind], default=self.received_ts)


class Agent:
    """A plain model of an agent: independent of the producers' code, which has to do the same."""

    def __init__(self, capture: CaptureId, partitions: int) -> None:
        self.capture = capture
        self.spans: dict[TableSpan, Pulled] = {}
        self.flights: list[deque[Sent]] = [deque() for _ in range(partitions)]
        self.ends = [0] * partitions
        self.reached = [0] * partitions
        self.repeat_ends = [0] * partitions
        self.chunks: list[Chunk] = []

    def start(self, span: TableSpan, start_ts: Ts, now: Ts) -> None:
        self.spans[span] = Pulled(start_ts=start_ts, scan_ts=now, received_ts=start_ts)

    def stop(self, span: TableSpan) -> None:
        self.spans.pop(span, None)

    def receive(self, span: TableSpan, rows: list[Row], now: Ts) -> None:
        pulled = self.spans[span]
        pulled.waiting += [row for row in rows if row.within(span) and pulled.received_ts < row.commit_ts <= now]
        pulled.received_ts = max(pulled.received_ts, now)

    def rescan(self, span: TableSpan, rows: list[Row], now: Ts) -> None:
        """A region error: everything above landed_ts comes again."""
        pulled = self.spans[span]
        again = [row for row in rows if row.within(span) and pulled.landed_ts() < row.commit_ts <= now]
        pulled.waiting += again
        pulled.scan_ts, pulled.received_ts = now, max(pulled.received_ts, now)

    def send(self, random: Random, span: TableSpan) -> None:
        pulled = self.spans[span]
        if not pulled.waiting:
            return
        random.shuffle(pulled.waiting)
        count = random.randint(1, min(3, len(pulled.waiting)))
        rows, pulled.waiting = pulled.waiting[:count], pulled.waiting[count:]
        pulled.unacked += rows
        partition = random.randrange(len(self.ends))
        may_repeat = any(row.commit_ts <= pulled.scan_ts for row in rows)
        self.flights[partition].append(Sent(tuple(rows), may_repeat, self.reached[partition]))

    def acknowledge(self, partition: int) -> None:
        flight = self.flights[partition]
        offset = flight[0].offset if flight else None
        if offset is None:
            return
        sent = flight.popleft()
        self.ends[partition] = offset + 1
        self.reached[partition] = max(self.reached[partition], offset + 1)
        if sent.may_repeat:
            self.repeat_ends[partition] = offset + 1
        self.chunks.append(Chunk(partition, offset, max(row.commit_ts for row in sent.rows)))
        for row in sent.rows:
            for pulled in self.spans.values():
                if row in pulled.unacked:
                    pulled.unacked.remove(row)

    def hear(self, record: FrontierRecord) -> None:
        self.reached = [max(pair) for pair in zip(self.reached, record.high, strict=True)]
        self.chunks = [chunk for chunk in self.chunks if chunk.max_commit_ts > record.resolved_ts]

    def report(self) -> LandingReport:
        return LandingReport(
            capture=self.capture,
            landed_ts={span: pulled.landed_ts() for span, pulled in self.spans.items()},
            ends=tuple(self.ends),
            chunks=tuple(self.chunks),
            floors=tuple(
                flight[0].reached if flight else reached
                for flight, reached in zip(self.flights, self.reached, strict=True)
            ),
            repeat_ends=tuple(self.repeat_ends),
        )


class BookAgent(Agent):
    """The same agent on the producers' own landing book, which the product uses."""

    def __init__(self, capture: CaptureId, partitions: int) -> None:
        super().__init__(capture, partitions)
        self.book = LandingBook(capture, partitions)
        self.records: dict[int, LandedRecord] = {}

    def start(self, span: TableSpan, start_ts: Ts, now: Ts) -> None:
        super().start(span, start_ts, now)
        self.book.assign(span, start_ts)

    def stop(self, span: TableSpan) -> None:
        super().stop(span)
        self.book.remove([span])

    def receive(self, span: TableSpan, rows: list[Row], now: Ts) -> None:
        super().receive(span, rows, now)
        self.resolve(span)

    def send(self, random: Random, span: TableSpan) -> None:
        before = [len(flight) for flight in self.flights]
        super().send(random, span)
        for partition, flight in enumerate(self.flights):
            for sent in list(flight)[before[partition] :]:
                newest = max(row.commit_ts for row in sent.rows)
                record = self.book.sent(span, partition, newest, may_repeat=sent.may_repeat)
                self.records[id(sent)] = record
        self.resolve(span)

    def resolve(self, span: TableSpan) -> None:
        pulled = self.spans[span]
        oldest = min((row.commit_ts for row in pulled.waiting), default=Ts(pulled.received_ts + 1))
        self.book.resolved(span, Ts(oldest - 1))

    def acknowledge(self, partition: int) -> None:
        flight = self.flights[partition]
        sent = flight[0] if flight else None
        super().acknowledge(partition)
        if sent is not None and sent.offset is not None:
            self.book.acked(self.records.pop(id(sent)), sent.offset)

    def hear(self, record: FrontierRecord) -> None:
        super().hear(record)
        self.book.published(record)

    def report(self) -> LandingReport:
        return self.book.report()
