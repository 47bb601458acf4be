"""What stands between a simulated processor and the world: calls that take a while, and what they are made to.

A call happens some ticks after it was ordered; its answer comes some ticks after that, if anybody is left to hear it.
One that is on its way already happens whatever becomes of its process meanwhile: one that is killed may have calls that
happen after its death. One that is not waits where its process is stopped, and happens when that goes on, as a zombie.
"""

import contextlib
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from compose.simulation.ends import KilledError
from compose.simulation.processors.destination import DdlSession, next_syncpoint
from compose.simulation.processors.history import SimDdl
from compose.simulation.processors.surroundings import ChangefeedSurroundings
from consumers.processors.apply.destination import DestinationState, PartitionPosition
from consumers.processors.apply.errors import DestinationUnreachableError
from consumers.processors.core.apply.partition import Claim, DdlMark
from consumers.processors.sink_source import SinkRecord
from schemas.errors import BusError
from schemas.ids import Ts

_P = ParamSpec("_P")
_T = TypeVar("_T")
READ_MAX = 8
"""Records of a partition that one look takes."""


class _NotYetError(Exception):
    """The call waits; it is made again in the next tick."""


@dataclass(slots=True)
class _Call:
    do: Callable[[], object]
    done: Future[Any]
    at: int
    waits: bool
    """It is not on its way yet, or was made and is not done: its process must go on with it."""
    answer_at: int | None = None
    answer: object = None
    error: BusError | None = None


class Calls(Executor):
    """One process's calls to the destination, instead of its worker threads."""

    def __init__(self, world: ChangefeedSurroundings, who: str) -> None:
        self._world, self._who = world, who
        self._calls: list[_Call] = []
        self.is_dead = False

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """See Executor."""
        done: Future[_T] = Future()
        at, waits = self._world.now + self._world.delay(), self._world.random.random() < 0.5
        self._calls.append(_Call(lambda: fn(*args, **kwargs), done, at, waits))
        self._world.boundary(self._who, "call")
        return done

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way."""
        return not self._calls

    def die(self, *, keeps: float, late: int = 0) -> None:
        """The process is gone; what is on its way happens all the same, perhaps later, or not."""
        self.is_dead = True
        self._calls = [call for call in self._calls if call.answer_at is None and self._world.random.random() < keeps]
        for call in self._calls:
            call.at += late

    def break_off(self) -> None:
        """The server has restarted: what was under way has happened or not, and nobody is told which."""
        for call in self._calls:
            if call.answer_at is None and self._world.random.random() < 0.5:
                self._make(call)
            call.answer_at, call.answer = self._world.now, None
            call.error = DestinationUnreachableError("simulated: lost connection")

    def work(self) -> None:
        """Let happen what is due."""
        for call in list(self._calls):
            if call not in self._calls:
                continue  # its process died by what happened before
            stands_still = call.waits and self._world.is_frozen(self._who)
            if call.answer_at is None and call.at <= self._world.now and not stands_still:
                self._make(call)
            if call.answer_at is not None and call.answer_at <= self._world.now:
                if call in self._calls:
                    self._calls.remove(call)
                if call.error is not None:
                    call.done.set_exception(call.error)
                else:
                    call.done.set_result(call.answer)

    def _make(self, call: _Call) -> None:
        try:
            call.answer = call.do()
        except (_NotYetError, KilledError):
            call.waits = True
            if self.is_dead and call in self._calls:
                self._calls.remove(call)  # nobody is there to ask again
            return
        except BusError as error:
            call.error = error
        call.answer_at = self._world.now + self._world.delay()
        with contextlib.suppress(KilledError):
            self._world.boundary(self._who, "answer")

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """See Executor: the process waits, and the world goes on."""
        if wait and not self.is_dead:
            self._world.wait_for(self._who, lambda: self.is_idle)


class SimConnection:
    """A connection to nowhere: calls are whole here."""

    def close(self) -> None:
        """Nothing is open."""


class DestinationOf:
    """One run's :class:`consumers.processors.apply.destination.DatabaseDestination`."""

    def __init__(self, world: ChangefeedSurroundings, who: str, revision: int) -> None:
        self._world, self._who, self._revision = world, who, revision
        self._destination = world.destination
        self._opened: dict[int, int] = {}

    def connect(self, *, multi_statements: bool = False) -> SimConnection:
        """See there."""
        return SimConnection()

    def lead(self, partitions: int, start: bytes, syncpoints_ms: int = 0) -> DestinationState:
        """See there; the caller waits."""
        self._world.pause(self._who, "lead")
        noted, syncpoint_ts, from_ts = self._destination.lead(self._revision, syncpoints_ms)
        cursors = self.positions(range(partitions))
        self._world.pause(self._who, "leads")
        return DestinationState(positions=cursors, ddl_noted=noted, syncpoint_ts=syncpoint_ts, syncpoints_from=from_ts)

    def positions(self, parts: Collection[int]) -> dict[int, PartitionPosition]:
        """See there."""
        return {part: PartitionPosition(*self._destination.locate(part)) for part in parts}

    def take(self, parts: Collection[int], revision: int) -> dict[int, PartitionPosition]:
        """See there."""
        cursors = {}
        for part in parts:
            self._opened[part], position, offset = self._destination.take(part, revision, self._who)
            cursors[part] = PartitionPosition(position, offset)
        return cursors

    def apply(self, _: SimConnection, part: int, before: bytes, claim: Claim) -> int:
        """See there."""
        self._destination.apply(part, self._opened[part], before, claim, self._who)
        return 1

    def keep(self, _: SimConnection, part: int, before: bytes, at: PartitionPosition) -> None:
        """See there."""
        opened = self._opened[part]
        self._destination.keep(part, opened, before, at.position, at.next_offset, self._who)


