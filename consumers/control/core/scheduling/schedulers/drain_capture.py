"""All spans of one capture go elsewhere: of one that an operator named, or of one that says it is leaving."""

from dataclasses import dataclass, replace

from consumers.control.core.replication.tasks import Plan, Scene, deal
from schemas.errors import Action, BusError
from schemas.ids import CaptureId


class DrainRefusedError(BusError):
    """This capture cannot be drained now."""

    code, action = "scheduling.drain_refused", Action.RETRY


@dataclass(frozen=True, slots=True)
class DrainCapture:
    """``target`` is drained until it has no span and knows that it is leaving, or is gone."""

    target: CaptureId | None = None


def drain(state: DrainCapture, scene: Scene, target: CaptureId) -> tuple[DrainCapture, int]:
    """Take an operator's order; return how many spans ``target`` has.

    Raises:
        DrainRefusedError: it is unknown, the owner, the only capture, or another one is being drained.
    """
    if target not in scene.captures:
        raise DrainRefusedError("capture to drain does not exist", capture=target)
    if target == scene.owner:
        raise DrainRefusedError("the owner cannot be drained; let it resign first", capture=target)
    if len(scene.captures) < 2:
        raise DrainRefusedError("the only capture cannot be drained", capture=target)
    if state.target not in (None, target):
        raise DrainRefusedError("another capture is being drained", capture=target, draining=state.target)
    return DrainCapture(target), len(scene.members.get(target, ()))


def plan(state: DrainCapture, scene: Scene, *, limit: int) -> tuple[DrainCapture, Plan]:
    """Return at most ``limit`` moves away from the target, to the least loaded others.

    TiCDC waits until every span of the changefeed replicates. Here a table that is stuck while it begins, which may be
    for hours, keeps nobody from leaving; it takes one of the slots that limit all tasks.
    """
    if state.target is None or state.target not in scene.captures:
        leaving = [who for who in scene.stopping if who != scene.owner and scene.members.get(who)]
        state = replace(state, target=leaving[0] if leaving else None)
    if state.target is None:
        return state, Plan()
    if not scene.members.get(state.target):
        return DrainCapture() if state.target in scene.stopping else state, Plan()
    others = [who for who in scene.targets if who != state.target]
    if not others:
        return state, Plan()
    return state, Plan(deal(scene, scene.movable(state.target), scene.loads(others), limit))
