"""One span to one capture, as an operator says."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from consumers.control.core.replication.captures import CaptureState
from consumers.control.core.replication.replication_set import SetState
from consumers.control.core.replication.tasks import MoveSpan, Plan, Scene
from schemas.ids import CaptureId
from schemas.tidb.spans import TableSpan

_NONE: Mapping[TableSpan, CaptureId] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class MoveTable:
    """Orders not yet looked at, one a span."""

    orders: Mapping[TableSpan, CaptureId] = field(default_factory=lambda: _NONE)


def order(state: MoveTable, span: TableSpan, capture: CaptureId) -> MoveTable:
    """Take an order; the first one for a span stands."""
    return state if span in state.orders else MoveTable({**state.orders, span: capture})


def plan(state: MoveTable, scene: Scene) -> tuple[MoveTable, Plan]:
    """Return the moves that can be made now and forget the others.

    A span must exist and replicate elsewhere; the capture must be there and take spans.
    """
    if not state.orders:
        return state, Plan()
    moves = tuple(
        MoveSpan(span, capture)
        for span, capture in state.orders.items()
        if (known := scene.sets.get(span)) is not None
        and known.state is SetState.REPLICATING
        and known.primary != capture
        and capture in scene.captures
        and scene.captures[capture].state is CaptureState.INITIALIZED
    )
    return MoveTable(), Plan(moves)
