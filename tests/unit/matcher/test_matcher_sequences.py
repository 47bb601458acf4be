"""Every situation of docs/formats/cdcpb.md §4.1 and every worked sequence of §4.4, in memory and with all rows on disk.

A sequence is written as people write it on a board: ``P`` PREWRITE, ``C`` COMMIT, ``R`` ROLLBACK, ``W`` COMMITTED (a
whole change), ``I`` INITIALIZED; after each event stands what must come out of it.
"""

from collections.abc import Iterator
from unittest.mock import patch

import pytest

from producers.pull.core.match import matcher_quota
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
from schemas.errors import InvariantBrokenError
from schemas.ids import RegionId, Ts
from tests.support.rawlog.memory_spill import MemorySpill
from tests.support.upstream.log_rows import DELETE, PUT, Row

I = Row(INITIALIZED)  # noqa: E741


def P(start_ts: int, key: bytes, value: bytes, old: bytes = b"", *, gen: int = 0, op: int = PUT, src: int = 0) -> Row:  # noqa: N802
    return Row(PREWRITE, start_ts, 0, key, value, old, op, txn_source=src, generation=gen)


def C(start_ts: int, commit_ts: int, key: bytes, *, op: int = PUT, value: bytes = b"", src: int = 0) -> Row:  # noqa: N802
    return Row(COMMIT, start_ts, commit_ts, key, value, op_type=op, txn_source=src)


def R(start_ts: int, key: bytes, value: bytes = b"") -> Row:  # noqa: N802
    return Row(ROLLBACK, start_ts, 0, key, value, op_type=0)


def W(start_ts: int, commit_ts: int, key: bytes, value: bytes, old: bytes = b"", *, op: int = PUT) -> Row:  # noqa: N802
    return Row(COMMITTED, start_ts, commit_ts, key, value, old, op)


def out(
    start_ts: int, commit_ts: int, key: bytes, value: bytes, old: bytes = b"", *, op: int = PUT, src: int = 0
) -> Change:
    return commit_ts, start_ts, op, key, value, old, src


K, K1, K2 = b"k", b"k1", b"k2"
UNMATCHED = "a COMMIT without PREWRITE"
Step = tuple[Row, list[Change] | str]

