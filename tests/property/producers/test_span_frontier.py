"""The range lock against a model that keeps one resolved ts for each single key."""

from hypothesis import given, settings
from hypothesis import strategies as st

from producers.pull.core.regions.span_frontier import (
    EncodedRange,
    Granted,
    LockedRange,
    SpanFrontier,
    Stale,
    WaitForRegions,
)
from schemas.ids import RegionId, Ts

KEYS = 12


def key(at: int) -> bytes:
    return bytes([at])


actions = st.lists(
    st.one_of(
        st.tuples(
            st.just("lock"), st.integers(0, KEYS - 1), st.integers(1, KEYS), st.integers(1, 4), st.integers(1, 3)
        ),
        st.tuples(st.just("unlock"), st.integers(0, 9), st.just(0), st.just(0), st.just(0)),
        st.tuples(st.just("advance"), st.integers(0, 9), st.integers(0, 50), st.just(0), st.just(0)),
    ),
    max_size=40,
)


@settings(max_examples=300, deadline=None)
@given(actions)
def test_span_frontier_any_locks_and_unlocks_keeps_every_keys_ts(steps: list[tuple[str, int, int, int, int]]) -> None:
    frontier = SpanFrontier(EncodedRange(key(0), key(KEYS)), Ts(3))
    model = [3] * KEYS
    held: list[LockedRange] = []
    for action, a, b, region, version in steps:
        if action == "lock" and a < b:
            wanted = EncodedRange(key(a), key(b))
            busy = [lock for lock in held if lock.range.intersect(wanted)]
            newer = [lock for lock in busy if lock.version >= version]
            match frontier.lock(wanted, RegionId(region), version):
                case Granted(lock):
                    assert not busy
                    assert lock.resolved_ts == min(model[a:b])
                    model[a:b] = [lock.resolved_ts] * (b - a)
                    held.append(lock)
                case Stale(retry):
                    assert newer
                    free = {at for at in range(a, b) if not any(n.range.start <= key(at) < n.range.end for n in newer)}
                    assert free == {at for part in retry for at in range(part.start[0], part.end[0])}
                case WaitForRegions():
                    assert not newer
                    assert busy
        elif action == "unlock" and held:
            frontier.unlock(held.pop(a % len(held)))
        elif action == "advance" and held:
            lock = held[a % len(held)]
            frontier.advance(lock, Ts(b))
            for at in range(lock.range.start[0], lock.range.end[0]):
                model[at] = max(model[at], b)
        assert frontier.resolved_ts() == min(model)
        tiles = sorted([*frontier.unlocked(), *(lock.range for lock in frontier.locked())])
        assert [tile.start for tile in tiles] == [key(0), *(tile.end for tile in tiles[:-1])]
        assert tiles[-1].end == key(KEYS)


def test_span_frontier_when_a_region_absorbs_a_released_neighbour_then_it_gets_that_range_too() -> None:
    """The merged region's own part was placed again before the error of its neighbour came."""
    frontier = SpanFrontier(EncodedRange(b"a", b"z"), Ts(1))
    assert isinstance(frontier.lock(EncodedRange(b"m", b"z"), RegionId(2), 6), Granted)
    added = frontier.lock(EncodedRange(b"a", b"m"), RegionId(2), 6)
    assert isinstance(added, Granted)
    assert added.lock.resolved_ts == 1


def test_span_frontier_when_two_regions_merge_then_the_union_starts_from_the_smaller_ts() -> None:
    frontier = SpanFrontier(EncodedRange(b"a", b"z"), Ts(1))
    left = frontier.lock(EncodedRange(b"a", b"m"), RegionId(1), 5)
    right = frontier.lock(EncodedRange(b"m", b"z"), RegionId(2), 5)
    assert isinstance(left, Granted)
    assert isinstance(right, Granted)
    frontier.advance(left.lock, Ts(10))
    frontier.advance(right.lock, Ts(20))
    assert isinstance(frontier.lock(EncodedRange(b"a", b"z"), RegionId(2), 6), WaitForRegions)
    frontier.unlock(left.lock)
    frontier.unlock(right.lock)
    merged = frontier.lock(EncodedRange(b"a", b"z"), RegionId(2), 6)
    assert isinstance(merged, Granted)
    assert merged.lock.resolved_ts == 10
    assert frontier.slowest() is merged.lock
