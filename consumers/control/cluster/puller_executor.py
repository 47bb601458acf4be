"""The puller as what an agent starts and stops spans on: the first ``TableExecutor``.

A span that prepares is pulled *and landed* at once: raw rows are facts, and what two captures land of one change counts
once. So nothing is buffered, and who becomes the primary has nothing to start. What the states mean here:

    PREPARING    pulled; its landed_ts is at the ts that it started from, or behind what is published of its table
    PREPARED     landed_ts has come past both once: the frontier would not have to wait if the other capture stopped now
    REPLICATING  the owner has said that this capture is the primary
    STOPPED      pulled no more; records on their way may be acknowledged yet, which floors and chunks tell of

The checkpoint_ts that is reported is what is *published* of the table, at most landed_ts: from there another could go
on. The owner goes by the record that it has published last, though (``Coordinator.tick``'s ``starts``).
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from consumers.control.core.replication.messages import Checkpoint, TableState, TableStatus
from schemas.ids import TableId, Ts
from schemas.rawlog.frontier import FrontierRecord, LandingReport
from schemas.tidb.spans import TableSpan


class LandsSpans(Protocol):
    """What is asked of :class:`producers.pull.puller.Puller`."""

    def assign(self, spans: Mapping[TableSpan, Ts]) -> None:
        """Pull spans, each from its ts; what overlaps them is pulled no more."""

    def remove(self, spans: Iterable[TableSpan]) -> None:
        """Pull spans no more."""

    def report(self) -> LandingReport:
        """Return what has landed, at one moment."""

    def published(self, record: FrontierRecord) -> None:
        """Take the owner's newest record."""


@dataclass(slots=True)
class _PulledSpan:
    start_ts: Ts
    looks: int
    """How many reports there were before it started: only later ones tell of this start."""
    state: TableState = TableState.PREPARING


class PullerExecutor:
    """Implements :class:`consumers.control.core.replication.executor.TableExecutor`; as deterministic as its puller."""

    def __init__(self, puller: LandsSpans, published: FrontierRecord | None = None) -> None:
        """Take over a puller that pulls nothing yet. ``published``: the newest published record, which it knows."""
        self._puller = puller
        self._pulled: dict[TableSpan, _PulledSpan] = {}
        self._parts: dict[TableId, set[TableSpan]] = {}
        self._published_up_to, self._held = _published(published)
        self._looks = 0
        self._report = puller.report()

    def look(self) -> LandingReport:
        """Ask the puller how far it has landed: all states are by this until the next look."""
        self._report = self._puller.report()
        self._looks += 1
        return self._report

    def published(self, record: FrontierRecord) -> None:
        """Take the owner's newest frontier record."""
        self._puller.published(record)
        self._published_up_to, self._held = _published(record)

    def drop_all(self) -> None:
        """Pull nothing any more: another start of the upstream begins with captures that have no spans."""
        self._puller.remove(list(self._pulled))
        self._pulled.clear()
        self._parts.clear()

    # -- TableExecutor -------------------------------------------------------------------------------------------------

    def add_table_span(self, span: TableSpan, checkpoint: Checkpoint, *, is_prepare: bool) -> None:
        """Pull and land from ``checkpoint`` on; or become the primary, at whatever it has landed."""
        if not is_prepare:
            self._pulled[span].state = TableState.REPLICATING
            return
        for other in [other for other in self._parts.get(span.table_id, ()) if other.overlaps(span)]:
            self._forget(other)
        self._puller.assign({span: checkpoint.checkpoint_ts})
        self._pulled[span] = _PulledSpan(checkpoint.checkpoint_ts, self._looks)
        self._parts.setdefault(span.table_id, set()).add(span)

    def is_add_finished(self, span: TableSpan, *, is_prepare: bool) -> bool:
        """Tell whether it has landed as far as anybody; or whether it is the primary."""
        pulled = self._pulled[span]
        if is_prepare:
            landed_ts = self._landed_ts(span, pulled)
            has_come = landed_ts > pulled.start_ts and landed_ts >= self._published_ts(span)
            if pulled.state is TableState.PREPARING and has_come:
                pulled.state = TableState.PREPARED
            return pulled.state is not TableState.PREPARING
        return pulled.state is TableState.REPLICATING

    def remove_table_span(self, span: TableSpan) -> None:
        """Stop at once."""
        self._puller.remove((span,))
        self._pulled[span].state = TableState.STOPPED

    def is_remove_finished(self, span: TableSpan) -> Checkpoint | None:
        """Return the last checkpoint and forget the span."""
        if self._pulled[span].state is not TableState.STOPPED:
            return None
        checkpoint = self.status(span).checkpoint
        self._forget(span)
        return checkpoint

    def current_spans(self) -> Collection[TableSpan]:
        """Return the spans that are pulled, and those that have stopped and are not asked about yet."""
        return self._pulled.keys()

    def status(self, span: TableSpan, *, collect_stats: bool = False) -> TableStatus:
        """Return where a span has come to, by the last look."""
        pulled = self._pulled[span]
        landed_ts = self._landed_ts(span, pulled)
        return TableStatus(span, pulled.state, Checkpoint(min(landed_ts, self._published_ts(span)), landed_ts))

    def _landed_ts(self, span: TableSpan, pulled: _PulledSpan) -> Ts:
        if pulled.looks == self._looks:
            return pulled.start_ts
        return self._report.landed_ts.get(span, pulled.start_ts)

    def _published_ts(self, span: TableSpan) -> Ts:
        return self._held.get(span.table_id, self._published_up_to)

    def _forget(self, span: TableSpan) -> None:
        del self._pulled[span]
        parts = self._parts[span.table_id]
        parts.discard(span)
        if not parts:
            del self._parts[span.table_id]


def _published(published: FrontierRecord | None) -> tuple[Ts, Mapping[TableId, Ts]]:
    """Return R, and the ts of each table that is held below it."""
    if published is None:
        return Ts(0), {}
    return published.resolved_ts, {table: held.ts for held in published.held for table in held.tables}
