"""What a capture's puller tells the owner of itself, now and then: asking costs a step for each of its spans."""

import heapq
import time
from collections.abc import Callable
from typing import Final

from producers.pull.puller import PullerStats
from schemas.rawlog.pull_figures import PullFigures, StalledSpan

EVERY_S: Final = 1.0
BUSY_SHARE_MAX: Final = 0.04
"""Of a core, in asking: with 30,000 spans that is each ten seconds."""
STALLS_MAX: Final = 20
"""The slowest: what holds a changefeed back is among them."""


class PullerFigures:
    """Figures of one capture's puller. Not thread-safe."""

    def __init__(
        self,
        stats: Callable[[], PullerStats],
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        """``cpu_clock``: of the calling thread; on a busy machine asking takes longer, and costs no more."""
        self._stats, self._clock, self._cpu_clock = stats, clock, cpu_clock
        self._newest: PullFigures | None = None
        self._next_at_s = clock()

    def __call__(self) -> PullFigures | None:
        """Return the newest figures: the same object until there are others."""
        if self._clock() >= self._next_at_s:
            began_at_s = self._cpu_clock()
            figures = figures_of(self._stats())
            if figures != self._newest:
                self._newest = figures
            spent_s = self._cpu_clock() - began_at_s
            self._next_at_s = self._clock() + max(EVERY_S, spent_s / BUSY_SHARE_MAX)
        return self._newest


def figures_of(stats: PullerStats) -> PullFigures:
    """Return what is told of a puller's numbers."""
    slowest = heapq.nsmallest(STALLS_MAX, stats.stalls, key=lambda stall: (stall.resolved_ts, stall.span))
    return PullFigures(
        rows=stats.landing.acked_rows,
        regions=stats.regions,
        regions_initialized=stats.regions_initialized,
        scans_running=stats.scans_running,
        scans_waiting=stats.scans_waiting,
        held_bytes=stats.held_bytes,
        spilled_bytes=stats.spilled_bytes,
        locks_committed=stats.locks.committed,
        locks_rolled_back=stats.locks.rolled_back,
        locks_left_alive=stats.locks.left_alive,
        troubles=dict(stats.troubles),
        stalls=tuple(StalledSpan(stall.span, stall.reason) for stall in slowest),
        broker_reason=stats.broker_reason,
    )
