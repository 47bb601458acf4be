"""What surrounds the simulated processors: one clock, one Random, and the topic, destination and ZooKeeper of all.

A processor's calls to any of them are boundaries, at which its process may stand still or die.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from hashlib import blake2b
from random import Random

from compose.simulation.law import BrokenPromiseError
from compose.simulation.network import Network
from compose.simulation.processors.destination import SimDestination
from compose.simulation.processors.history import START_TS, SimHistory
from compose.simulation.processors.sink_topic import SimSinkTopic, Sorter
from compose.simulation.zookeeper import ZooKeeper
from consumers.control.changefeeds.processor_nodes import ProcessorInfo
from schemas.ids import CaptureId, Ts


class ChangefeedSurroundings(ABC):
    """The seed decides how bad things are, too. A process is known by its name, ``who``."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random = Random(seed)  # noqa: S311 - to be repeated, not to be secret
        self.now = 0
        self.start_ts = START_TS
        self.zookeeper, self.network = ZooKeeper(random), Network(random)
        self.history = SimHistory(random, random.randint(3, 5))
        self.topic = SimSinkTopic(random.randint(2, 4))
        self.sorter = Sorter(random, self.history, self.topic)
        self.destination = SimDestination(history=self.history, partitions=self.topic.partitions)
        self.processors: dict[CaptureId, ProcessorInfo] = {}
        """Registered."""
        self.lock: tuple[str, int] | None = None
        """Who leads, and its number."""
        self.trace: list[tuple[object, ...]] = []
        self.counts: Counter[str] = Counter()
        self.applied_ts = START_TS
        """The checkpoint in ZooKeeper."""
        self.has_faults = True
        self.broker_is_down_until = 0
        self._numbers = 0
        self._choose(random)

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

    def delay(self) -> int:
        """Return how many ticks one way to the destination takes."""
        return self.random.choice(self.delays)

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

    # -- what a process's calls do to it

    @abstractmethod
    def is_frozen(self, who: str) -> bool:
        """Tell whether a process stands still."""

    @abstractmethod
    def boundary(self, who: str, what: str) -> None:
        """Count a call to something outside a process, made or answered.

        Raises:
            KilledError: this is where the process is to die.
        """

    @abstractmethod
    def pause(self, who: str, what: str) -> None:
        """A call of a process to something outside it: it may be stopped there for a while, or die.

        Raises:
            KilledError
        """

    @abstractmethod
    def wait_for(self, who: str, reached: Callable[[], bool]) -> None:
        """Let the world go on while a process waits in the middle of a step.

        Raises:
            KilledError: it was killed meanwhile.
            DestinationUnreachableError: too much is waited for at once.
        """
