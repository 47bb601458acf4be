"""Who replicates which keys, as nobody in the simulation knows it: at most one capture whose session lives."""

from collections.abc import Callable
from dataclasses import dataclass, field

from compose.simulation.law import BrokenPromiseError
from compose.simulation.puller import SimPuller
from consumers.control.cluster.puller_executor import PullerExecutor
from consumers.control.core.replication.messages import Checkpoint
from schemas.ids import CaptureId, TableId
from schemas.rawlog.frontier import FrontierRecord
from schemas.tidb.spans import TableSpan


@dataclass(slots=True)
class Truth:
    """``is_alive``: whether a capture's session lives."""

    is_alive: Callable[[CaptureId], bool]
    writers: dict[TableId, list[tuple[CaptureId, TableSpan]]] = field(default_factory=dict)

    def begin(self, capture: CaptureId, span: TableSpan) -> None:
        """A capture becomes the primary of a span."""
        if not self.is_alive(capture):
            return
        writers = self.writers.setdefault(span.table_id, [])
        for other, held in writers:
            if held.overlaps(span):
                raise BrokenPromiseError(f"{capture} begins to replicate {span} while {other} replicates {held}")
        writers.append((capture, span))

    def end(self, capture: CaptureId, span: TableSpan) -> None:
        """It is no more."""
        writers = self.writers.get(span.table_id, [])
        if (capture, span) in writers:
            writers.remove((capture, span))

    def fence(self, capture: CaptureId) -> None:
        """Note that the session of a capture is over."""
        for table, writers in self.writers.items():
            self.writers[table] = [writer for writer in writers if writer[0] != capture]


class WatchedExecutor(PullerExecutor):
    """The product's executor, whose steps are noted in the truth and in the trace."""

    def __init__(
        self, puller: SimPuller, record: FrontierRecord | None, truth: Truth, note: Callable[..., None]
    ) -> None:
        super().__init__(puller, record)
        self._capture, self._truth, self._note = puller.capture, truth, note

    def add_table_span(self, span: TableSpan, checkpoint: Checkpoint, *, is_prepare: bool) -> None:
        """See PullerExecutor."""
        self._note("pull" if is_prepare else "primary", self._capture, str(span), checkpoint.checkpoint_ts)
        if not is_prepare:
            self._truth.begin(self._capture, span)
        super().add_table_span(span, checkpoint, is_prepare=is_prepare)

    def is_remove_finished(self, span: TableSpan) -> Checkpoint | None:
        """See PullerExecutor."""
        final = super().is_remove_finished(span)
        if final is not None:
            self._note("stopped", self._capture, str(span), final.checkpoint_ts)
            self._truth.end(self._capture, span)
        return final

    def drop_all(self) -> None:
        """See PullerExecutor."""
        self._note("drop", self._capture)
        self._truth.fence(self._capture)
        super().drop_all()
