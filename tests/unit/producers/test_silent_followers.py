"""A follower that does not answer costs a scan one call's time; it may be the page that is too large for any store."""

import threading
from collections.abc import Callable
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
ROWS, ROWS_AT_ONCE = 100, 20
LEADER = f"store-{STORES[0]}"


class NoAnswerError(grpc.RpcError):
    """A call that ended with a code."""

    def __init__(self, code: grpc.StatusCode) -> None:
        self._code = code

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._code.name


class Asked:
    """A cluster whose first store leads, what its stores were asked, and who refuses what."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, refuses: Callable[[str, int], grpc.StatusCode | None]) -> None:
        self.pages = list[tuple[str, int]]()
        self._cluster, self._refuses = DirectCluster(), refuses
        self._cluster.resolved_ts = VERSION
        rows = [Mutation("put", b"t%04d" % number, b"v") for number in range(ROWS)]
        written = Prewrite(txn=Txn(start_ts=Ts(5), primary=b"t0000"), mutations=rows, one_pc_commit_ts=Ts(6))
        self._cluster.store.apply(written)
        region = next(iter(self._cluster.store.regions))
        self._cluster.store.transfer_leader(region.region_id, STORES[0], hint=False)
        self._answer = self._cluster._call
        monkeypatch.setattr(self._cluster, "_call", self._call)

    def _call(self, address: str, path: str, request: Any) -> Any:
        self.pages.append((address, request.limit))
        code = self._refuses(address, request.limit)
        if code is not None:
            raise NoAnswerError(code)
        return self._answer(address, path, request)

    def read(self) -> int:
        """Scan all that there is; return how many rows came."""
        kv, settings = KvClient(RegionCache(DirectPd(self._cluster))), ImageScanSettings(read_from="follower")
        reader = PageReader(kv, LockResolver(kv), StoreQuotas(settings), settings, threading.Event())
        return sum(len(page.rows.key) for page in reader.pages(START, END, VERSION, 1 << 30))


def test_scan_whose_follower_is_a_black_hole_then_it_is_asked_once_and_the_leader_for_whole_pages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = Asked(monkeypatch, lambda address, _: grpc.StatusCode.DEADLINE_EXCEEDED if address != LEADER else None)
    assert asked.read() == ROWS
    silent = [address for address, _ in asked.pages if address != LEADER]
    assert len(silent) == len(set(silent)), "each store once"
    limits = [limit for address, limit in asked.pages if address == LEADER]
    assert limits[0] == 1, "it may be the page that is too large"
    assert limits.count(1) == len(silent), "a page of one row for each"
    assert limits[-1] > 1


@pytest.mark.parametrize("code", [grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.RESOURCE_EXHAUSTED])
def test_scan_of_pages_that_are_too_much_for_every_store_then_less_is_asked_for_at_once(
    monkeypatch: pytest.MonkeyPatch, code: grpc.StatusCode
) -> None:
    asked = Asked(monkeypatch, lambda _, limit: code if limit > ROWS_AT_ONCE else None)
    assert asked.read() == ROWS
    assert asked.pages[0][1] > ROWS_AT_ONCE
    assert asked.pages[1][1] == 1


def test_scan_of_pages_that_are_too_large_then_its_followers_are_asked_on(monkeypatch: pytest.MonkeyPatch) -> None:
    too_large = grpc.StatusCode.RESOURCE_EXHAUSTED
    asked = Asked(monkeypatch, lambda _, limit: too_large if limit > ROWS_AT_ONCE else None)
    asked.read()
    assert asked.pages[0][0] != LEADER
    assert asked.pages[0][0] in {address for address, _ in asked.pages[1:]}
