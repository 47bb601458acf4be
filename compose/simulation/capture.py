"""One simulated capture process: its session, its agent with the puller, and a reign when it is elected.

The agent and the reign are the product's (:class:`consumers.control.cluster.puller_agent.PullerAgent`,
:class:`consumers.control.owner.reign.Reign`, :class:`consumers.control.owner.owner.Owner`); this is what
:mod:`compose.capture.life` and :mod:`consumers.control.owner.owner_loop` are around them, in one thread. What blocks
in the product (a publish, a check of the lease) may stand still here for many ticks while everybody else goes on: the
world runs on inside the call. So whoever is paused in the middle of a step wakes up in the middle of it.
"""

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Executor, Future
from typing import ParamSpec, Self, TypeVar

from compose.simulation.ends import LeftError
from compose.simulation.network import SimPeers
from compose.simulation.puller import SimDdlFeed, SimPuller
from compose.simulation.surroundings import ClusterSurroundings
from compose.simulation.topic import SimFrontierTopic
from compose.simulation.truth import WatchedExecutor
from compose.simulation.zookeeper import SimSession
from consumers.control.cluster.capture_registry import CaptureInfo
from consumers.control.cluster.puller_agent import PullerAgent
from consumers.control.core.replication.replication_set import MultiplePrimaryError
from consumers.control.core.scheduling.coordinator import Identity, Limits
from consumers.control.owner.owner import Owner
from consumers.control.owner.reign import Reign
from consumers.control.owner.reign_parts import ReignOptions, ReignParts
from consumers.control.peers.interface import FeedKey
from schemas.ids import CaptureId, TableId

FEED = FeedKey("upstream/simulated")
LIMITS = Limits(max_task_concurrency=4, add_table_batch_size=5, check_balance_interval_ticks=20, heartbeat_spans_max=3)
TICK_S = 0.05
_P = ParamSpec("_P")
_T = TypeVar("_T")


class _AtOnce(Executor):
    """Does what it is given before it returns."""

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """See Executor."""
        done: Future[_T] = Future()
        done.set_result(fn(*args, **kwargs))
        return done


