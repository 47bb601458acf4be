"""What goes into the machine of one span (:mod:`consumers.control.core.replication.replication_set`), and out of it."""

from dataclasses import dataclass

from consumers.control.core.replication.messages import NOTHING, Checkpoint, Stats, TableState
from schemas.ids import CaptureId


@dataclass(frozen=True, slots=True)
class SpanReport:
    """In: what ``capture`` says of the span."""

    capture: CaptureId
    state: TableState
    checkpoint: Checkpoint = NOTHING
    stats: Stats | None = None


@dataclass(frozen=True, slots=True)
class CaptureGone:
    """In: the capture's session is over, and so is all that it did."""

    capture: CaptureId


@dataclass(frozen=True, slots=True)
class Add:
    """In: begin on ``capture``. Ignored unless ABSENT, and where the capture is still stopping."""

    capture: CaptureId


@dataclass(frozen=True, slots=True)
class Move:
    """In: go over to ``capture``. Ignored unless REPLICATING, and where the capture is a member."""

    capture: CaptureId


@dataclass(frozen=True, slots=True)
class Remove:
    """In: end. Ignored unless REPLICATING or ABSENT: a table that is dropped while it moves goes after the move."""


@dataclass(frozen=True, slots=True)
class SendAdd:
    """Out."""

    to: CaptureId
    is_secondary: bool
    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True)
class SendRemove:
    """Out."""

    to: CaptureId


In = SpanReport | CaptureGone | Add | Move | Remove
Out = SendAdd | SendRemove
