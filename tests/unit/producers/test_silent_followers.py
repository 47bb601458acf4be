"""A follower that does not answer: it costs a scan one call's time, and says nothing of how large a page is."""

import threading
from typing import Any

import grpc
import pytest

from producers.pull.images.page_reader import PageReader
from producers.pull.images.quotas import StoreQuotas
from producers.pull.images.settings import ImageScanSettings
from producers.pull.locks.kv_client import KvClient
from producers.pull.locks.resolver import LockResolver
from producers.pull.pd.region_cache import RegionCache
from producers.region_server.core.store.commands import Mutation, Prewrite, Txn
from schemas.ids import Ts, compose_ts
from tests.support.upstream.direct_cluster import NOW_MS, STORES, DirectCluster, DirectPd

START, END = b"t", b"u"
VERSION = compose_ts(NOW_MS, 1)
ROWS = 1_000


class TimedOutError(grpc.RpcError):
    """No answer."""

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.DEADLINE_EXCEEDED

    def details(self) -> str:
        return "Deadline Exceeded"


def test_scan_whose_follower_is_a_black_hole_then_it_is_asked_once_and_the_leader_for_whole_pages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = DirectCluster()
    cluster.resolved_ts = VERSION
    rows = [Mutation("put", b"t%04d" % number, b"v") for number in range(ROWS)]
    written = Prewrite(txn=Txn(start_ts=Ts(5), primary=b"t0000"), mutations=rows, one_pc_commit_ts=Ts(6))
    cluster.store.apply(written)
    region = next(iter(cluster.store.regions))
    cluster.store.transfer_leader(region.region_id, STORES[0], hint=False)
    asked, call = list[tuple[str, int]](), cluster._call

    def reached(address: str, path: str, request: Any) -> Any:
        asked.append((address, request.limit))
        if address != f"store-{STORES[0]}":
            raise TimedOutError
        return call(address, path, request)

    monkeypatch.setattr(cluster, "_call", reached)
    kv, settings = KvClient(RegionCache(DirectPd(cluster))), ImageScanSettings(read_from="follower")
    reader = PageReader(kv, LockResolver(kv), StoreQuotas(settings), settings, threading.Event())
    pages = list(reader.pages(START, END, VERSION, 1 << 30))
    assert sum(len(page.rows.key) for page in pages) == ROWS
    silent = [address for address, _ in asked if address != f"store-{STORES[0]}"]
    assert len(silent) == len(set(silent)), "each store once"
    assert min(limit for _, limit in asked) > 1
