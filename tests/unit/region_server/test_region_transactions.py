"""Transactions of every kind, step by step, on a store of several regions."""

from itertools import count

import pytest

from producers.region_server.core.store.commands import Mutation
from producers.region_server.core.store.mvcc import LockKind
from producers.region_server.core.store.refusals import KeyLockedError, LockNotFoundError, WriteConflictError
from producers.region_server.core.store.transactions import ServerTransaction
from producers.region_server.core.store.txn_status import (
    StatusAction,
    StatusQuestion,
    check_secondary_locks,
    check_txn_status,
)
from producers.region_server.kv.store import ClusterStore
from schemas.ids import StoreId, Ts, compose_ts


class World:
    """Two regions, [.., m) and [m, ..), and a clock of whole timestamps."""

    def __init__(self) -> None:
        self.store = ClusterStore([StoreId(1)])
        self.store.split(b"m")
        self._clock = count(compose_ts(1000))

    def tso(self) -> Ts:
        return Ts(next(self._clock))

    def begin(self, *mutations: Mutation) -> ServerTransaction:
        return ServerTransaction(self.store, self.tso, mutations)

    def value(self, key: bytes) -> bytes | None:
        write = self.store.data_of(key).writes.get(key)
        return write.value if write is not None and write.op is LockKind.PUT else None

    def locks(self) -> set[bytes]:
        return {key for region in self.store.regions for key in region.data.locks}


@pytest.fixture
def world() -> World:
    return World()


def put(key: bytes, value: bytes = b"v") -> Mutation:
    return Mutation("put", key, value)


def test_optimistic_commit_happens_with_its_primary_and_then_spreads(world: World) -> None:
    txn = world.begin(put(b"a", b"1"), put(b"x", b"1"))
    txn.prewrite([b"a"])
    txn.prewrite([b"x"])
    assert world.locks() == {b"a", b"x"}
    commit_ts = txn.commit_primary()
    assert commit_ts > txn.start_ts
    assert (world.value(b"a"), world.value(b"x"), world.locks()) == (b"1", None, {b"x"})
    txn.commit_secondaries()
    txn.commit_secondaries()
    assert (world.value(b"x"), world.locks()) == (b"1", set())


def test_optimistic_prewrite_over_a_newer_version_conflicts_and_a_pessimistic_one_does_not(world: World) -> None:
    optimistic, pessimistic = world.begin(put(b"a", b"old")), world.begin(put(b"a", b"new"))
    first = world.begin(put(b"a", b"first"))
    first.prewrite()
    first.commit()
    with pytest.raises(WriteConflictError):
        optimistic.prewrite()
    pessimistic.lock(b"a")
    pessimistic.prewrite()
    pessimistic.commit()
    assert world.value(b"a") == b"new"


def test_pessimistic_lock_keeps_others_out_and_its_unlocked_keys_are_checked(world: World) -> None:
    txn = world.begin(put(b"b"))
    txn.lock(b"a")
    with pytest.raises(KeyLockedError):
        world.begin(put(b"a")).prewrite()
    other = world.begin(put(b"b", b"other"))
    other.commit_at_once()
    with pytest.raises(WriteConflictError):
        txn.prewrite()
    txn.rollback()
    assert world.locks() == set()
    assert world.store.data_of(b"a").marks == {}  # nothing was prewritten, so nothing is marked


def test_key_that_was_only_locked_becomes_a_lock_record(world: World) -> None:
    txn = world.begin(put(b"x", b"1"))
    txn.lock(b"a")
    txn.prewrite()
    commit_ts = txn.commit()
    data = world.store.data_of(b"a")
    assert (data.writes, data.record_of(b"a", txn.start_ts)) == ({}, commit_ts)
    ask = StatusQuestion(primary=txn.primary, lock_ts=txn.start_ts)
    assert (txn.primary, check_txn_status(data, ask).commit_ts) == (b"a", commit_ts)


