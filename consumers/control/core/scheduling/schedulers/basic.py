"""Every wanted span runs somewhere, and no other does."""

from itertools import islice

from consumers.control.core.replication.replication_set import SetState
from consumers.control.core.replication.tasks import AddSpan, Plan, RemoveSpan, Scene, Task


def plan(scene: Scene, *, batch_size: int) -> Plan:
    """Return a burst: at most ``batch_size`` adds, round robin over the captures that take spans, the emptiest first;
    and removals of all that nobody wants."""
    tasks: list[Task] = []
    targets = scene.targets
    if scene.missing and targets:
        loads = scene.loads(targets)
        targets.sort(key=lambda capture: (loads[capture], capture))
        tasks += [
            AddSpan(span, targets[number % len(targets)])
            for number, span in enumerate(islice(scene.missing, batch_size))
        ]
    tasks += [
        RemoveSpan(span) for span in scene.unwanted if scene.sets[span].state in (SetState.REPLICATING, SetState.ABSENT)
    ]
    return Plan(tuple(tasks), is_burst=True)
