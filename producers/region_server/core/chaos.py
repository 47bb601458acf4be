"""What happens to a real cluster, as values; and a planner that draws the next happening from a seeded dice.

The planner is pure: it sees a :class:`ClusterView`, rolls the given dice and names an event. Whoever performs it (the
region server's :mod:`producers.region_server.chaos`, or a test with a cluster of its own) may be sure that the event is
possible in that view, and that the same seed over the same views gives the same events.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

from schemas.ids import RegionId, StoreId

_Item = TypeVar("_Item")
NO_STORE: Final = StoreId(0)
"""As a leader: nobody leads the region, and PD says so with an empty peer."""


class Dice(Protocol):
    """The part of ``random.Random`` that the planner rolls."""

    def random(self) -> float:
        """A number in [0, 1)."""

    def randrange(self, stop: int, /) -> int:
        """A whole number in [0, stop)."""


# Events --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Split:
    """The region of ``key`` splits there: its id keeps the right part; both parts get the next epoch version."""

    key: bytes


@dataclass(frozen=True, slots=True)
class Merge:
    """A region merges into its right neighbour, which survives; registrations of both end, without a hint."""

    region_id: RegionId


@dataclass(frozen=True, slots=True)
class TransferLeader:
    """Another store leads the region.

    ``hint``: whether not_leader names the new leader; in a real feed it seldom does. ``pd_lag_ms``: PD goes on naming
    the old leader for so long.
    """

    region_id: RegionId
    to: StoreId
    hint: bool = False
    pd_lag_ms: int = 0


@dataclass(frozen=True, slots=True)
class LoseLeader:
    """Nobody leads the region for a while; then ``to`` does."""

    region_id: RegionId
    to: StoreId
    for_ms: int


@dataclass(frozen=True, slots=True)
class StopStore:
    """A store goes away: its streams end UNAVAILABLE, its regions are led by the others, PD still calls it up."""

    store_id: StoreId


@dataclass(frozen=True, slots=True)
class StartStore:
    """A stopped store comes back, at its old address or at a new one; it leads nothing yet."""

    store_id: StoreId
    new_address: bool = False


@dataclass(frozen=True, slots=True)
class SlowStore:
    """Every message and answer of a store is late by so much, for a while."""

    store_id: StoreId
    delay_ms: int
    for_ms: int


@dataclass(frozen=True, slots=True)
class DropStreams:
    """A store's streams end, as by a broken connection. ``status`` is gRPC's name of it."""

    store_id: StoreId
    status: str = "UNAVAILABLE"


@dataclass(frozen=True, slots=True)
class FailRegion:
    """A region's registrations end with an error that means nothing but "try again".

    ``error``: region_not_found (TiKV's word for whatever it has no word for), congested, server_is_busy, or none (an
    error without any field, of a version that knows more errors than we do).
    """

    region_id: RegionId
    error: str


@dataclass(frozen=True, slots=True)
class RefuseRegistrations:
    """The next registrations at a store are answered server_is_busy."""

    store_id: StoreId
    count: int
    backoff_ms: int = 100


@dataclass(frozen=True, slots=True)
class RefuseCalls:
    """The next KV calls at a store (reads at a version, a lock resolver's) are answered with a region error.

    ``error``: not_leader, region_not_found, epoch_not_match, server_is_busy, stale_command, read_index_not_ready,
    data_is_not_ready, or none (one without any field, of a version that knows more errors than we do).
    """

    store_id: StoreId
    error: str
    count: int = 1
    backoff_ms: int = 100


@dataclass(frozen=True, slots=True)
class HoldScans:
    """A store's scans stand still for a while: rows written meanwhile overtake what they follow on.

    So a COMMIT comes before its PREWRITE, and before INITIALIZED.
    """

    store_id: StoreId
    for_ms: int


@dataclass(frozen=True, slots=True)
class HideRegion:
    """PD leaves a region out of its scans for a while: a hole, as between a split and its report."""

    region_id: RegionId
    for_ms: int


@dataclass(frozen=True, slots=True)
class MovePdLeader:
    """Another PD member leads; the old one answers "not leader"."""

    to: int
    """Index of the member."""


ClusterEvent = (
    Split
    | Merge
    | TransferLeader
    | LoseLeader
    | StopStore
    | StartStore
    | SlowStore
    | DropStreams
    | FailRegion
    | RefuseRegistrations
    | RefuseCalls
    | HoldScans
    | HideRegion
    | MovePdLeader
)

# The view ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RegionView:
    """A region as the planner needs it. ``split_keys`` are raw keys strictly inside; none: it cannot be split."""

    region_id: RegionId
    leader: StoreId
    split_keys: Sequence[bytes] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """The cluster at one moment: regions in key order, stores that run and that are stopped, PD's members."""

    regions: Sequence[RegionView]
    up: Sequence[StoreId]
    down: Sequence[StoreId] = ()
    pd_members: int = 1
    pd_leader: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosLimits:
    """How often each kind comes (relative weights; 0: never), and how far it may go."""

    weights: Mapping[str, int] = field(
        default_factory=lambda: {
            "split": 6,
            "merge": 4,
            "transfer": 8,
            "lose_leader": 2,
            "stop_store": 2,
            "start_store": 6,
            "slow_store": 2,
            "drop_streams": 3,
            "fail_region": 4,
            "refuse": 2,
            "refuse_calls": 2,
            "hold_scans": 4,
            "hide_region": 2,
            "move_pd": 2,
        }
    )
    regions_max: int = 64
    """No split beyond."""
    stores_up_min: int = 1
    """No store is stopped below."""
    pause_max_ms: int = 500
    """Longest of everything that lasts a while."""


DEFAULT_LIMITS: Final = ChaosLimits()


def plan(dice: Dice, view: ClusterView, limits: ChaosLimits = DEFAULT_LIMITS) -> ClusterEvent | None:
    """Draw the next event; None if nothing of what the limits allow is possible in this view."""
    possible = _possible(view, limits)
    kinds = [kind for kind in _KINDS if kind in possible and limits.weights.get(kind, 0) > 0]
    total = sum(limits.weights[kind] for kind in kinds)
    if not total:
        return None
    at = dice.randrange(total)
    for kind in kinds:
        at -= limits.weights[kind]
        if at < 0:
            return _draw(kind, dice, view, limits)
    raise AssertionError("a draw below the total meets a kind")


_KINDS: Final = (
    "split",
    "merge",
    "transfer",
    "lose_leader",
    "stop_store",
    "start_store",
    "slow_store",
    "drop_streams",
    "fail_region",
    "refuse",
    "refuse_calls",
    "hold_scans",
    "hide_region",
    "move_pd",
)
_REGION_ERRORS: Final = ("region_not_found", "congested", "server_is_busy", "none")
CALL_ERRORS: Final = (
    "not_leader",
    "region_not_found",
    "epoch_not_match",
    "server_is_busy",
    "stale_command",
    "read_index_not_ready",
    "data_is_not_ready",
    "none",
)
"""What a KV call can be refused with."""
_STREAM_ENDS: Final = ("UNAVAILABLE", "CANCELLED", "UNKNOWN", "INTERNAL")


def _possible(view: ClusterView, limits: ChaosLimits) -> set[str]:
    conditions = {
        "split": len(view.regions) < limits.regions_max and any(region.split_keys for region in view.regions),
        "merge": len(view.regions) > 1,
        "transfer": bool(view.regions) and len(view.up) > 1,
        "lose_leader": bool(view.regions and view.up),
        "stop_store": len(view.up) > limits.stores_up_min,
        "start_store": bool(view.down),
        "slow_store": bool(view.up),
        "drop_streams": bool(view.up),
        "fail_region": bool(view.regions),
        "refuse": bool(view.up),
        "refuse_calls": bool(view.up),
        "hold_scans": bool(view.up),
        "hide_region": bool(view.regions),
        "move_pd": view.pd_members > 1,
    }
    return {kind for kind, possible in conditions.items() if possible}


def _draw(kind: str, dice: Dice, view: ClusterView, limits: ChaosLimits) -> ClusterEvent:
    def pause() -> int:
        return 1 + dice.randrange(limits.pause_max_ms)

    match kind:
        case "split":
            region = _one(dice, [region for region in view.regions if region.split_keys])
            return Split(_one(dice, region.split_keys))
        case "merge":
            return Merge(_one(dice, view.regions[:-1]).region_id)
        case "transfer":
            region = _one(dice, view.regions)
            to = _one(dice, [store for store in view.up if store != region.leader])
            # In the recording of a real cluster 9 of 188 not_leader errors had a hint.
            hint, lag = dice.random() < 0.2, dice.random() < 0.3
            return TransferLeader(region.region_id, to, hint, pause() if lag else 0)
        case "lose_leader":
            return LoseLeader(_one(dice, view.regions).region_id, _one(dice, view.up), pause())
        case "stop_store":
            return StopStore(_one(dice, view.up))
        case "start_store":
            return StartStore(_one(dice, view.down), dice.random() < 0.3)
        case "slow_store":
            return SlowStore(_one(dice, view.up), 1 + dice.randrange(50), pause())
        case "drop_streams":
            return DropStreams(_one(dice, view.up), _one(dice, _STREAM_ENDS))
        case "fail_region":
            return FailRegion(_one(dice, view.regions).region_id, _one(dice, _REGION_ERRORS))
        case "refuse":
            return RefuseRegistrations(_one(dice, view.up), 1 + dice.randrange(5), pause())
        case "refuse_calls":
            return RefuseCalls(
                _one(dice, view.up), _one(dice, CALL_ERRORS), 1 + dice.randrange(5), 1 + dice.randrange(50)
            )
        case "hold_scans":
            return HoldScans(_one(dice, view.up), pause())
        case "hide_region":
            return HideRegion(_one(dice, view.regions).region_id, pause())
        case _:
            return MovePdLeader(_one(dice, [at for at in range(view.pd_members) if at != view.pd_leader]))


def _one(dice: Dice, items: Sequence[_Item]) -> _Item:
    return items[dice.randrange(len(items))]
