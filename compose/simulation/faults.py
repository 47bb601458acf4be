"""What happens to a simulated cluster: to its processes, its network, its tables, and by its operator's hand."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from compose.simulation.outcome import drawn_from, outage
from compose.simulation.upstream import KEY_INDEXES, key_at
from consumers.control.core.replication.replication_set import SetState
from consumers.control.core.scheduling.coordinator import NotInitializedError
from consumers.control.core.scheduling.schedulers.drain_capture import DrainRefusedError
from consumers.control.owner.reign import MoveRefusedError
from schemas.ids import TableId

if TYPE_CHECKING:
    from compose.simulation.capture import SimCapture
    from compose.simulation.world import ClusterWorld

PROCESSES_MAX = 5
PARTITIONS_MAX = 6


def _any(world: "ClusterWorld") -> "SimCapture | None":
    return world.random.choice(list(world.processes.values())) if world.processes else None


def _owner(world: "ClusterWorld") -> "SimCapture | None":
    return next(
        (process for process in world.processes.values() if process.reign is not None and not process.busy), None
    )


def crash(world: "ClusterWorld") -> None:
    """kill -9, of the owner by preference."""
    process = _any(world)
    owner = _owner(world)
    if owner is not None and world.random.random() < 0.3:
        process = owner
    if process is not None:
        world.note("crash", process.capture)
        world.bury(process, closes=False)


def start(world: "ClusterWorld") -> None:
    """Start one more capture."""
    if len(world.processes) < PROCESSES_MAX:
        world.start()


def freeze(world: "ClusterWorld") -> None:
    """SIGSTOP between two steps, and SIGCONT."""
    process = _any(world)
    if process is not None and not process.frozen and not process.busy:
        world.stand_still(process, only_owner=False)


def stop(world: "ClusterWorld") -> None:
    """A graceful stop begins."""
    process = _any(world)
    if process is not None and len(world.processes) > 1 and world.random.random() < 0.5:
        process.is_leaving = True
        world.note("stop", process.capture)


def resign(world: "ClusterWorld") -> None:
    """An operator asks the owner to stand back."""
    owner = _owner(world)
    if owner is not None and not owner.frozen:
        assert owner.reign is not None
        owner.reign.resign()
        world.note("resign", owner.capture)


def operate(world: "ClusterWorld") -> None:
    """An operator gives the owner an order."""
    owner = _owner(world)
    if owner is None or owner.reign is None:
        return
    reign, coordinator = owner.reign, owner.reign._coordinator
    capture = world.random.choice(sorted(world.zookeeper.captures) or [owner.capture])
    order = world.random.choice(("drain", "move", "move", "move", "rebalance"))
    try:
        if order == "drain":
            reign.drain(capture)
        elif order == "rebalance":
            reign.rebalance()
        elif coordinator.replications.sets:
            reign.move_table(world.random.choice(sorted(coordinator.replications.sets)).table_id, capture)
    except (NotInitializedError, DrainRefusedError, MoveRefusedError):
        order = "refused"
    world.note(order, capture)


def ambush(world: "ClusterWorld") -> None:
    """The capture that a span moves to dies while the old one is being told to stop."""
    owner = _owner(world)
    for replication in owner.reign._coordinator.replications.sets.values() if owner and owner.reign else ():
        if replication.state is SetState.COMMIT and replication.primary and replication.secondary in world.processes:
            target = world.processes[replication.secondary]
            if target is not owner and not target.busy:
                world.note("ambush", target.capture)
                world.bury(target, closes=True)
            return


def alter(world: "ClusterWorld") -> None:
    """A DDL job is done."""
    world.note("ddl", world.upstream.alter())


def stall(world: "ClusterWorld") -> None:
    """Nothing comes of a table, or of two, for a while."""
    living = world.upstream.living()
    for table in world.random.sample(living, min(len(living), world.random.randint(1, 2))):
        world.upstream.stuck[table] = world.now + world.random.choice((5, 20, 80))
        world.note("stall", table, world.upstream.stuck[table])


def unanswered(world: "ClusterWorld") -> None:
    """Some captures' frontier records are not acknowledged, for a while."""
    for process in world.processes.values():
        process.topic.failures = world.random.choice((0.0, 0.0, 0.0, 0.05, 0.3))


def cut_off(world: "ClusterWorld") -> None:
    """A capture reaches ZooKeeper and Kafka, but no other capture."""
    process = _any(world)
    if process is not None:
        until = world.network.cut_off[process.capture] = world.now + world.random.choice((5, 15, 40))
        world.note("cut", process.capture, until)


def confuse(world: "ClusterWorld") -> None:
    """The owner meets an error after which the upstream starts anew, with a new epoch."""
    owner = _owner(world)
    if owner is not None:
        owner.is_confused = True


def regions(world: "ClusterWorld") -> None:
    """Regions of a table split and merge."""
    table = world.random.choice(world.upstream.living() or [TableId(1)])
    indexes = sorted(world.random.sample(range(1, KEY_INDEXES), world.random.choice((0, 1, 2, 4, 7))))
    world.regions[table] = [key_at(table, index) for index in indexes]


def grow(world: "ClusterWorld") -> None:
    """Somebody gives region-events another partition; captures that start from now on land in it."""
    if world.broker.partitions < PARTITIONS_MAX:
        world.broker.grow()
        world.note("grow", world.broker.partitions)


def upgrade(world: "ClusterWorld") -> None:
    """A capture of another version comes: of the next one, or of one that does not go with the others."""
    if len(world.processes) < PROCESSES_MAX:
        world.start(world.random.choice(("0.2.0", "0.2.0", "1.9.0")))


FAULTS: tuple[tuple[Callable[["ClusterWorld"], None], float], ...] = (
    (crash, 2), (start, 3), (freeze, 1.5), (stop, 1), (resign, 0.7), (operate, 4), (ambush, 1),
    (alter, 5), (stall, 2), (outage, 0.4), (unanswered, 0.7), (cut_off, 1), (confuse, 0.3), (regions, 3),
    (upgrade, 0.3), (grow, 0.4),
)  # fmt: skip
disturb = drawn_from(FAULTS)
"""Lets one thing happen."""
