"""A table executor whose spans take their time, and the truth about what it writes.

Truth is kept by *cell*, the least piece of a table's keys, so that it does not depend on how anybody cuts spans: who
may be writing it, and up to which ts it is downstream without a gap.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from random import Random

from consumers.control.core.replication.messages import Checkpoint, Stats, TableState, TableStatus
from schemas.ids import CaptureId, TableId, Ts
from schemas.tidb.spans import TableSpan

EDGES = (b"a", b"b", b"c", b"d", b"e")
"""Every table's keys are [a, e)."""
Cell = tuple[TableId, bytes]


def cells(span: TableSpan) -> list[Cell]:
    """Return the cells of a span."""
    return [(span.table_id, edge) for edge in EDGES[:-1] if span.start <= edge < span.end]


class BrokenPromiseError(AssertionError):
    """Something happened that never may."""


@dataclass(slots=True)
class Truth:
    """``writers`` may write now; ``delivered``: no row at or below it is missing downstream."""

    writers: dict[Cell, set[tuple[CaptureId, TableSpan]]] = field(default_factory=dict)
    delivered: dict[Cell, int] = field(default_factory=dict)
    wanted: set[TableId] = field(default_factory=set)

    def begin(self, capture: CaptureId, span: TableSpan, start_ts: int) -> None:
        """A capture begins to write from ``start_ts``."""
        for cell in cells(span):
            writers = self.writers.setdefault(cell, set())
            if writers:
                raise BrokenPromiseError(f"{capture} begins to write {cell} while {writers} may write it")
            if cell[0] not in self.wanted:
                self.delivered[cell] = max(self.delivered[cell], start_ts)  # rows of a dropped table: there are none
            if start_ts > self.delivered[cell]:
                raise BrokenPromiseError(f"{cell} goes on at {start_ts}, delivered is {self.delivered[cell]}")
            writers.add((capture, span))

    def deliver(self, capture: CaptureId, span: TableSpan, ts: int) -> None:
        """All up to ``ts`` is downstream."""
        for cell in cells(span):
            if (capture, span) not in self.writers[cell]:
                raise BrokenPromiseError(f"{capture} writes {cell} without having begun")
            self.delivered[cell] = max(self.delivered[cell], ts)

    def end(self, capture: CaptureId, span: TableSpan) -> None:
        """The capture writes it no more."""
        for cell in cells(span):
            self.writers[cell].discard((capture, span))

    def fence(self, capture: CaptureId) -> None:
        """The capture can write nothing any more: it is dead, or its lease is over."""
        for writers in self.writers.values():
            writers -= {writer for writer in writers if writer[0] == capture}


@dataclass(slots=True)
class _Run:
    state: TableState
    checkpoint_ts: int
    is_starting: bool = False
    wrote: bool = False


@dataclass(slots=True)
class SlowExecutor:
    """Each step of a span ends at some random later tick; a span that stops may write on until it has stopped."""

    capture: CaptureId
    truth: Truth
    random: Random
    runs: dict[TableSpan, _Run] = field(default_factory=dict)

    def add_table_span(self, span: TableSpan, checkpoint: Checkpoint, *, is_prepare: bool) -> None:
        if is_prepare:
            assert span not in self.runs
            self.runs[span] = _Run(TableState.PREPARING, checkpoint.checkpoint_ts)
            return
        run = self.runs[span]
        assert run.state is TableState.PREPARED
        self.truth.begin(self.capture, span, checkpoint.checkpoint_ts)
        run.checkpoint_ts = checkpoint.checkpoint_ts
        run.is_starting = run.wrote = True

    def is_add_finished(self, span: TableSpan, *, is_prepare: bool) -> bool:
        return self.runs[span].state is (TableState.PREPARED if is_prepare else TableState.REPLICATING)

    def remove_table_span(self, span: TableSpan) -> None:
        self.runs[span].state = TableState.STOPPING

    def is_remove_finished(self, span: TableSpan) -> Checkpoint | None:
        run = self.runs[span]
        if run.state is not TableState.STOPPED:
            return None
        del self.runs[span]
        return Checkpoint(Ts(run.checkpoint_ts))

    def current_spans(self) -> Collection[TableSpan]:
        return self.runs.keys()

    def status(self, span: TableSpan, *, collect_stats: bool = False) -> TableStatus:
        run = self.runs[span]
        stats = Stats(region_count=1) if collect_stats else None
        return TableStatus(span, run.state, Checkpoint(Ts(run.checkpoint_ts), Ts(run.checkpoint_ts + 1)), stats)

    def work(self, now: int, pace: float) -> None:
        """One tick of all that goes on behind."""
        for span, run in self.runs.items():
            is_writing = run.state is TableState.REPLICATING or (run.wrote and run.state is TableState.STOPPING)
            if is_writing and self.random.random() < 0.7 and run.checkpoint_ts < now:
                run.checkpoint_ts = self.random.randint(run.checkpoint_ts + 1, now)
                self.truth.deliver(self.capture, span, run.checkpoint_ts)
            if self.random.random() >= pace:
                continue
            if run.state is TableState.PREPARING:
                run.state = TableState.PREPARED
            elif run.state is TableState.PREPARED and run.is_starting:
                run.state = TableState.REPLICATING
            elif run.state is TableState.STOPPING:
                run.state = TableState.STOPPED
                if run.wrote:
                    self.truth.end(self.capture, span)
