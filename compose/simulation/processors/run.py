"""One seed: a while of everything that can go wrong, then none of it until all is applied."""

from collections.abc import Callable

from compose.simulation.outcome import Outcome, broken_promise, calm, settle
from compose.simulation.processors.faults import disturb
from compose.simulation.processors.world import ChangefeedWorld
from consumers.processors.core.apply.partition import covered_ts

TICKS = 240


def follow(world: ChangefeedWorld, ticks: int = TICKS) -> None:
    """Run a world to its end.

    Raises:
        BrokenPromiseError
    """
    while world.now < ticks:
        world.tick()
    heal(world)
    apply(world)
    apply(world)  # from where the faults have left it; now of what came meanwhile
    world.commits = world.ddls = 0.0
    apply(world)
    restart(world)
    upto = world.history.now_ts
    settle(world, lambda: unkept(world, upto))
    world.destination.check_all(world.history.now_ts)


def heal(world: ChangefeedWorld) -> None:
    """Let nothing go wrong from now on."""
    calm(world)
    world.broker_is_down_until = 0
    world.pace, world.delays = 1.0, (0, 1)
    world.commits, world.ddls = 0.3, 0.01  # no more than processors can follow
    world.start()


def restart(world: ChangefeedWorld) -> None:
    """Kill all processes, and begin with another one."""
    for process in list(world.processes.values()):
        world.bury(process, closes=False)
    world.start()


def apply(world: ChangefeedWorld) -> None:
    """Let everything up to now be applied; raises BrokenPromiseError when it takes too long."""
    upto = world.history.now_ts
    settle(world, lambda: unsettled(world, upto))


def unsettled(world: ChangefeedWorld, upto: int) -> str | None:
    """Return what is not yet as it must be in the end, or None."""
    if world.applied_ts < upto:
        return f"checkpoint is {world.applied_ts}, below {upto}"
    due = world.destination.next_syncpoint()
    if due <= upto:
        return f"syncpoint {due} is not written"
    return None


def unkept(world: ChangefeedWorld, upto: int) -> str | None:
    """Return of which partition the destination does not say that all is applied, or None."""
    stored = (covered_ts(row.position) for row in world.destination.positions)
    left = {part: ts for part, ts in enumerate(stored) if ts < upto}
    return f"positions stay at {left}, below {upto}" if left else None


def outcome_of(
    seed: int,
    prepare: Callable[[ChangefeedWorld], None] = lambda world: None,
    *,
    disturb: Callable[[ChangefeedWorld], None] = disturb,
    ticks: int = TICKS,
) -> Outcome[ChangefeedWorld]:
    """Run a seed and say what came of it; ``prepare`` may make its world better or worse than the seed does."""
    world = ChangefeedWorld(seed, disturb)
    prepare(world)
    return Outcome(seed, broken_promise(world, lambda simulated: follow(simulated, ticks)), world, of="processors")
