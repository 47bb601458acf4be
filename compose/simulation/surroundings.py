"""What surrounds the simulated captures: one clock, one Random, and the Kafka, ZooKeeper, network, upstream of all."""

from collections import Counter
from hashlib import blake2b
from random import Random

from compose.simulation.broker import Broker
from compose.simulation.law import Law
from compose.simulation.network import Network
from compose.simulation.truth import Truth
from compose.simulation.upstream import Upstream
from compose.simulation.zookeeper import ZooKeeper
from consumers.control.core.frontier.span_split import SplitSettings
from schemas.ids import TableId, Ts, compose_ts

TICK_MS = 50
EPOCH_MS = 1_700_000_000_000


class ClusterSurroundings:
    """The seed decides how bad things are, too."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random = Random(seed)  # noqa: S311 - to be repeated, not to be secret
        self.now = 0
        self.zookeeper = ZooKeeper(random)
        self.network = Network(random)
        self.broker = Broker(random.randint(1, 3))
        self.upstream = Upstream(random, self.next_ts)
        self.law = Law(self.upstream, self.broker)
        self.truth = Truth(lambda capture: capture in self.zookeeper.ends_at)
        self.trace: list[tuple[object, ...]] = []
        self.counts: Counter[str] = Counter()
        self.ts = Ts(0)
        self.regions: dict[TableId, list[bytes]] = {}
        """The keys inside each table at which a region begins."""
        self.has_faults = True
        self._choose(random)
        self.snapshot = self.upstream.snapshot(3)

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

    def clock(self) -> float:
        """Return seconds."""
        return self.now * TICK_MS / 1000
