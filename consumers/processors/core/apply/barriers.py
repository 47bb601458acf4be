"""Where all partitions of a changefeed must stand still: at each DDL, and at each syncpoint.

    told where partitions stand --stand--> all stand at the next DDL  --order--> a step of its barrier (barrier.py)
                                           all stand at the syncpoint --order--> it is written
                                <--answer-- done --> the next

A syncpoint comes before the DDLs above it, and after those at or below it. At most one order is under way.

Whoever leads a changefeed has one of these; it begins with what the destination says, so a leader that follows another
goes on where that one was.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from consumers.processors.core.apply.barrier import DdlBarrier, Message, Order, Phase, Stands, step
from schemas.errors import InvariantBrokenError
from schemas.ids import Ts

NO_BARRIER = Ts(2**64 - 1)
"""Where no syncpoint is to come."""


@dataclass(frozen=True, slots=True)
class DdlStep:
    """Out: do this step for the DDL that partitions stand at. ``offsets``: where each partition has its record."""

    phase: Phase
    position: bytes
    offsets: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class WriteSyncpoint:
    """Out: the destination stands still at ``ts``."""

    ts: Ts


@dataclass(frozen=True, slots=True)
class SyncpointWritten:
    """In: it is written."""


BarrierOrder = DdlStep | WriteSyncpoint
Answer = Message | SyncpointWritten
NextSyncpoint = Callable[[Ts], Ts | None]
"""Returns the first syncpoint after one, of all for 0; None: there is none."""


def _no_syncpoints(_: Ts) -> Ts | None:
    return None


@dataclass(slots=True)
class Barriers:
    """Mutable and deterministic. ``noted`` and ``syncpoint_ts`` are what the destination keeps of the leader before."""

    partitions: frozenset[int]
    noted: bytes | None = None
    """Position of a DDL that was begun and not finished."""
    passed: bytes = b""
    """All DDLs at or below it have run."""
    syncpoint_ts: Ts = Ts(0)
    """The next is above it: the last one written, or what stood there before the first; 0: nothing did."""
    next_syncpoint: NextSyncpoint = _no_syncpoints
    ddls_total: int = 0
    _ddl: DdlBarrier = field(init=False)
    _next_ts: Ts | None = field(init=False)
    _at: dict[int, tuple[bytes, int]] = field(default_factory=dict)
    """By partition the DDL that it stands at, and its record's offset."""
    _stands_at: dict[int, Ts] = field(default_factory=dict)
    _next: BarrierOrder | None = None
    """To be handed out."""
    _under_way: BarrierOrder | None = None

    def __post_init__(self) -> None:
        self._ddl = DdlBarrier(self.partitions, noted=self.noted, passed=self.passed)
        self._next_ts = self.next_syncpoint(self.syncpoint_ts)

    @property
    def barrier_ts(self) -> Ts:
        """No row above it may be applied."""
        return NO_BARRIER if self._next_ts is None else self._next_ts

    @property
    def passed_ddl(self) -> bytes:
        """Partitions that stand at a DDL at or below this position may go on behind it."""
        return self._ddl.passed

    def stand(self, partition: int, *, ddl: bytes, offset: int, barrier_ts: Ts) -> None:
        """Take where a partition stands; it may be told again, and late.

        Args:
            ddl: position of the DDL that it stands at; empty: at none.
            offset: of that DDL's record in the partition.
            barrier_ts: up to which all is applied; 0: not known.
        """
        if ddl > self._at.get(partition, (self.passed_ddl, 0))[0]:
            self._at[partition] = ddl, offset
        if barrier_ts > self._stands_at.get(partition, 0):
            self._stands_at[partition] = barrier_ts

    def order(self) -> BarrierOrder | None:
        """Return what is to be done now; None: nothing, or the order before is still under way.

        Raises:
            InvariantBrokenError: partitions stand at different DDLs.
        """
        if self._under_way is not None:
            return None
        if self._next is None:
            self._gather()
        self._under_way, self._next = self._next, None
        return self._under_way

    def answer(self, answer: Answer) -> None:
        """Take that the order under way is done; :meth:`order` has the next.

        Raises:
            InvariantBrokenError: it was another order.
        """
        order, self._under_way = self._under_way, None
        if not isinstance(answer, SyncpointWritten):
            self._take(answer)
        elif isinstance(order, WriteSyncpoint):
            self._next_ts = self.next_syncpoint(order.ts)
        else:
            raise InvariantBrokenError("no syncpoint was to be written", order=order)

    def _gather(self) -> None:
        for partition, (position, _) in sorted(self._at.items()):
            is_known = partition in self._ddl.standing or position <= self.passed_ddl
            if not is_known and int.from_bytes(position[:8], "big") <= self.barrier_ts:  # else the syncpoint is first
                self._take(Stands(partition, position))
        ts = self._next_ts
        if self._next is not None or ts is None or self._ddl.standing:
            return
        if all(self._stands_at.get(partition, 0) >= ts for partition in self.partitions):
            self._next = WriteSyncpoint(ts)

    def _take(self, message: Message) -> None:
        self._ddl, made = step(self._ddl, message)
        for order in made:
            self._obey(order)

    def _obey(self, order: Order) -> None:
        if order.phase is Phase.GATHER:
            self.ddls_total += 1
            self._at = {part: at for part, at in self._at.items() if at[0] > order.position}
            return
        offsets = {partition: offset for partition, (_, offset) in self._at.items()}
        self._next = DdlStep(order.phase, order.position, offsets)
