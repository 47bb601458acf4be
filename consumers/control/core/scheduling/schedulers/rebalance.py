"""Equal shares at once, as an operator says."""

from dataclasses import dataclass

from consumers.control.core.replication.tasks import Plan, Scene
from consumers.control.core.scheduling.schedulers.balance import balance_moves


@dataclass(frozen=True, slots=True)
class Rebalance:
    """Whether an operator has asked."""

    is_asked: bool = False


def plan(state: Rebalance, scene: Scene) -> tuple[Rebalance, Plan]:
    """Return one burst with as many moves as it takes, once every span replicates and no capture is leaving."""
    if not state.is_asked or not scene.is_settled or scene.missing or scene.stopping:
        return state, Plan()
    return Rebalance(), Plan(balance_moves(scene, len(scene.sets)), is_burst=True)
