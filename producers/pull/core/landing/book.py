"""The landing book: what one capture sent to the raw log, what the broker acknowledged, and what may be said about it.

Pure bookkeeping behind the frontier law (docs/architecture.md). The shell calls, in this order for each span::

    assign(span, ts)                      a span (re)starts from the published R
    sent(span, …) -> Sent                 a record goes to the producer, spans and partitions interleaved
    acked(Sent, offset)                   the broker has it; in any order
    resolved(span, ts)                    every row with commit_ts <= ts stands in records that were `sent` before
    report()                              -> LandingReport, one consistent moment
    published(record)                     the owner's frontier record came by

Three rules carry the frontier law:

1. **landed_ts** of a span is the greatest resolved ts whose records are *all* acknowledged. A record that is never
   acknowledged holds it for ever: a failed delivery can stop a span, never lose a row.
2. A **chunk** (start offset, max commit_ts) is kept while its max commit_ts is above the published R, of whatever span
   and incarnation; where tables are held, the owner knows their lows. Chunks may be joined (start of the first, max of
   both): that only lowers `low`.
3. A **floor**: nothing in flight, and nothing that is sent later, gets an offset below it. The broker appends at the
   end, so the end that was known when the oldest record in flight was sent is such a bound.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from schemas.errors import InvariantBrokenError
from schemas.ids import CaptureId, Ts
from schemas.rawlog.frontier import Chunk, FrontierRecord, LandingReport, widened
from schemas.tidb.spans import TableSpan

CHUNKS_MAX = 256
"""Chunks kept for one raw partition; beyond it neighbours are joined, so a report stays small however long R stalls."""
CHUNK_RECORDS_MAX = 32
"""Records joined into one chunk at once: some 8 MiB, the most that a sorter reads again for one late row."""


class _Span:
    """One incarnation of a span here; records of an earlier one never count for it."""

    __slots__ = ("in_flight", "landed_ts", "marks", "sent")

    def __init__(self, ts: Ts) -> None:
        self.landed_ts = ts
        self.sent = 0
        self.marks: deque[tuple[int, Ts]] = deque()
        """(records sent before it, resolved ts), both ascending."""
        self.in_flight: dict[int, None] = {}
        """Numbers of records not yet acknowledged, in sending order."""

    def settle(self) -> bool:
        """Pass the marks whose records are all acknowledged; tell whether there was one."""
        oldest = next(iter(self.in_flight), self.sent)
        settled = False
        while self.marks and self.marks[0][0] <= oldest:
            self.landed_ts = max(self.landed_ts, self.marks.popleft()[1])
            settled = True
        return settled


@dataclass(frozen=True, slots=True, eq=False)
class Sent:
    """One record in flight; hand it back to :meth:`LandingBook.acked`."""

    partition: int
    max_commit_ts: Ts
    may_repeat: bool
    number: int
    floor: int
    span: _Span


@dataclass(slots=True)
class _Chunk:
    start: int
    max_commit_ts: Ts
    records: int
    """How many are joined in it."""


class _Partition:
    __slots__ = ("chunks", "end", "in_flight", "known_end", "repeat_end")

    def __init__(self) -> None:
        self.known_end = 0
        """The highest offset known as reached: own acknowledgements, and `high` of published records."""
        self.end = 0
        self.repeat_end = 0
        self.in_flight: dict[Sent, None] = {}
        self.chunks: list[_Chunk] = []
        """Of acknowledged records, ascending by start offset."""

    def floor(self) -> int:
        # known_end only grows, so the oldest record in flight has the least floor.
        oldest = next(iter(self.in_flight), None)
        return self.known_end if oldest is None else oldest.floor

    def add(self, offset: int, max_commit_ts: Ts) -> None:
        at = len(self.chunks)
        while at and self.chunks[at - 1].start > offset:
            at -= 1
        before = self.chunks[at - 1] if at else None
        if before is not None and before.records < CHUNK_RECORDS_MAX:
            before.max_commit_ts = max(before.max_commit_ts, max_commit_ts)
            before.records += 1
            return
        self.chunks.insert(at, _Chunk(offset, max_commit_ts, 1))
        if len(self.chunks) > CHUNKS_MAX:
            self.chunks = [_join(self.chunks[i : i + 2]) for i in range(0, len(self.chunks), 2)]


def _join(chunks: list[_Chunk]) -> _Chunk:
    max_commit_ts = Ts(max(chunk.max_commit_ts for chunk in chunks))
    return _Chunk(chunks[0].start, max_commit_ts, sum(chunk.records for chunk in chunks))


class LandingBook:
    """The book of one capture. Not thread-safe: its shell calls it from one thread, or under one lock."""

    def __init__(self, capture: CaptureId, partitions: int, frontier: FrontierRecord | None = None) -> None:
        """Open an empty book.

        Args:
            capture: whose report it is.
            partitions: of the region-events topic.
            frontier: the newest published record, where there is one.
        """
        self._capture = capture
        self._spans: dict[TableSpan, _Span] = {}
        self._partitions = [_Partition() for _ in range(partitions)]
        self._published_ts = Ts(0)
        self.has_moved = False
        """A landed_ts has moved since the shell last set this back."""
        if frontier is not None:
            self.published(frontier)

    @property
    def published_ts(self) -> Ts:
        """The newest published resolved ts known here."""
        return self._published_ts

    def assign(self, span: TableSpan, ts: Ts) -> None:
        """Start a span at ``ts``: everything at or below is in the log. A span that was here starts anew."""
        self._spans[span] = _Span(ts)

    def remove(self, spans: Iterable[TableSpan]) -> None:
        """Forget spans; what they have in flight keeps its floors and chunks."""
        for span in spans:
            self._spans.pop(span, None)

    def sent(self, span: TableSpan, partition: int, max_commit_ts: Ts, *, may_repeat: bool) -> Sent:
        """Note a record just before it is handed to the producer."""
        entry = self._entry(span)
        state = self._partitions[partition]
        record = Sent(partition, max_commit_ts, may_repeat, entry.sent, state.known_end, entry)
        entry.in_flight[entry.sent] = None
        entry.sent += 1
        state.in_flight[record] = None
        return record

    def acked(self, record: Sent, offset: int) -> None:
        """Note that the broker has ``record`` at ``offset``.

        Raises:
            InvariantBrokenError: acknowledged twice, or below its floor: another topic stands where ours stood.
        """
        state = self._partitions[record.partition]
        if record not in state.in_flight:
            raise InvariantBrokenError("record was acknowledged twice", partition=record.partition, offset=offset)
        if offset < record.floor:
            raise InvariantBrokenError(
                "the broker gave an offset below an end that it had reached: was the topic created anew?",
                partition=record.partition,
                offset=offset,
                floor=record.floor,
            )
        del state.in_flight[record]
        state.end = max(state.end, offset + 1)
        state.known_end = max(state.known_end, offset + 1)
        if record.may_repeat:
            state.repeat_end = max(state.repeat_end, offset + 1)
        if record.max_commit_ts > self._published_ts:
            state.add(offset, record.max_commit_ts)
        del record.span.in_flight[record.number]
        self.has_moved |= record.span.settle()

    def resolved(self, span: TableSpan, ts: Ts) -> None:
        """Note that every row of ``span`` with commit_ts <= ``ts`` was sent before this call."""
        entry = self._entry(span)
        newest = entry.marks[-1][1] if entry.marks else entry.landed_ts
        if ts <= newest:
            return
        if entry.marks and entry.marks[-1][0] == entry.sent:
            entry.marks[-1] = (entry.sent, ts)
        else:
            entry.marks.append((entry.sent, ts))
        self.has_moved |= entry.settle()

    def published(self, record: FrontierRecord) -> None:
        """Take the owner's newest record: drop chunks that it has passed, learn its ends. Older ones change nothing."""
        if record.resolved_ts >= self._published_ts:
            self._published_ts = record.resolved_ts
        # The topic may have got partitions since this book was opened, or since the record was published.
        for state, high in zip(self._partitions, widened(record.high, len(self._partitions)), strict=False):
            state.known_end = max(state.known_end, high)
            state.chunks = [chunk for chunk in state.chunks if chunk.max_commit_ts > self._published_ts]

    def landed_ts(self) -> Mapping[TableSpan, Ts]:
        """Return landed_ts of each span."""
        return {span: entry.landed_ts for span, entry in self._spans.items()}

    def in_flight(self) -> int:
        """Return how many records wait for their acknowledgement."""
        return sum(len(state.in_flight) for state in self._partitions)

    def report(self) -> LandingReport:
        """Return all of it at this moment."""
        return LandingReport(
            capture=self._capture,
            landed_ts=self.landed_ts(),
            ends=tuple(state.end for state in self._partitions),
            chunks=tuple(
                Chunk(number, chunk.start, chunk.max_commit_ts)
                for number, state in enumerate(self._partitions)
                for chunk in state.chunks
            ),
            floors=tuple(state.floor() for state in self._partitions),
            repeat_ends=tuple(state.repeat_end for state in self._partitions),
        )

    def _entry(self, span: TableSpan) -> _Span:
        entry = self._spans.get(span)
        if entry is None:
            raise InvariantBrokenError("span is not assigned here", span=span)
        return entry
