"""What happens to a changefeed's processors, to what they read and to what they write to."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from compose.simulation.outcome import drawn_from, outage
from compose.simulation.processors.process import SimProcessor
from consumers.control.core.scheduling.coordinator import NotInitializedError
from consumers.control.core.scheduling.schedulers.drain_capture import DrainRefusedError
from consumers.processors.core.apply.executor import partition_span

if TYPE_CHECKING:
    from compose.simulation.processors.world import ChangefeedWorld

PROCESSES_MAX = 4


def _any(world: "ChangefeedWorld") -> SimProcessor | None:
    return world.random.choice(list(world.processes.values())) if world.processes else None


def _leader(world: "ChangefeedWorld") -> SimProcessor | None:
    return next((process for process in world.processes.values() if process.is_leader and not process.busy), None)


def crash(world: "ChangefeedWorld") -> None:
    """kill -9, of the leader by preference; another process comes for it, sooner or later."""
    process = _any(world)
    leader = _leader(world)
    if leader is not None and world.random.random() < 0.4:
        process = leader
    if process is not None:
        world.note("crash", process.name)
        world.bury(process, closes=False)


def start(world: "ChangefeedWorld") -> None:
    """Start one more process."""
    if len(world.processes) < PROCESSES_MAX:
        world.start()


def freeze(world: "ChangefeedWorld") -> None:
    """SIGSTOP, and SIGCONT some time later: what it has sent arrives meanwhile, perhaps others have taken over."""
    process = _any(world)
    if process is not None and not process.frozen:
        process.frozen_until = world.now + world.random.choice((1, 5, 20, 50))
        world.note("freeze", process.name, process.frozen_until)


def leave(world: "ChangefeedWorld") -> None:
    """A process is to stop: it lets its partitions be moved away."""
    process = _any(world)
    if process is not None and len(world.processes) > 1:
        process.is_leaving = True
        world.note("leave", process.name)


def operate(world: "ChangefeedWorld") -> None:
    """An operator moves partitions."""
    leader = _leader(world)
    if leader is None or leader.run is None or leader.run._term is None or leader.frozen:
        return
    coordinator = leader.run._term.leader.coordinator
    target = world.random.choice(sorted(world.processors) or [leader.capture])
    order = world.random.choice(("drain", "move", "move", "rebalance"))
    try:
        if order == "drain":
            coordinator.drain(target)
        elif order == "rebalance":
            coordinator.rebalance()
        else:
            coordinator.move(partition_span(world.random.randrange(world.destination.partitions)), target)
    except (NotInitializedError, DrainRefusedError):
        order = "refused"
    world.note(order, target)


def restart_sorter(world: "ChangefeedWorld") -> None:
    """The sorter dies in mid-batch: it begins again at its checkpoint."""
    world.sorter.crash()
    world.note("resort")


def stop_sorter(world: "ChangefeedWorld") -> None:
    """SIGSTOP of the sorter in mid-batch, for longer than its lock: its heir begins at its checkpoint, and what it held
    comes when it goes on."""
    if world.sorter.stop():
        world.note("stop")


def restart_destination(world: "ChangefeedWorld") -> None:
    """The destination restarts: whatever was under way has happened or not, and nobody is told which."""
    world.note("restart")
    for process in world.processes.values():
        for calls in process.work.calls:
            calls.break_off()
    for calls in world.ghosts:
        calls.break_off()
    world.destination.restart()


def restart_broker(world: "ChangefeedWorld") -> None:
    """The broker restarts."""
    world.broker_is_down_until = world.now + world.random.choice((3, 10))
    world.note("broker", world.broker_is_down_until)


def cut_off(world: "ChangefeedWorld") -> None:
    """A process reaches all but the other processes."""
    process = _any(world)
    if process is not None:
        until = world.network.cut_off[process.capture] = world.now + world.random.choice((5, 15, 40))
        world.note("cut", process.name, until)


FAULTS: tuple[tuple[Callable[["ChangefeedWorld"], None], float], ...] = (
    (crash, 2), (start, 3), (freeze, 2), (leave, 0.7), (operate, 4), (restart_sorter, 1.5), (stop_sorter, 2),
    (restart_destination, 0.7), (restart_broker, 0.5), (outage, 0.4), (cut_off, 1),
)  # fmt: skip
disturb = drawn_from(FAULTS)
"""Lets one thing happen."""
