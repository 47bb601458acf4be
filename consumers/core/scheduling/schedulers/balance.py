"""Equal shares in the long run: a few moves at a time, looked at now and then."""

from dataclasses import dataclass

from consumers.core.scheduling.tasks import MoveSpan, Plan, Scene, deal


@dataclass(frozen=True, slots=True)
class Balance:
    """``ticks_left`` until the next look."""

    ticks_left: int = 0


def plan(state: Balance, scene: Scene, *, interval_ticks: int, limit: int) -> tuple[Balance, Plan]:
    """Return at most ``limit`` moves each ``interval_ticks``; again at once while there are any. Waits while a capture
    is leaving: draining it changes the shares."""
    if state.ticks_left > 0:
        return Balance(state.ticks_left - 1), Plan()
    if scene.stopping:
        return state, Plan()
    moves = balance_moves(scene, limit)
    return Balance(0 if moves else interval_ticks), Plan(moves)


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
