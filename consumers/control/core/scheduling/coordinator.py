"""The owner's side of the scheduling of one changefeed: one reign, from a won election to its end.

The rules: docs/formats/cluster.md §8.

Deterministic: what comes out depends on what each :meth:`Coordinator.tick` is given. The shell ticks it as soon as
something has landed, and each owner-flush-interval (50 ms) where nothing lands, with the messages that came in, the
registered captures, the tables and the barrier, writes the checkpoint that comes out to ZooKeeper (compare-and-set, so
that a replaced owner cannot), then sends the messages.
A reign ends with its object: a new owner begins with a new one and asks everybody anew. After an error that restarts
the changefeed the shell makes a new one with a new changefeed epoch, and agents of the old epoch are thrown away.

    tick: captures → messages → all first captures have answered? → spans to replicate → one scheduler's tasks
          → checkpoint → heartbeats

Where the checkpoint is kept elsewhere (an upstream's is its frontier), the shell gives ``starts`` instead of a barrier:
from where each table begins wherever it begins, also when it moves; and no checkpoint is taken.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import assert_never

from consumers.control.core.replication.captures import CaptureSet, CaptureState
from consumers.control.core.replication.cover import wanted_spans
from consumers.control.core.replication.inbox import Inbox
from consumers.control.core.replication.messages import (
    NOTHING,
    AddTableRequest,
    AddTableResponse,
    Barrier,
    Checkpoint,
    Header,
    Heartbeat,
    HeartbeatResponse,
    Message,
    RemoveTableRequest,
    RemoveTableResponse,
    Request,
    Response,
)
from consumers.control.core.replication.progress import advance_checkpoint
from consumers.control.core.replication.replication_set import ReplicationSet
from consumers.control.core.replication.replications import Replications, Sent
from consumers.control.core.replication.set_messages import SendAdd, SendRemove
from consumers.control.core.replication.staleness import is_for_owner
from consumers.control.core.replication.tasks import Plan, Scene
from consumers.control.core.scheduling.schedulers import balance, basic, drain_capture, move_table, rebalance
from consumers.control.core.scheduling.schedulers.balance import Balance
from consumers.control.core.scheduling.schedulers.drain_capture import DrainCapture
from consumers.control.core.scheduling.schedulers.move_table import MoveTable
from consumers.control.core.scheduling.schedulers.rebalance import Rebalance
from schemas.errors import Action, BusError
from schemas.ids import CaptureId, TableId, Ts
from schemas.tidb.spans import TableSpan


class NotInitializedError(BusError):
    """The owner is new and has not heard of every capture yet."""

    code, action = "scheduling.not_initialized", Action.RETRY


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """TiCDC's names and values. Ticks are the shell's: 50 ms each where nothing lands, down to 5 ms where rows come,
    longer after one that took long (docs/formats/cluster.md §3). Times below are for 50 ms.
    """

    max_task_concurrency: int = 10
    """Spans under way at a time outside bursts, at least: each of them scans."""
    task_share: int = 20
    """Of very many spans one in so many may be under way at a time, so that a capture hands over within half a minute
    whatever it has: what Kubernetes gives one that is to leave."""
    add_table_batch_size: int = 50
    """Spans added in one tick, at least: 1,000 a second."""
    add_ticks: int = 400
    """Of very many spans so many more are added in one tick that all are asked for within 20 s."""
    check_balance_interval_ticks: int = 1200
    """60 s between two looks at the captures' shares."""
    heartbeat_ticks: int = 2
    collect_stats_ticks: int = 200
    """10 s between two heartbeats that ask for figures."""
    heartbeat_spans_max: int = 1000
    """Spans at rest that one heartbeat asks of one capture, in turn, and as many of the others. With more spans than
    that a checkpoint is behind by the time of a turn; TiCDC asks for all each time, which no owner in Python could
    read. What is not at rest tells of itself: it is asked only lest a message was lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who this owner is, in every header."""

    capture: CaptureId
    version: str
    owner_revision: int
    changefeed_epoch: int


