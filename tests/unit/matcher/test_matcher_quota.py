"""The quota over several matchers: what goes to disk first, what stays, and that reading back is sequential."""

import pytest

from producers.pull.core.match.log_rows import LogRows
from producers.pull.core.match.matcher import (
    COMMIT,
    INITIALIZED,
    PART_BYTES_MAX,
    PART_ROWS_MAX,
    PREWRITE,
    ROLLBACK,
    Matcher,
)
from producers.pull.core.match.matcher_quota import MatcherQuota
from producers.pull.core.match.open_txns import TAKE_BLOCKS
from producers.pull.core.match.spill import BLOCK_BYTES, SpillCorruptError
from schemas.ids import RegionId, Ts
from tests.support.rawlog.memory_spill import MemorySpill
from tests.support.upstream.log_rows import Row


def matcher(quota: MatcherQuota, *, initialized: bool = True) -> Matcher:
    made = Matcher(RegionId(1), b"a", b"z", start_ts=Ts(0), checkpoint_ts=Ts(0), quota=quota)
    if initialized:
        made.feed([Row(INITIALIZED)])
    return made


def rows(kind: int, start_ts: int, count: int, first: int = 0, size: int = 200) -> list[Row]:
    commit_ts = start_ts + 1 if kind == COMMIT else 0
    value = b"v" * size if kind == PREWRITE else b""
    return [Row(kind, start_ts, commit_ts, b"k%06d" % at, value) for at in range(first, first + count)]


def test_quota_when_exceeded_then_the_largest_transaction_of_all_matchers_goes_to_disk() -> None:
    store = MemorySpill()
    quota = MatcherQuota(450_000, store)
    small, large = matcher(quota), matcher(quota)
    small.feed(rows(PREWRITE, 10, 50))
    large.feed(rows(PREWRITE, 20, 700))
    large.feed(rows(PREWRITE, 30, 60))
    before = small.held_bytes()
    assert (store.puts, quota.held_bytes) == (0, small.held_bytes() + large.held_bytes())
    small.feed(rows(PREWRITE, 10, 100, first=50))
    assert store.puts > 0
    assert small.held_bytes() > before
    assert quota.held_bytes == small.held_bytes() + large.held_bytes() < 100_000
    assert quota.spilled_bytes > 700 * 200
    store.gets.clear()
    assert len(small.feed(rows(COMMIT, 10, 150))) == 150
    assert len(large.feed(rows(COMMIT, 30, 60))) == 60
    assert store.gets == [], "what is in memory needs no disk"
    assert len(large.feed(rows(COMMIT, 20, 700))) == 700
    assert (quota.memory_bytes, quota.spilled_bytes) == (0, 0)


def test_quota_when_a_spilled_transaction_commits_in_key_order_then_each_block_is_read_once_in_its_order() -> None:
    store = MemorySpill()
    quota = MatcherQuota(200_000, store)
    state = matcher(quota)
    for first in range(0, 5_000, 100):
        state.feed(rows(PREWRITE, 10, 100, first))
        assert quota.held_bytes <= 200_000
    assert len(store.blobs) > 5_000 * 200 // BLOCK_BYTES
    for first in range(0, 5_000, 250):
        assert len(state.feed(rows(COMMIT, 10, 250, first))) == 250
        assert quota.memory_bytes <= 400_000
    assert store.gets == sorted(set(store.gets))


def test_quota_when_no_part_is_worth_a_block_then_all_stays_in_memory_and_shows() -> None:
    store = MemorySpill()
    quota = MatcherQuota(20_000, store)
    state = matcher(quota)
    for start_ts in range(100, 200):
        state.feed(rows(PREWRITE, start_ts, 2))
    assert store.puts == 0
    assert quota.memory_bytes > 20_000
    for start_ts in range(100, 200):
        assert len(state.feed(rows(COMMIT, start_ts, 2))) == 2
    assert quota.memory_bytes == 0
    state.feed(rows(PREWRITE, 300, 200))
    assert store.puts > 0, "and the quota holds again afterwards"


def test_quota_when_a_region_is_scanned_then_waiting_commits_and_rollbacks_are_counted_and_spilled() -> None:
    store = MemorySpill()
    quota = MatcherQuota(100_000, store)
    state = matcher(quota, initialized=False)
    for first in range(0, 3_000, 100):
        assert state.feed(rows(COMMIT, 10, 100, first)) == []
        assert state.feed(rows(ROLLBACK, 20, 100, first)) == []
        assert quota.held_bytes <= 100_000
    assert store.puts > 0
    for first in range(0, 3_000, 100):
        state.feed(rows(PREWRITE, 10, 100, first))
        state.feed(rows(PREWRITE, 20, 100, first))
        assert quota.held_bytes <= 100_000
    out = state.feed([Row(INITIALIZED)])
    assert [change[3] for change in out] == [row.key for row in rows(COMMIT, 10, 3_000)], "in the order of the commits"
    assert {change[:2] for change in out} == {(11, 10)}
    assert (quota.memory_bytes, store.blobs, state.open_prewrites) == (0, {}, 0)


def test_quota_when_one_event_commits_large_spilled_rows_then_parts_and_memory_stay_bounded() -> None:
    store = MemorySpill()
    quota = MatcherQuota(2 << 20, store)
    state, size = matcher(quota), 1 << 20
    for at in range(40):
        state.feed(rows(PREWRITE, 10, 1, first=at, size=size))
    store.gets.clear()
    for number, part in enumerate(state.parts(LogRows(rows(COMMIT, 10, 40))), start=1):
        assert sum(len(change[4]) for change in part) <= PART_BYTES_MAX + size
        assert len(store.gets) * size <= number * (PART_BYTES_MAX + size) + TAKE_BLOCKS * size, "read far ahead"
        assert quota.memory_bytes <= 4 << 20
    assert (quota.memory_bytes, store.blobs) == (0, {})


def test_quota_when_a_spilled_transaction_rolls_back_then_nothing_of_it_is_left() -> None:
    store = MemorySpill()
    quota = MatcherQuota(50_000, store)
    state = matcher(quota)
    state.feed(rows(PREWRITE, 10, 1_000))
    state.feed(rows(ROLLBACK, 10, 1_000))
    assert (quota.memory_bytes, store.blobs, quota.holders) == (0, {}, {})


@pytest.mark.parametrize("damaged", [False, True], ids=["it is closed between two parts", "a spilled part is damaged"])
def test_quota_when_a_region_ends_before_its_waiting_commits_are_through_then_nothing_of_them_is_left(
    damaged: bool,
) -> None:
    store = MemorySpill()
    quota = MatcherQuota(200_000, store)
    state, count = matcher(quota, initialized=False), 3 * PART_ROWS_MAX
    for first in range(0, count, 96):
        state.feed(rows(COMMIT, 10, 96, first))
    state.feed(rows(ROLLBACK, 30, 100))
    for first in range(0, count, 96):
        state.feed(rows(PREWRITE, 10, 96, first, size=20))
    parts = state.parts(LogRows([Row(INITIALIZED)]))
    assert len(next(parts)) == PART_ROWS_MAX
    if damaged:
        store.damaged = set(store.blobs)
        with pytest.raises(SpillCorruptError):
            list(parts)
    state.close()
    assert (quota.memory_bytes, store.blobs, quota.holders) == (0, {}, {})
