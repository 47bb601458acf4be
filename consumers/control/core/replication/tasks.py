"""What schedulers decide, and what they decide it from."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from hashlib import blake2b

from consumers.control.core.replication.captures import CaptureState, CaptureStatus
from consumers.control.core.replication.replication_set import ReplicationSet, SetState
from schemas.ids import CaptureId
from schemas.tidb.spans import TableSpan


@dataclass(frozen=True, slots=True)
class AddSpan:
    """Begin on ``capture``."""

    span: TableSpan
    capture: CaptureId


@dataclass(frozen=True, slots=True)
class MoveSpan:
    """Go over to ``capture``."""

    span: TableSpan
    capture: CaptureId


@dataclass(frozen=True, slots=True)
class RemoveSpan:
    """End."""

    span: TableSpan


Task = AddSpan | MoveSpan | RemoveSpan


@dataclass(frozen=True, slots=True)
class Plan:
    """One scheduler's tasks of one tick. A burst is taken whole, whatever max-task-concurrency says."""

    tasks: tuple[Task, ...] = ()
    is_burst: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """The cluster at one tick. The collections are views: read them, and only during this tick."""

    owner: CaptureId
    captures: Mapping[CaptureId, CaptureStatus]
    sets: Mapping[TableSpan, ReplicationSet]
    missing: Collection[TableSpan]
    """Wanted spans without a set, or with one that is ABSENT, in order."""
    unwanted: Collection[TableSpan]
    """Spans with a set that belong to no wanted table."""
    is_settled: bool
    """Every set is REPLICATING."""
    members: Mapping[CaptureId, Collection[TableSpan]]
    """Spans by capture, in whatever role."""
    salt: int
    """Differs from tick to tick: what is taken at random is taken by it."""

    @property
    def targets(self) -> list[CaptureId]:
        """Captures that may get spans."""
        return [who for who, status in self.captures.items() if status.state is CaptureState.INITIALIZED]

    @property
    def stopping(self) -> list[CaptureId]:
        """Captures that are leaving."""
        return [who for who, status in self.captures.items() if status.state is CaptureState.STOPPING]

    def loads(self, captures: Collection[CaptureId]) -> dict[CaptureId, int]:
        """Return how many spans each of ``captures`` has or is getting."""
        return {capture: len(self.members.get(capture, ())) for capture in captures}

    def movable(self, capture: CaptureId) -> list[TableSpan]:
        """Return the spans that ``capture`` replicates and that are not under way to elsewhere."""
        return [
            span
            for span in self.members.get(capture, ())
            if (known := self.sets[span]).state is SetState.REPLICATING and known.primary == capture
        ]

    def shuffled(self, spans: Collection[TableSpan]) -> list[TableSpan]:
        """Return ``spans`` in an order that only the salt decides."""
        return sorted(spans, key=lambda span: _lot(self.salt, f"{span.table_id}/{span.start.hex()}"))

    def least_loaded(self, loads: Mapping[CaptureId, int]) -> CaptureId:
        """Return a capture with the fewest spans; among equals the salt decides."""
        return min(loads, key=lambda capture: (loads[capture], _lot(self.salt, capture)))


def _lot(salt: int, name: str) -> bytes:
    return blake2b(name.encode(), digest_size=8, salt=salt.to_bytes(16, "little")).digest()


def deal(scene: Scene, spans: Collection[TableSpan], loads: dict[CaptureId, int], limit: int) -> tuple[MoveSpan, ...]:
    """Return moves of at most ``limit`` of ``spans``, each to the then least loaded of ``loads``, which it updates."""
    moves: list[MoveSpan] = []
    for span in list(spans)[:limit]:
        capture = scene.least_loaded(loads)
        loads[capture] += 1
        moves.append(MoveSpan(span, capture))
    return tuple(moves)
