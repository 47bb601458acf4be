"""What a lock resolver is told, and what its questions do: TiKV's rules for a transaction's fate."""

import pytest

from producers.region_server.core.store.commands import Mutation, Txn
from producers.region_server.core.store.mvcc import Change, Committed, RegionData, RolledBack
from producers.region_server.core.store.refusals import (
    CommittedError,
    CommitTsExpiredError,
    LockNotFoundError,
    PrimaryMismatchError,
    TxnNotFoundError,
    WriteConflictError,
)
from producers.region_server.core.store.txn_status import (
    TS_MAX,
    StatusAction,
    StatusQuestion,
    TxnStatus,
    check_secondary_locks,
    check_txn_status,
    resolve_keys,
    resolve_locks,
    scan_locks,
)
from schemas.ids import Ts, compose_ts

START = compose_ts(10_000)
"""A transaction begun at 10 s, with a ttl of 3 s."""
ALIVE = compose_ts(13_000)
EXPIRED = compose_ts(13_001)


def put(key: bytes, value: bytes = b"v") -> Mutation:
    return Mutation("put", key, value)


def locked(start_ts: Ts = START, *keys: bytes, **fields: object) -> RegionData:
    data = RegionData()
    data.prewrite(Txn(start_ts=start_ts, primary=b"p", **fields), [put(key) for key in keys or (b"p", b"s")])  # type: ignore[arg-type]
    return data


def check(data: RegionData, primary: bytes = b"p", **ask: object) -> TxnStatus:
    return check_txn_status(data, StatusQuestion(primary=primary, lock_ts=START, **ask))  # type: ignore[arg-type]


def test_live_lock_is_left_alone_and_described() -> None:
    data = locked()
    status = check(data, current_ts=ALIVE, rollback_if_not_exist=True)
    assert (status.action, status.commit_ts, list(status.changes)) == (StatusAction.NONE, 0, [])
    assert status.lock is data.locks[b"p"]


@pytest.mark.parametrize("current_ts", [EXPIRED, TS_MAX])
def test_expired_lock_is_rolled_back_on_the_primary_only(current_ts: Ts) -> None:
    data = locked()
    status = check(data, current_ts=current_ts)
    assert (status.action, list(status.changes)) == (StatusAction.TTL_EXPIRE_ROLLBACK, [RolledBack(b"p", START)])
    assert list(data.locks) == [b"s"]
    assert check(data) == TxnStatus()  # asked again: rolled back, and nothing more was done
    with pytest.raises(WriteConflictError):
        data.prewrite(Txn(start_ts=START, primary=b"p"), [put(b"p")])


def test_committed_primary_answers_its_commit_ts_whatever_holds_the_key_now() -> None:
    data = locked()
    data.commit(START, Ts(START + 5), [b"p"])
    data.prewrite(Txn(start_ts=Ts(START + 9), primary=b"p"), [put(b"p")])
    assert check(data, current_ts=TS_MAX, rollback_if_not_exist=True) == TxnStatus(commit_ts=Ts(START + 5))


def test_primary_without_lock_or_record_is_not_found_or_rolled_back_for_good() -> None:
    data = RegionData()
    with pytest.raises(TxnNotFoundError):
        check(data, current_ts=EXPIRED)
    pessimistic = check(data, rollback_if_not_exist=True, resolving_pessimistic_lock=True)
    assert (pessimistic.action, pessimistic.changes) == (StatusAction.LOCK_NOT_EXIST_DO_NOTHING, ())
    status = check(data, rollback_if_not_exist=True)
    assert status.action is StatusAction.LOCK_NOT_EXIST_ROLLBACK
    assert list(status.changes) == [RolledBack(b"p", START, b"p")]  # protected: its mark is no row
    assert check(data, rollback_if_not_exist=True) == TxnStatus()


def test_secondary_asked_for_as_primary_is_a_mismatch_only_if_the_asker_verifies() -> None:
    data = locked()
    with pytest.raises(PrimaryMismatchError):
        check(data, b"s", current_ts=EXPIRED, verify_is_primary=True)
    assert b"s" in data.locks
    assert check(data, b"s", current_ts=EXPIRED).action is StatusAction.TTL_EXPIRE_ROLLBACK


def test_reader_pushes_min_commit_ts_past_itself_but_only_of_locks_that_have_one() -> None:
    reader = Ts(START + 50)
    plain = locked()
    assert check(plain, caller_start_ts=reader, current_ts=ALIVE).action is StatusAction.NONE
    data = locked(min_commit_ts=Ts(START + 1))
    assert check(data, current_ts=ALIVE).action is StatusAction.NONE  # nobody reads: nothing is pushed
    assert data.locks[b"p"].txn.min_commit_ts == START + 1
    status = check(data, caller_start_ts=reader, current_ts=Ts(reader - 10))
    assert status.action is StatusAction.MIN_COMMIT_TS_PUSHED
    assert data.locks[b"p"].txn.min_commit_ts == reader + 1
    check(data, caller_start_ts=Ts(reader + 1), current_ts=ALIVE)
    assert data.locks[b"p"].txn.min_commit_ts == ALIVE
    with pytest.raises(CommitTsExpiredError) as refused:
        resolve_keys(data, START, Ts(reader + 9), [b"p"])
    assert refused.value.min_commit_ts == ALIVE
    point_read = check(data, caller_start_ts=TS_MAX, current_ts=ALIVE)
    assert point_read.action is StatusAction.MIN_COMMIT_TS_PUSHED
    assert data.locks[b"p"].txn.min_commit_ts == ALIVE


