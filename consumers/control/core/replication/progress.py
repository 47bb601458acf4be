"""How far a changefeed is: the least of its spans, nothing while a key has none (docs/formats/cluster.md §8)."""

from collections.abc import Iterable

from consumers.control.core.replication.messages import NOTHING, Barrier, Checkpoint
from consumers.control.core.replication.replication_set import ReplicationSet
from schemas.ids import Ts


def advance_checkpoint(previous: Checkpoint, sets: Iterable[ReplicationSet], barrier: Barrier) -> Checkpoint:
    """Return the checkpoint after ``previous``; ``sets`` are those of all spans of all tables, and none is missing.

    Neither ts goes back, and neither passes its barrier: checkpoint_ts the least table barrier, resolved_ts the global
    one. Without tables the barriers themselves are reached.
    """
    checkpoint_ts, resolved_ts = barrier.min_table_barrier_ts, barrier.global_barrier_ts
    for replication in sets:
        at = replication.checkpoint
        if at.checkpoint_ts < checkpoint_ts:
            checkpoint_ts = at.checkpoint_ts
        if at.resolved_ts < resolved_ts:
            resolved_ts = at.resolved_ts
    return previous.later(Checkpoint(Ts(checkpoint_ts), Ts(max(resolved_ts, checkpoint_ts)), NOTHING.last_synced_ts))
