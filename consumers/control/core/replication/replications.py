"""All spans of one changefeed: their sets, what is wanted, and the tasks under way, indexed so that a tick costs what
has changed and not what there is. The sets themselves are immutable; this book of them is not."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import assert_never

from consumers.control.core.replication.messages import Checkpoint, TableState, TableStatus
from consumers.control.core.replication.replication_set import ReplicationSet, SetState, step
from consumers.control.core.replication.set_messages import Add, CaptureGone, In, Move, Out, Remove, SpanReport
from consumers.control.core.replication.takeover import from_reports
from consumers.control.core.replication.tasks import AddSpan, MoveSpan, Plan, RemoveSpan, Task
from schemas.ids import CaptureId, Ts
from schemas.tidb.spans import TableSpan

Sent = tuple[TableSpan, Out]


@dataclass(slots=True)
class Replications:
    """``sets`` by span, and what is derived from them. Dicts with None for values are ordered sets."""

    sets: dict[TableSpan, ReplicationSet] = field(default_factory=dict)
    wanted: dict[TableSpan, None] = field(default_factory=dict)
    missing: dict[TableSpan, None] = field(default_factory=dict)
    """Wanted, and without a set or ABSENT."""
    unwanted: dict[TableSpan, None] = field(default_factory=dict)
    unsettled: dict[TableSpan, None] = field(default_factory=dict)
    """Sets that are not REPLICATING."""
    members: dict[CaptureId, dict[TableSpan, None]] = field(default_factory=dict)
    running: dict[TableSpan, None] = field(default_factory=dict)
    """Spans with a task under way: until they replicate, are gone, or are ABSENT again and wait for a new task."""
    begun: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("add", "move", "remove"), 0))
    """Tasks begun, by kind; for the metrics."""

    @property
    def lacks_a_set(self) -> bool:
        """Some wanted span was never added: nobody can say how far it is."""
        return any(span not in self.sets for span in self.missing)

    def take_over(
        self, reports: Mapping[TableSpan, Mapping[CaptureId, TableStatus]], start_of: Callable[[TableSpan], Ts]
    ) -> Iterator[Sent]:
        """Begin with what all captures have reported, each span at ``start_of`` it or further.

        Raises:
            MultiplePrimaryError: two captures write one span.
        """
        for span, statuses in reports.items():
            made, sent = from_reports(span, start_of(span), statuses)
            if made.captures:
                self._put(made)
                yield from ((span, out) for out in sent)

    def want(self, wanted: dict[TableSpan, None]) -> None:
        """Take a new list of spans."""
        self.wanted = wanted
        self.unwanted = {span: None for span in self.sets if span not in wanted}
        self.missing = {
            span: None for span in wanted if (known := self.sets.get(span)) is None or known.state is SetState.ABSENT
        }

    def report(self, capture: CaptureId, status: TableStatus) -> Iterator[Sent]:
        """Take what one capture says of one span.

        Raises:
            MultiplePrimaryError: it writes, and is not the primary.
        """
        known = self.sets.get(status.span)
        if known is None or capture not in known.captures:
            return
        if (
            known.state is SetState.REPLICATING
            and status.state is TableState.REPLICATING
            and status.checkpoint == known.checkpoint
            and status.stats is None
            and capture == known.primary
        ):
            return  # nothing new, which is what most reports say
        yield from self._step(status.span, SpanReport(capture, status.state, status.checkpoint, status.stats))

    def capture_gone(self, capture: CaptureId) -> Iterator[Sent]:
        """Take the end of a capture's session."""
        for span in list(self.members.get(capture, ())):
            self.running.pop(span, None)
            yield from self._step(span, CaptureGone(capture))
        self.members.pop(capture, None)

    def run(self, plan: Plan, start_of: Callable[[TableSpan], Ts], *, tasks_max: int) -> Iterator[Sent]:
        """Start the plan's tasks, but none for a span that has one; outside bursts at most ``tasks_max`` at a time."""
        for task in plan.tasks:
            if task.span in self.running:
                continue
            if not plan.is_burst and len(self.running) >= tasks_max:
                return
            yield from self._start(task, start_of)

    def end_tasks(self) -> None:
        """Free the slots of the tasks that are done."""
        done = [
            span
            for span in self.running
            if (known := self.sets.get(span)) is None or known.state in (SetState.REPLICATING, SetState.ABSENT)
        ]
        for span in done:
            del self.running[span]

    def _start(self, task: Task, start_of: Callable[[TableSpan], Ts]) -> Iterator[Sent]:
        message: In
        match task:
            case AddSpan(span, capture):
                if span not in self.sets:
                    start_ts = start_of(span)
                    self._put(ReplicationSet(span, checkpoint=Checkpoint(start_ts, start_ts)))
                message = Add(capture)
            case MoveSpan(span, capture):
                message = Move(capture)
            case RemoveSpan(span):
                message = Remove()
            case _:
                assert_never(task)
        before = self.sets.get(span)
        if before is None:
            return
        yield from self._step(span, message)
        if self.sets.get(span) is not before:
            self.running[span] = None
            self.begun[type(message).__name__.lower()] += 1

    def _step(self, span: TableSpan, message: In) -> Iterator[Sent]:
        before = self.sets[span]
        after, sent = step(before, message)
        if after is not before:
            if after.state is before.state and after.captures is before.captures:
                self.sets[span] = after  # only its checkpoint or stats moved, and no index knows of those
            else:
                self._put(after)
        return ((span, out) for out in sent)

    def _put(self, after: ReplicationSet) -> None:
        span = after.span
        before = self.sets.get(span)
        for capture in before.captures if before else ():
            if capture not in after.captures:
                self.members[capture].pop(span, None)
        for capture in after.captures:
            self.members.setdefault(capture, {})[span] = None
        is_wanted = span in self.wanted
        if after.is_removed:
            self.sets.pop(span, None)
        else:
            self.sets[span] = after
        _hold(self.unsettled, span, not after.is_removed and after.state is not SetState.REPLICATING)
        _hold(self.unwanted, span, not after.is_removed and not is_wanted)
        _hold(self.missing, span, is_wanted and (after.is_removed or after.state is SetState.ABSENT))


def _hold(spans: dict[TableSpan, None], span: TableSpan, is_held: bool) -> None:
    if is_held:
        spans[span] = None
    else:
        spans.pop(span, None)
