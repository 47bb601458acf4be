"""A table executor that does what a test tells it, when it tells it."""

from collections.abc import Collection
from dataclasses import dataclass, field

from consumers.control.core.replication.messages import Checkpoint, Stats, TableState, TableStatus
from schemas.ids import Ts
from schemas.tidb.spans import TableSpan


@dataclass(slots=True)
class ScriptedExecutor:
    """``states`` is what it has; ``calls`` what it was told. With ``is_quick`` every step is done at once."""

    is_quick: bool = False
    states: dict[TableSpan, TableState] = field(default_factory=dict)
    checkpoints: dict[TableSpan, Checkpoint] = field(default_factory=dict)
    calls: list[tuple[str, TableSpan, Ts]] = field(default_factory=list)

    def add_table_span(self, span: TableSpan, checkpoint: Checkpoint, *, is_prepare: bool) -> None:
        self.calls.append(("prepare" if is_prepare else "write", span, checkpoint.checkpoint_ts))
        self.checkpoints[span] = checkpoint
        if is_prepare:
            self.states[span] = TableState.PREPARED if self.is_quick else TableState.PREPARING
        elif self.is_quick:
            self.states[span] = TableState.REPLICATING

    def is_add_finished(self, span: TableSpan, *, is_prepare: bool) -> bool:
        return self.states[span] is (TableState.PREPARED if is_prepare else TableState.REPLICATING)

    def remove_table_span(self, span: TableSpan) -> None:
        self.calls.append(("remove", span, Ts(0)))
        self.states[span] = TableState.STOPPED if self.is_quick else TableState.STOPPING

    def is_remove_finished(self, span: TableSpan) -> Checkpoint | None:
        if self.states[span] is not TableState.STOPPED:
            return None
        del self.states[span]
        return self.checkpoints.pop(span)

    def current_spans(self) -> Collection[TableSpan]:
        return self.states.keys()

    def status(self, span: TableSpan, *, collect_stats: bool = False) -> TableStatus:
        stats = Stats(region_count=1) if collect_stats else None
        return TableStatus(span, self.states[span], self.checkpoints[span], stats)