SEQUENCES: dict[str, list[Step]] = {
    # §4.1, one by one
    "ordinary 2PC, live": [(I, []), (P(1, K, b"v", b"o"), []), (C(1, 2, K), [out(1, 2, K, b"v", b"o")])],
    "async commit: a commit_ts far above start_ts": [
        (I, []),
        (P(1, K, b"v"), []),
        (P(50, K1, b"w"), []),
        (C(50, 60, K1), [out(50, 60, K1, b"w")]),
        (C(1, 90, K), [out(1, 90, K, b"v")]),
    ],
    "1PC: whole, without PREWRITE": [(I, []), (W(1, 2, K, b"v", b"o"), [out(1, 2, K, b"v", b"o")])],
    "1PC DELETE": [(I, []), (W(1, 2, K, b"", b"o", op=DELETE), [out(1, 2, K, b"", b"o", op=DELETE)])],
    "a whole change does not touch an open prewrite of the same row": [
        (I, []),
        (P(1, K, b"v"), []),
        (W(1, 2, K, b"w"), [out(1, 2, K, b"w")]),
        (C(1, 2, K), [out(1, 2, K, b"v")]),
    ],
    "committed before the scan: versions newest first": [
        (W(5, 6, K, b"b", b"a"), [out(5, 6, K, b"b", b"a")]),
        (W(1, 2, K, b"a"), [out(1, 2, K, b"a")]),
        (I, []),
    ],
    "locked during the scan, committed after it": [
        (P(1, K, b"v", b"o"), []),
        (I, []),
        (C(1, 2, K), [out(1, 2, K, b"v", b"o")]),
    ],
    "locked during the scan, committed while it goes on": [
        (P(1, K, b"v", b"o"), []),
        (C(1, 2, K), [out(1, 2, K, b"v", b"o")]),
        (I, []),
    ],
    "locked during the scan, its live COMMIT comes first": [
        (C(1, 2, K), []),
        (P(1, K, b"v", b"o"), []),
        (I, [out(1, 2, K, b"v", b"o")]),
    ],
    "locked during the scan, rolled back after it": [
        (P(1, K, b"v"), []),
        (I, []),
        (R(1, K), []),
        (C(1, 2, K), UNMATCHED),
    ],
    "locked during the scan, its live ROLLBACK comes first": [
        (R(1, K), []),
        (P(1, K, b"v"), []),
        (I, []),
        (C(1, 2, K), UNMATCHED),
    ],
    "rollback without a prewrite, with a value that is no row": [
        (I, []),
        (R(1, K, b"P"), []),
        (P(2, K, b"v"), []),
        (C(2, 3, K), [out(2, 3, K, b"v")]),
    ],
    "rollback twice": [(I, []), (P(1, K, b"v"), []), (R(1, K), []), (R(1, K), []), (C(1, 2, K), UNMATCHED)],
    "overlapped rollback: its start_ts is the write's commit_ts": [
        (I, []),
        (P(1, K, b"v"), []),
        (R(5, K), []),
        (C(1, 5, K), [out(1, 5, K, b"v")]),
        (R(5, K), []),
    ],
    "a LOCK lock or a pessimistic lock sends nothing: the next writer of the row is not disturbed": [
        (I, []),
        (P(3, K, b"v"), []),
        (C(3, 4, K), [out(3, 4, K, b"v")]),
    ],
    "heartbeat of a large transaction: a fake prewrite again and again": [
        (I, []),
        (P(1, K, b"v", b"o"), []),
        (P(1, K, b"", b"x"), []),
        (P(1, K, b"", b"y"), []),
        (C(1, 2, K), [out(1, 2, K, b"v", b"o")]),
    ],
    "pipelined DML: the last flush wins, whatever comes late": [
        (I, []),
        (P(1, K, b"g1", gen=1), []),
        (P(1, K, b"g3", gen=3), []),
        (P(1, K, b"g2", gen=2), []),
        (C(1, 2, K), [out(1, 2, K, b"g3")]),
    ],
    "pipelined DML without generations, as TiKV sends them": [
        (I, []),
        (P(1, K, b"a"), []),
        (P(1, K, b"b"), []),
        (C(1, 2, K), [out(1, 2, K, b"b")]),
    ],
    "a COMMIT with a short value: the prewrite's stands": [
        (I, []),
        (P(1, K, b"v", b"o"), []),
        (C(1, 2, K, value=b"v"), [out(1, 2, K, b"v", b"o")]),
    ],
    "the op and the txn source are the commit's": [
        (I, []),
        (P(1, K, b"", b"o", op=PUT, src=0), []),
        (C(1, 2, K, op=DELETE, src=3), [out(1, 2, K, b"", b"o", op=DELETE, src=3)]),
    ],
    "commits of one region out of commit_ts order": [
        (I, []),
        (P(1, K1, b"a"), []),
        (P(2, K2, b"b"), []),
        (C(2, 9, K2), [out(2, 9, K2, b"b")]),
        (C(1, 5, K1), [out(1, 5, K1, b"a")]),
    ],
    "a COMMIT a second time": [
        (I, []),
        (P(1, K, b"v"), []),
        (C(1, 2, K), [out(1, 2, K, b"v")]),
        (C(1, 2, K), UNMATCHED),
    ],
    "a row of a transaction locked anew after its rollback": [
        (I, []),
        (P(1, K, b"v", b"o"), []),
        (R(1, K), []),
        (P(1, K, b"w"), []),
        (C(1, 2, K), [out(1, 2, K, b"w")]),
    ],
    # §4.4
    "two transactions, the first rolled back": [
        (I, []),
        (P(1, K1, b"v1"), []),
        (P(2, K1, b"v2", b"v3"), []),
        (R(1, K1), []),
        (C(2, 3, K1), [out(2, 3, K1, b"v2", b"v3")]),
        (C(1, 4, K1), UNMATCHED),
    ],
    "fake prewrite after the real one": [
        (I, []),
        (P(1, K1, b"v1", b"v3"), []),
        (P(1, K1, b"", b"v4"), []),
        (C(1, 2, K1), [out(1, 2, K1, b"v1", b"v3")]),
    ],
    "fake prewrite and commit before the real one, scanning": [
        (P(1, K1, b"", b"v4"), []),
        (C(1, 2, K1), []),
        (P(1, K1, b"v3", b"v4"), []),
        (I, [out(1, 2, K1, b"v3", b"v4")]),
    ],
    "matched while scanning": [(P(2, K2, b"v3", b"v4"), []), (C(2, 3, K2), [out(2, 3, K2, b"v3", b"v4")]), (I, [])],
    "generations while scanning": [
        (P(1, K, b"g2", gen=2), []),
        (C(1, 2, K), []),
        (P(1, K, b"g4", gen=4), []),
        (P(1, K, b"g3", gen=3), []),
        (I, [out(1, 2, K, b"g4")]),
    ],
}


