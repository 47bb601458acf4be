"""What owner and captures say to each other: TiCDC's ``schedulepb`` and ``tablepb`` as frozen values.

An owner asks (:class:`Heartbeat`, :class:`AddTableRequest`, :class:`RemoveTableRequest`), an agent answers. Field names
and numbers of states are the originals', so that a codec is a table. Two fields are ours: :attr:`Message.sequence` and
:attr:`Heartbeat.all_spans`.

**What the machines need of a transport.** A receiver takes one sender's messages in the order in which they were sent,
each at most once; any may be lost. :class:`consumers.control.core.replication.inbox.Inbox` makes that of any transport,
also of one that delays, repeats and reorders. Loss heals itself: heartbeats ask again for whatever is not settled.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from types import MappingProxyType

from schemas.ids import CaptureId, TableId, Ts
from schemas.sink_figures import NO_FIGURES, SinkFigures
from schemas.tidb.spans import TableSpan


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """``checkpoint_ts <= resolved_ts``; 0 where nothing is known."""

    checkpoint_ts: Ts = Ts(0)
    resolved_ts: Ts = Ts(0)
    last_synced_ts: Ts = Ts(0)

    def later(self, other: "Checkpoint") -> "Checkpoint":
        """Return the greater of each field: a ts never goes back."""
        if (
            other.checkpoint_ts <= self.checkpoint_ts
            and other.resolved_ts <= self.resolved_ts
            and other.last_synced_ts <= self.last_synced_ts
        ):
            return self
        return Checkpoint(
            max(self.checkpoint_ts, other.checkpoint_ts),
            max(self.resolved_ts, other.resolved_ts),
            max(self.last_synced_ts, other.last_synced_ts),
        )


NOTHING = Checkpoint()


class TableState(IntEnum):
    """What an agent says of a span; the numbers of ``tablepb.TableState``."""

    UNKNOWN = 0
    ABSENT = 1
    PREPARING = 2
    PREPARED = 3
    REPLICATING = 4
    STOPPING = 5
    STOPPED = 6


class Liveness(IntEnum):
    """0 alive, 1 stopping; never back."""

    ALIVE = 0
    STOPPING = 1


_NO_STAGES: Mapping[str, Checkpoint] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """Figures of one span, asked for each collect-stats-tick."""

    region_count: int = 0
    barrier_ts: Ts = Ts(0)
    stage_checkpoints: Mapping[str, Checkpoint] = field(default_factory=lambda: _NO_STAGES)
    """By stage: ``puller-ingress``, ``puller-egress``, ``sorter-ingress``, ``sorter-egress``, ``sink``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A partition of a topic that processors apply, beside its checkpoint. What is said of where it stands stays true:
    what was applied once is."""

    ddl: bytes = b""
    """Position of the DDL that it stands at, all before it being applied; empty: it stands at none."""
    offset: int = 0
    """Of that DDL's record in the partition."""
    barrier_ts: Ts = Ts(0)
    """The barrier up to which all is applied; 0: not all is."""
    rows_total: int = 0
    """Applied of it by this processor."""
    windows_proven: int = 0
    """Windows of flow proofs that came out even, while this processor had it."""
    windows_unproven: int = 0
    """Windows of which this processor did not see all."""
    sink: SinkFigures = NO_FIGURES
    """Of its writes by this processor."""


@dataclass(frozen=True, slots=True)
class TableStatus:
    """One span on one capture."""

    span: TableSpan
    state: TableState
    checkpoint: Checkpoint = NOTHING
    stats: Stats | None = None
    standing: Standing | None = None
    """Only of partitions."""


_NO_BARRIERS: Mapping[TableId, Ts] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Barrier:
    """Where processors halt: no span passes ``global_barrier_ts``, a table named here not its own either."""

    global_barrier_ts: Ts
    table_barriers: Mapping[TableId, Ts] = field(default_factory=lambda: _NO_BARRIERS)
    resolved_ts: Ts = Ts(0)
    """Of a changefeed with processors, as the other two: the global resolved_ts, which no checkpoint passes."""
    passed_ddl: bytes = b""
    """Every DDL at or below this position has run."""
    schemas_ts: Ts = Ts(0)
    """How far the partition is that holds the schemas."""

    @property
    def min_table_barrier_ts(self) -> Ts:
        """The least barrier of all."""
        return min((self.global_barrier_ts, *self.table_barriers.values()))


@dataclass(frozen=True, slots=True)
class Header:
    """Stands in every message; :mod:`consumers.control.core.replication.staleness` says what it keeps out."""

    version: str
    """Of the sender, semver without ``v``."""
    owner_revision: int
    processor_epoch: str
    """Names one start of one agent under one owner. '' where not known yet (an owner's first heartbeat)."""
    changefeed_epoch: int
    """A new one each time the changefeed (or the upstream) is started anew."""


@dataclass(frozen=True, slots=True)
class AddTableRequest:
    """With ``is_secondary``: pull and buffer from ``checkpoint`` on. Without: write, from ``checkpoint`` on."""

    span: TableSpan
    is_secondary: bool
    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True)
class RemoveTableRequest:
    """Stop and release the span."""

    span: TableSpan


@dataclass(frozen=True, slots=True)
class AddTableResponse:
    """Where an add has come to."""

    status: TableStatus


@dataclass(frozen=True, slots=True)
class RemoveTableResponse:
    """Where a removal has come to; in Stopped the checkpoint is the final one."""

    status: TableStatus


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Asks for the state of ``spans`` and carries the barrier."""

    spans: tuple[TableSpan, ...] = ()
    is_stopping: bool = False
    """The receiver is being drained: it takes liveness Stopping."""
    collect_stats: bool = False
    barrier: Barrier | None = None
    all_spans: bool = True
    """Tell of every span that you have, too; else only of those asked for and of those that are not at rest. TiCDC
    always asks for all, which is 2 million states a second at 100,000 tables."""


@dataclass(frozen=True, slots=True)
class HeartbeatResponse:
    """The state of every span that was asked for, Absent where the capture has none such."""

    tables: tuple[TableStatus, ...]
    liveness: Liveness = Liveness.ALIVE


Request = AddTableRequest | RemoveTableRequest | Heartbeat
Response = AddTableResponse | RemoveTableResponse | HeartbeatResponse


@dataclass(frozen=True, slots=True)
class Message:
    """An envelope."""

    header: Header
    sender: CaptureId
    receiver: CaptureId
    sequence: int
    """Grows by any step with each request, or with each response, of ``sender`` to ``receiver`` and never starts again:
    a capture that restarts has another id."""
    body: Request | Response
