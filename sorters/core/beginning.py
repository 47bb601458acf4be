"""Where a run of a changefeed begins, by what the run before it has left behind: pure.

An epoch is a range of frontier offsets. It was written down before it ran, so that one which was begun, and perhaps not
finished, is run again as it was: cut the same way, into the same messages. Only where the checkpoint stands between two
of its cuts, though: elsewhere somebody has set it.
"""

from collections.abc import Callable
from dataclasses import dataclass

from schemas.ids import Ts


@dataclass(frozen=True, slots=True)
class Origin:
    """What a run has begun last: an epoch of its own, or a streaming query."""

    frontier_topic: str
    ts: Ts
    """Everything up to it was downstream."""
    offset: int
    """Of the frontier topic."""
    end: int | None = None
    """Where the epoch ends; None: it is a query, whose own log says so."""


@dataclass(frozen=True, slots=True)
class BegunEpoch:
    """The epoch that was begun last."""

    start: int
    end: int
    committed: bool
    """It was finished; an epoch that is none of a query's does not tell."""


@dataclass(frozen=True, slots=True)
class Beginning:
    """Where a run begins."""

    origin_ts: Ts
    start: int
    """Of the frontier topic."""
    end: int | None = None
    """Where the epoch ends that must run first, just as it is; None: there is none."""


def left_off(
    origin: Origin, epoch: BegunEpoch | None, checkpoint_ts: Ts, resolved_at: Callable[[int], Ts]
) -> Beginning | None:
    """Return where the last run left off; None: that does not fit the changefeed's checkpoint.

    It does not where another machine was further since, or the user has set the checkpoint back.

    Args:
        origin: what that run has begun last.
        epoch: the last one of it; None: a query that has begun none.
        checkpoint_ts: everything up to it is downstream.
        resolved_at: returns the resolved ts of a reader who has read up to an offset of the frontier topic.
    """
    if epoch is None:
        return Beginning(origin.ts, origin.offset) if origin.ts == checkpoint_ts else None
    first, last = resolved_at(epoch.start), resolved_at(epoch.end)
    if epoch.committed:
        # It is not repeated, so a checkpoint within it (set back, or never written) would leave a gap.
        return Beginning(origin.ts, epoch.end) if last == checkpoint_ts else None
    # What a query has begun before its last epoch is downstream, so its own ts says less than the epoch's.
    fits = max(first, origin.ts) <= checkpoint_ts <= last
    return Beginning(origin.ts, epoch.start, epoch.end) if fits else None
