"""One simulated processor process: the product's :class:`consumers.processors.run.ProcessorRun` over simulated sides.

Agent, executor, leader, barriers, share and lead are the product's; the clock, the network, ZooKeeper, the source, the
destination and the worker threads are the simulation's. Whatever goes wrong ends a run; the process begins another one,
registered under another name.
"""

from collections.abc import Mapping
from typing import Any, cast

from compose.simulation.ends import LeftError
from compose.simulation.network import SimPeers
from compose.simulation.processors.board import Board
from compose.simulation.processors.calls import Calls, DestinationOf, Runner, TopicSource
from compose.simulation.processors.history import START_TS
from compose.simulation.processors.surroundings import ChangefeedSurroundings
from compose.simulation.zookeeper import SimSession
from consumers.control.changefeeds.processor_nodes import ProcessorInfo
from consumers.processors.apply.begin import DatabaseWork
from consumers.processors.apply.lead import DatabaseLead
from consumers.processors.apply.share import DatabaseShare, RunSettings
from consumers.processors.board import Wanted
from consumers.processors.core.apply.barriers import Barriers
from consumers.processors.core.apply.partition import DdlMark, start_position
from consumers.processors.run import ProcessorRun, RunParts
from schemas.ids import CaptureId, UpstreamId
from schemas.nodes.changefeed import ChangefeedInfo
from schemas.sink.position import decode_position
from schemas.sink.sql_rows import decode_ddl
from schemas.sink.topic import life_of

INFO = ChangefeedInfo(
    changefeed_id="simulated", upstream=UpstreamId("simulated"), sink_uri="mysql://h/", start_ts=START_TS
)
VERSION = "0.1.0"
TXN_ROWS = 8
TICK_S = 0.05
KEEPS_A_TICK = 0.25
"""Of the clock by which positions without rows are kept: a simulation lasts no minutes."""


class SimSides:
    """One run's :class:`consumers.processors.apply.begin.DatabaseSides`."""

    settings = RunSettings(worker_count=1, max_txn_row=TXN_ROWS)
    start = start_position(START_TS)

    def __init__(self, world: ChangefeedSurroundings, who: str) -> None:
        self._world, self._who, self._revision = world, who, 0
        self.source = TopicSource(world)

    def partitions(self) -> int:
        """See there."""
        return self.source.partitions()

    def destination(self, revision: int) -> DestinationOf:
        """See there."""
        self._revision = revision
        return DestinationOf(self._world, self._who, revision)

    def runner(self, _: DestinationOf) -> Runner:
        """See there."""
        return Runner(self._world, self._who, self._revision)

    def syncpoints(self, _: DestinationOf) -> Runner:
        """See there."""
        return Runner(self._world, self._who, self._revision)

    def read_ddl(self, offsets: Mapping[int, int]) -> DdlMark:
        """See there."""
        partition, offset = min(offsets.items())
        record = self._world.topic.records[partition][offset]
        return DdlMark(record.position, decode_position(record.position).start_ts, decode_ddl(record.value), offset)


class _Share(DatabaseShare):
    """Makes calls where the product has threads."""

    def __init__(self, world: ChangefeedSurroundings, sides: SimSides, calls: Calls, who: str) -> None:
        def clock() -> float:
            return world.now * KEEPS_A_TICK

        super().__init__(sides.source, cast("Any", sides.destination(0)), sides.settings, clock=clock)
        self._world, self._calls, self._who = world, calls, who
        self._pool = self._handover._pool = cast("Any", calls)

    def finish(self) -> None:
        """See there: the process waits, and the world goes on."""
        under_way = [at.applying.seconds for at in self._partitions.values() if at.applying is not None]
        self._world.wait_for(self._who, lambda: all(seconds.done() for seconds in under_way))
        super().finish()


class _Work(DatabaseWork):
    """Makes calls where the product has threads."""

    def __init__(self, world: ChangefeedSurroundings, sides: SimSides, who: str) -> None:
        super().__init__(cast("Any", sides))
        self._world, self._who = world, who
        self.calls = [Calls(world, who)]
        self.share = _Share(world, sides, self.calls[0], who)

    def lead(self, revision: int) -> tuple[DatabaseLead, Barriers]:
        """See there."""
        lead, barriers = super().lead(revision)
        self.calls.append(Calls(self._world, self._who))
        lead._pool = cast("Any", self.calls[-1])
        return lead, barriers


class SimProcessor:
    """One run of it. ``busy``: it waits for something in the middle of a step."""

    def __init__(self, world: ChangefeedSurroundings, name: str) -> None:
        self.world, self.name = world, name
        self.capture = CaptureId(name)
        self.session = SimSession(self.capture, world.zookeeper, lambda: world.now)
        self.peers = SimPeers(self.capture, world.network, lambda: world.now)
        self.peers.sending = lambda: world.pause(name, "")
        sides = SimSides(world, name)
        self.work = _Work(world, sides, name)
        self.run: ProcessorRun | None = None
        self.is_dead = self.busy = self.is_leaving = False
        self.frozen_until = 0

    @property
    def frozen(self) -> bool:
        """Whether it stands still."""
        return self.world.now < self.frozen_until

    @property
    def is_leader(self) -> bool:
        """Whether it leads."""
        return self.run is not None and self.run.is_leader

    def step(self) -> None:
        """Do what the process does in a tick.

        Raises:
            LeaseLostError, BusError: the run is over.
            LeftError: it has come to its end.
        """
        self.session.check_lease()
        if self.run is None:
            self.run = self._begun()
            return
        self.run.turn()
        if self.is_leaving and self.run.leave():
            self.run.end()
            raise LeftError

    def _begun(self) -> ProcessorRun:
        world = self.world
        info = ProcessorInfo(
            processor=self.capture, capture=CaptureId(""), version=VERSION, peer_address=SimPeers.address
        )
        board = Board(world, self.name, INFO, life_of(INFO))
        parts = RunParts(
            me=info,
            session=cast("Any", self.session),
            board=cast("Any", board),
            peers=self.peers,
            wanted=Wanted(INFO, (1, 1), None, None),
            work=self.work,
            new_salt=lambda: world.random.getrandbits(128),
        )
        return ProcessorRun(parts, clock=lambda: world.now * TICK_S)
