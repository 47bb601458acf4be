"""The simulated changefeed: one clock, one Random, and everything that happens in a tick."""

from collections import Counter
from collections.abc import Callable
from hashlib import blake2b
from random import Random

from compose.simulation.law import BrokenPromiseError
from compose.simulation.network import Network
from compose.simulation.processors.calls import Calls, KilledError
from compose.simulation.processors.destination import Destination
from compose.simulation.processors.history import START_TS, History
from compose.simulation.processors.process import LeftError, Process
from compose.simulation.processors.sink_topic import SinkTopic, Sorter
from compose.simulation.zookeeper import ZooKeeper
from consumers.control.changefeeds.processor_nodes import ProcessorInfo
from consumers.processors.apply.errors import DestinationUnreachableError
from edges.zookeeper.session import LeaseLostError
from schemas.errors import Action, BusError
from schemas.ids import CaptureId, Ts

PROCESSES_MAX = 4
LATE_TICKS = 20
STOPPED_TICKS = 40
"""More than a session lasts."""
DEPTH_MAX = 3
"""Processes that wait in the middle of a step, one in another's."""
WAIT_MAX = 300


class World:
    """``processes`` run or stand still. The seed decides how bad things are, too."""

    def __init__(self, seed: int, disturb: Callable[["World"], None]) -> None:
        """Begin with some processes; ``disturb`` lets one thing go wrong."""
        self.seed, self.disturb = seed, disturb
        self.random = random = Random(seed)  # noqa: S311 - to be repeated, not to be secret
        self.now = 0
        self.start_ts = START_TS
        self.zookeeper, self.network = ZooKeeper(random), Network(random)
        self.history = History(random, random.randint(3, 5))
        self.topic = SinkTopic(random.randint(2, 4))
        self.sorter = Sorter(random, self.history, self.topic)
        self.destination = Destination(history=self.history, partitions=self.topic.partitions)
        self.processes: dict[str, Process] = {}
        self.processors: dict[CaptureId, ProcessorInfo] = {}
        """Registered."""
        self.lock: tuple[str, int] | None = None
        """Who leads, and its number."""
        self.ghosts: list[Calls] = []
        self.trace: list[tuple[object, ...]] = []
        self.counts: Counter[str] = Counter()
        self.births = 0
        self.applied_ts = START_TS
        """In ZooKeeper."""
        self.has_faults = True
        self.broker_is_down_until = 0
        self.boundaries = self._numbers = self._depth = 0
        self.crash_at: tuple[int, str] | None = None
        """At which boundary its process dies, what it has sent being ``lost``, ``done`` or done ``late``; or is
        ``stopped`` until others have taken over."""
        self._choose(random)
        for _ in range(random.randint(1, 3)):
            self.start()

    def _choose(self, random: Random) -> None:
        self.pace = random.choice((0.4, 0.8, 1.0))
        self.network.delay = random.choice((0, 1, 3))
        self.network.detours = random.choice((0.0, 0.05, 0.2))
        self.network.loss = random.choice((0.0, 0.02, 0.2))
        self.network.repeats = random.choice((0.0, 0.1, 0.3))
        self.freezes = random.choice((0.0, 0.5, 2.0))
        self.trouble = random.choice((0.03, 0.08, 0.15))
        delays: tuple[tuple[int, ...], ...] = ((0,), (0, 1, 2), (1, 5, 15))
        self.delays = random.choice(delays)
        self.commits, self.ddls = random.choice((0.3, 0.8)), random.choice((0.02, 0.06))
        self.syncpoint_interval = random.choice((20, 60, 10**9))

    # -- what is asked of the world

    def delay(self) -> int:
        """Return how many ticks one way to the destination takes."""
        return self.random.choice(self.delays)

    def next_syncpoint(self, last: Ts) -> Ts:
        """Return the syncpoint after ``last``; 0: the first one."""
        interval = self.syncpoint_interval
        return Ts((max(last, START_TS) // interval + 1) * interval)

    @property
    def broker_is_down(self) -> bool:
        """Whether nobody reads or writes the topic now."""
        return self.now < self.broker_is_down_until

    def note(self, kind: str, *what: object) -> None:
        """Write a line of the trace."""
        self.counts[kind] += 1
        self.trace.append((self.now, kind, *what))

    def trace_hash(self) -> str:
        """Return what two runs of a seed must have in common."""
        return blake2b(repr((self.trace, self.network.sent)).encode(), digest_size=8).hexdigest()

    def boundary(self, who: str, what: str) -> None:
        """Count a call to something outside a process, made or answered.

        Raises:
            KilledError: this is where the process is to die.
        """
        number, self.boundaries = self.boundaries, self.boundaries + 1
        if self.crash_at is None or number != self.crash_at[0] or who not in self.processes:
            return
        self.note("boundary", who, what, self.crash_at[1])
        if self.crash_at[1] == "stopped":
            process = self.processes[who]
            until = process.frozen_until = self.now + STOPPED_TICKS
            if process.busy:
                self.wait_for(who, lambda: self.now >= until)
            return
        keeps, late = {"lost": (0.0, 0), "done": (1.0, 0), "late": (1.0, LATE_TICKS)}[self.crash_at[1]]
        self.bury(self.processes[who], closes=False, keeps=keeps, late=late)
        self.start()
        raise KilledError

    def report(self, who: str, checkpoint_ts: Ts) -> None:
        """Write how far the changefeed is."""
        if checkpoint_ts < self.applied_ts:
            raise BrokenPromiseError(f"checkpoint goes back from {self.applied_ts} to {checkpoint_ts}, says {who}")
        self.destination.check_checkpoint(checkpoint_ts)
        self.applied_ts = checkpoint_ts
        self.note("checkpoint", who, checkpoint_ts)

    def next_number(self) -> int:
        """Return a number that grows with each write to ZooKeeper."""
        self._numbers += 1
        return self._numbers

    def is_frozen(self, who: str) -> bool:
        """Tell whether a process stands still."""
        process = self.processes.get(who)
        return process is not None and process.frozen

    # -- what waits

    def pause(self, who: str, what: str) -> None:
        """A call of a process to something outside it: it may be stopped there for a while, or die.

        Raises:
            KilledError
        """
        if what:
            self.boundary(who, what)
        if self.has_faults and self.random.random() < 0.01 * self.freezes and self._depth < DEPTH_MAX:
            until = self.now + self.random.choice((1, 3, 10, 20, 40))
            self.note("freeze", who, until)
            self.processes[who].frozen_until = until
            self.wait_for(who, lambda: self.now >= until)

    def wait_for(self, who: str, reached: Callable[[], bool]) -> None:
        """Let the world go on while a process waits in the middle of a step.

        Raises:
            KilledError: it was killed meanwhile.
            DestinationUnreachableError: too much is waited for at once.
        """
        process = self.processes.get(who)
        if process is None:
            raise KilledError
        ticks = 0
        was, process.busy = process.busy, True
        self._depth += 1
        try:
            while not reached():
                if self._depth > DEPTH_MAX or ticks > WAIT_MAX:
                    raise DestinationUnreachableError("simulated: waited for too long")
                ticks += 1
                self.tick()
                if process.is_dead:
                    raise KilledError
        finally:
            self._depth -= 1
            process.busy = was

    # -- processes

    def start(self) -> Process:
        """Begin a run."""
        self.births += 1
        process = self.processes[f"p{self.births}"] = Process(self, f"p{self.births}")
        self.note("start", process.name)
        return process

    def bury(self, process: Process, *, closes: bool, keeps: float = 0.7, late: int = 0) -> None:
        """End a run: by itself, closing its session, or as by kill -9. Of its calls ``keeps`` happen all the same."""
        process.is_dead = True
        del self.processes[process.name]
        process.peers.close()
        for calls in process.work.calls:
            calls.die(keeps=keeps, late=late)
            self.ghosts.append(calls)
        self.destination.hang_up(process.name)
        if closes:
            self.zookeeper.end(process.capture)
            self._forget(process.capture)

    def _forget(self, capture: CaptureId) -> None:
        """A session is over, and its ephemeral nodes with it."""
        self.processors.pop(capture, None)
        if self.lock is not None and self.lock[0] == capture:
            self.lock = None

    # -- one tick

    def tick(self) -> None:
        """Let everything happen that happens in one."""
        self.now += 1
        random = self.random
        if random.random() < self.commits:
            self.history.commit()
        if random.random() < self.ddls:
            self.note("ddl", self.history.alter())
        if not self.broker_is_down:
            self.sorter.work()
        if self.has_faults and random.random() < self.trouble:
            self.disturb(self)
        for capture in self.zookeeper.expire(self.now):
            self.note("expire", capture)
            self._forget(capture)
        self.network.deliver(self.now)
        self.destination.work(self.now)
        for process in list(self.processes.values()):
            if not process.frozen:
                process.session.renew()
        for calls in [*self.ghosts, *(calls for process in self.processes.values() for calls in process.work.calls)]:
            calls.work()
        self.ghosts = [calls for calls in self.ghosts if not calls.is_idle]
        for process in list(self.processes.values()):
            if not (process.frozen or process.busy or process.is_dead):
                self._run(process)

    def _run(self, process: Process) -> None:
        process.busy = True
        try:
            process.step()
        except KilledError:
            pass
        except LeftError:
            self.note("left", process.name)
            self.bury(process, closes=True)
        except BusError as error:
            if error.action is Action.CRASH:
                raise BrokenPromiseError(f"{process.name} crashes: {error}") from error
            self.note("lost" if isinstance(error, LeaseLostError) else "anew", process.name, error.code)
            if not process.is_dead:
                self.bury(process, closes=True)
                self.start()
        except (AssertionError, LookupError, TypeError, ValueError) as error:
            if isinstance(error, BrokenPromiseError):
                raise
            raise BrokenPromiseError(f"{process.name} crashes: {error!r}") from error
        finally:
            process.busy = False
