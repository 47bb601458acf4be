"""A matcher that keeps next to nothing in memory emits what one without a bound emits, row for row.

The rows follow no protocol: prewrites that repeat with all generations and fake values, rollbacks, commits before and
after INITIALIZED, several transactions on the same few keys, events of any size. Whatever the matcher in memory does
with them (its errors included), the one that spills does too.
"""

from random import Random
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from producers.pull.core.match import cached_rows, matcher_quota, spill
from producers.pull.core.match.change_columns import Change
from producers.pull.core.match.matcher import (
    COMMIT,
    COMMITTED,
    INITIALIZED,
    PREWRITE,
    ROLLBACK,
    Matcher,
    PrewriteNotMatchError,
)
from producers.pull.core.match.matcher_quota import MatcherQuota
from schemas.ids import RegionId, Ts
from tests.support.rawlog.memory_spill import MemorySpill
from tests.support.upstream.log_rows import DELETE, PUT, Row

START_TS = (10, 20, 30)
SEEDS = st.integers(0, 2**32)
"""Shrinking choices one by one takes minutes here; a seed is found again as well."""
VALUES = (b"", b"v", b"w" * 30, b"x" * 200)


def keys_of(random: Random) -> list[bytes]:
    return [b"k%03d" % random.randrange(60) for _ in range(random.choice((1, 1, 3, 12, 40)))]


def event(random: Random, rows_left: dict[tuple[int, bytes], bool]) -> list[Row]:
    """Rows of one kind and transaction, as most events have; now and then of any kind."""
    kind = random.choice((PREWRITE, PREWRITE, PREWRITE, COMMIT, ROLLBACK, COMMITTED))
    start_ts, rows = random.choice(START_TS), []
    for key in keys_of(random):
        if random.random() < 0.05:
            kind, start_ts = random.choice((PREWRITE, COMMIT, ROLLBACK)), random.choice(START_TS)
        if kind == COMMIT and random.random() < 0.9 and not rows_left.get((start_ts, key)):
            continue  # mostly of what was prewritten, or every run would end at its first commit
        value, op = random.choice(VALUES), random.choice((PUT, PUT, PUT, DELETE))
        generation = random.choice((0, 0, 0, 1, 2, 3))
        commit_ts = start_ts + 5 if kind in (COMMIT, COMMITTED) else 0
        rows.append(
            Row(kind, start_ts, commit_ts, key, value, random.choice(VALUES), op, random.randrange(2), generation)
        )
        rows_left[start_ts, key] = kind == PREWRITE
    return rows


def events(random: Random) -> list[list[Row]]:
    out, rows_left = [], dict[tuple[int, bytes], bool]()
    initialized_at = random.choice((0, 0, 5, 15, 30, 99))
    for number in range(random.randint(1, 40)):
        if number == initialized_at:
            out.append([Row(INITIALIZED)])
        out.append(event(random, rows_left))
    return out


def fed(matcher: Matcher, rows: list[Row]) -> list[Change] | str:
    try:
        return matcher.feed(rows)
    except PrewriteNotMatchError as error:
        return str(error.fields)


def new(quota: MatcherQuota | None = None) -> Matcher:
    return Matcher(RegionId(1), b"k", b"l", start_ts=Ts(0), checkpoint_ts=Ts(0), quota=quota)


@settings(max_examples=400, deadline=None)
@given(
    SEEDS,
    st.sampled_from([1, 2_000, 20_000]),
    st.sampled_from([1, 300, 64 << 10]),
    st.sampled_from([0, 4 << 10]),
)
def test_matcher_with_a_tiny_quota_then_emits_exactly_what_one_without_a_bound_emits(
    seed: int, bytes_max: int, block_bytes: int, part_bytes_min: int
) -> None:
    random, store = Random(seed), MemorySpill()
    quota = MatcherQuota(bytes_max, store)
    plain, spilling = new(), new(quota)
    with (
        patch.object(spill, "BLOCK_BYTES", block_bytes),
        patch.object(cached_rows, "BLOB_ROWS_MAX", 3),
        patch.object(matcher_quota, "PART_BYTES_MIN", part_bytes_min),
    ):
        for rows in events(random):
            wanted = fed(plain, rows)
            emitted = fed(spilling, rows)
            assert emitted == wanted
            if isinstance(emitted, str):
                break  # the registration ends with it
            assert spilling.held_bytes() == quota.held_bytes
            assert bool(spilling.open_prewrites) == bool(plain.open_prewrites)
    spilling.close()
    assert (quota.held_bytes, quota.memory_bytes, quota.spilled_bytes, store.blobs) == (0, 0, 0, {})
    assert quota.holders == {}


@settings(max_examples=100, deadline=None)
@given(SEEDS)
def test_matchers_that_share_a_quota_when_some_are_dropped_then_the_others_are_not_disturbed(seed: int) -> None:
    random, store = Random(seed), MemorySpill()
    quota = MatcherQuota(3_000, store)
    pairs = [(new(), new(quota)) for _ in range(3)]
    feeds = [events(random) for _ in pairs]
    with patch.object(spill, "BLOCK_BYTES", 500), patch.object(matcher_quota, "PART_BYTES_MIN", 0):
        while any(feeds):
            at = random.choice([number for number, rest in enumerate(feeds) if rest])
            plain, spilling = pairs[at]
            wanted, emitted = fed(plain, feeds[at][0]), fed(spilling, feeds[at].pop(0))
            assert emitted == wanted
            if isinstance(emitted, str) or random.random() < 0.05:
                spilling.close()
                pairs[at], feeds[at] = (new(), new(quota)), events(random) if random.random() < 0.3 else []
            assert quota.held_bytes == sum(each.held_bytes() for _, each in pairs)
    for _, spilling in pairs:
        spilling.close()
    assert (quota.memory_bytes, store.blobs, quota.holders) == (0, {}, {})


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.binary(max_size=20), st.tuples(st.binary(), st.binary(), st.integers(0, 2**63)), min_size=1))
def test_spilled_block_then_reads_back_as_written(rows: dict[bytes, spill.Prewrite]) -> None:
    keys, entries = spill.decode_block(spill.encode_block(rows))
    assert dict(zip(keys, entries, strict=True)) == rows


@settings(max_examples=200, deadline=None)
@given(SEEDS, st.sampled_from([1, 100, 5_000]))
def test_spilled_run_when_rows_leave_in_any_order_with_a_cache_of_any_size_then_each_is_found_once(
    seed: int, cache_bytes: int
) -> None:
    random, store = Random(seed), MemorySpill()
    rows = {b"%05d" % random.randrange(5_000): (random.choice(VALUES), b"", 0) for _ in range(150)}
    wanted = dict(rows)
    with patch.object(spill, "BLOCK_BYTES", 200):
        run, cache = spill.write_run(rows, store), spill.BlockCache(store, cache_bytes)
    largest = max(len(blob) + 240 * int.from_bytes(blob[:4], "little") for blob in store.blobs.values())
    order = random.sample(sorted(wanted), len(wanted))
    for key in order:
        assert run.get(key, cache) == wanted[key]
        popped: list[spill.Prewrite | None] = [None]
        run.pop_all([key], popped, cache)
        assert popped == [wanted[key]]
        assert run.get(key, cache) is None
        assert run.get(b"%05dx" % random.randrange(5_000), cache) is None
        assert cache.loaded_bytes <= max(cache_bytes, largest)
    assert (run.live, store.blobs, cache.loaded_bytes) == (0, {}, 0)
