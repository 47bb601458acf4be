"""A capture's side of the scheduling of one changefeed: does what the owner says, one thing a span.

The rules: docs/formats/cluster.md §6.

Deterministic: what comes out depends on the messages, their order and the executor's answers. The shell gives it the
messages of its stream, sends what :meth:`Agent.tick` returns, and throws the agent and its executor away when the
capture's lease is over; the next one has a new capture id.

    request            span is     then
    Add                Absent      pull from the request's checkpoint → Preparing
                       Preparing   wait, say nothing
                       Prepared    secondary: done. Primary: write from the request's checkpoint, report until it does
                       Replicating done
                       Stopping    not done; report
    Remove             Absent      report
                       else        stop, report Stopping until it has, then Stopped with the final checkpoint

While one of them is under way another request for the span is ignored: the owner asks again.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from consumers.control.core.replication.executor import TableExecutor
from consumers.control.core.replication.inbox import Inbox
from consumers.control.core.replication.messages import (
    AddTableRequest,
    AddTableResponse,
    Barrier,
    Checkpoint,
    Header,
    Heartbeat,
    HeartbeatResponse,
    Liveness,
    Message,
    RemoveTableRequest,
    RemoveTableResponse,
    Request,
    Response,
    TableState,
    TableStatus,
)
from consumers.control.core.replication.staleness import Known, Verdict, is_of_feed, is_same_epoch, judge_owner
from schemas.errors import InvariantBrokenError
from schemas.ids import CaptureId, Ts
from schemas.tidb.spans import TableSpan


@dataclass(slots=True)
class _AddTask:
    request: AddTableRequest
    is_started: bool = False
    """The sink was told to write."""


@dataclass(slots=True)
class _RemoveTask:
    span: TableSpan
    is_started: bool = False


@dataclass(slots=True)
class Agent:
    """One agent of one changefeed on one capture.

    ``revision`` is the owner revision read from ZooKeeper after the capture has registered: owners before it are not
    obeyed. ``epoch`` names this agent's start (a UUID). ``sequence`` goes on over all agents of the capture.
    """

    capture: CaptureId
    version: str
    epoch: str
    changefeed_epoch: int
    executor: TableExecutor
    revision: int
    liveness: Liveness = Liveness.ALIVE
    barrier: Barrier | None = None
    """The newest one heard."""
    sequence: int = 0
    _known: Known = field(init=False)
    _inbox: Inbox = field(default_factory=Inbox)
    _tasks: dict[TableSpan, _AddTask | _RemoveTask] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._known = Known(None, self.revision)

    @property
    def owner(self) -> CaptureId | None:
        """Whom this agent obeys; None until it has heard of one."""
        return self._known.owner

    @property
    def owner_revision(self) -> int:
        """The highest revision known: a command of a lower one is of the past."""
        return self._known.revision

    @property
    def processor_epoch(self) -> str:
        """A new one for each owner, so that no answer to one owner is taken for an answer to the next."""
        return f"{self.epoch}.{self._known.revision}"

    @property
    def is_settled(self) -> bool:
        """Whether nothing that the owner has asked for is under way."""
        return not self._tasks

    def stop(self) -> None:
        """Say from now on that this capture is leaving: the owner moves its spans away."""
        self.liveness = Liveness.STOPPING

    def tick(self, messages: Iterable[Message]) -> list[Message]:
        """Take what came in, go on with the tasks, and return what to send.

        Raises:
            TwoOwnersError: two captures command with one revision.
        """
        answers: list[Response] = []
        heartbeats: list[Heartbeat] = []
        # An owner's capture hears answers, too: those have numbers of their own.
        requests = (message for message in messages if isinstance(message.body, Request))
        for message in self._inbox.take(requests):
            verdict = self._judge(message)
            if verdict is Verdict.ADOPT:
                # A new owner takes the answer to its first heartbeat for the whole truth: never one to another's.
                heartbeats.clear()
                answers.clear()
            if verdict is Verdict.DROP or not is_of_feed(message.header, self.changefeed_epoch):
                continue
            match body := message.body:
                case Heartbeat():
                    heartbeats.append(body)
                    # At once: whatever is answered now must lean on what this owner has announced, not the one before.
                    self.barrier = body.barrier or self.barrier
                case AddTableRequest():
                    if is_same_epoch(self.processor_epoch, message.header.processor_epoch):
                        self._tasks.setdefault(body.span, _AddTask(body))
                case RemoveTableRequest():
                    if is_same_epoch(self.processor_epoch, message.header.processor_epoch):
                        self._on_remove(body, answers)
                case _:
                    pass
        for span in list(self._tasks):
            answers.extend(self._work_on(span))
        if heartbeats:
            # Last, so that no span is called Absent whose task came in this very tick.
            answers.append(self._on_heartbeats(heartbeats))
        return [self._envelope(answer) for answer in answers]

    def _judge(self, message: Message) -> Verdict:
        if message.receiver != self.capture:
            return Verdict.DROP
        verdict = judge_owner(self._known, message.sender, message.header)
        if verdict is Verdict.ADOPT:
            self._known = Known(message.sender, message.header.owner_revision, message.header.version)
        return verdict

    def _on_heartbeats(self, requests: Sequence[Heartbeat]) -> HeartbeatResponse:
        """Answer all heartbeats of a tick at once."""
        asked: dict[TableSpan, None] = {}
        for request in requests:
            asked.update(dict.fromkeys(request.spans))
            if request.is_stopping:
                self.stop()
        is_whole = any(request.all_spans for request in requests)
        asked.update(dict.fromkeys(self.executor.current_spans() if is_whole else self._tasks))
        collect_stats = any(request.collect_stats for request in requests)
        return HeartbeatResponse(
            tuple(self._status(span, collect_stats=collect_stats) for span in asked), self.liveness
        )

    def _on_remove(self, request: RemoveTableRequest, answers: list[Response]) -> None:
        if request.span in self._tasks:
            return
        if request.span in self.executor.current_spans():
            self._tasks[request.span] = _RemoveTask(request.span)
        else:
            answers.append(RemoveTableResponse(TableStatus(request.span, TableState.ABSENT)))

    def _status(self, span: TableSpan, *, collect_stats: bool = False) -> TableStatus:
        if span not in self.executor.current_spans():
            return TableStatus(span, TableState.ABSENT)
        status = self.executor.status(span, collect_stats=collect_stats)
        if isinstance(self._tasks.get(span), _RemoveTask) and status.state is not TableState.STOPPED:
            return TableStatus(span, TableState.STOPPING, status.checkpoint, status.stats)
        return status

    def _work_on(self, span: TableSpan) -> Iterator[Response]:
        task = self._tasks[span]
        if isinstance(task, _AddTask):
            if (added := self._add(task)) is not None:
                yield AddTableResponse(added)
        else:
            yield RemoveTableResponse(self._remove(task))

    def _add(self, task: _AddTask) -> TableStatus | None:
        """Go as far as it goes now and return what to report, None while it prepares."""
        request = task.request
        span = request.span
        if span not in self.executor.current_spans():
            if request.checkpoint.checkpoint_ts == 0:
                raise InvariantBrokenError("span added without a checkpoint", span=span)
            self.executor.add_table_span(span, request.checkpoint, is_prepare=True)
        status = self.executor.status(span)
        if status.state is TableState.PREPARING and not self.executor.is_add_finished(span, is_prepare=True):
            return None
        status = self.executor.status(span)
        if status.state is TableState.PREPARED and not request.is_secondary:
            if not task.is_started:
                self.executor.add_table_span(span, request.checkpoint, is_prepare=False)
                task.is_started = True
            is_done = self.executor.is_add_finished(span, is_prepare=False)
            status = self.executor.status(span)
        else:
            is_done = True
        if is_done:
            del self._tasks[span]
        return status

    def _remove(self, task: _RemoveTask) -> TableStatus:
        span = task.span
        if not task.is_started:
            self.executor.remove_table_span(span)
            task.is_started = True
        final = self.executor.is_remove_finished(span)
        if final is None:
            return TableStatus(span, TableState.STOPPING, self.executor.status(span).checkpoint)
        del self._tasks[span]
        resolved_ts = final.resolved_ts or Ts(final.checkpoint_ts)
        return TableStatus(span, TableState.STOPPED, Checkpoint(final.checkpoint_ts, resolved_ts, final.last_synced_ts))

    def _envelope(self, body: Response) -> Message:
        assert self._known.owner is not None, "only an owner's message makes an answer"
        self.sequence += 1
        header = Header(self.version, self._known.revision, self.processor_epoch, self.changefeed_epoch)
        return Message(header, self.capture, self._known.owner, self.sequence, body)
