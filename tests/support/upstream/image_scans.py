"""Scans of table images over the embedded cluster and a real Kafka: ordered as by records, read back as by sorters."""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass

from compose.stack.local import Addresses
from edges.kafka.offsets import TopicReader
from producers.pull.images.image_log import ImageLog
from producers.pull.images.scanner import ImageScanner
from producers.pull.images.settings import ImageScanSettings
from producers.pull.landing.raw_log import RawLogSettings
from producers.pull.locks.kv_client import KvClient
from producers.pull.locks.resolver import LockResolver
from producers.pull.pd.client import PdClient
from producers.pull.pd.region_cache import RegionCache
from producers.region_server.core.store.commands import Mutation
from producers.region_server.core.store.mvcc import LockKind, Write
from producers.region_server.kv.store import ClusterStore
from producers.region_server.server import RegionServer
from schemas.ids import CaptureId, TableId, Ts, UpstreamId
from schemas.rawlog.image_chunk import read_chunk
from schemas.rawlog.images import ImageBarrier, ImageChunk, ImageScan, ImageState, KeyRange, ScanResult
from schemas.rawlog.topics import RawTopics, raw_topics
from schemas.tidb.keys import row_key

CAPTURE = CaptureId("c1")
TABLE = TableId(45)
TIMEOUT_S = 180.0


def ordered(*barrier_ts: Ts, version: int, bytes_max: int = 1 << 40, keys: KeyRange | None = None) -> ImageState:
    """Return what a record says when one scan of TABLE is open at each ts."""
    scan = ImageScan(
        number=7,
        capture=CAPTURE,
        table_id=TABLE,
        feeds=("f",),
        keys=keys or KeyRange.of_table(TABLE),
        bytes_max=bytes_max,
    )
    barriers = tuple(ImageBarrier(ts=ts, feeds=("f",), scans=(scan,), low=(0,)) for ts in barrier_ts)
    return ImageState(version=(1, version), barriers=barriers)


def chunk_of(result: ScanResult, start: bytes = KeyRange.of_table(TABLE).start) -> ImageChunk:
    """Return what the owner lists for a result."""
    return ImageChunk(
        ts=result.barrier_ts,
        number=result.number,
        attempt=result.attempt,
        table_id=TABLE,
        feeds=("f",),
        keys=KeyRange(start, result.reached),
        partition=result.partition,
        offsets=result.offsets,
        rows=result.rows,
        bytes=result.bytes,
    )


def landed_rows(stack: Addresses, topics: RawTopics, result: ScanResult) -> dict[bytes, bytes]:
    """Read a chunk back from Kafka."""
    chunk, rows = chunk_of(result), dict[bytes, bytes]()
    with contextlib.closing(TopicReader(stack.kafka_access.config(), topics.images)) as reader:
        records = (value for _, _, value in reader.read_all({chunk.partition: chunk.offsets}))
        for batch in read_chunk(records, chunk):
            new = dict(zip(batch.key.to_pylist(), batch.value.to_pylist(), strict=True))
            assert not rows.keys() & new.keys()
            rows |= new
    return rows


def rows_at(server: RegionServer, ts: Ts, below: bytes = KeyRange.of_table(TABLE).end) -> dict[bytes, bytes]:
    """Return TABLE's rows as the versions say, once no transaction below ``ts`` is under way any more."""

    def look(store: ClusterStore) -> dict[bytes, bytes]:
        rows = {}
        for region in store.regions:
            for key, head in region.data.writes.items():
                write: Write | None = head
                while write is not None and write.commit_ts > ts:
                    write = write.previous
                if write is not None and write.op is LockKind.PUT and KeyRange.of_table(TABLE).start <= key < below:
                    rows[key] = write.value
        return rows

    return server.act(look)


def fill(server: RegionServer, count: int, *, regions: int = 1, size: int = 100) -> list[bytes]:
    """Write rows of TABLE, over so many regions; return their keys."""
    keys = [row_key(TABLE, number) for number in range(count)]
    writing = server.begin(*(Mutation("put", key, b"%d-" % at + b"v" * size) for at, key in enumerate(keys)))
    server.act(lambda _: writing.commit_at_once())

    def split(store: ClusterStore) -> None:
        for key in keys[:: max(1, count // regions)][1:]:
            store.split(key)

    server.act(split)
    return keys


@dataclass
class ScanRig:
    """A scanner of its own, without a puller."""

    server: RegionServer
    scanner: ImageScanner
    resolver: LockResolver
    topics: RawTopics
    version: int = 0

    def order(self, *barrier_ts: Ts, bytes_max: int = 1 << 40) -> None:
        """Let the newest record have these barriers open, and no others."""
        self.version += 1
        self.scanner.follow(ordered(*barrier_ts, version=self.version, bytes_max=bytes_max))

    def end_transactions(self) -> None:
        """End what has died or is committed: a scan passes such locks by, or reads through them, and leaves some."""
        self.resolver.resolve_range(b"", b"z", self.server.tso())

    def result(self, barrier_ts: Ts) -> ScanResult:
        """Wait for what came of the scan at a barrier."""
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            for result in self.scanner.results():
                if result.barrier_ts == barrier_ts:
                    return result
            time.sleep(0.005)
        raise AssertionError("no result")


@contextlib.contextmanager
def scanning(
    server: RegionServer, stack: Addresses, upstream: UpstreamId, settings: ImageScanSettings | None = None
) -> Iterator[ScanRig]:
    """Give a scanner of a running cluster."""
    pd = PdClient(server.pd_address)
    kv = KvClient(RegionCache(pd))
    resolver, topics = LockResolver(kv), raw_topics(upstream)
    log = ImageLog(
        stack.kafka_access, stack.registry_access, topics, RawLogSettings(),
        partitions=3, compression="lz4", on_error=lambda error: None,
    )  # fmt: skip
    scanner = ImageScanner(CAPTURE, kv, resolver, log, settings=settings or ImageScanSettings())
    try:
        yield ScanRig(server, scanner, resolver, topics)
    finally:
        scanner.close()
        resolver.close()
        pd.close()
