"""The simulated changefeed: one clock, one Random, and everything that happens in a tick."""

from collections.abc import Callable

from compose.simulation.ends import KilledError, LeftError
from compose.simulation.law import BrokenPromiseError
from compose.simulation.processors.calls import Calls
from compose.simulation.processors.process import SimProcessor
from compose.simulation.processors.surroundings import ChangefeedSurroundings
from consumers.processors.apply.errors import DestinationUnreachableError
from consumers.processors.core.fence import FenceWentBackError
from consumers.processors.core.flow_book import FlowBrokenError
from edges.zookeeper.session import LeaseLostError
from schemas.errors import Action, BusError
from schemas.ids import CaptureId

PROCESSES_MAX = 4
LATE_TICKS = 20
STOPPED_TICKS = 40
"""More than a session lasts."""
DEPTH_MAX = 3
"""Processes that wait in the middle of a step, one in another's."""
WAIT_MAX = 300


class ChangefeedWorld(ChangefeedSurroundings):
    """``processes`` run or stand still. The seed decides how bad things are, too."""

    def __init__(self, seed: int, disturb: Callable[["ChangefeedWorld"], None]) -> None:
        """Begin with some processes; ``disturb`` lets one thing go wrong."""
        super().__init__(seed)
        self.disturb = disturb
        self.processes: dict[str, SimProcessor] = {}
        self.ghosts: list[Calls] = []
        self.births = self._depth = self.boundaries = 0
        self.crash_at: tuple[int, str] | None = None
        """At which boundary its process dies, what it has sent being ``lost``, ``done`` or done ``late``; or is
        ``stopped`` until others have taken over."""
        for _ in range(self.random.randint(1, 3)):
            self.start()

    # -- what is asked of the world

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

    def start(self) -> SimProcessor:
        """Begin a run."""
        self.births += 1
        process = self.processes[f"p{self.births}"] = SimProcessor(self, f"p{self.births}")
        self.note("start", process.name)
        return process

    def bury(self, process: SimProcessor, *, closes: bool, keeps: float = 0.7, late: int = 0) -> None:
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

    def _run(self, process: SimProcessor) -> None:
        process.busy = True
        try:
            process.step()
        except KilledError:
            pass
        except LeftError:
            self.note("left", process.name)
            self.bury(process, closes=True)
        except BusError as error:
            if error.action is Action.CRASH or isinstance(error, FlowBrokenError | FenceWentBackError):
                raise BrokenPromiseError(f"{process.name} ends: {error}") from error
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
