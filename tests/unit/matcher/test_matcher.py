"""The worked sequences of docs/formats/cdcpb.md §4.4, and each rule of §4.2 and §4.3 by itself."""

import pytest

from producers.pull.core.match.matcher import (
    COMMIT,
    COMMITTED,
    INITIALIZED,
    PREWRITE,
    ROLLBACK,
    Matcher,
    PrewriteNotMatchError,
)
from schemas.errors import InvariantBrokenError
from schemas.ids import RegionId, Ts
from tests.support.upstream.log_rows import DELETE, PUT, Row

INIT = Row(INITIALIZED)


def prewrite(start_ts: int, key: str, value: str, old: str = "", *, generation: int = 0, op: int = PUT) -> Row:
    return Row(PREWRITE, start_ts, 0, key.encode(), value.encode(), old.encode(), op, generation=generation)


def commit(start_ts: int, commit_ts: int, key: str, *, op: int = PUT) -> Row:
    return Row(COMMIT, start_ts, commit_ts, key.encode(), op_type=op)


def rollback(start_ts: int, key: str) -> Row:
    return Row(ROLLBACK, start_ts, 0, key.encode(), op_type=0)


def committed(start_ts: int, commit_ts: int, key: str, value: str, old: str = "") -> Row:
    return Row(COMMITTED, start_ts, commit_ts, key.encode(), value.encode(), old.encode())


def matcher(*, initialized: bool = True, start_ts: int = 0, checkpoint_ts: int = 0) -> Matcher:
    made = Matcher(RegionId(7), b"a", b"z", start_ts=Ts(start_ts), checkpoint_ts=Ts(checkpoint_ts))
    if initialized:
        assert made.feed([INIT]) == []
    return made


def test_matcher_when_the_prewrite_was_rolled_back_then_its_commit_is_fatal() -> None:
    state = matcher()
    state.feed([prewrite(1, "k1", "v1"), prewrite(2, "k1", "v2", "v3"), rollback(1, "k1")])
    with pytest.raises(PrewriteNotMatchError) as caught:
        state.feed([commit(1, 5, "k1")])
    assert caught.value.fields["key"] == b"k1".hex()


def test_matcher_when_another_transaction_of_the_key_commits_then_its_own_values_are_taken() -> None:
    state = matcher()
    state.feed([prewrite(1, "k1", "v1"), prewrite(2, "k1", "v2", "v3"), rollback(1, "k1")])
    assert state.feed([commit(2, 3, "k1")]) == [(3, 2, PUT, b"k1", b"v2", b"v3", 0)]
    assert (state.open_prewrites, state.held_bytes()) == (0, 0)


def test_matcher_when_a_fake_prewrite_follows_then_neither_value_nor_old_value_changes() -> None:
    state = matcher()
    out = state.feed([prewrite(1, "k1", "v1", "v3"), prewrite(1, "k1", "", "v4"), commit(1, 2, "k1")])
    assert out == [(2, 1, PUT, b"k1", b"v1", b"v3", 0)]


def test_matcher_when_the_fake_prewrite_comes_first_then_the_commit_waits_for_initialized() -> None:
    state = matcher(initialized=False)
    early = state.feed([prewrite(1, "k1", "", "v4"), commit(1, 2, "k1"), prewrite(1, "k1", "v3", "v4")])
    assert early == []
    assert state.feed([INIT]) == [(2, 1, PUT, b"k1", b"v3", b"v4", 0)]


def test_matcher_when_value_is_there_then_the_commit_is_emitted_before_initialized() -> None:
    state = matcher(initialized=False)
    out = state.feed([prewrite(2, "k2", "v3", "v4"), commit(2, 3, "k2")])
    assert out == [(3, 2, PUT, b"k2", b"v3", b"v4", 0)]


def test_matcher_when_generations_mix_then_the_last_flush_wins() -> None:
    state = matcher(initialized=False)
    rows = [
        prewrite(1, "k", "g2", generation=2),
        commit(1, 2, "k"),
        prewrite(1, "k", "g4", generation=4),
        prewrite(1, "k", "g3", generation=3),
    ]
    assert state.feed(rows) == []
    assert state.feed([INIT]) == [(2, 1, PUT, b"k", b"g4", b"", 0)]


