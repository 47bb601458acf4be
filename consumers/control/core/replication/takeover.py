"""What a new owner makes of the captures' first reports: one replication set a span.

The rules: docs/formats/cluster.md §7, "Re-init".
"""

from collections.abc import Mapping
from typing import assert_never

from consumers.control.core.replication.messages import Checkpoint, TableState, TableStatus
from consumers.control.core.replication.replication_set import (
    MultiplePrimaryError,
    ReplicationSet,
    Role,
    SetState,
    check,
)
from consumers.control.core.replication.set_messages import Out, SendRemove
from schemas.ids import CaptureId, Ts
from schemas.tidb.spans import TableSpan


def from_reports(
    span: TableSpan, checkpoint_ts: Ts, reports: Mapping[CaptureId, TableStatus]
) -> tuple[ReplicationSet, tuple[Out, ...]]:
    """Return the set that a new owner makes of what *all* captures have reported, and what to send at once.

    ``checkpoint_ts`` is the changefeed's; the span is at it or further. Two owners in a row can have left two captures
    that prepare: one goes on (a prepared one first), the others are told to stop.

    Raises:
        MultiplePrimaryError: two captures write.
    """
    checkpoint = Checkpoint(checkpoint_ts, checkpoint_ts)
    roles: dict[CaptureId, Role] = {}
    for capture, status in sorted(reports.items()):
        checkpoint = checkpoint.later(status.checkpoint)
        match status.state:
            case TableState.REPLICATING:
                roles[capture] = Role.PRIMARY
            case TableState.PREPARED | TableState.PREPARING:
                roles[capture] = Role.SECONDARY
            case TableState.STOPPING:
                roles[capture] = Role.UNDETERMINED
            case TableState.ABSENT | TableState.STOPPED | TableState.UNKNOWN:
                pass
            case _:
                assert_never(status.state)
    primaries = [capture for capture, role in roles.items() if role is Role.PRIMARY]
    if len(primaries) > 1:
        raise MultiplePrimaryError("several captures replicate one span", span=span, captures=primaries)
    secondaries = sorted(
        (capture for capture, role in roles.items() if role is Role.SECONDARY),
        key=lambda capture: (reports[capture].state is not TableState.PREPARED, capture),
    )
    for capture in secondaries[1:]:
        roles[capture] = Role.UNDETERMINED
    if secondaries:
        committed = reports[secondaries[0]].state is TableState.PREPARED
        state = SetState.COMMIT if committed else SetState.PREPARE
    elif primaries:
        state = SetState.REPLICATING
    else:
        state = SetState.REMOVING if roles else SetState.ABSENT
    made = ReplicationSet(span, state, primaries[0] if primaries else None, roles, checkpoint)
    check(made)
    return made, tuple(SendRemove(capture) for capture in secondaries[1:])
