"""The lock resolver over gRPC against the region server: locks whose writers have died, and one whose has not."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from producers.pull.locks.kv_client import KvClient
from producers.pull.locks.resolver import LockResolver
from producers.pull.pd.client import PdClient
from producers.pull.pd.region_cache import RegionCache
from producers.region_server.core.store.commands import Commit, Mutation, Prewrite, Rollback, Txn
from producers.region_server.kv.store import ClusterStore
from producers.region_server.server import RegionServer
from schemas.ids import TableId, Ts, compose_ts, physical_ms
from schemas.tidb.keys import row_key

pytestmark = pytest.mark.integration

TABLE_ID = TableId(45)
START, END = row_key(TABLE_ID, 0), row_key(TABLE_ID, 1_000_000)
PAST_MS = 60_000


@contextmanager
def resolving(server: RegionServer) -> Iterator[LockResolver]:
    """Give a resolver of a running server."""
    pd = PdClient(server.pd_address)
    resolver = LockResolver(KvClient(RegionCache(pd)))
    try:
        yield resolver
    finally:
        resolver.close()
        pd.close()


def prewrite(server: RegionServer, keys: list[bytes], *, age_ms: int = PAST_MS, **more: object) -> Txn:
    """Leave locks of a transaction that began ``age_ms`` ago; keys[0] is its primary."""
    start_ts = Ts(compose_ts(physical_ms(server.tso()) - age_ms) + len(keys))
    txn = Txn(start_ts=start_ts, primary=keys[0], **more)  # type: ignore[arg-type]
    server.apply(Prewrite(txn=txn, mutations=tuple(Mutation("put", key, b"value") for key in keys)))
    return txn


def split(server: RegionServer, keys: list[bytes]) -> None:
    """Make each key the first of a region."""

    def at_each(store: ClusterStore) -> None:
        for key in keys:
            store.split(key)

    server.act(at_each)


def locked_keys(server: RegionServer) -> set[bytes]:
    """Return the keys with locks, in all regions."""
    return server.act(lambda store: {key for region in store.regions for key in region.data.locks})


def committed_at(server: RegionServer, key: bytes, start_ts: Ts) -> Ts | None:
    """Return the commit_ts that a transaction has on a key."""

    def look(store: ClusterStore) -> Ts | None:
        write = store.regions.of_key(key).data.committed_by(key, start_ts)
        return write.commit_ts if write is not None else None

    return server.act(look)


def keys_of(*handles: int) -> list[bytes]:
    """Return row keys."""
    return [row_key(TABLE_ID, handle) for handle in handles]


def test_resolver_primary_expired_then_all_locks_are_rolled_back_over_regions() -> None:
    with RegionServer(stores=3) as server, resolving(server) as resolver:
        keys = keys_of(1, 10, 20, 30)
        split(server, keys[1:])
        txn = prewrite(server, keys)
        task = resolver.resolve_range(START, END, server.tso())
        assert (task.rolled_back, task.held, task.troubles) == (4, (), ())
        assert locked_keys(server) == set()
        assert [committed_at(server, key, txn.start_ts) for key in keys] == [None] * 4


def test_resolver_primary_committed_then_the_others_are_committed_at_the_same_ts() -> None:
    with RegionServer(stores=3) as server, resolving(server) as resolver:
        keys = keys_of(1, 10, 20)
        split(server, keys[1:2])
        txn = prewrite(server, keys)
        commit_ts = server.tso()
        server.apply(Commit(start_ts=txn.start_ts, commit_ts=commit_ts, keys=(keys[0],)))
        task = resolver.resolve_range(START, END, server.tso())
        assert (task.committed, task.rolled_back) == (1, 0)
        assert [committed_at(server, key, txn.start_ts) for key in keys] == [commit_ts] * 3


def test_resolver_primary_rolled_back_then_the_others_are_too() -> None:
    with RegionServer(stores=1) as server, resolving(server) as resolver:
        keys = keys_of(1, 10)
        txn = prewrite(server, keys)
        server.apply(Rollback(start_ts=txn.start_ts, keys=(keys[0],)))
        assert resolver.resolve_range(START, END, server.tso()).rolled_back == 1
        assert locked_keys(server) == set()


def test_resolver_transaction_alive_then_it_is_left_alone_and_named() -> None:
    with RegionServer(stores=1) as server, resolving(server) as resolver:
        keys = keys_of(1, 10)
        txn = prewrite(server, keys, ttl_ms=3_600_000)
        task = resolver.resolve_range(START, END, server.tso())
        assert [(live.primary, live.start_ts, live.ttl_ms) for live in task.held] == [
            (keys[0], txn.start_ts, 3_600_000)
        ]
        assert locked_keys(server) == set(keys)


def test_resolver_primary_never_written_then_its_late_prewrite_is_kept_out() -> None:
    with RegionServer(stores=1) as server, resolving(server) as resolver:
        primary, other = keys_of(1, 10)
        start_ts = Ts(server.tso() - (PAST_MS << 18))
        txn = Txn(start_ts=start_ts, primary=primary)
        server.apply(Prewrite(txn=txn, mutations=(Mutation("put", other, b"value"),)))
        assert resolver.resolve_range(START, END, server.tso()).rolled_back == 1
        assert locked_keys(server) == set()


def test_resolver_async_commit_then_it_ends_as_all_its_keys_say() -> None:
    with RegionServer(stores=3) as server, resolving(server) as resolver:
        whole, torn = keys_of(1, 10, 20), keys_of(2, 11, 21)
        split(server, whole[1:])
        floor = Ts(server.tso())
        first = prewrite(server, whole, use_async_commit=True, min_commit_ts=floor, secondaries=tuple(whole[1:]))
        # The second lost its writer before the last key was prewritten: it never was committed.
        start_ts = Ts(first.start_ts + 7)
        second = Txn(
            start_ts=start_ts, primary=torn[0], use_async_commit=True, min_commit_ts=floor, secondaries=tuple(torn[1:])
        )
        server.apply(Prewrite(txn=second, mutations=tuple(Mutation("put", key, b"v") for key in torn[:2])))
        task = resolver.resolve_range(START, END, server.tso())
        assert (task.committed, task.rolled_back, task.troubles) == (1, 1, ())
        assert [committed_at(server, key, first.start_ts) for key in whole] == [floor] * 3
        assert [committed_at(server, key, start_ts) for key in torn] == [None] * 3
        assert locked_keys(server) == set()


def test_resolver_thousands_of_locks_and_a_stale_cache_then_all_are_resolved() -> None:
    with RegionServer(stores=3) as server, resolving(server) as resolver:
        keys = keys_of(*range(2_500))
        prewrite(server, keys)
        resolver.resolve_range(END, row_key(TABLE_ID, 2_000_000), server.tso())  # so that it knows the one region
        split(server, keys[700::700])

        def move(store: ClusterStore) -> None:
            for region in store.regions:
                store.transfer_leader(region.region_id, store.store_ids[1])

        server.act(move)
        task = resolver.resolve_range(START, END, server.tso())
        assert task.troubles == ()
        assert locked_keys(server) == set()
        assert resolver.counters.rolled_back >= 4
