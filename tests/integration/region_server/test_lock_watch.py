"""A span that a lock holds back: the lock of a dead writer is resolved and the span goes on, a live one is named."""

import pytest

from producers.pull.ddl.schema_snapshot import SnapshotReader
from producers.pull.feed.event_feed import EventFeed
from producers.pull.locks.kv_client import KvClient
from producers.pull.locks.resolver import LockResolver
from producers.pull.locks.watch import LockWatch
from producers.pull.pd.client import PdClient
from producers.pull.pd.region_cache import RegionCache
from producers.region_server.core.store.commands import Commit, Mutation, Prewrite, Txn
from producers.region_server.server import RegionServer
from schemas.ids import TableId
from schemas.tidb.keys import row_key, table_span
from schemas.tidb.spans import TableSpan
from tests.support.upstream.feed_sink import Collected, wait_until

pytestmark = pytest.mark.integration

TABLE, OTHER = TableId(45), TableId(47)
HOUR_MS = 3_600_000


def put(key: bytes) -> tuple[Mutation, ...]:
    """Return one row's write."""
    return (Mutation("put", key, b"value"),)


def test_spans_held_by_dead_writers_and_by_a_live_one_then_one_goes_on_and_the_other_names_its_lock() -> None:
    first, second, third, fourth = (row_key(TABLE, handle) for handle in (1, 2, 1_000, 2_000))
    other = row_key(OTHER, 1)
    sink = Collected()
    with RegionServer(stores=2, min_ts_interval_ms=50) as server:
        server.act(lambda store: store.split(third))
        pd = PdClient(server.pd_address)
        cache = RegionCache(pd)
        feed = EventFeed(cache, sink, sink.errors.append)
        resolver = LockResolver(KvClient(cache))
        watch = LockWatch(feed, pd, resolver, look_s=0.2)

        def reason() -> str:
            return next(status.reason for status in feed.status() if status.span.table_id == OTHER)

        feed.start()
        watch.start()
        try:
            start_ts = server.tso()
            for table in (TABLE, OTHER):
                feed.subscribe(TableSpan.of_table(table), start_ts)
            wait_until(lambda: all(0 < span.initialized == span.regions for span in feed.status()), feed.status)
            # One writer dies after its primary is committed, one before; each has left a lock in the other's region.
            committed = Txn(start_ts=server.tso(), primary=first, ttl_ms=100)
            server.apply(Prewrite(txn=committed, mutations=put(first) + put(third)))
            commit_ts = server.tso()
            server.apply(Commit(start_ts=committed.start_ts, commit_ts=commit_ts, keys=(first,)))
            lost = Txn(start_ts=server.tso(), primary=fourth, ttl_ms=100)
            server.apply(Prewrite(txn=lost, mutations=put(fourth) + put(second)))
            live = Txn(start_ts=server.tso(), primary=other, ttl_ms=HOUR_MS)
            server.apply(Prewrite(txn=live, mutations=put(other)))

            wait_until(lambda: sink.resolved_ts[TABLE] > lost.start_ts, feed.status)
            rows = {(change[0], change[1], change[3]) for change in sink.changes}
            assert rows == {(commit_ts, committed.start_ts, first), (commit_ts, committed.start_ts, third)}

            wait_until(lambda: f"transaction {live.start_ts}" in reason(), feed.status)
            assert f"primary {other.hex()}" in reason()
            assert f"ttl {HOUR_MS} ms" in reason()
            assert sink.resolved_ts[OTHER] <= live.start_ts
            assert resolver.counters.left_alive > 0
            end_ts = server.tso()
            server.apply(Commit(start_ts=live.start_ts, commit_ts=end_ts, keys=(other,)))
            wait_until(lambda: sink.resolved_ts[OTHER] > end_ts and not reason(), feed.status)
            assert (end_ts, live.start_ts, other) in {(change[0], change[1], change[3]) for change in sink.changes}
        finally:
            watch.stop()
            feed.stop()
            pd.close()
    assert sink.errors == []


def test_snapshot_meets_the_lock_of_a_dead_writer_then_it_is_resolved_and_read_again() -> None:
    first, second = (row_key(TABLE, handle) for handle in (1, 2))
    with RegionServer(stores=1) as server:
        pd = PdClient(server.pd_address)
        cache = RegionCache(pd)
        resolver = LockResolver(KvClient(cache))
        txn = Txn(start_ts=server.tso(), primary=first, ttl_ms=HOUR_MS)
        server.apply(Prewrite(txn=txn, mutations=put(first) + put(second)))
        commit_ts = server.tso()
        server.apply(Commit(start_ts=txn.start_ts, commit_ts=commit_ts, keys=(first,)))
        reader = SnapshotReader(cache, server.tso(), resolver)
        try:
            assert list(reader.scan(*table_span(TABLE))) == [(first, b"value"), (second, b"value")]
        finally:
            reader.close()
            resolver.close()
            pd.close()
