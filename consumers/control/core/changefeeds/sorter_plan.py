"""Which sorters to start and stop: one for each changefeed that wants one, under its epoch, and few starts at once.

Pure. A child that runs under an older epoch is stopped, and the next one starts only when it is gone. Starting a JVM
takes both cores of a small machine for some seconds: started all at once, ten are slower to the first row than two at a
time, and a capture beside them misses its lease.
"""

from collections.abc import Mapping
from dataclasses import dataclass

FeedName = tuple[str, str]
"""Namespace and id of a changefeed."""
STARTING_S = 6.0
"""For how long a child counts as starting: Python, the lock, a JVM and its session."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SorterChild:
    """A sorter that was started here and has not ended."""

    epoch: int
    started_at_s: float
    stopping: bool = False
    """It was told to end."""


@dataclass(frozen=True, slots=True)
class SorterPlan:
    """What to do now."""

    stop: tuple[FeedName, ...]
    start: tuple[FeedName, ...]


def plan_sorters(
    wanted: Mapping[FeedName, int], children: Mapping[FeedName, SorterChild], now_s: float, starts_max: int
) -> SorterPlan:
    """Return what to start and to stop.

    Args:
        wanted: changefeeds that want a sorter, with their epochs.
        children: what runs.
        now_s: by the clock of ``started_at_s``.
        starts_max: how many may be starting at once.
    """
    stop = tuple(
        sorted(name for name, child in children.items() if not child.stopping and wanted.get(name) != child.epoch)
    )
    starting = sum(
        not child.stopping and name not in stop and now_s - child.started_at_s < STARTING_S
        for name, child in children.items()
    )
    waiting = sorted(name for name in wanted if name not in children)
    return SorterPlan(stop, tuple(waiting[: max(0, starts_max - starting)]))
