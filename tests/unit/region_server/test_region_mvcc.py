"""The MVCC data of regions: transactions, reads at a ts, splits, garbage collection."""

import pytest

from producers.region_server.core.store.commands import Mutation, Txn
from producers.region_server.core.store.mvcc import (
    Committed,
    Locked,
    LockKind,
    Refreshed,
    RegionData,
    RolledBack,
    Unlocked,
)
from producers.region_server.core.store.refusals import KeyLockedError, WriteConflictError
from producers.region_server.core.store.regions import ClusterRegions
from schemas.ids import StoreId, Ts


def txn(start_ts: int, **fields: int) -> Txn:
    return Txn(start_ts=Ts(start_ts), primary=b"k", **fields)  # type: ignore[arg-type]


def put(key: bytes, value: bytes) -> Mutation:
    return Mutation("put", key, value)


def commit(data: RegionData, start_ts: int, commit_ts: int, *mutations: Mutation) -> None:
    data.prewrite(txn(start_ts), mutations)
    data.commit(Ts(start_ts), Ts(commit_ts), [mutation.key for mutation in mutations])


def test_commit_of_a_prewrite_makes_a_version_with_the_old_value() -> None:
    data = RegionData()
    commit(data, 1, 2, put(b"k", b"a"))
    (locked,) = data.prewrite(txn(3), [put(b"k", b"b")])
    assert isinstance(locked, Locked)
    assert locked.old_value == b"a"
    (committed,) = data.commit(Ts(3), Ts(4), [b"k"])
    assert isinstance(committed, Committed)
    assert (committed.write.value, committed.write.old_value, committed.one_pc) == (b"b", b"a", False)
    assert data.commit(Ts(3), Ts(4), [b"k"]) == []


def test_old_value_after_a_delete_is_empty() -> None:
    data = RegionData()
    commit(data, 1, 2, put(b"k", b"a"))
    commit(data, 3, 4, Mutation("delete", b"k"))
    commit(data, 5, 6, put(b"k", b"b"))
    assert data.writes[b"k"].old_value == b""
    deleted = data.version_at(b"k", Ts(5))
    assert deleted is not None
    assert (deleted.op, deleted.old_value) == (LockKind.DELETE, b"a")


def test_lock_type_and_pessimistic_locks_change_no_data_and_show_nothing() -> None:
    data = RegionData()
    data.pessimistic_lock(txn(1), [b"k", b"l"])
    assert data.prewrite(txn(1), [Mutation("lock", b"k")]) == []
    assert data.commit(Ts(1), Ts(2), [b"k"]) == []
    data.pessimistic_rollback(Ts(1), [b"k", b"l"])
    assert (data.writes, data.locks) == ({}, {})


def test_pessimistic_rollback_leaves_a_prewritten_lock() -> None:
    data = RegionData()
    data.pessimistic_lock(txn(1), [b"k"])
    data.prewrite(txn(1), [put(b"k", b"a")])
    data.pessimistic_rollback(Ts(1), [b"k"])
    assert [change.key for change in data.commit(Ts(1), Ts(2), [b"k"])] == [b"k"]


def test_one_pc_needs_no_prewrite_and_takes_the_pessimistic_lock_away() -> None:
    data = RegionData()
    data.pessimistic_lock(txn(1), [b"k"])
    (committed,) = data.commit_at_once(txn(1), [put(b"k", b"a"), Mutation("lock", b"l")], Ts(2))
    assert isinstance(committed, Committed)
    assert (committed.one_pc, data.locks) == (True, {})


def test_rollback_without_a_lock_still_leaves_a_mark_but_never_undoes_a_commit() -> None:
    data = RegionData()
    assert data.rollback(Ts(1), [b"k"]) == [RolledBack(b"k", Ts(1))]
    commit(data, 3, 4, put(b"k", b"a"))
    assert data.rollback(Ts(3), [b"k"]) == []
    assert data.rollback(Ts(1), [b"k"]) == []  # marked already
    assert data.writes[b"k"].value == b"a"


def test_rollback_that_overlaps_a_version_is_written_only_if_protected() -> None:
    data = RegionData()
    commit(data, 3, 4, put(b"k", b"a"))
    assert data.rollback(Ts(4), [b"k"]) == []
    assert data.rollback(Ts(4), [b"k"], protected=True) == [RolledBack(b"k", Ts(4))]
    assert data.rollback(Ts(9), [b"k"], protected=True) == [RolledBack(b"k", Ts(9), b"p")]
    data.pessimistic_lock(txn(11, for_update_ts=11), [b"k", b"l"])
    assert data.rollback(Ts(11), [b"k", b"l"]) == [RolledBack(b"k", Ts(11), b"p"), RolledBack(b"l", Ts(11))]


def test_rolled_back_lock_over_a_version_of_the_same_ts_frees_the_resolver() -> None:
    data = RegionData()
    commit(data, 3, 4, put(b"k", b"a"))
    data.prewrite(txn(4), [put(b"k", b"b")])
    assert data.rollback(Ts(4), [b"k"]) == [Unlocked(b"k")]


