"""The leader of one changefeed's processors: who has which partition, where all stand still, and how far all is.

    reports of all processors --> coordinator --> orders to them: prepare, commit, remove
                              +-> barriers    --> a DDL's next step, a syncpoint: for who talks to the destination
    barrier_ts, passed DDL, global resolved_ts <-- announced in each heartbeat

Deterministic, as :class:`consumers.control.core.scheduling.coordinator.Coordinator` is. One term: whoever leads next
makes a new one of what the destination says, hears all processors, and goes on.

**The law of the four ts**, held at each heartbeat (an :class:`InvariantBrokenError` else)::

    resolved_ts of a partition >= global resolved_ts >= checkpoint_ts of a partition >= global checkpoint_ts

A partition's resolved_ts: all of it up to there stands in the topic, and a processor has read it. The global one: the
least of them, not above the next syncpoint; it is what this leader announces. A partition's checkpoint_ts: all of it
up to there is in the destination, as far as this leader's global resolved_ts allows to say so. The global
checkpoint_ts: the least of those. All four only grow. Rows may be in the destination above a checkpoint_ts, in whole
transactions.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import reduce

from consumers.control.core.replication.messages import (
    AddTableResponse,
    Barrier,
    Checkpoint,
    HeartbeatResponse,
    Message,
    RemoveTableResponse,
    TableStatus,
)
from consumers.control.core.replication.staleness import is_for_owner
from consumers.control.core.scheduling.coordinator import Coordinator, Identity, Limits
from consumers.processors.core.apply.barriers import Barriers
from consumers.processors.core.apply.executor import partition_span
from schemas.errors import InvariantBrokenError
from schemas.ids import CaptureId, TableId, Ts
from schemas.sink_figures import NO_FIGURES, SinkFigures
from schemas.tidb.spans import TableSpan

LIMITS = Limits(max_task_concurrency=16, check_balance_interval_ticks=20, heartbeat_ticks=1, collect_stats_ticks=2**31)
"""A partition has little to prepare, so all may move at once. Who comes gets its share within a second or two."""
SCHEMAS_PARTITION = 0
"""Where schema files of a storage stand."""


@dataclass(slots=True)
class Leader:
    """``checkpoint_ts`` is the greatest that any leader has written down."""

    me: Identity
    checkpoint_ts: Ts
    barriers: Barriers
    sequence: int = 0
    limits: Limits = LIMITS
    coordinator: Coordinator = field(init=False)
    _tables: dict[TableId, tuple[TableSpan, ...]] = field(init=False)
    _rows: dict[tuple[CaptureId, int], int] = field(default_factory=dict)
    _windows: dict[tuple[CaptureId, int], tuple[int, int]] = field(default_factory=dict)
    """Of flow proofs: proven and unproven."""
    _figures: dict[tuple[CaptureId, int], SinkFigures] = field(default_factory=dict)

    def __post_init__(self) -> None:
        start = Checkpoint(self.checkpoint_ts, self.checkpoint_ts)
        self.coordinator = Coordinator(
            self.me, self.checkpoint_ts, limits=self.limits, sequence=self.sequence, checkpoint=start
        )
        self._tables = {TableId(part): (partition_span(part),) for part in sorted(self.barriers.partitions)}

    @property
    def checkpoint(self) -> Checkpoint:
        """The global checkpoint_ts and resolved_ts."""
        return self.coordinator.checkpoint

    @property
    def rows_total(self) -> int:
        """Rows applied, by all processors that have reported in this term."""
        return sum(self._rows.values())

    @property
    def windows(self) -> tuple[int, int]:
        """Windows of flow proofs, proven and unproven, by all processors that have reported in this term."""
        return sum(pair[0] for pair in self._windows.values()), sum(pair[1] for pair in self._windows.values())

    @property
    def figures(self) -> SinkFigures:
        """What all processors that have reported in this term count of their writes."""
        return reduce(SinkFigures.plus, self._figures.values(), NO_FIGURES)

    @property
    def is_settled(self) -> bool:
        """Whether every partition is applied somewhere, and none is on its way."""
        book = self.coordinator.replications
        return self.coordinator.is_initialized and not book.unsettled and not book.missing

    @property
    def assignments(self) -> dict[CaptureId, list[int]]:
        """The partitions that each processor applies; also of those that have none."""
        shares: dict[CaptureId, list[int]] = {who: [] for who in sorted(self.coordinator.captures.captures)}
        for span, who in self.coordinator.assignments.items():
            shares.setdefault(who, []).append(span.table_id)
        return {who: sorted(partitions) for who, partitions in shares.items()}

    def tick(self, messages: Iterable[Message], *, alive: frozenset[CaptureId], salt: int) -> list[Message]:
        """Take what came in, and return what to send; ``barriers`` may have an order then.

        ``alive`` are the registered processors, this one among them; ``salt`` as for the coordinator.

        Raises:
            MultiplePrimaryError: begin anew, with another leader.
            InvariantBrokenError: the law of the four ts does not hold.
        """
        heard = list(messages)
        for message in heard:
            self._hear(message)
        sent = self.coordinator.tick(heard, alive=alive, tables=self._tables, barrier=self._announced(), salt=salt)
        self._check_law()
        return sent

    def _announced(self) -> Barrier:
        schemas = self.coordinator.replications.sets.get(partition_span(SCHEMAS_PARTITION))
        return Barrier(
            self.barriers.barrier_ts,
            resolved_ts=self.checkpoint.resolved_ts,
            passed_ddl=self.barriers.passed_ddl,
            schemas_ts=Ts(0) if schemas is None else schemas.checkpoint.resolved_ts,
        )

    def _hear(self, message: Message) -> None:
        """Take where partitions stand. It stays true, so it does not matter how late it comes, nor who says it now."""
        me = self.me
        if not is_for_owner(
            message.header,
            message.receiver,
            me=me.capture,
            revision=me.owner_revision,
            changefeed_epoch=me.changefeed_epoch,
        ):
            return
        match message.body:
            case HeartbeatResponse(tables):
                statuses: tuple[TableStatus, ...] = tables
            case AddTableResponse(status) | RemoveTableResponse(status):
                statuses = (status,)
            case _:
                return
        for status in statuses:
            at, partition = status.standing, status.span.table_id
            if at is None or partition not in self.barriers.partitions:
                continue
            self.barriers.stand(partition, ddl=at.ddl, offset=at.offset, barrier_ts=at.barrier_ts)
            key = message.sender, partition
            self._rows[key] = max(at.rows_total, self._rows.get(key, 0))
            seen = at.windows_proven, at.windows_unproven
            self._windows[key] = max(seen, self._windows.get(key, seen), key=sum)
            known = self._figures.get(key, at.sink)
            self._figures[key] = max(at.sink, known, key=lambda figures: figures.flushes_us.count)

    def _check_law(self) -> None:
        held = self.checkpoint
        for span, known in self.coordinator.replications.sets.items():
            at = known.checkpoint
            if not at.resolved_ts >= held.resolved_ts >= at.checkpoint_ts >= held.checkpoint_ts:
                raise InvariantBrokenError(
                    "partition and changefeed are not in the order of their ts",
                    partition=span.table_id,
                    resolved_ts=at.resolved_ts,
                    global_resolved_ts=held.resolved_ts,
                    checkpoint_ts=at.checkpoint_ts,
                    global_checkpoint_ts=held.checkpoint_ts,
                )
