"""The simulated cluster: one clock, one Random, and everything that happens in a tick.

A tick is 50 ms of the owner's and the agents' time. Whatever waits in the product may take many ticks here
(:meth:`ClusterWorld.maybe_freeze`): the world then runs on inside that very call.
"""

from collections.abc import Callable

from compose.simulation.broker import Producer
from compose.simulation.capture import SimCapture
from compose.simulation.ends import KilledError, LeftError
from compose.simulation.law import BrokenPromiseError
from compose.simulation.surroundings import ClusterSurroundings
from compose.simulation.topic import SimFrontierTopic
from edges.zookeeper.session import LeaseLostError
from schemas.errors import Action, BusError
from schemas.ids import CaptureId

VERSION = "0.1.0"
FREEZE_DEPTH_MAX = 3


class ClusterWorld(ClusterSurroundings):
    """``processes`` run or stand still. The seed decides how bad things are, too."""

    def __init__(self, seed: int, disturb: Callable[["ClusterWorld"], None]) -> None:
        """Begin with some captures; ``disturb`` lets one thing go wrong."""
        super().__init__(seed)
        self.disturb = disturb
        self.processes: dict[CaptureId, SimCapture] = {}
        self.ghosts: list[Producer] = []
        self.late: list[SimFrontierTopic] = []
        self.births = 0
        self.frozen = 0
        self._published_seen = 0
        for _ in range(self.random.randint(1, 3)):
            self.start()

    # -- processes

    def start(self, version: str = VERSION) -> SimCapture:
        """Start a capture."""
        self.births += 1
        capture = CaptureId(f"c{self.births}")
        process = self.processes[capture] = SimCapture(self, capture, version, self.maybe_freeze)
        self.note("start", capture, version)
        return process

    def bury(self, process: SimCapture, *, closes: bool) -> None:
        """End a process: by itself, closing its session, or as by kill -9."""
        process.is_dead = True
        del self.processes[process.capture]
        process.peers.close()
        process.puller.producer.abandon()
        self.ghosts.append(process.puller.producer)
        if process.topic.late:
            self.late.append(process.topic)
        if closes:
            self.zookeeper.end(process.capture)
            self.truth.fence(process.capture)

    def maybe_freeze(self, process: SimCapture, chance: float) -> None:
        """Let a process stand still where it is, at times."""
        if not self.has_faults or self.frozen >= FREEZE_DEPTH_MAX or self.random.random() >= chance * self.freezes:
            return
        self.stand_still(process, only_owner=process.busy and self.random.random() < 0.5)
        if process.is_dead:
            raise KilledError

    def stand_still(self, process: SimCapture, *, only_owner: bool) -> None:
        """Let the world go on without a process, or without its owner's part."""
        ticks = self.random.choice((1, 3, 10, 20, 40))
        self.note("freeze", process.capture, ticks, only_owner)
        self.frozen += 1
        process.frozen = not only_owner
        for _ in range(ticks):
            self.tick()
            if process.is_dead:
                break
        process.frozen = False
        self.frozen -= 1
        self.note("wake", process.capture)

    def looked(self) -> None:
        """Check what was published."""
        for record in self.broker.followed[self._published_seen :]:
            held = [(group.ts, group.tables) for group in record.held]
            self.note("frontier", record.owner_rev, record.resolved_ts, record.low, record.high, held)
        self._published_seen = len(self.broker.followed)
        self.law.check()

    # -- one tick

    def tick(self) -> None:
        """Let everything happen that happens in 50 ms."""
        self.now += 1
        random = self.random
        if random.random() < self.commits:
            self.upstream.commit()
        if self.has_faults and random.random() < self.trouble:
            self.disturb(self)
        for capture in self.zookeeper.expire(self.now):
            self.truth.fence(capture)
            self.note("expire", capture)
        self.network.deliver(self.now)
        for producer in self.ghosts:
            producer.straggle()
        self.ghosts = [producer for producer in self.ghosts if not producer.is_idle]
        for topic in self.late:
            topic.straggle()
        self.looked()
        for process in list(self.processes.values()):
            if not process.frozen and not process.is_dead:
                self._run(process)

    def _run(self, process: SimCapture) -> None:
        try:
            process.step()
        except LeaseLostError:
            self.note("lost", process.capture)
            if not process.is_dead:
                self.bury(process, closes=True)
                self.start(process.version)
        except KilledError:
            pass
        except LeftError:
            self.note("leave", process.capture)
            self.bury(process, closes=True)
        except BusError as error:
            if error.action is not Action.RETRY:
                raise BrokenPromiseError(f"{process.capture} crashes: {error}") from error
            self.note("anew", process.capture, error.code)
            if not process.is_dead:
                self.bury(process, closes=True)
                self.start(process.version)