class _NoIndexes:
    """No index is built beside the rows here."""

    held_ts = None

    def check(self) -> None:
        """There is none that could have failed."""


class Runner:
    """One leader's :class:`consumers.processors.apply.ddl.DdlRunner`, and its syncpoints."""

    indexes = _NoIndexes()

    def __init__(self, world: ChangefeedSurroundings, who: str, revision: int) -> None:
        self._world, self._who, self._revision = world, who, revision
        self._session: DdlSession | None = None
        self.interval_ms = world.syncpoint_interval

    def resume(self, ignore_start_ts: Collection[int] = ()) -> None:
        """There are no indexes to go on with."""

    def close(self) -> None:
        """Nor any to leave."""

    def begin(self, mark: DdlMark) -> None:
        """See there."""
        self._world.destination.begin(self._revision, self._ddl(mark))

    def check(self, mark: DdlMark) -> bool:
        """See there."""
        session = self._locked(mark)
        self._session = None
        has_run = self._world.destination.check(session)
        self._world.note("checked", self._who, has_run)
        return has_run

    def run(self, mark: DdlMark) -> None:
        """See there: the lock, then the statement, then the wait for it."""
        session, destination = self._locked(mark), self._world.destination
        if session.runs_until is None:
            destination.send_ddl(session, self._world.now + self._world.random.choice((0, 1, 4)))
            self._world.boundary(self._who, "ddl is sent")
            raise _NotYetError
        if destination.lock is session:
            raise _NotYetError
        self._session = None
        if session.is_killed:
            raise DestinationUnreachableError("simulated: lost connection")

    def finish(self, mark: DdlMark, offsets: dict[int, int]) -> None:
        """See there."""
        self._world.destination.finish(self._revision, self._ddl(mark), offsets)

    def next(self, last: Ts) -> Ts | None:
        """Return the syncpoint after ``last``."""
        return next_syncpoint(last, self.interval_ms)

    def write(self, ts: Ts) -> None:
        """Write a syncpoint."""
        self._world.destination.write_syncpoint(self._revision, ts)

    def _locked(self, mark: DdlMark) -> DdlSession:
        """Hold the named lock; in a tick of its own, so that a process may be stopped or killed with it."""
        if self._session is None:
            self._session = self._world.destination.try_lock(self._revision, self._ddl(mark), self._who)
            if self._session is not None:
                self._world.boundary(self._who, "locked")
            raise _NotYetError
        return self._session

    def _ddl(self, mark: DdlMark) -> SimDdl:
        (event,) = self._world.history.between(Ts(mark.ddl.commit_ts - 1), mark.ddl.commit_ts)
        assert isinstance(event, SimDdl)
        return event


class TopicSource:
    """One run's :class:`consumers.processors.sink_source.Source`."""

    def __init__(self, world: ChangefeedSurroundings) -> None:
        self._world = world
        self._at: dict[int, int] = {}
        self._paused: set[int] = set()

    def partitions(self) -> int:
        """See there."""
        return self._world.topic.partitions

    def check(self, offsets: Mapping[int, int]) -> None:
        """All records are there."""

    def begin(self, offsets: Mapping[int, int]) -> None:
        """See there."""
        self._at.update({partition: max(0, offset - 1) for partition, offset in offsets.items()})
        self._paused -= offsets.keys()

    def end(self, partition: int) -> None:
        """See there."""
        self._at.pop(partition, None)

    def poll(self, timeout_s: float) -> list[SinkRecord]:
        """See there; a partition may have nothing to say now."""
        records: list[SinkRecord] = []
        if self._world.broker_is_down:
            return records
        for partition, at in self._at.items():
            if partition not in self._paused and self._world.random.random() < self._world.pace:
                more = self._world.topic.records[partition][at : at + READ_MAX]
                self._at[partition] = at + len(more)
                records += more
        return records

    def pause(self, partition: int) -> None:
        """See there."""
        self._paused.add(partition)

    def resume(self, partition: int) -> None:
        """See there."""
        self._paused.discard(partition)

    def note(self, offsets: Mapping[int, int]) -> None:
        """Nobody goes by it."""

    def close(self) -> None:
        """Nothing is open."""
