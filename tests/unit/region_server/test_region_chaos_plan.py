"""The planner of cluster events: seeded, and never an event that its view rules out."""

import random

from hypothesis import given
from hypothesis import strategies as st

from producers.region_server.core.chaos import (
    ChaosLimits,
    ClusterEvent,
    ClusterView,
    FailRegion,
    HideRegion,
    LoseLeader,
    Merge,
    MovePdLeader,
    RegionView,
    Split,
    StartStore,
    StopStore,
    TransferLeader,
    plan,
)
from schemas.ids import RegionId, StoreId

STORES = tuple(StoreId(number) for number in (1, 2, 3))


def events(seed: int, view: ClusterView, count: int = 300, limits: ChaosLimits | None = None) -> list[ClusterEvent]:
    dice = random.Random(seed)
    drawn = [plan(dice, view, limits or ChaosLimits()) for _ in range(count)]
    return [event for event in drawn if event is not None]


def view(regions: int = 3, up: int = 3, pd_members: int = 1, keys: int = 1) -> ClusterView:
    return ClusterView(
        regions=[
            RegionView(RegionId(2 * at + 2), STORES[at % 3], [b"%d-%d" % (at, key) for key in range(keys)])
            for at in range(regions)
        ],
        up=STORES[:up], down=STORES[up:], pd_members=pd_members,
    )  # fmt: skip


def test_plan_of_the_same_seed_and_views_is_the_same_and_of_another_differs() -> None:
    assert events(7, view()) == events(7, view())
    assert events(7, view()) != events(8, view())


def test_plan_over_a_whole_cluster_draws_every_kind() -> None:
    kinds = {type(event).__name__ for event in events(1, view(up=2, pd_members=3), 2000)}
    assert kinds == {
        "Split", "Merge", "TransferLeader", "LoseLeader", "StopStore", "StartStore", "SlowStore", "DropStreams",
        "FailRegion", "RefuseRegistrations", "RefuseCalls", "HoldScans", "HideRegion", "MovePdLeader",
    }  # fmt: skip


@given(
    seed=st.integers(0, 1 << 32), regions=st.integers(1, 5), up=st.integers(0, 3),
    pd_members=st.integers(1, 3), keys=st.integers(0, 2),
)  # fmt: skip
def test_plan_is_always_possible_in_its_view(seed: int, regions: int, up: int, pd_members: int, keys: int) -> None:
    seen = view(regions, up, pd_members, keys)
    by_id = {region.region_id: region for region in seen.regions}
    for event in events(seed, seen, 20):
        match event:
            case Split(key):
                assert any(key in region.split_keys for region in seen.regions)
            case Merge(region_id):
                assert region_id in by_id
                assert region_id != seen.regions[-1].region_id  # the last has no right neighbour
            case TransferLeader(region_id, to):
                assert to in seen.up
                assert to != by_id[region_id].leader
            case LoseLeader(region_id, to):
                assert region_id in by_id
                assert to in seen.up
            case StopStore(store_id):
                assert store_id in seen.up
                assert len(seen.up) > 1
            case StartStore(store_id):
                assert store_id in seen.down
            case FailRegion(region_id) | HideRegion(region_id):
                assert region_id in by_id
            case MovePdLeader(to):
                assert to != seen.pd_leader
                assert to < pd_members


def test_plan_keeps_to_weights_and_limits() -> None:
    only = ChaosLimits(weights={"split": 1, "merge": 1}, regions_max=3)
    assert {type(event) for event in events(1, view(3), limits=only)} == {Merge}
    assert events(1, view(1, up=1), limits=ChaosLimits(weights={"merge": 1})) == []
    assert plan(random.Random(1), ClusterView(regions=(), up=(), down=STORES)) in [
        StartStore(store, new) for store in STORES for new in (False, True)
    ]
