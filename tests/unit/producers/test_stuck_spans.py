"""When locks are looked for: the rule of docs/formats/cdcpb.md §7."""

from producers.pull.core.regions.span_frontier import EncodedRange
from producers.pull.core.regions.stuck_spans import (
    REGIONS_FIRST,
    REGIONS_MAX,
    Look,
    ResolveRegion,
    StillSpan,
    StuckRegion,
    Watch,
    at_once,
    step,
)
from schemas.ids import RegionId, TableId, Ts, compose_ts
from schemas.tidb.spans import TableSpan

SPAN = TableSpan(TableId(7), b"t1", b"t2")
RANGE = EncodedRange(b"a", b"b")


def look(
    now_ms: int, resolved_ms: int, *, still_s: float, regions: dict[int, int], now_s: float = 100.0, room: int = 9
) -> Look:
    """Return a look at one span; ``regions``: region id to resolved ts in ms."""
    stuck = tuple(StuckRegion(RegionId(number), RANGE, compose_ts(ms)) for number, ms in regions.items())
    return Look(now_s, compose_ts(now_ms), (StillSpan(SPAN, compose_ts(resolved_ms), still_s, stuck),), room)


def chosen(orders: tuple[ResolveRegion, ...]) -> dict[int, Ts]:
    """Return region id to target."""
    return {order.region_id: order.max_version for order in orders}


def test_span_still_and_behind_then_its_regions_below_the_target_are_resolved() -> None:
    _, orders = step(Watch(), look(60_000, 50_000, still_s=4.0, regions={1: 50_000, 2: 53_999, 3: 54_000}))
    assert chosen(orders) == {1: compose_ts(54_000), 2: compose_ts(54_000)}


def test_target_then_it_is_not_after_now() -> None:
    look_now = Look(0.0, Ts(compose_ts(54_000) - 1), look(0, 50_000, still_s=9, regions={1: 50_000}).spans, 9)
    assert step(Watch(), look_now)[1] == (), "not yet 4 s behind"
    _, orders = step(Watch(), look(54_000, 50_000, still_s=9, regions={1: 50_000}))
    assert chosen(orders) == {1: compose_ts(54_000)}


def test_span_moves_or_is_hardly_behind_then_nothing_is_done() -> None:
    assert step(Watch(), look(60_000, 50_000, still_s=3.9, regions={1: 50_000}))[1] == ()
    assert step(Watch(), look(53_999, 50_000, still_s=60.0, regions={1: 50_000}))[1] == ()


def test_region_was_resolved_then_it_is_left_alone_for_ten_seconds() -> None:
    state, orders = step(Watch(), look(60_000, 50_000, still_s=5, regions={1: 50_000}, now_s=100.0))
    assert chosen(orders) == {1: compose_ts(54_000)}
    state, orders = step(state, look(62_000, 50_000, still_s=7, regions={1: 50_000, 2: 50_000}, now_s=102.0))
    assert set(chosen(orders)) == {2}
    state, orders = step(state, look(70_000, 50_000, still_s=15, regions={1: 50_000, 2: 50_000}, now_s=110.0))
    assert set(chosen(orders)) == {1}


def test_span_has_moved_below_its_target_then_it_is_looked_at_again_without_standing_still() -> None:
    state, _ = step(Watch(), look(60_000, 50_000, still_s=5, regions={1: 50_000}, now_s=100.0))
    state, orders = step(state, look(71_000, 53_000, still_s=1, regions={1: 53_000}, now_s=111.0))
    assert chosen(orders) == {1: compose_ts(54_000)}
    state, orders = step(state, look(73_000, 54_000, still_s=1, regions={1: 54_000}, now_s=122.0))
    assert orders == ()
    assert state.targets == {}


def test_more_regions_than_room_then_the_slowest_first_and_the_others_at_the_next_look() -> None:
    regions = {1: 53_000, 2: 50_000, 3: 52_000, 4: 51_000}
    state, orders = step(Watch(), look(60_000, 50_000, still_s=5, regions=regions, room=2))
    assert [order.region_id for order in orders] == [2, 4]
    state, orders = step(state, look(62_000, 50_000, still_s=7, regions=regions, now_s=102.0, room=0))
    assert orders == ()
    state, orders = step(state, look(64_000, 50_000, still_s=9, regions=regions, now_s=104.0, room=9))
    assert [order.region_id for order in orders] == [3, 1]


def test_regions_at_once_are_few_until_locks_are_found() -> None:
    assert at_once(REGIONS_FIRST, has_locks=False) == REGIONS_FIRST
    grown = [REGIONS_FIRST]
    while grown[-1] < REGIONS_MAX:
        grown.append(at_once(grown[-1], has_locks=True))
    assert len(grown) <= 4, "within some looks of two seconds"
    assert at_once(REGIONS_MAX, has_locks=True) == REGIONS_MAX
    assert at_once(REGIONS_MAX, has_locks=False) == REGIONS_FIRST
