"""Rows a CPU second of scans of a table image: from KvScan's bytes to acknowledged records of the images topic.

``python -m tests.bench.rows.image_scan`` prints one JSON line per figure: ``to: nowhere`` takes records at once and
shows the Python side alone, ``to: kafka`` waits for the acknowledgements of a broker that it starts, or ``--kafka``.
The store is a process of its own that makes rows by key (:mod:`tests.bench.rig.row_store`); ``store_cpu_s`` is its CPU
time, which is no measure of a TiKV's. ``rows_per_cpu_s`` counts this process, gRPC's and librdkafka's threads included.

Both are measured in turns, and a figure is the median of its tries: what runs first is slower by a third.
"""

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

from compose.stack.local import Addresses, LocalStack
from edges.kafka.access import KafkaAccess
from producers.pull.images.image_log import ImageLog, OpenImageLog
from producers.pull.images.scanner import ImageScanner
from producers.pull.images.settings import ImageScanSettings
from producers.pull.landing.raw_log import RawLogSettings, ensure_images_topic, record_bytes_max
from producers.pull.landing.raw_producer import close_producer, raw_log_producer
from producers.pull.locks.kv_client import KvClient
from producers.pull.locks.resolver import LockResolver
from producers.pull.pd.client import PdClient
from producers.pull.pd.region_cache import RegionCache
from schemas.ids import CaptureId, Ts, UpstreamId
from schemas.rawlog.images import ImageBarrier, ImageScan, ImageState, KeyRange
from schemas.rawlog.topics import RAW_MESSAGE_BYTES_MAX, raw_topics
from tests.bench.rig.row_store import TABLE, VALUE_BYTES, borders
from tests.bench.rows.puller import NowhereProducer

CAPTURE = CaptureId("bench")
SCANS = 8


class SharedNowhere(NowhereProducer):
    """Acknowledges at the next poll, to several threads."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()

    def produce(
        self,
        topic: str,
        *,
        value: bytes,
        partition: int,
        headers: Sequence[tuple[str, bytes]] = (),
        on_delivery: Callable[[Any, Any], None],
    ) -> None:
        with self._lock:
            super().produce(topic, value=value, partition=partition, headers=headers, on_delivery=on_delivery)

    def poll(self, timeout: float) -> int:
        with self._lock:
            return super().poll(timeout)


class BenchLog(ImageLog):
    """Lands where the bench says, and needs no registry."""

    def __init__(self, opened: OpenImageLog) -> None:
        self._opened = opened

    def open(self) -> OpenImageLog:
        return self._opened

    def close(self) -> None:
        pass


@contextlib.contextmanager
def row_store(rows: int) -> Iterator[tuple[str, psutil.Process]]:
    """Give PD's address of a cluster with so many rows, and its process."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.bench.rig.row_store", "--rows", str(rows)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip(), psutil.Process(process.pid)
        finally:
            process.stdin.close()
            process.wait(30)


def measure(pd_address: str, store: psutil.Process, opened: OpenImageLog, rows: int) -> dict[str, float]:
    """Scan all rows once."""
    pd = PdClient(pd_address)
    kv = KvClient(RegionCache(pd))
    landed = threading.Semaphore(0)
    settings = ImageScanSettings(scan_s_max=3_600.0, scans_at_once=2)
    scanner = ImageScanner(
        CAPTURE, kv, LockResolver(kv), BenchLog(opened), settings=settings, on_result=landed.release
    )  # fmt: skip
    at = borders(rows, SCANS)
    scans = tuple(
        ImageScan(
            number=number,
            capture=CAPTURE,
            table_id=TABLE,
            feeds=("bench",),
            keys=KeyRange(at[number], at[number + 1]),
            bytes_max=1 << 60,
        )
        for number in range(SCANS)
    )
    barrier = ImageBarrier(ts=Ts(1 << 58), feeds=("bench",), scans=scans, low=(0,))
    store_cpu_s, wall_s, cpu_s = _cpu_s(store), time.perf_counter(), time.process_time()
    scanner.follow(ImageState(version=(1, 1), barriers=(barrier,)))
    for _ in scans:
        landed.acquire()
    wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
    results = scanner.results()
    scanner.close()
    kv.close()
    pd.close()
    assert [result.failure for result in results] == [""] * SCANS, results
    assert sum(result.rows for result in results) == rows
    assert [result.reached for result in results] == at[1:]
    return {
        "rows": rows,
        "rows_per_s": round(rows / wall_s),
        "rows_per_cpu_s": round(rows / cpu_s),
        "store_cpu_s": round(_cpu_s(store) - store_cpu_s, 2),
        "mb_per_s": round(sum(result.bytes for result in results) / wall_s / 1e6),
        "rss_mb": round(psutil.Process().memory_info().rss / 2**20),
    }


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def to_nowhere() -> OpenImageLog:
    """Return a log that acknowledges at once."""
    return OpenImageLog(
        topic="t", partitions=8, record_bytes_max=RAW_MESSAGE_BYTES_MAX, schema_id=1, producer=SharedNowhere()
    )


def to_kafka(kafka: KafkaAccess) -> OpenImageLog:
    """Return a new images topic."""
    topics = raw_topics(UpstreamId(f"bench-{time.time_ns()}"))
    partitions = ensure_images_topic(kafka, topics, RawLogSettings(), 8)
    return OpenImageLog(
        topic=topics.images,
        partitions=partitions,
        record_bytes_max=record_bytes_max(kafka, topics.images),
        schema_id=1,
        producer=raw_log_producer(kafka, "lz4", print),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--kafka", default="", help="address; the default starts one here")
    parser.add_argument("--nowhere", action="store_true", help="only the Python side, without Kafka")
    options = parser.parse_args(argv)
    with row_store(options.rows) as (pd, store), contextlib.ExitStack() as stack:
        kafka = options.kafka
        if not kafka and not options.nowhere:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="tidebus-bench-"))
            # Only Kafka is of use here: the other addresses count as given.
            given = Addresses(zookeeper="-", schema_registry="-")
            local = stack.enter_context(LocalStack(data=Path(folder), given=given, say=_say))
            kafka = local.addresses.kafka
        nowhere, landed = list[dict[str, float]](), list[dict[str, float]]()
        for _ in range(options.repeats):
            nowhere.append(measure(pd, store, to_nowhere(), options.rows))
            if kafka:
                opened = to_kafka(KafkaAccess(kafka))
                landed.append(measure(pd, store, opened, options.rows))
                close_producer(opened.producer)
    _print("nowhere", nowhere)
    if landed:
        _print("kafka", landed)
    return 0


def _print(to: str, tries: list[dict[str, float]]) -> None:
    """Print the median of each figure, and how far ``rows_per_cpu_s`` went."""
    figures = {name: statistics.median_low([each[name] for each in tries]) for name in tries[0]}
    rates = [each["rows_per_cpu_s"] for each in tries]
    spread = {"tries": len(tries), "rows_per_cpu_s_least": min(rates), "rows_per_cpu_s_most": max(rates)}
    print(json.dumps({"bench": "image_scan", "to": to, **figures, **spread, "value_bytes": VALUE_BYTES}), flush=True)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
