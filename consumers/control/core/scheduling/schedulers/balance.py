"""Equal shares in the long run: a few moves at a time, looked at now and then, and at once when a capture has joined.

TiCDC looks once a minute only; our moves make no pause, so that nothing speaks for leaving a new capture idle.
"""

from dataclasses import dataclass

from consumers.control.core.replication.tasks import MoveSpan, Plan, Scene, deal
from schemas.ids import CaptureId


@dataclass(frozen=True, slots=True)
class Balance:
    """``ticks_left`` until the next look; ``known`` are the captures that take spans, None before any tick."""

    ticks_left: int = 0
    known: frozenset[CaptureId] | None = None


def plan(state: Balance, scene: Scene, *, interval_ticks: int, limit: int) -> tuple[Balance, Plan]:
    """Return at most ``limit`` moves each ``interval_ticks``; at once where a capture is new, and again while there are
    any. Waits while a capture is leaving: draining it changes the shares."""
    targets = frozenset(scene.targets)
    if state.ticks_left > 0 and (state.known is None or targets <= state.known):
        return Balance(state.ticks_left - 1, targets), Plan()
    if scene.stopping:
        return state, Plan()
    moves = balance_moves(scene, limit)
    return Balance(0 if moves else interval_ticks, targets), Plan(moves)


def balance_moves(scene: Scene, limit: int) -> tuple[MoveSpan, ...]:
    """Return at most ``limit`` moves: who has more than its share, rounded up, gives spans to the least loaded."""
    loads = scene.loads(scene.targets)
    if len(loads) < 2:
        return ()
    share = -(-sum(loads.values()) // len(loads))
    given = [
        span
        for capture, load in sorted(loads.items())
        if load > share
        for span in scene.shuffled(scene.movable(capture))[: load - share]
    ]
    takers = {capture: load for capture, load in loads.items() if load < share}
    return deal(scene, given, takers, limit) if takers else ()
