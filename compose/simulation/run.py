"""One seed: a while of everything that can go wrong, then none of it until all is replicated."""

from collections.abc import Callable

from compose.simulation.faults import disturb
from compose.simulation.law import BrokenPromiseError, View
from compose.simulation.outcome import PATIENCE_TICKS, Outcome, broken_promise, calm, settle
from compose.simulation.surroundings import EPOCH_MS
from compose.simulation.world import ClusterWorld
from schemas.ids import PHYSICAL_SHIFT_BITS, Ts, physical_ms

TICKS = 240
CALM_TICKS = 20
STUCK_TICKS = 40
LAG_MAX_MS = 4000
"""Of a changefeed while nothing goes wrong. The model itself lets a row wait behind newer ones."""
CALM_COMMITS = 0.3
"""Transactions a tick, at most, once the faults are over: a partition of the model's broker takes a batch a tick, and
with more its queue, and so the lag, would only grow."""
VERSIONS = ("0.1.0", "0.2.0")
"""That go together."""


def follow(world: ClusterWorld) -> None:
    """Run a world to its end; raises BrokenPromiseError."""
    while world.now < TICKS:
        world.tick()
    heal(world)
    replicate(world)
    replicate(world)  # from where the faults have left it; now of what came meanwhile
    stand_by(world)
    if world.seed % 4 == 0:
        stick(world)
    world.law.check_repeats()


def replicate(world: ClusterWorld) -> None:
    """Let everything be replicated; raises BrokenPromiseError when it takes too long."""
    upto = world.next_ts()
    settle(world, lambda: unsettled(world, upto))


def stand_by(world: ClusterWorld) -> None:
    """See that no changefeed lags while nothing goes wrong, though spans are moved for balance; raises
    BrokenPromiseError.
    """
    for _ in range(CALM_TICKS):
        world.tick()
        for view in world.law.views:
            _check_lag(world, view, LAG_MAX_MS)


def stick(world: ClusterWorld) -> None:
    """See that a table of which nothing comes holds back only who contains it; raises BrokenPromiseError."""
    stuck = world.upstream.living()[0]
    world.note("stick", stuck)
    world.upstream.stuck[stuck] = world.now + PATIENCE_TICKS
    stuck_ts, bound_ms = world.next_ts(), LAG_MAX_MS + round(world.held_lag_s * 1000)
    others = [view for view in world.law.views if not view.contains(stuck)]
    for _ in range(STUCK_TICKS):
        world.tick()
        for view in others:
            _check_lag(world, view, bound_ms)
    for view in world.law.views:
        if view.contains(stuck) and view.frontier.resolved_ts > stuck_ts:
            raise BrokenPromiseError(f"changefeed of {view.name} passes table {stuck}, of which nothing has come")
    world.upstream.stuck.clear()
    replicate(world)


def _check_lag(world: ClusterWorld, view: View, most_ms: int) -> None:
    lag_ms = physical_ms(world.ts) - physical_ms(view.frontier.resolved_ts)
    if lag_ms > most_ms:
        raise BrokenPromiseError(f"changefeed of {view.name} is {lag_ms} ms behind, allowed are {most_ms}")


def heal(world: ClusterWorld) -> None:
    """Let nothing go wrong from now on."""
    calm(world)
    world.upstream.stuck.clear()
    world.pace, world.commits = 0.8, min(world.commits, CALM_COMMITS)
    for process in list(world.processes.values()):
        if process.version not in VERSIONS:
            world.bury(process, closes=True)
        process.topic.failures = 0.0
        process.puller.pace = 0.8
    world.start()


def unsettled(world: ClusterWorld, upto: int) -> str | None:
    """Return what is not yet as it must be in the end, or None."""
    behind = [view.name for view in world.law.views if view.frontier.resolved_ts <= upto]
    if behind or not world.law.views:
        return f"changefeeds of {behind} have not passed {upto}"
    return None


def outcome_of(seed: int, prepare: Callable[[ClusterWorld], None] = lambda world: None) -> Outcome[ClusterWorld]:
    """Run a seed and say what came of it; ``prepare`` may make its world better or worse than the seed does."""
    world = ClusterWorld(seed, disturb)
    prepare(world)
    return Outcome(seed, broken_promise(world, follow), world, shown=_shown)


def _shown(shown: object) -> str:
    """Show a ts as milliseconds since the start, and its number within them."""
    if isinstance(shown, int) and shown > EPOCH_MS:
        return f"{physical_ms(Ts(shown)) - EPOCH_MS}ms+{shown & ((1 << PHYSICAL_SHIFT_BITS) - 1)}"
    if isinstance(shown, list | tuple):
        return f"({', '.join(_shown(item) for item in shown)})"
    return str(shown)
