"""ZooKeeper as one processor sees it: :class:`consumers.processors.board.ProcessorBoard` over the simulated nodes.

A request waits while ZooKeeper is away. One that is made in a session that has ended is refused, however late it comes:
that is what keeps a stopped process from writing over what its successor has written.
"""

from collections.abc import Collection, Mapping
from types import MappingProxyType

from compose.simulation.processors.surroundings import ChangefeedSurroundings
from consumers.control.changefeeds.processor_nodes import AppliedNode, ProcessorInfo, Share
from consumers.processors.board import Wanted
from edges.zookeeper.session import LeaseLostError
from schemas.ids import CaptureId
from schemas.nodes.changefeed import ChangefeedInfo


class Board:
    """The nodes as one process sees them."""

    def __init__(self, world: ChangefeedSurroundings, who: str, info: ChangefeedInfo, life: str) -> None:
        self._world, self._who, self._info, self._life = world, who, info, life
        self._seen: dict[CaptureId, ProcessorInfo] = {}

    def register(self, info: ProcessorInfo) -> int:
        """See there."""
        nodes = self._ask("register")
        nodes.processors[info.processor] = info
        self._answered()
        return nodes.next_number()

    def mark_stopping(self, info: ProcessorInfo) -> None:
        """See there."""
        nodes = self._ask("mark")
        if info.processor in nodes.processors:
            nodes.processors[info.processor] = ProcessorInfo(
                processor=info.processor, capture=info.capture, version=info.version,
                peer_address=info.peer_address, is_stopping=True,
            )  # fmt: skip

    def unregister(self, processor: CaptureId) -> None:
        """See there."""
        self._ask("unregister").processors.pop(processor, None)

    def processors(
        self, known: Mapping[CaptureId, ProcessorInfo] = MappingProxyType({}), *, is_exact: bool = True
    ) -> dict[CaptureId, ProcessorInfo]:
        """See there; a server that is asked for no more may be behind."""
        world = self._ask("")
        if is_exact or world.random.random() < 0.7:
            self._seen = dict(world.processors)
        return {who: known.get(who, info) for who, info in self._seen.items()}

    def leader_revision(self) -> int | None:
        """See there."""
        holder = self._ask("").lock
        return None if holder is None else holder[1]

    def lock(self, holder: str) -> int | None:
        """See there."""
        nodes = self._ask("")
        if nodes.lock is None:
            self._world.boundary(self._who, "lock")
            nodes.lock = holder, nodes.next_number()
            self._world.note("lead", holder, nodes.lock[1])
            self._answered()
        return nodes.lock[1] if nodes.lock is not None and nodes.lock[0] == holder else None

    def release(self) -> None:
        """See there."""
        nodes = self._ask("release")
        if nodes.lock is not None and nodes.lock[0] == self._who:
            nodes.lock = None

    def tell(self, shares: Collection[Share]) -> None:
        """People read it."""

    def report(self, applied: AppliedNode) -> None:
        """See there."""
        self._ask("checkpoint")
        self._world.report(self._who, applied.checkpoint_ts)
        self._answered()

    def read(self) -> Wanted | None:
        """See there."""
        self._ask("")
        applied = AppliedNode(life=self._life, checkpoint_ts=self._world.applied_ts)
        return Wanted(self._info, (1, 1), None, applied)

    def _ask(self, what: str) -> ChangefeedSurroundings:
        """Make a request; its process may be stopped on the way, and its session be over when it comes."""
        world = self._world
        if what:
            world.pause(self._who, what)
        world.wait_for(self._who, lambda: not world.zookeeper.is_down)
        if CaptureId(self._who) not in world.zookeeper.ends_at:
            raise LeaseLostError("the simulated session is over", processor=self._who)
        return world

    def _answered(self) -> None:
        self._world.pause(self._who, "answered")