@dataclass(slots=True)
class Coordinator:
    """``checkpoint_ts`` is the persisted one: where a span that nobody has begins. ``sequence`` goes on over all
    coordinators of the capture."""

    me: Identity
    checkpoint_ts: Ts
    limits: Limits = field(default_factory=Limits)
    sequence: int = 0
    checkpoint: Checkpoint = NOTHING
    """What the last tick came to; NOTHING until every wanted span is somebody's."""
    captures: CaptureSet = field(default_factory=CaptureSet)
    replications: Replications = field(default_factory=Replications)
    _inbox: Inbox = field(default_factory=Inbox)
    _drain: DrainCapture = field(default_factory=DrainCapture)
    _move: MoveTable = field(default_factory=MoveTable)
    _rebalance: Rebalance = field(default_factory=Rebalance)
    _balance: Balance = field(init=False)
    _tables: Mapping[TableId, Sequence[TableSpan]] | None = None
    _ticks: int = 0
    _greeted: set[CaptureId] = field(default_factory=set)
    _turns: dict[CaptureId, int] = field(default_factory=dict)
    _starts: Callable[[TableId], Ts] | None = None

    def __post_init__(self) -> None:
        self._balance = Balance(self.limits.check_balance_interval_ticks)

    @property
    def is_initialized(self) -> bool:
        """Every capture that was registered at the start of the reign has answered; health checks ask for it."""
        return self.captures.is_initialized

    @property
    def _tasks_max(self) -> int:
        """How many spans may be under way at a time."""
        return max(self.limits.max_task_concurrency, len(self.replications.wanted) // self.limits.task_share)

    @property
    def assignments(self) -> dict[TableSpan, CaptureId]:
        """The primary of each span that has one."""
        return {span: known.primary for span, known in self.replications.sets.items() if known.primary is not None}

    def tick(
        self,
        messages: Iterable[Message],
        *,
        alive: frozenset[CaptureId],
        tables: Mapping[TableId, Sequence[TableSpan]],
        barrier: Barrier | None,
        salt: int,
        may_schedule: bool = True,
        starts: Callable[[TableId], Ts] | None = None,
    ) -> list[Message]:
        """Go one tick further and return what to send; :attr:`checkpoint` is then how far everything is.

        ``alive`` are the registered captures, this one among them. ``tables``: of each table its spans, which cover it;
        give the same object while nothing changed, never change it in place. ``salt`` is any number of 128 bits that
        differs from tick to tick. Without ``may_schedule`` (captures of versions that do not go together) nothing is
        begun. ``starts`` is asked, during this tick, for the ts from which a table's spans begin, where it is not
        :attr:`checkpoint_ts` or what its captures have reported. Without ``barrier`` the checkpoint stands.

        Raises:
            MultiplePrimaryError, OverlappingSpansError: start the changefeed anew, with a new epoch.
        """
        self._ticks += 1
        self._starts = starts
        sent: list[Sent] = []
        self.captures, gone = self.captures.with_alive(alive)
        if gone:
            self._inbox.forget(alive)
            self._greeted -= gone
            for capture in sorted(gone):
                sent += self.replications.capture_gone(capture)
        # An owner's capture has an agent, too: what that one is asked has numbers of its own.
        answers = (message for message in messages if isinstance(message.body, Response))
        for message in self._inbox.take(answers):
            sent += self._hear(message)
        self.captures, first = self.captures.take_first_reports()
        if first is not None:
            sent += self.replications.take_over(first, self._start_of)
        if self.is_initialized:
            if tables is not self._tables:
                self.replications.want(wanted_spans(tables, self._kept(tables)))
                self._tables = tables
            self.replications.end_tasks()
            if may_schedule:
                plan = self._plan(salt)
                sent += self.replications.run(plan, self._start_of, tasks_max=self._tasks_max)
            if barrier is not None and self._ticks % self.limits.heartbeat_ticks == 0:
                self._advance(barrier)
        requests = [self._order(span, out) for span, out in sent]
        return [*requests, *self._heartbeats(barrier)]

    def drain(self, capture: CaptureId) -> int:
        """Move all spans of ``capture`` away, tick by tick; return how many it has now.

        Raises:
            NotInitializedError: too early.
            DrainRefusedError: see :func:`~consumers.control.core.scheduling.schedulers.drain_capture.drain`.
        """
        self._check_initialized()
        self._drain, spans = drain_capture.drain(self._drain, self._scene(0), capture)
        return spans

    def move(self, span: TableSpan, capture: CaptureId) -> None:
        """Move one span.

        Raises:
            NotInitializedError: too early.
        """
        self._check_initialized()
        self._move = move_table.order(self._move, span, capture)

    def rebalance(self) -> None:
        """Give every capture its share at once.

        Raises:
            NotInitializedError: too early.
        """
        self._check_initialized()
        self._rebalance = Rebalance(is_asked=True)

    def _check_initialized(self) -> None:
        if not self.is_initialized:
            raise NotInitializedError("the owner waits for the first answer of a capture", waiting=self.captures.first)

    def _kept(self, tables: Mapping[TableId, Sequence[TableSpan]]) -> list[TableSpan]:
        return [span for span in {**self.replications.sets, **self.replications.wanted} if span.table_id in tables]

    def _hear(self, message: Message) -> list[Sent]:
        header, body, me = message.header, message.body, self.me
        if not is_for_owner(
            header,
            message.receiver,
            me=me.capture,
            revision=me.owner_revision,
            changefeed_epoch=me.changefeed_epoch,
        ) or not self.captures.is_known(message.sender, header.processor_epoch):
            return []
        match body:
            case HeartbeatResponse():
                self.captures = self.captures.with_answer(message.sender, body, header.processor_epoch)
                statuses = body.tables
            case AddTableResponse(status) | RemoveTableResponse(status):
                statuses = (status,)
            case _:
                return []
        return [sent for status in statuses for sent in self.replications.report(message.sender, status)]

    def _scene(self, salt: int) -> Scene:
        book = self.replications
        return Scene(
            owner=self.me.capture,
            captures=self.captures.captures,
            sets=book.sets,
            missing=book.missing,
            unwanted=book.unwanted,
            is_settled=not book.unsettled,
            members=book.members,
            salt=salt,
        )

    def _plan(self, salt: int) -> Plan:
        """Ask the schedulers in their order; the first that has tasks has the tick."""
        scene, limits = self._scene(salt), self.limits
        batch_size = max(limits.add_table_batch_size, len(self.replications.wanted) // limits.add_ticks)
        plan = basic.plan(scene, batch_size=batch_size)
        if plan.tasks or len(self.replications.running) >= self._tasks_max:
            return plan
        free = self._tasks_max - len(self.replications.running)
        self._drain, plan = drain_capture.plan(self._drain, scene, limit=free)
        if plan.tasks:
            return plan
        self._move, plan = move_table.plan(self._move, scene)
        if plan.tasks:
            return plan
        self._rebalance, plan = rebalance.plan(self._rebalance, scene)
        if plan.tasks:
            return plan
        interval = limits.check_balance_interval_ticks
        self._balance, plan = balance.plan(self._balance, scene, interval_ticks=interval, limit=self._tasks_max)
        return plan

    def _advance(self, barrier: Barrier) -> None:
        book = self.replications
        if book.lacks_a_set:
            return
        sets: Iterable[ReplicationSet] = book.sets.values()
        if book.unwanted:
            sets = [known for known in sets if known.span not in book.unwanted]
        self.checkpoint = advance_checkpoint(self.checkpoint, sets, barrier)
        self.checkpoint_ts = max(self.checkpoint_ts, self.checkpoint.checkpoint_ts)

    def _heartbeats(self, barrier: Barrier | None) -> list[Message]:
        """Ask everybody each heartbeat tick, and whoever is new at once."""
        is_due = self._ticks % self.limits.heartbeat_ticks == 0
        messages: list[Message] = []
        for capture, status in self.captures.captures.items():
            if not is_due and capture in self._greeted:
                continue
            self._greeted.add(capture)
            heartbeat = Heartbeat(
                spans=self._asked(capture),
                is_stopping=capture == self._drain.target,
                collect_stats=self._ticks % self.limits.collect_stats_ticks == 0,
                barrier=barrier,
                # Until the reign knows everything, each answer must be whole: the newest one of a capture counts.
                all_spans=not self.is_initialized or status.state is CaptureState.UNINITIALIZED,
            )
            messages.append(self._envelope(capture, heartbeat))
        return messages

    def _asked(self, capture: CaptureId) -> tuple[TableSpan, ...]:
        """Return the capture's spans that are not at rest, and the next of the others in turn."""
        held = self.replications.members.get(capture, {})
        most = self.limits.heartbeat_spans_max
        if len(held) <= most:
            return tuple(held)
        start = self._turns.get(capture, 0)
        self._turns[capture] = start + most
        restless = _turn(self.replications.unsettled, start, most)
        return tuple(dict.fromkeys((*(span for span in restless if span in held), *_turn(held, start, most))))

    def _order(self, span: TableSpan, out: SendAdd | SendRemove) -> Message:
        match out:
            case SendAdd(capture, is_secondary, checkpoint):
                if self._starts is not None:
                    start_ts = self._starts(span.table_id)
                    checkpoint = Checkpoint(start_ts, start_ts)
                return self._envelope(capture, AddTableRequest(span, is_secondary, checkpoint))
            case SendRemove(capture):
                return self._envelope(capture, RemoveTableRequest(span))
            case _:
                assert_never(out)

    def _start_of(self, span: TableSpan) -> Ts:
        return self.checkpoint_ts if self._starts is None else self._starts(span.table_id)

    def _envelope(self, capture: CaptureId, body: Request) -> Message:
        self.sequence += 1
        status = self.captures.captures.get(capture)
        epoch = (status.processor_epoch if status else None) or ""
        header = Header(self.me.version, self.me.owner_revision, epoch, self.me.changefeed_epoch)
        return Message(header, self.me.capture, capture, self.sequence, body)


def _turn(spans: Mapping[TableSpan, None], start: int, most: int) -> list[TableSpan]:
    """Return the next ``most`` of ``spans``, all of them where there are no more."""
    if len(spans) <= most:
        return list(spans)
    start %= len(spans)
    return [*islice(spans, start, start + most), *islice(spans, max(0, start + most - len(spans)))]
