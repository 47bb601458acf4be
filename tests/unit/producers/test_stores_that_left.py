"""A store that has left the cluster, and is still known as a region's leader: whoever reads there asks PD anew."""

import threading
from dataclasses import dataclass

import pytest

from producers.errors import SnapshotFailedError
from producers.pull.ddl.schema_snapshot import SnapshotReader
from producers.pull.images.page_reader import PageReader
from producers.pull.images.quotas import StoreQuotas
from producers.pull.images.settings import ImageScanSettings
from producers.pull.locks.kv_client import KvClient
from producers.pull.locks.resolver import LockResolver
from producers.pull.pd.region_cache import STORE_REFRESH_S, RegionCache
from producers.region_server.core.store.commands import Mutation, Prewrite, Txn
from schemas.ids import StoreId, Ts, compose_ts
from tests.support.upstream.direct_cluster import NOW_MS, STORES, DirectCluster, DirectPd

KEY, START, END = b"t1", b"t", b"u"
VERSION = compose_ts(NOW_MS, 1)
SOON_S = 2.0


@dataclass
class Moved:
    """A row whose region's leader has moved, by the cache that still has it at a store that is no more."""

    cluster: DirectCluster
    pd: DirectPd
    cache: RegionCache


@pytest.fixture
def moved() -> Moved:
    """Return such a row."""
    cluster, now_s = DirectCluster(), [1000.0]
    pd = DirectPd(cluster)
    cache = RegionCache(pd, clock=lambda: now_s[0])
    row = Prewrite(txn=Txn(start_ts=Ts(5), primary=KEY), mutations=[Mutation("put", KEY, b"v")], one_pc_commit_ts=Ts(6))
    cluster.store.apply(row)
    region = next(iter(cluster.store.regions))
    cluster.store.transfer_leader(region.region_id, STORES[0], hint=False)
    assert KvClient(cache).region_of(KEY).leader is not None
    cluster.store.transfer_leader(region.region_id, STORES[1], hint=False)
    pd.known_stores = [StoreId(store_id) for store_id in STORES if store_id != STORES[0]]
    now_s[0] += 2 * STORE_REFRESH_S
    return Moved(cluster, pd, cache)


def test_scan_of_an_image_at_a_leader_that_left_then_the_new_one_is_read(moved: Moved) -> None:
    kv, settings = KvClient(moved.cache), ImageScanSettings(scan_s_max=SOON_S)
    reader = PageReader(kv, LockResolver(kv), StoreQuotas(settings), settings, threading.Event())
    pages = list(reader.pages(START, END, VERSION, 1 << 20))
    assert [key for page in pages for key in page.rows.key.to_pylist()] == [KEY], reader.trouble


def test_lock_at_a_leader_that_left_then_it_is_resolved_at_the_new_one(moved: Moved) -> None:
    dead = Txn(start_ts=Ts(20), primary=KEY, ttl_ms=1)
    moved.cluster.store.apply(Prewrite(txn=dead, mutations=[Mutation("put", KEY, b"w")]))
    resolver = LockResolver(KvClient(moved.cache))
    resolver._closed.wait = lambda timeout=None: False  # type: ignore[method-assign]
    task = resolver.resolve_range(START, END, VERSION)
    assert (task.rolled_back, task.held, task.troubles) == (1, (), ())


def test_schema_snapshot_at_a_leader_that_left_then_the_new_one_is_read(moved: Moved) -> None:
    reader = SnapshotReader(moved.cache, VERSION, deadline_s=SOON_S)
    try:
        assert list(reader.scan(START, END)) == [(KEY, b"v")]
    except SnapshotFailedError as error:
        pytest.fail(str(error))
    finally:
        reader.close()