@pytest.fixture(params=["memory", "disk"])
def quota(request: pytest.FixtureRequest) -> Iterator[MatcherQuota]:
    if request.param == "memory":
        yield MatcherQuota()
        return
    with patch.object(matcher_quota, "PART_BYTES_MIN", 0):
        yield MatcherQuota(1, MemorySpill())


def matcher(quota: MatcherQuota, *, start_ts: int = 0) -> Matcher:
    return Matcher(RegionId(7), b"a", b"z", start_ts=Ts(start_ts), checkpoint_ts=Ts(start_ts), quota=quota)


@pytest.mark.parametrize("name", SEQUENCES)
def test_matcher_sequence_of_the_reference_then_it_emits_what_the_engines_emit(name: str, quota: MatcherQuota) -> None:
    state = matcher(quota)
    for row, wanted in SEQUENCES[name]:
        if wanted == UNMATCHED:
            with pytest.raises(PrewriteNotMatchError):
                state.feed([row])
            return
        assert state.feed([row]) == wanted
    assert (len(quota.holders) > 0) == (state.open_prewrites > 0)


@pytest.mark.parametrize("name", SEQUENCES)
def test_matcher_sequence_of_the_reference_over_many_rows_of_an_event_then_each_row_follows_it(
    name: str, quota: MatcherQuota
) -> None:
    """The same by events of ten rows, which go column-wise where they can."""
    state, keys = matcher(quota), [b"%d" % at for at in range(10)]
    for row, wanted in SEQUENCES[name]:
        event = [row] if row.type == INITIALIZED else [row._replace(key=row.key + key) for key in keys]
        if isinstance(wanted, str):
            with pytest.raises(PrewriteNotMatchError):
                state.feed(event)
            return
        changes = state.feed(event)
        assert sorted(changes) == sorted(
            (*change[:3], change[3] + key, *change[4:]) for change in wanted for key in keys
        )


def test_matcher_when_cached_commits_are_emitted_then_they_are_not_compared_with_the_start(
    quota: MatcherQuota,
) -> None:
    state = matcher(quota, start_ts=10)
    assert state.feed([C(5, 9, K), P(5, K, b"v")]) == []
    assert state.feed([I]) == [out(5, 9, K, b"v")]


@pytest.mark.parametrize("rows", [1, 12])
def test_matcher_when_a_live_commit_is_outside_the_span_or_at_the_start_then_it_is_matched_and_dropped(
    rows: int, quota: MatcherQuota
) -> None:
    state = matcher(quota, start_ts=10)
    state.feed([I])
    inside, outside = [b"k%02d" % at for at in range(rows)], [b"z%02d" % at for at in range(rows)]
    for key in inside + outside:
        state.feed([P(9, key, b"v")])
    assert state.feed([C(9, 10, key) for key in inside]) == []
    assert state.feed([C(9, 12, key) for key in outside]) == []
    assert (state.open_prewrites, quota.memory_bytes) == (0, 0)


@pytest.mark.parametrize("rows", [1, 12])
def test_matcher_when_a_commit_is_at_the_resolved_ts_then_it_fails_before_anything_of_the_event_comes_out(
    rows: int, quota: MatcherQuota
) -> None:
    state, keys = matcher(quota), [b"k%02d" % at for at in range(rows)]
    state.feed([I])
    state.feed([P(9, key, b"v") for key in keys])
    assert state.resolve(Ts(12))
    with pytest.raises(InvariantBrokenError):
        state.feed([C(9, 12, key) for key in keys])


def test_matcher_when_its_registration_ends_then_the_next_one_starts_empty(quota: MatcherQuota) -> None:
    first = matcher(quota)
    first.feed([I, P(1, K, b"v")])
    first.close()
    first.close()
    again = matcher(quota)
    # Registered again: the scan brings everything above the checkpoint once more.
    assert again.feed([W(1, 2, K, b"v"), I]) == [out(1, 2, K, b"v")]
    with pytest.raises(PrewriteNotMatchError):
        again.feed([C(1, 2, K)])
    assert quota.memory_bytes == 0