def test_async_commit_is_decided_by_its_locks_at_the_greatest_min_commit_ts(world: World) -> None:
    txn = world.begin(put(b"a"), put(b"x"))
    txn.prewrite([b"a"], async_commit=True)
    between = world.tso()
    txn.prewrite([b"x"])
    low, high = world.store.data_of(b"a"), world.store.data_of(b"x")
    assert low.locks[b"a"].txn.secondaries == (b"x",)
    status = check_secondary_locks(high, txn.start_ts, [b"x"])
    least = max(low.locks[b"a"].txn.min_commit_ts, status.locks[0][1].txn.min_commit_ts)
    assert least > between
    assert txn.commit() == least


def test_async_commit_that_a_resolver_rolled_back_cannot_be_committed(world: World) -> None:
    txn = world.begin(put(b"a"), put(b"x"))
    txn.prewrite([b"a"], async_commit=True)
    assert check_secondary_locks(world.store.data_of(b"x"), txn.start_ts, [b"x"]).commit_ts == 0
    with pytest.raises(WriteConflictError):
        txn.prewrite([b"x"])
    txn.rollback()
    with pytest.raises(LockNotFoundError):
        txn.commit()


def test_one_pc_leaves_no_lock_and_refuses_what_changed(world: World) -> None:
    late = world.begin(put(b"a", b"late"))
    txn = world.begin(put(b"a", b"1"), Mutation("lock", b"b"))
    commit_ts = txn.commit_at_once()
    assert (world.value(b"a"), world.locks()) == (b"1", set())
    assert world.store.data_of(b"b").record_of(b"b", txn.start_ts) == commit_ts
    with pytest.raises(WriteConflictError):
        late.commit_at_once()


def test_pipelined_flushes_count_generations_and_the_last_value_wins(world: World) -> None:
    txn = world.begin(put(b"a", b"1"), put(b"x", b"1"))
    txn.flush()
    txn.write(put(b"x", b"2"), put(b"y", b"1"))
    txn.flush()
    data = world.store.data_of(b"x")
    assert [data.locks[key].txn.generation for key in (b"x", b"y")] == [2, 2]
    assert world.store.data_of(b"a").locks[b"a"].txn.generation == 1
    txn.commit_primary()
    txn.commit_secondaries()
    assert [world.value(key) for key in (b"a", b"x", b"y")] == [b"1", b"2", b"1"]


def test_commit_takes_a_later_ts_where_a_reader_pushed_the_transaction(world: World) -> None:
    txn = world.begin(put(b"a"))
    txn.prewrite(async_commit=True)
    data = world.store.data_of(b"a")
    data.refresh(txn.start_ts, b"a", min_commit_ts=Ts(txn.start_ts + 500))
    assert txn.commit() == txn.start_ts + 500


@pytest.mark.parametrize("kind", ["lock", "prewrite", "flush"])
def test_step_that_one_of_two_regions_refuses_leaves_no_lock_after_the_rollback(world: World, kind: str) -> None:
    holder = world.begin(put(b"x", b"held"))
    holder.prewrite()
    txn = world.begin(put(b"a"), put(b"x"))
    with pytest.raises(KeyLockedError):
        {"lock": lambda: txn.lock(b"a", b"x"), "prewrite": txn.prewrite, "flush": txn.flush}[kind]()
    txn.rollback()
    assert world.locks() == {b"x"}


def test_heartbeat_keeps_a_large_transaction_from_expiring(world: World) -> None:
    txn = world.begin(put(b"a"))
    txn.prewrite()
    txn.heartbeat(60_000)
    ask = StatusQuestion(primary=b"a", lock_ts=txn.start_ts, current_ts=compose_ts(31_000))
    assert check_txn_status(world.store.data_of(b"a"), ask).action is StatusAction.NONE


def test_rollback_of_a_flush_refuses_the_next_one(world: World) -> None:
    txn = world.begin(put(b"a"))
    txn.flush()
    txn.rollback()
    txn.write(put(b"a", b"2"))
    with pytest.raises(WriteConflictError):
        txn.flush()
