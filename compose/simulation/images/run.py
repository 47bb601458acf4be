"""One seed of table images: a while of everything that can go wrong, then none of it until all images are whole."""

from collections.abc import Callable

from compose.simulation.images.world import ImageWorld
from compose.simulation.outcome import Outcome, broken_promise, settle

TICKS = 120
OF = "images"


def follow(world: ImageWorld) -> None:
    """Run a world to its end; raises BrokenPromiseError."""
    while world.now < TICKS:
        world.tick()
    world.note("heal")
    world.has_faults = False
    world.stuck_until = world.lags_until = world.blind_until = 0
    world.paused.clear()
    world.resting.clear()
    while not world.readers:
        world.tick()
        world.create_feed()
    world.failures = 0.0
    for owner in world.owners:
        owner.topic.failures = 0.0
    settle(world, world.unsettled)
    world.note_entered()
    for reader in world.readers.values():
        reader.check()
        reader.read_again()


def outcome_of(seed: int, prepare: Callable[[ImageWorld], None] = lambda world: None) -> Outcome[ImageWorld]:
    """Run a seed and say what came of it; ``prepare`` may make its world better or worse than the seed does."""
    world = ImageWorld(seed)
    prepare(world)
    return Outcome(seed, broken_promise(world, follow), world, OF)
