"""One seed: a while of everything that can go wrong, then none of it until all is replicated."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from compose.simulation.faults import disturb
from compose.simulation.law import BrokenPromiseError
from compose.simulation.world import EPOCH_MS, World
from schemas.errors import BusError
from schemas.ids import PHYSICAL_SHIFT_BITS, Ts, physical_ms

TICKS = 240
PATIENCE_TICKS = 600
VERSIONS = ("0.1.0", "0.2.0")
"""That go together."""


def follow(world: World) -> None:
    """Run a world to its end; raises BrokenPromiseError."""
    while world.now < TICKS:
        world.tick()
    heal(world)
    healed_at, upto = world.now, world.next_ts()
    while (why := unsettled(world, upto)) is not None:
        if world.now > healed_at + PATIENCE_TICKS:
            raise BrokenPromiseError(f"not settled {PATIENCE_TICKS} ticks after the last fault: {why}")
        world.tick()
    world.law.check_repeats()


def heal(world: World) -> None:
    """Let nothing go wrong from now on."""
    world.note("heal")
    world.has_faults = False
    network = world.network
    network.delay, network.detours, network.loss, network.repeats = 1, 0.0, 0.0, 0.0
    world.zookeeper.is_down_until = 0
    world.upstream.stuck.clear()
    world.pace = 0.8
    network.cut_off.clear()
    for process in list(world.processes.values()):
        if process.version not in VERSIONS:
            world.bury(process, closes=True)
        process.topic.failures = 0.0
        process.puller.pace = 0.8
    world.start()


def unsettled(world: World, upto: int) -> str | None:
    """Return what is not yet as it must be in the end, or None."""
    behind = [view.name for view in world.law.views if view.place.resolved_ts <= upto]
    if behind or not world.law.views:
        return f"changefeeds of {behind} have not passed {upto}"
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
        return f"seed {self.seed}: {self.world.now} ticks, trace {self.world.trace_hash()}: {said}"

    def lines(self) -> Iterator[str]:
        """Yield what happened, in order; ticks of 50 ms first. A ts is shown as milliseconds since the start, and its
        number within them."""
        for at, kind, *what in self.world.trace:
            yield f"{at:>5}  {kind:<9} {' '.join(_shown(one) for one in what)}"


def outcome_of(seed: int, prepare: Callable[[World], None] = lambda world: None) -> Outcome:
    """Run a seed and say what came of it; ``prepare`` may make its world better or worse than the seed does.

    Nothing is logged: what happens stands in the trace.
    """
    world = World(seed, disturb)
    prepare(world)
    was = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        follow(world)
    except (BrokenPromiseError, BusError) as error:
        return Outcome(seed, str(error), world)
    finally:
        logging.disable(was)
    return Outcome(seed, "", world)


def _shown(one: object) -> str:
    if isinstance(one, int) and one > EPOCH_MS:
        return f"{physical_ms(Ts(one)) - EPOCH_MS}ms+{one & ((1 << PHYSICAL_SHIFT_BITS) - 1)}"
    if isinstance(one, list | tuple):
        return f"({', '.join(_shown(item) for item in one)})"
    return str(one)