class SimCapture:
    """``frozen``: stopped as by SIGSTOP. ``busy``: its owner's part waits for an answer, all else goes on."""

    def __init__(
        self,
        world: ClusterSurroundings,
        capture: CaptureId,
        version: str,
        maybe_freeze: Callable[[Self, float], None] = lambda process, chance: None,
    ) -> None:
        """``maybe_freeze`` lets this process stand still where it is, with a chance."""
        self.world, self.capture, self.version = world, capture, version
        self.info = CaptureInfo(
            capture_id=capture, address="", version=version, started_at_s=world.now, peer_address=SimPeers.address
        )
        self.session = SimSession(capture, world.zookeeper, lambda: world.now)
        self.session.checked = lambda: maybe_freeze(self, 0.002)
        self.peers = SimPeers(capture, world.network, lambda: world.now)
        self.peers.sending = lambda: maybe_freeze(self, 0.002)
        self.peers.telling = lambda record: world.law.check_told(capture, record)
        self.puller = SimPuller(capture, world.broker, world.upstream, world.random)
        self.puller.pace = world.pace
        self.topic = SimFrontierTopic(world.broker, world.random, lambda: maybe_freeze(self, 0.01))
        self.topic.note = world.note
        self.executor: WatchedExecutor | None = None
        self.agent: PullerAgent | None = None
        self.reign: Reign | None = None
        self.ddl: SimDdlFeed | None = None
        self.frozen = self.busy = self.is_dead = self.is_confused = False
        self.is_leaving = False
        self.agent_starts = self.owner_sequence = 0
        self.captures: Mapping[CaptureId, CaptureInfo] = {}

    # -- one tick

    def step(self) -> None:
        """Do what the process does in a tick; raises LeaseLostError when its session is over."""
        world = self.world
        self.session.renew()
        if self.session.lease_left_s() > 0:
            self.puller.work(world.now)
        if self.ddl is not None:
            self.ddl.work()
        if self.busy:
            return
        self.session.check_lease()
        if self.capture not in world.zookeeper.captures:
            if not world.zookeeper.is_down and self.capture in world.zookeeper.ends_at:
                world.zookeeper.captures[self.capture] = self.info
            return
        self._watch()
        if self.agent is None:
            if not world.zookeeper.is_down and world.random.random() < 0.5:
                self._begin_pulling()
            return
        self.busy = True
        try:
            self._work(self.agent)
        finally:
            self.busy = False

    def _begin_pulling(self) -> None:
        world, zookeeper = self.world, self.world.zookeeper
        revision = zookeeper.revision
        record = self.topic.newest()
        if record is not None:
            self.puller.published(record)
        self.executor = WatchedExecutor(self.puller, record, world.truth, world.note)
        self.agent = PullerAgent(
            self.capture, self.version, revision, self.executor, self.peers, FEED, new_epoch=self._new_epoch
        )
        zookeeper.candidates.append(self.capture)

    def _new_epoch(self) -> str:
        self.agent_starts += 1
        return f"{self.capture}-{self.agent_starts}"

    def _watch(self) -> None:
        """Look at who is registered; a watch may be late."""
        zookeeper = self.world.zookeeper
        if not zookeeper.is_down and self.captures != zookeeper.captures and self.world.random.random() < 0.7:
            self._refresh()

    def _refresh(self) -> None:
        self.captures = dict(self.world.zookeeper.captures)
        self.peers.resolve({who: info.peer_address for who, info in self.captures.items()})

    def _work(self, agent: PullerAgent) -> None:
        if agent.is_stopping or self.is_leaving:
            if not agent.is_stopping:
                agent.stop()
            self.resign()
            if self.is_leaving and not agent.spans:
                raise LeftError
        agent.tick()
        if self.reign is not None:
            self._tick_reign(self.reign)
        elif not agent.is_stopping and self.world.random.random() < 0.5:
            revision = self.world.zookeeper.take_revision(self.capture)
            if revision is not None:
                self._begin_reign(revision)

    # -- as the owner

    def _begin_reign(self, revision: int) -> None:
        world = self.world
        world.note("elect", self.capture, revision)
        last = self.topic.newest()
        self.ddl = SimDdlFeed(world.broker, world.upstream, world.random, last)
        snapshot_ts = self.ddl.start(world.snapshot)
        owner = Owner(
            self.topic, self.session, revision, world.broker.partitions, held_lag_s=world.held_lag_s, clock=world.clock
        )
        owner.start(lambda: snapshot_ts)
        self._refresh()
        parts = ReignParts(
            me=Identity(
                capture=self.capture,
                version=self.version,
                owner_revision=revision,
                changefeed_epoch=world.zookeeper.epoch,
            ),
            owner=owner,
            ddl=self.ddl,
            peers=self.peers,
            feed=FEED,
            captures=lambda: self.captures,
            count_regions=self._count_regions,
            count_partitions=lambda: world.broker.partitions,
            save_epoch=self._save_epoch,
            counter=_AtOnce(),
        )
        options = ReignOptions(
            split_look_s=1.0, repeats_s=20 * TICK_S, held_lag_s=world.held_lag_s, limits=LIMITS, split=world.split
        )
        self.reign = Reign(
            parts,
            options,
            had_predecessor=last is not None,
            sequence=self.owner_sequence,
            clock=world.clock,
            new_salt=lambda: world.random.getrandbits(128),
        )

    def _tick_reign(self, reign: Reign) -> None:
        if self.is_confused:
            self.is_confused = False
            reign._begin_anew(MultiplePrimaryError("simulated"))
        reign.tick()
        if reign.is_resigning:
            self.resign()

    def _count_regions(self, tables: Collection[TableId], at_least: int) -> Mapping[TableId, list[bytes]]:
        regions = self.world.regions
        return {table: regions[table] for table in tables if len(regions.get(table, ())) + 1 >= at_least}

    def _save_epoch(self, epoch: int) -> None:
        self.world.zookeeper.epoch = max(epoch, self.world.zookeeper.epoch)
        self.world.note("epoch", self.capture, epoch)

    def resign(self) -> None:
        """Stand back: somebody else may be elected, and this process goes on as an agent."""
        if self.reign is not None:
            self.owner_sequence = self.reign.sequence
            self.reign.close()
            self.world.note("resigned", self.capture)
        self.reign = self.ddl = None
        candidates = self.world.zookeeper.candidates
        if self.capture in candidates:
            candidates.remove(self.capture)
            if self.agent is not None and not self.agent.is_stopping:
                candidates.append(self.capture)