@pytest.mark.parametrize("late", [put(b"k", b"b"), Mutation("lock", b"k")])
def test_prewrite_after_a_rollback_or_a_newer_version_is_refused_and_changes_nothing(late: Mutation) -> None:
    data = RegionData()
    data.rollback(Ts(1), [b"k"])
    commit(data, 3, 6, put(b"l", b"a"))
    for start_ts, second in ((1, b"k"), (5, b"l")):
        with pytest.raises(WriteConflictError):
            data.prewrite(txn(start_ts), [put(b"free", b"x"), late._replace(key=second)])
    assert data.locks == {}
    data.prewrite(txn(5, for_update_ts=7), [late._replace(key=b"l")])  # it saw the version when it locked


def test_record_of_a_transaction_is_its_commit_ts_also_for_lock_records_until_gc() -> None:
    data = RegionData()
    commit(data, 1, 2, put(b"k", b"a"))
    commit(data, 3, 4, Mutation("lock", b"k"))
    data.rollback(Ts(5), [b"k"])
    assert [data.record_of(b"k", Ts(ts)) for ts in (1, 3, 5, 7)] == [2, 4, 0, None]
    data.gc(Ts(4))
    assert [data.record_of(b"k", Ts(ts)) for ts in (3, 5)] == [None, 0]


def test_refresh_raises_ttl_and_min_commit_ts_of_the_primary_alone() -> None:
    data = RegionData()
    data.prewrite(txn(10, min_commit_ts=11), [put(b"k", b"a"), put(b"l", b"a")])
    (refreshed,) = data.refresh(Ts(10), b"k", ttl_ms=9000, min_commit_ts=Ts(20))
    assert isinstance(refreshed, Refreshed)
    assert [(data.locks[key].txn.ttl_ms, data.locks[key].txn.min_commit_ts) for key in (b"k", b"l")] == [
        (9000, 20),
        (3000, 11),
    ]
    assert data.refresh(Ts(10), b"k", ttl_ms=5, min_commit_ts=Ts(5)) == []
    assert data.refresh(Ts(11), b"k", ttl_ms=99_000) == []


def test_rollback_of_one_transaction_leaves_the_lock_of_another() -> None:
    data = RegionData()
    data.prewrite(txn(5), [put(b"k", b"a")])
    data.rollback(Ts(3), [b"k"])
    assert data.locks[b"k"].txn.start_ts == 5


def test_pipelined_flush_takes_the_later_generation_whichever_comes_last() -> None:
    data = RegionData()
    data.prewrite(txn(1, generation=2), [put(b"k", b"second")])
    assert data.prewrite(txn(1, generation=1), [put(b"k", b"first")]) == []
    data.prewrite(txn(1, generation=3), [put(b"k", b"third")])
    data.commit(Ts(1), Ts(2), [b"k"])
    assert data.writes[b"k"].value == b"third"


def test_prewrite_that_turns_into_a_lock_only_unlocks_what_had_shown() -> None:
    data = RegionData()
    data.prewrite(txn(1), [put(b"k", b"a")])
    assert data.prewrite(txn(1), [Mutation("lock", b"k")]) == [Unlocked(b"k")]


def test_prewrite_on_the_lock_of_another_transaction_is_refused() -> None:
    data = RegionData()
    data.prewrite(txn(1), [put(b"k", b"a")])
    with pytest.raises(KeyLockedError, match="another transaction"):
        data.prewrite(txn(2), [put(b"free", b"b"), put(b"k", b"b")])
    assert list(data.locks) == [b"k"]


def test_blocking_lock_lets_readers_below_start_ts_and_min_commit_ts_through() -> None:
    data = RegionData()
    data.prewrite(txn(10, min_commit_ts=20), [put(b"k", b"a")])
    assert data.blocking_lock(b"k", Ts(19)) is None
    assert data.blocking_lock(b"k", Ts(20)) is not None
    data.pessimistic_lock(txn(10), [b"l"])
    assert data.blocking_lock(b"l", Ts(99)) is None


def test_gc_keeps_the_version_at_the_safe_point_and_drops_dead_keys() -> None:
    data = RegionData()
    for at in (2, 4, 6):
        commit(data, at - 1, at, put(b"k", b"%d" % at), put(b"dead", b"x"))
    commit(data, 7, 8, Mutation("delete", b"dead"))
    assert data.gc(Ts(9)) == 1
    assert data.version_at(b"k", Ts(9)) is not None
    assert data.version_at(b"k", Ts(5)) is None
    assert data.keys_between(b"", b"") == [b"k"]


def test_region_map_after_splits_and_a_merge_covers_every_key_once() -> None:
    regions = ClusterRegions([StoreId(1), StoreId(2)])
    (old,) = regions
    commit(old.data, 1, 2, *(put(bytes((byte,)), b"v") for byte in range(10)))
    old.data.prewrite(txn(3), [put(b"\x04", b"w")])
    assert regions.split(b"\x05") is not None
    assert regions.split(b"\x05") is None
    left, right = regions
    assert (left.end, right.start, right.region_id) == (b"\x05", b"\x05", old.region_id)
    assert (left.version, right.version) == (2, 2)
    assert left.leader != right.leader
    assert (len(left.data), len(right.data), list(left.data.locks)) == (5, 5, [b"\x04"])
    assert [region.region_id for region in regions.between(b"\x04", b"\x05")] == [left.region_id]
    merged = regions.merge(left)
    assert merged is right
    assert (right.start, right.version, right.data.keys_between(b"\x03", b"\x06")) == (
        b"",
        3,
        [b"\x03", b"\x04", b"\x05"],
    )
    assert regions.get(left.region_id) is None
    assert regions.merge(right) is None
