"""Quotas of scans of table images, whatever the rows' size: what stores read over several scans of a table."""

import threading
import time
from typing import Any

import pytest

from producers.pull.core.images.pace import BURST_S
from producers.pull.images.page_reader import PageReader
from producers.pull.images.quotas import StoreQuotas
from producers.pull.images.settings import ImageScanSettings
from producers.pull.locks.kv_client import KvClient
from producers.pull.locks.resolver import LockResolver
from producers.pull.pd.region_cache import RegionCache
from producers.region_server.core.store.commands import Mutation, Prewrite, Txn
from schemas.ids import Ts, compose_ts
from tests.support.upstream.direct_cluster import NOW_MS, DirectCluster, DirectPd

START, END = b"t", b"u"
VERSION = compose_ts(NOW_MS, 1)
ROW_BYTES, ROWS = 20_000, 250
SCAN_BYTES = 100_000
RATE = 150_000


class Read:
    """Counts what stores answer to KvScan, and lets waits pass on a clock of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bytes, self.pages, self.now_s = 0, list[int](), 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now_s)
        cluster = DirectCluster()
        rows = [Mutation("put", b"t%03d" % number, b"v" * ROW_BYTES) for number in range(ROWS)]
        written = Prewrite(txn=Txn(start_ts=Ts(5), primary=b"t000"), mutations=rows, one_pc_commit_ts=Ts(6))
        cluster.store.apply(written)
        self.kv = KvClient(RegionCache(DirectPd(cluster)))
        call = self.kv.call

        def counted(name: str, *rest: Any, **more: Any) -> Any:
            reply = call(name, *rest, **more)
            size = sum(len(pair.key) + len(pair.value) for pair in reply.pairs)
            self.bytes += size
            self.pages.append(len(reply.pairs))
            return reply

        monkeypatch.setattr(self.kv, "call", counted)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait, as an event that nobody sets."""
        self.now_s += timeout or 0.0
        return False

    def scan(self, settings: ImageScanSettings, quotas: StoreQuotas, start: bytes) -> bytes:
        """Scan from a key on; return how far it came."""
        stopped = threading.Event()
        stopped.wait = self.wait  # type: ignore[method-assign]
        reader = PageReader(self.kv, LockResolver(self.kv), quotas, settings, stopped)
        reached = [page.next_key for page in reader.pages(start, END, VERSION, SCAN_BYTES)][-1]
        self.result_s = self.now_s
        self.now_s += reader.owes_s  # as its worker waits once the result is out
        return reached


def test_scans_of_large_rows_together_read_no_more_than_the_quota_lets(monkeypatch: pytest.MonkeyPatch) -> None:
    read, settings = Read(monkeypatch), ImageScanSettings(bytes_per_s=RATE)
    quotas, began_s, at = StoreQuotas(settings, clock=lambda: read.now_s), read.now_s, START
    unpaid_s = list[float]()
    for _ in range(6):
        at = read.scan(settings, quotas, at)
        unpaid_s.append(read.now_s - read.result_s)
    assert read.bytes <= RATE * (read.now_s - began_s + BURST_S)
    assert max(unpaid_s) > 0, "a scan that is paid for before its result keeps its barrier open"


def test_scan_asks_for_no_more_rows_than_its_bytes_leave_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    read, settings = Read(monkeypatch), ImageScanSettings(bytes_per_s=1 << 40)
    read.scan(settings, StoreQuotas(settings, clock=lambda: read.now_s), START)
    assert read.pages == [1, SCAN_BYTES // ROW_BYTES - 1]
