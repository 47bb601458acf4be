"""One seed: a while of everything that can go wrong, then none of it until all is written."""

from collections.abc import Callable
from dataclasses import replace

from compose.simulation.outcome import Outcome, broken_promise, calm, drawn_from, outage, settle
from compose.simulation.services.ensemble import Put
from compose.simulation.services.world import CAPTURES_MAX, ServicesWorld
from schemas.ids import Ts
from schemas.nodes.changefeed import ChangefeedStatus

TICKS = 200


def follow(world: ServicesWorld) -> None:
    """Run a world to its end.

    Raises:
        BrokenPromiseError
    """
    while world.now < TICKS:
        world.tick()
    heal(world)
    for _ in range(2):  # from where the faults have left it; then what came meanwhile
        upto = world.ts
        settle(world, lambda upto=upto: unsettled(world, upto))  # type: ignore[misc]


def heal(world: ServicesWorld) -> None:
    """Let nothing go wrong from now on."""
    calm(world)
    world.pace = 1.0
    for process in world.processes.values():
        process.frozen_until = 0
    for feed in world.feeds.values():
        feed.runs = True
    if not set(world.captures) - world.leaving:
        world.start_capture()


def unsettled(world: ServicesWorld, upto: int) -> str | None:
    """Return what is not yet as it must be in the end, or None."""
    behind = [
        name
        for name in world.feeds
        if (written := world.law.written.get(name)) is None
        or written.done_ts < upto
        or written.life != world.ensemble.value(f"status/{name}").set_epoch
    ]
    if behind:
        return f"{behind} are not written up to {upto}"
    uncounted = [
        entry.changefeed_id
        for entry in world.newest().values()
        if world.law.ended[entry.run] and not world.figures(entry).windows_proven
    ]
    return f"figures of {uncounted} are not written" if uncounted else None


def _some_process(world: ServicesWorld) -> str | None:
    return world.random.choice(sorted(world.processes)) if world.processes else None


def crash(world: ServicesWorld) -> None:
    service = _some_process(world)
    if service is not None:
        world.kill(service, again=True)


def freeze(world: ServicesWorld) -> None:
    service = _some_process(world)
    if service is not None:
        world.processes[service].frozen_until = world.now + world.random.choice((2, 6, 10, 14, 30))
        world.note("freeze", service)


def zombie(world: ServicesWorld) -> None:
    """A process stands still for longer than its session lasts, and its capture starts another in its place."""
    service = _some_process(world)
    if service is not None:
        process = world.processes[service]
        process.frozen_until = world.now + 20
        world.processes[f"{service}~{world.now}"] = world.processes.pop(service)
        world.note("zombie", process.process)
        if process.capture in world.captures:
            world.start(service, process.capture, process.dedicated)


def elect(world: ServicesWorld) -> None:
    revision = world.ensemble.value("owner-rev")
    world.ensemble.commit([Put("owner-rev", revision + 1, revision - 1)])
    world.note("elect", revision + 1)


def join(world: ServicesWorld) -> None:
    if len(world.captures) < CAPTURES_MAX:
        world.start_capture()


def leave(world: ServicesWorld) -> None:
    """A capture begins to leave, or one that does is gone."""
    gone = sorted(world.leaving)
    if gone:
        capture = gone[0]
        world.leaving.discard(capture)
        world.captures.pop(capture)
        for service in [name for name, process in world.processes.items() if process.capture == capture]:
            world.kill(service, again=False)
        world.note("left", capture)
    elif len(world.captures) > 1:
        world.leaving.add(world.random.choice(sorted(world.captures)))
        world.note("leaving")


def use(world: ServicesWorld) -> None:
    """A user pauses, resumes, sets a checkpoint back, pins or isolates; or the load changes."""
    name = world.random.choice(sorted(world.feeds))
    feed, what = world.feeds[name], world.random.randrange(5)
    world.note("use", name, what)
    if what == 0:
        feed.epoch += feed.runs
        feed.runs = False
    elif what == 1 and not feed.runs:
        feed.runs = True
    elif what == 2 and not feed.runs:
        path = f"status/{name}"
        status: ChangefeedStatus = world.ensemble.value(path)
        ts = world.random.randint(1, world.ts)
        said = replace(status, checkpoint_ts=Ts(ts), resolved_ts=Ts(ts), set_epoch=feed.epoch)
        world.ensemble.commit([Put(path, said, world.ensemble.version(path))])
        world.law.start_ts[name, feed.epoch] = ts
        feed.runs = True
    elif what == 3:
        world.pins.pop(("default", name), None)
        if world.random.random() < 0.5:
            world.pins["default", name] = world.random.choice(sorted(world.captures.values()))
    elif what == 4:
        feed.is_alone = world.random.random() < 0.3
        world.loads[name] = world.random.choice((0.0, 0.1, 1.0))


disturb = drawn_from(
    ((crash, 3), (freeze, 3), (zombie, 2), (elect, 2), (outage, 1), (join, 2), (leave, 2), (use, 5))
)  # fmt: skip


def outcome_of(seed: int, prepare: Callable[[ServicesWorld], None] = lambda world: None) -> Outcome[ServicesWorld]:
    """Run a seed and say what came of it; ``prepare`` may make its world better or worse than the seed does."""
    world = ServicesWorld(seed, disturb)
    prepare(world)
    return Outcome(seed, broken_promise(world, follow), world, of="services")
