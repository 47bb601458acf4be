"""One seed: a while of everything that can go wrong, then none of it until all is applied."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from compose.simulation.law import BrokenPromiseError
from compose.simulation.processors.faults import disturb
from compose.simulation.processors.world import World
from schemas.errors import BusError

TICKS = 240
PATIENCE_TICKS = 600


def follow(world: World, ticks: int = TICKS) -> None:
    """Run a world to its end.

    Raises:
        BrokenPromiseError
    """
    while world.now < ticks:
        world.tick()
    heal(world)
    settle(world)
    settle(world)  # from where the faults have left it; now of what came meanwhile
    world.commits = world.ddls = 0.0
    settle(world)
    world.destination.check_all(world.history.now_ts)


def heal(world: World) -> None:
    """Let nothing go wrong from now on."""
    world.note("heal")
    world.has_faults = False
    network = world.network
    network.delay, network.detours, network.loss, network.repeats = 1, 0.0, 0.0, 0.0
    network.cut_off.clear()
    world.zookeeper.is_down_until = world.broker_is_down_until = 0
    world.pace, world.delays = 1.0, (0, 1)
    world.commits, world.ddls = 0.3, 0.01  # no more than processors can follow
    world.start()


def settle(world: World) -> None:
    """Let everything up to now be applied; raises BrokenPromiseError when it takes too long."""
    began_at, upto = world.now, world.history.now_ts
    while (why := unsettled(world, upto)) is not None:
        if world.now > began_at + PATIENCE_TICKS:
            raise BrokenPromiseError(f"not settled {PATIENCE_TICKS} ticks after the last fault: {why}")
        world.tick()


def unsettled(world: World, upto: int) -> str | None:
    """Return what is not yet as it must be in the end, or None."""
    if world.applied_ts < upto:
        return f"checkpoint is {world.applied_ts}, below {upto}"
    due = world.next_syncpoint(world.destination.syncpoint_ts)
    if due <= upto:
        return f"syncpoint {due} is not written"
    return None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a seed. ``broken``: which promise; '' if none was."""

    seed: int
    broken: str
    world: World

    def __str__(self) -> str:
        """Return one line."""
        said = f"BROKEN {self.broken}" if self.broken else "all promises kept"
        return f"processors of seed {self.seed}: {self.world.now} ticks, trace {self.world.trace_hash()}: {said}"

    def lines(self) -> Iterator[str]:
        """Yield what happened, in order; ticks first."""
        for at, kind, *what in self.world.trace:
            yield f"{at:>5}  {kind:<10} {' '.join(map(str, what))}"


def outcome_of(
    seed: int,
    prepare: Callable[[World], None] = lambda world: None,
    *,
    disturb: Callable[[World], None] = disturb,
    ticks: int = TICKS,
) -> Outcome:
    """Run a seed and say what came of it; ``prepare`` may make its world better or worse than the seed does.

    Nothing is logged: what happens stands in the trace.
    """
    world = World(seed, disturb)
    prepare(world)
    was = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        follow(world, ticks)
    except (BrokenPromiseError, BusError) as error:
        return Outcome(seed, str(error), world)
    finally:
        logging.disable(was)
    return Outcome(seed, "", world)