def test_matcher_when_generation_is_equal_then_the_later_row_overwrites() -> None:
    state = matcher()
    out = state.feed([prewrite(1, "k", "a", generation=2), prewrite(1, "k", "b", generation=2), commit(1, 2, "k")])
    assert out == [(2, 1, PUT, b"k", b"b", b"", 0)]


def test_matcher_when_a_delete_commits_before_initialized_then_it_waits() -> None:
    state = matcher(initialized=False)
    assert state.feed([prewrite(1, "k", "", "old", op=DELETE), commit(1, 2, "k", op=DELETE)]) == []
    assert state.feed([INIT]) == [(2, 1, DELETE, b"k", b"", b"old", 0)]


def test_matcher_when_rolled_back_before_its_prewrite_then_nothing_stays_open() -> None:
    state = matcher(initialized=False)
    assert state.feed([rollback(1, "k"), prewrite(1, "k", "v"), INIT]) == []
    assert (state.open_prewrites, state.held_bytes()) == (0, 0)


def test_matcher_when_a_cached_commit_was_covered_by_the_scan_then_it_is_dropped() -> None:
    state = matcher(initialized=False)
    out = state.feed([commit(1, 2, "k"), committed(1, 2, "k", "v"), INIT])
    assert out == [(2, 1, PUT, b"k", b"v", b"", 0)]


def test_matcher_when_a_cached_commit_and_a_rollback_name_one_row_then_the_commit_goes_first() -> None:
    state = matcher(initialized=False)
    out = state.feed([rollback(1, "k"), commit(1, 2, "k"), prewrite(1, "k", "v"), INIT])
    assert out == [(2, 1, PUT, b"k", b"v", b"", 0)]


def test_matcher_when_commit_is_at_or_below_the_start_then_it_is_dropped_after_matching() -> None:
    state = matcher(start_ts=10)
    assert state.feed([prewrite(1, "k", "v"), commit(1, 10, "k")]) == []
    assert state.open_prewrites == 0


def test_matcher_when_a_change_is_below_resolved_then_it_fails_loudly() -> None:
    state = matcher()
    assert state.resolve(Ts(20))
    with pytest.raises(InvariantBrokenError) as caught:
        state.feed([committed(18, 20, "k", "v")])
    assert caught.value.fields["commit_ts"] == 20


def test_matcher_when_resolved_steps_back_or_comes_too_early_then_it_is_ignored() -> None:
    state = matcher(initialized=False, checkpoint_ts=5)
    assert not state.resolve(Ts(9))
    state.feed([INIT])
    assert state.resolve(Ts(9))
    assert not state.resolve(Ts(9))
    assert not state.resolve(Ts(7))
    assert state.resolved_ts == 9


def test_matcher_when_a_key_is_outside_the_span_then_it_is_dropped() -> None:
    state = matcher()
    assert state.feed([committed(1, 2, "zz", "v"), committed(1, 2, "b", "w")]) == [(2, 1, PUT, b"b", b"w", b"", 0)]


@pytest.mark.parametrize("row", [Row(9), Row(COMMITTED, 1, 2, b"k", op_type=0)])
def test_matcher_when_the_protocol_is_broken_then_it_says_so(row: Row) -> None:
    with pytest.raises(InvariantBrokenError):
        matcher().feed([row])


@pytest.mark.parametrize("initialized", [True, False])
def test_matcher_when_a_later_flush_deletes_what_an_earlier_one_put_then_the_delete_has_no_value(
    initialized: bool,
) -> None:
    state = matcher(initialized=initialized)
    out = state.feed(
        [prewrite(1, "k1", "v1", "v0", generation=1), prewrite(1, "k1", "", "v0", generation=2, op=DELETE)]
    )
    out += state.feed([commit(1, 2, "k1", op=DELETE)])
    if not initialized:
        out += state.feed([INIT])
    assert out == [(2, 1, DELETE, b"k1", b"", b"v0", 0)]


def test_matcher_when_deletes_come_in_a_large_event_then_none_has_the_value_of_an_earlier_flush() -> None:
    state = matcher()
    state.feed([prewrite(1, f"k{at}", "v", generation=1) for at in range(9)])
    state.feed([prewrite(1, f"k{at}", "", generation=2, op=DELETE) for at in range(1, 9, 2)])
    out = state.feed([commit(1, 2, f"k{at}", op=DELETE if at % 2 else PUT) for at in range(9)])
    assert [change[4] for change in out] == [b"" if at % 2 else b"v" for at in range(9)]
