"""What idle regions cost: CPU and memory of a client whose regions have nothing to say but their resolved ts.

``python -m tests.bench.captures.idle_regions`` prints one JSON line for each number of regions and tables. Stores and
PD are a process of their own (:mod:`tests.bench.rig.idle_store`), and so is each client: ``cpu_cores`` is the client's
CPU time by wall time over some seconds of rounds, ``rss_mb`` its memory then, ``register_s`` the time until every
region was INITIALIZED, of which ``register_cpu_s`` was the client's.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence

import psutil

from producers.pull.core.landing.book import LandingBook
from producers.pull.feed.event_feed import EventFeed
from producers.pull.landing.landing import Landing
from producers.pull.pd.client import PdClient
from producers.pull.pd.region_cache import RegionCache
from schemas.errors import BusError
from schemas.ids import CaptureId, TableId, Ts
from schemas.tidb.spans import TableSpan
from tests.bench.rig.idle_store import FIRST_TABLE
from tests.bench.rows.puller import NowhereProducer

REGISTER_S_MAX = 600.0
LAYOUTS = ((10_000, 1), (100_000, 1), (100_000, 100))
"""(regions, tables)."""


def client(address: str, regions: int, tables: int, seconds: float) -> dict[str, object]:
    """Subscribe all tables, wait until they are initialized, and measure for ``seconds``."""
    failures: list[BusError] = []
    landing = Landing(LandingBook(CaptureId("bench"), 8), NowhereProducer(), topic="t", partitions=8, schema_id=1)
    pd = PdClient(address)
    feed = EventFeed(RegionCache(pd), landing, failures.append)
    feed.start()
    wall, cpu = time.monotonic(), time.process_time()
    for table in map(TableId, range(FIRST_TABLE, FIRST_TABLE + tables)):
        with feed.lock:
            landing.book.assign(TableSpan.of_table(table), Ts(1))
            feed.subscribe(TableSpan.of_table(table), Ts(1))
    while sum(span.initialized for span in feed.status()) < regions or min(landing.book.landed_ts().values()) == 1:
        if failures or time.monotonic() - wall > REGISTER_S_MAX:
            raise SystemExit(f"registering failed: {failures or feed.status()[0]}")
        time.sleep(0.1)
    registered = {
        "register_s": round(time.monotonic() - wall, 1),
        "register_cpu_s": round(time.process_time() - cpu, 1),
    }
    time.sleep(2.0)  # what registering left behind is done
    wall, cpu = time.monotonic(), time.process_time()
    landed, messages = min(landing.book.landed_ts().values()), feed.counters.messages
    while time.monotonic() - wall < seconds:
        time.sleep(1.0)
        feed.status()  # as the live display asks
    wall = time.monotonic() - wall
    cores, messages = (time.process_time() - cpu) / wall, feed.counters.messages - messages
    moved_s = (min(landing.book.landed_ts().values()) - landed) / (1000 << 18)
    assert not failures, failures
    assert moved_s > seconds / 2, f"resolved ts moved by {moved_s} s only"
    figures = {
        "bench": "idle_regions",
        "regions": regions,
        "tables": tables,
        "cpu_cores": round(cores, 3),
        "rss_mb": psutil.Process().memory_info().rss >> 20,
        **registered,
        "messages_per_s": round(messages / wall),
    }
    feed.stop()
    pd.close()
    return figures


def measure(regions: int, tables: int, seconds: float) -> None:
    """Run one layout in processes of its own; its line goes to standard output."""
    shape = ["--regions", str(regions), "--tables", str(tables)]
    store = subprocess.Popen(
        [sys.executable, "-m", "tests.bench.rig.idle_store", *shape],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert store.stdin is not None
    assert store.stdout is not None
    try:
        address = store.stdout.readline().strip()
        client = [
            sys.executable,
            "-m",
            "tests.bench.captures.idle_regions",
            "--client",
            address,
            "--seconds",
            str(seconds),
        ]
        subprocess.run([*client, *shape], check=True)
    finally:
        store.stdin.close()
        store.wait(30)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--regions", type=int, help="only this number")
    parser.add_argument("--tables", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--client", default="", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.client:
        print(json.dumps(client(options.client, options.regions, options.tables, options.seconds)), flush=True)
        return 0
    layouts = LAYOUTS if options.regions is None else ((options.regions, options.tables),)
    for regions, tables in layouts:
        measure(regions, tables, options.seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
