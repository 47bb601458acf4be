"""resolved_ts = max(resolved_ts, min(min_ts, least start_ts of the open locks))."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from producers.region_server.core.cdc.resolved_groups import group
from producers.region_server.core.cdc.resolver import Resolver
from producers.region_server.core.cdc.scan_pace import ScanPace
from producers.region_server.core.store.oracle import TimestampOracle
from schemas.errors import ConfigError
from schemas.ids import RegionId, Ts, compose_ts, physical_ms


def test_resolver_without_locks_returns_the_ts_of_pd() -> None:
    assert Resolver().resolve(Ts(7)) == 7


def test_resolver_with_locks_stops_at_the_oldest_transaction_until_all_its_keys_are_gone() -> None:
    resolver = Resolver()
    for key, start_ts in ((b"a", 10), (b"b", 10), (b"c", 20)):
        resolver.track(key, Ts(start_ts))
    assert resolver.resolve(Ts(100)) == 10
    resolver.untrack(b"a")
    assert resolver.resolve(Ts(100)) == 10
    resolver.untrack(b"b")
    assert resolver.resolve(Ts(100)) == 20
    resolver.untrack(b"c")
    assert resolver.resolve(Ts(100)) == 100


def test_resolver_never_goes_back() -> None:
    resolver = Resolver()
    assert resolver.resolve(Ts(50)) == 50
    resolver.track(b"a", Ts(40))  # a lock that was prewritten late: its commit_ts is above 50 all the same
    assert resolver.resolve(Ts(60)) == 50
    assert resolver.resolve(Ts(30)) == 50


def test_resolver_with_a_key_locked_again_forgets_the_first_lock() -> None:
    resolver = Resolver()
    resolver.track(b"a", Ts(10))
    resolver.track(b"a", Ts(20))
    resolver.untrack_of(b"a", Ts(10))  # a late rollback of the first transaction
    assert (resolver.resolve(Ts(100)), resolver.lock_count) == (20, 1)


def test_resolved_groups_grow_by_four_and_take_their_own_minimum() -> None:
    resolved = [(Ts(1000 - number), RegionId(number)) for number in range(1, 61)]
    messages = group(resolved)
    assert [len(regions) for _, regions in messages] == [8, 32, 20]
    assert [ts for ts, _ in messages] == [940, 948, 980]
    assert messages[0][1] == [60, 59, 58, 57, 56, 55, 54, 53]


def test_oracle_running_freely_gives_each_ts_once_even_if_the_clock_stands_or_steps_back() -> None:
    clock = iter([5, 5, 4, 9])
    oracle = TimestampOracle(lambda: next(clock))
    assert [oracle.tso(), oracle.tso(), oracle.tso(3), oracle.tso()] == [
        compose_ts(5), compose_ts(5, 1), compose_ts(5, 4), compose_ts(9),
    ]  # fmt: skip


def test_oracle_under_a_ceiling_never_passes_it_and_runs_on_above_the_floor() -> None:
    oracle = TimestampOracle(lambda: 100)
    oracle.hold(Ts(50), lambda: 1 << 40)
    assert [oracle.tso(), oracle.tso()] == [50, 50]
    oracle.hold(Ts(70), lambda: 1 << 40)
    assert oracle.tso() == 70
    oracle.release(Ts(90), lambda: 0)
    assert oracle.tso() == 91


def test_resolver_of_a_transaction_that_locks_again_later_counts_it_again() -> None:
    resolver = Resolver()
    resolver.track(b"a", Ts(10))
    resolver.untrack(b"a")
    resolver.track(b"b", Ts(10))
    assert resolver.resolve(Ts(100)) == 10
    resolver.untrack(b"b")
    assert resolver.resolve(Ts(100)) == 100


@given(
    st.lists(
        st.tuples(st.sampled_from(["track", "untrack", "resolve"]), st.integers(0, 4), st.integers(1, 30)), max_size=60
    )
)
def test_resolver_with_a_heap_says_what_the_definition_says(steps: list[tuple[str, int, int]]) -> None:
    resolver, locks, resolved = Resolver(), dict[bytes, int](), 0
    for what, number, ts in steps:
        key = b"%d" % number
        if what == "track":
            resolver.track(key, Ts(ts))
            locks[key] = ts
        elif what == "untrack":
            resolver.untrack(key)
            locks.pop(key, None)
        else:
            resolved = max(resolved, min([ts, *locks.values()]))
            assert resolver.resolve(Ts(ts)) == resolved
        assert resolver.lock_count == len(locks)


def test_oracle_gives_a_run_of_timestamps_within_one_millisecond_also_where_the_logical_half_runs_over() -> None:
    oracle = TimestampOracle(lambda: 5)
    last = 0
    for count in (10, 200_000, 200_000, 7):
        ts = oracle.tso(count)
        assert ts - count + 1 > last
        assert physical_ms(Ts(ts - count + 1)) == physical_ms(ts)
        last = ts
    with pytest.raises(ConfigError):
        oracle.tso(1 << 18)


def test_scan_pace_lets_a_second_through_and_then_waits() -> None:
    pace = ScanPace(1000.0, now_s=50.0)
    assert [pace.take(600, 50.0), pace.take(600, 50.0)] == [0.0, pytest.approx(0.2)]
    assert pace.take(0, 50.2) == pytest.approx(0.0)
    assert pace.take(3000, 100.0) == pytest.approx(2.0)  # idle time saves up no more than a second
