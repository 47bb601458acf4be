"""What all simulations do with a seed: a while of everything that can go wrong, then none of it until all is done."""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Generic, Protocol, TypeVar

from compose.simulation.law import BrokenPromiseError
from compose.simulation.network import Network
from compose.simulation.zookeeper import ZooKeeper
from schemas.errors import BusError

PATIENCE_TICKS = 600


class SeededWorld(Protocol):
    """What is simulated, under one clock."""

    seed: int
    random: Random
    now: int
    """Ticks."""
    trace: list[tuple[object, ...]]
    has_faults: bool

    def note(self, kind: str, *what: object) -> None: ...
    def tick(self) -> None: ...
    def trace_hash(self) -> str: ...


class AnyWorld(SeededWorld, Protocol):
    """Processes, with a network and ZooKeeper between them."""

    network: Network
    zookeeper: ZooKeeper


World = TypeVar("World", bound=SeededWorld)
Fault = Callable[[World], None]


def drawn_from(faults: Sequence[tuple[Fault[World], float]]) -> Fault[World]:
    """Return a fault that is one of these each time; the numbers are weights."""
    what, weights = [fault for fault, _ in faults], [weight for _, weight in faults]

    def disturb(world: World) -> None:
        world.random.choices(what, weights)[0](world)

    return disturb


def outage(world: AnyWorld) -> None:
    """ZooKeeper restarts."""
    world.zookeeper.is_down_until = world.now + world.random.choice((3, 6, 15))
    world.note("outage", world.zookeeper.is_down_until)


def calm(world: AnyWorld) -> None:
    """End the faults of network and ZooKeeper, and let no other happen from now on."""
    world.note("heal")
    world.has_faults = False
    network = world.network
    network.delay, network.detours, network.loss, network.repeats = 1, 0.0, 0.0, 0.0
    network.cut_off.clear()
    world.zookeeper.is_down_until = 0


def settle(world: SeededWorld, unsettled: Callable[[], str | None]) -> None:
    """Let the world go on until nothing is left to be done; ``unsettled`` says what is.

    Raises:
        BrokenPromiseError: it takes too long.
    """
    began_at = world.now
    while (why := unsettled()) is not None:
        if world.now > began_at + PATIENCE_TICKS:
            raise BrokenPromiseError(f"not settled {PATIENCE_TICKS} ticks after the last fault: {why}")
        world.tick()


@dataclass(frozen=True, slots=True)
class Outcome(Generic[World]):
    """What came of a seed. ``broken``: which promise; '' if none was."""

    seed: int
    broken: str
    world: World
    of: str = ""
    """What was simulated, if not a cluster."""
    shown: Callable[[object], str] = str
    """How something in the trace is printed."""

    def __str__(self) -> str:
        """Return one line."""
        said = f"BROKEN {self.broken}" if self.broken else "all promises kept"
        name = f"{self.of} of seed {self.seed}" if self.of else f"seed {self.seed}"
        return f"{name}: {self.world.now} ticks, trace {self.world.trace_hash()}: {said}"

    def lines(self) -> Iterator[str]:
        """Yield what happened, in order; ticks first."""
        for at, kind, *what in self.world.trace:
            yield f"{at:>5}  {kind:<10} {' '.join(map(self.shown, what))}"


def broken_promise(world: World, follow: Callable[[World], None]) -> str:
    """Run a world to its end; return which promise it has broken, or ''. Nothing is logged: the trace says it."""
    was = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        follow(world)
    except (BrokenPromiseError, BusError) as error:
        return str(error)
    finally:
        logging.disable(was)
    return ""
