"""A changefeed as ZooKeeper has it: what the user wants, and how far it is."""

from dataclasses import dataclass

from consumers.control.changefeeds.verbs import state_of
from schemas.ids import Ts
from schemas.nodes.changefeed import ChangefeedInfo, ChangefeedState, ChangefeedStatus
from schemas.nodes.prologue import Prologue
from schemas.sink_figures import NO_FIGURES, SinkFigures


@dataclass(frozen=True, slots=True)
class StoredFeed:
    """A changefeed with how far it is; None: no sorter has said yet."""

    info: ChangefeedInfo
    status: ChangefeedStatus | None
    sorter_status: ChangefeedStatus | None = None
    """What the sorter says where ``status`` says what processors have applied; None: ``status`` is the sorter's."""
    prologue: Prologue | None = None
    """What it has of before the raw log; None: nothing, or nothing any more, or nobody asked for it."""

    sink: SinkFigures = NO_FIGURES
    """What processors count of their writes, or its sorter, where it has none."""

    @property
    def prologue_to_run(self) -> Prologue | None:
        """Its prologue, until its sorter is past it."""
        sorter, prologue = self.sorter_status or self.status, self.prologue
        is_past = prologue is not None and sorter is not None and sorter.checkpoint_ts >= prologue.end_ts
        return None if is_past else prologue

    @property
    def state(self) -> ChangefeedState:
        return state_of(self.info, self.status)

    @property
    def checkpoint_ts(self) -> Ts:
        return max(self.status.checkpoint_ts, self.info.start_ts) if self.status else self.info.start_ts

    @property
    def resolved_ts(self) -> Ts:
        return max(self.status.resolved_ts, self.info.start_ts) if self.status else self.info.start_ts
