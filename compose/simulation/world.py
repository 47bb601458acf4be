"""The simulated cluster: one clock, one Random, and everything that happens in a tick.

A tick is 50 ms of the owner's and the agents' time. Whatever waits in the product may take many ticks here
(:meth:`World.maybe_freeze`): the world then runs on inside that very call.
"""

from collections import Counter
from collections.abc import Callable
from hashlib import blake2b
from random import Random

from compose.simulation.broker import Broker, Producer
from compose.simulation.capture import LeftError, Process
from compose.simulation.law import BrokenPromiseError, Law
from compose.simulation.network import Network
from compose.simulation.topic import SimFrontierTopic
from compose.simulation.truth import Truth
from compose.simulation.upstream import Upstream
from compose.simulation.zookeeper import ZooKeeper
from consumers.control.core.frontier.span_split import SplitSettings
from edges.zookeeper.session import LeaseLostError
from schemas.errors import Action, BusError
from schemas.ids import CaptureId, TableId, Ts, compose_ts

VERSION = "0.1.0"
TICK_MS = 50
EPOCH_MS = 1_700_000_000_000
FREEZE_DEPTH_MAX = 3


class KilledError(Exception):
    """A process that stood still was killed meanwhile."""


class World:
    """``processes`` run or stand still. The seed decides how bad things are, too."""

    def __init__(self, seed: int, disturb: Callable[["World"], None]) -> None:
        """Begin with some captures; ``disturb`` lets one thing go wrong."""
        self.seed, self.disturb = seed, disturb
        self.random = random = Random(seed)  # noqa: S311 - to be repeated, not to be secret
        self.now = 0
        self.zookeeper = ZooKeeper(random)
        self.network = Network(random)
        self.broker = Broker(random.randint(1, 3))
        self.upstream = Upstream(random, self.next_ts)
        self.law = Law(self.upstream, self.broker)
        self.truth = Truth(lambda capture: capture in self.zookeeper.ends_at)
        self.processes: dict[CaptureId, Process] = {}
        self.ghosts: list[Producer] = []
        self.late: list[SimFrontierTopic] = []
        self.trace: list[tuple[object, ...]] = []
        self.counts: Counter[str] = Counter()
        self.births = 0
        self.ts = Ts(0)
        self.regions: dict[TableId, list[bytes]] = {}
        """Where regions of tables begin, inside them."""
        self.has_faults = True
        self.frozen = 0
        self._told = 0
        self._choose(random)
        self.snapshot = self.upstream.snapshot(3)
        for _ in range(random.randint(1, 3)):
            self.start()

    def _choose(self, random: Random) -> None:
        self.pace = random.choice((0.4, 0.8, 1.0))
        self.network.delay = random.choice((0, 1, 1, 3))
        self.network.detours = random.choice((0.0, 0.05, 0.2))
        self.network.loss = random.choice((0.0, 0.02, 0.2))
        self.network.repeats = random.choice((0.0, 0.1, 0.3))
        self.trouble = random.choice((0.02, 0.05, 0.12))
        self.freezes = random.choice((0.0, 0.5, 1.0, 2.0))
        self.split = SplitSettings(enable_table_across_nodes=random.random() < 0.6, region_threshold=3)
        self.commits = random.choice((0.3, 0.8))
        self.held_lag_s = random.choice((0.2, 0.6, 2.0, 1e6))

    # -- time, and who notes what

    def next_ts(self) -> Ts:
        """Return the next TSO."""
        self.ts = max(Ts(self.ts + 1), compose_ts(EPOCH_MS + self.now * TICK_MS))
        return self.ts

    def note(self, kind: str, *what: object) -> None:
        """Write a line of the trace."""
        self.counts[kind] += 1
        self.trace.append((self.now, kind, *what))

    def trace_hash(self) -> str:
        """Return what two runs of a seed must have in common."""
        return blake2b(repr((self.trace, self.broker.frontier, self.network.sent)).encode(), digest_size=8).hexdigest()

    # -- processes

    def start(self, version: str = VERSION) -> Process:
        """Start a capture."""
        self.births += 1
        capture = CaptureId(f"c{self.births}")
        process = self.processes[capture] = Process(self, capture, version)
        self.note("start", capture, version)
        return process

    def bury(self, process: Process, *, closes: bool) -> None:
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

    def maybe_freeze(self, process: Process, chance: float) -> None:
        """Let a process stand still where it is, at times."""
        if not self.has_faults or self.frozen >= FREEZE_DEPTH_MAX or self.random.random() >= chance * self.freezes:
            return
        self.stand_still(process, only_owner=process.busy and self.random.random() < 0.5)
        if process.is_dead:
            raise KilledError

    def stand_still(self, process: Process, *, only_owner: bool) -> None:
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

    # -- what is asked of the world

    def clock(self) -> float:
        """Return seconds."""
        return self.now * TICK_MS / 1000

    def looked(self) -> None:
        """Check what was published."""
        for place in self.broker.places[self._told :]:
            held = [(one.ts, one.tables) for one in place.held]
            self.note("frontier", place.owner_rev, place.resolved_ts, place.low, place.high, held)
        self._told = len(self.broker.places)
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

    def _run(self, process: Process) -> None:
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
