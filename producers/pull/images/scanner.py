"""Scans of table images in a capture: those that the newest frontier record orders, each to its result.

Orders come by records and results go by landing reports (docs/formats/table-images.md §1), so nothing is lost with a
message: a result stands until a record has its barrier no more.
"""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Final

from producers.errors import ImageScanStalledError, ImageVersionGoneError, PdUnimplementedError, ProducerBugError
from producers.pull.core.images.orders import OrderKey, ScanOrder, changes
from producers.pull.images.chunk_landing import ChunkLanding, LandedScan
from producers.pull.images.image_log import ImageLog
from producers.pull.images.page_reader import PageReader
from producers.pull.images.quotas import StoreQuotas
from producers.pull.images.settings import ImageScanSettings
from producers.pull.locks.kv_client import KvClient
from producers.pull.locks.resolver import LockResolver
from producers.pull.pd.client import PdClient
from schemas.errors import BusError
from schemas.ids import CaptureId, Ts
from schemas.rawlog.image_batch import ScanName
from schemas.rawlog.images import NO_IMAGES, ImageState, ScanResult

log = logging.getLogger(__name__)

STOP_S: Final = 2.0
FIRST_ATTEMPT: Final = 0
"""A capture begins no scan twice: what failed is left to a later barrier."""


@dataclass(slots=True, eq=False)
class _Running:
    order: ScanOrder
    stopped: threading.Event = field(default_factory=threading.Event)
    result: ScanResult | None = None
    owes_s: float = 0.0
    """How long its worker reads nothing more, for the quotas."""
    work: "Future[None] | None" = None


@dataclass(slots=True)
class ImageCounters:
    """What the scans of a capture have come to since its start."""

    scans: int = 0
    failed: int = 0
    rows: int = 0
    bytes: int = 0


class ImageScanner:
    """See the module's text. All methods may be called from any thread, and none of them waits but :meth:`close`."""

    def __init__(
        self,
        capture: CaptureId,
        kv: KvClient,
        resolver: LockResolver,
        images: ImageLog,
        *,
        settings: ImageScanSettings,
        may_land: Callable[[], bool] = lambda: True,
        on_result: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare; it does nothing, and makes no topic, until a record orders a scan of this capture.

        Args:
            capture: whose scans are done.
            kv: to the stores.
            resolver: of locks that are in the way.
            images: where rows are landed.
            settings: everything else.
            may_land: asked before each record is sent.
            on_result: told when :meth:`results` says more than before.
        """
        self._capture, self._kv, self._resolver, self._images = capture, kv, resolver, images
        self._settings, self._may_land, self._on_result = settings, may_land, on_result
        self._quotas = StoreQuotas(settings)
        self._lock = threading.Lock()
        self._followed = NO_IMAGES.version
        self._scans: dict[OrderKey, _Running] = {}
        self._workers: ThreadPoolExecutor | None = None
        self._closed = threading.Event()
        self.counters = ImageCounters()

    def follow(self, images: ImageState) -> None:
        """Take what the newest record that counts says: begin scans, and give up those whose barriers are gone."""
        with self._lock:
            if self._closed.is_set() or images.version <= self._followed:
                return  # an older one may come late, by a connection that another has replaced
            self._followed = images.version
            begin, drop = changes(self._scans.keys(), images, self._capture)
            for key in drop:
                self._scans.pop(key).stopped.set()
            if begin and self._workers is None:
                self._workers = ThreadPoolExecutor(self._settings.scans_at_once, thread_name_prefix="image-scan")
            for order in begin:
                running = self._scans[order.key] = _Running(order)
                assert self._workers is not None
                running.work = self._workers.submit(self._run, running)

    def results(self) -> tuple[ScanResult, ...]:
        """Return what came of scans that have ended, of barriers open in what was followed last."""
        with self._lock:
            return tuple(scan.result for _, scan in sorted(self._scans.items()) if scan.result is not None)

    def close(self) -> None:
        """Give up all scans, and wait some time for their threads."""
        with self._lock:
            self._closed.set()
            for running in self._scans.values():
                running.stopped.set()
            workers, works = self._workers, [scan.work for scan in self._scans.values() if scan.work is not None]
        if workers is not None:
            workers.shutdown(wait=False, cancel_futures=True)
            wait(works, STOP_S)
        self._images.close()

    def _run(self, running: _Running) -> None:
        key = running.order.key
        if running.stopped.is_set():
            return
        try:
            landed = self._scan(running)
            result = ScanResult(
                barrier_ts=key.barrier_ts,
                number=key.number,
                attempt=FIRST_ATTEMPT,
                reached=landed.reached,
                partition=landed.partition,
                offsets=landed.offsets,
                rows=landed.rows,
                bytes=landed.bytes,
            )
        except BusError as error:
            result = self._failed(running, error)
        except Exception as error:
            result = self._failed(running, ProducerBugError("a scan of a table image failed", error=repr(error)))
        with self._lock:
            running.result = result
            counters = self.counters
            counters.scans += 1
            counters.failed += bool(result.failure)
            counters.rows += result.rows
            counters.bytes += result.bytes
        self._on_result()
        self._closed.wait(running.owes_s)  # whatever becomes of the scan: its barrier need not wait for that

    def _scan(self, running: _Running) -> LandedScan:
        key, scan = running.order.key, running.order.scan
        landing = ChunkLanding(
            self._images.open(),
            ScanName(key.barrier_ts, key.number, FIRST_ATTEMPT),
            scan.table_id,
            scan.keys.start,
            in_flight_bytes_max=self._settings.in_flight_bytes_max,
            may_land=self._may_land,
            stopped=running.stopped,
        )
        reader = PageReader(self._kv, self._resolver, self._quotas, self._settings, running.stopped)
        for page in reader.pages(scan.keys.start, scan.keys.end, key.barrier_ts, scan.bytes_max):
            landing.add(page)
        running.owes_s = reader.owes_s
        landed = landing.finish()
        if landed.reached == scan.keys.start:
            raise ImageScanStalledError(
                "a scan of a table image read nothing in its time", table_id=scan.table_id, barrier_ts=key.barrier_ts,
                within_s=self._settings.scan_s_max, reason=reader.trouble,
            )  # fmt: skip
        # Last of all: stores do not refuse to read below it, they only lack versions then.
        check_version(self._kv.cache.pd, key.barrier_ts)
        return landed

    def _failed(self, running: _Running, error: BusError) -> ScanResult:
        key = running.order.key
        if not running.stopped.is_set():
            log.warning(
                "a scan of a table image failed",
                extra={"barrier_ts": key.barrier_ts, "number": key.number, "code": error.code, "reason": str(error)},
            )
        return ScanResult(barrier_ts=key.barrier_ts, number=key.number, failure=error.code, reason=str(error))


def check_version(pd: PdClient, version: Ts) -> None:
    """Make sure that what was read at a version until now was all there.

    Raises:
        ImageVersionGoneError: garbage collection has passed it.
        PdUnreachableError: PD does not answer.
    """
    try:
        safe_point = pd.gc_safe_point()
    except PdUnimplementedError:
        safe_point = Ts(pd.gc_state().gc_safe_point)
    if safe_point > version:
        raise ImageVersionGoneError(
            "garbage collection has passed the barrier ts", barrier_ts=version, gc_safe_point=safe_point
        )