def test_async_commit_lock_is_neither_rolled_back_nor_pushed_unless_forced() -> None:
    data = locked(use_async_commit=True, min_commit_ts=Ts(START + 1), secondaries=(b"s",))
    status = check(data, current_ts=EXPIRED, caller_start_ts=Ts(START + 9))
    assert (status.action, list(status.changes), status.lock) == (StatusAction.NONE, [], data.locks[b"p"])
    forced = check(data, current_ts=EXPIRED, force_sync_commit=True)
    assert forced.action is StatusAction.TTL_EXPIRE_ROLLBACK


def test_expired_pessimistic_primary_is_dropped_without_a_record() -> None:
    data = RegionData()
    data.pessimistic_lock(Txn(start_ts=START, primary=b"p", for_update_ts=START), [b"p"])
    status = check(data, current_ts=EXPIRED, resolving_pessimistic_lock=True)
    assert (status.action, status.changes) == (StatusAction.TTL_EXPIRE_PESSIMISTIC_ROLLBACK, ())
    assert (data.locks, data.marks) == ({}, {})


def test_secondary_locks_all_there_are_returned_with_their_min_commit_ts() -> None:
    data = locked(START, b"a", b"b", use_async_commit=True, min_commit_ts=Ts(START + 7))
    status = check_secondary_locks(data, START, [b"b", b"a"])
    assert [(key, lock.txn.min_commit_ts) for key, lock in status.locks] == [(b"b", START + 7), (b"a", START + 7)]
    assert list(status.changes) == []


@pytest.mark.parametrize("pessimistic", [False, True])
def test_secondary_that_was_never_prewritten_is_rolled_back_and_decides(pessimistic: bool) -> None:
    data = locked(START, b"a", use_async_commit=True)
    txn = Txn(start_ts=START, primary=b"p", for_update_ts=START)
    if pessimistic:
        data.pessimistic_lock(txn, [b"b"])
    status = check_secondary_locks(data, START, [b"a", b"b"])
    assert (list(status.locks), status.commit_ts, list(status.changes)) == ([], 0, [RolledBack(b"b", START, b"p")])
    with pytest.raises(WriteConflictError):
        data.prewrite(txn, [put(b"b")])


def test_committed_secondary_answers_its_commit_ts() -> None:
    data = locked(START, b"a", b"b")
    data.commit(START, Ts(START + 3), [b"b"])
    status = check_secondary_locks(data, START, [b"a", b"b"])
    assert (list(status.locks), status.commit_ts, list(status.changes)) == ([], START + 3, [])


def test_resolving_a_region_ends_the_named_transactions_and_no_other() -> None:
    data = locked(Ts(5), b"a", b"b")
    data.prewrite(Txn(start_ts=Ts(6), primary=b"c"), [put(b"c")])
    data.prewrite(Txn(start_ts=Ts(7), primary=b"d"), [put(b"d")])
    changes = resolve_locks(data, b"", b"", {Ts(5): Ts(9), Ts(6): Ts(0)})
    assert [type(change) for change in changes] == [Committed, Committed, RolledBack]
    assert list(data.locks) == [b"d"]
    assert resolve_locks(data, b"", b"", {Ts(5): Ts(9)}) == []


def test_resolving_keys_repeats_and_refuses_as_a_store_does() -> None:
    data = locked(Ts(5), b"a", b"b")
    assert len(resolve_keys(data, Ts(5), Ts(9), [b"a"])) == 1
    assert resolve_keys(data, Ts(5), Ts(9), [b"a"]) == list[Change]()
    with pytest.raises(CommittedError):
        resolve_keys(data, Ts(5), Ts(0), [b"b", b"a"])
    assert b"b" in data.locks
    resolve_keys(data, Ts(5), Ts(0), [b"b"])
    with pytest.raises(LockNotFoundError):
        resolve_keys(data, Ts(5), Ts(9), [b"b"])


def test_scan_locks_pages_in_key_order_below_the_max_version() -> None:
    data = locked(Ts(5), b"d", b"b", b"a")
    data.prewrite(Txn(start_ts=Ts(6), primary=b"c"), [put(b"c")])
    data.pessimistic_lock(Txn(start_ts=Ts(4), primary=b"e"), [b"e"])
    assert [key for key, _ in scan_locks(data, b"", b"", Ts(5), 2)] == [b"a", b"b"]
    assert [key for key, _ in scan_locks(data, b"b\0", b"", Ts(5), 2)] == [b"d", b"e"]
    assert [key for key, _ in scan_locks(data, b"b", b"d", Ts(6), 0)] == [b"b", b"c"]
