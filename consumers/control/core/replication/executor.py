"""What an agent asks of whatever replicates spans on its capture; the puller is the first to do it."""

from collections.abc import Collection
from typing import Protocol

from consumers.control.core.replication.messages import Checkpoint, TableStatus
from schemas.tidb.spans import TableSpan


class TableExecutor(Protocol):
    """Starts and stops spans. No call waits: what takes time goes on behind it and is asked about again.

    A span is PREPARING (pulls and buffers), PREPARED (its first resolved ts above the start ts is there, so all its
    regions are initialised), REPLICATING (writes), STOPPING, and STOPPED (writes nothing any more, ever).
    """

    def add_table_span(self, span: TableSpan, checkpoint: Checkpoint, *, is_prepare: bool) -> None:
        """Begin to pull ``span`` from ``checkpoint.checkpoint_ts`` (``is_prepare``), or, once it is PREPARED, to write
        it: the first event written has commit_ts above that ts, which may be later than the one pulled from."""

    def is_add_finished(self, span: TableSpan, *, is_prepare: bool) -> bool:
        """Tell whether the span is PREPARED, or without ``is_prepare`` REPLICATING."""

    def remove_table_span(self, span: TableSpan) -> None:
        """Begin to stop. What is under way to the sink may be finished or dropped."""

    def is_remove_finished(self, span: TableSpan) -> Checkpoint | None:
        """Return the final checkpoint and forget the span if it has STOPPED, else None."""

    def current_spans(self) -> Collection[TableSpan]:
        """Return all spans that were added and are not forgotten."""

    def status(self, span: TableSpan, *, collect_stats: bool = False) -> TableStatus:
        """Return the state of one of the current spans."""
