"""What a backlog does to a neighbour: ``python -m tests.bench.feeds.lag_during_backlog`` prints one JSON line.

A bus with its capture's own sorter service (``--master``), and a canal-json changefeed, the neighbour, of the tables
that get 1,000 rows/s. The upstream commits ``--rows`` rows (five million, or ``$LAG_BACKLOG_ROWS``) in tables that the
neighbour does not have; once they are in the raw log, its lag is taken for ``--seconds``. Then a second changefeed
begins before those rows, and the neighbour's lag is taken until that one's checkpoint is beyond them, the start of its
query included. ``ratio`` is the neighbour's p99 then by its p99 before; the second one's topic is not read.
"""

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from compose.local.bus import LocalBus
from consumers.control.changefeeds.store import ChangefeedRequest
from edges.zookeeper.session import Session
from schemas.ids import Ts, compose_ts
from schemas.nodes.service_paths import ServicePaths
from schemas.nodes.sorter_service import FeedEntry, decode_entries
from tests.bench.rig.feeds_bus import TOPIC_PREFIX, UPSTREAM, Arrivals, FeedsBus, await_all, feeds_bus, say
from tests.bench.rig.upstream import LATE_SCHEMA, SCHEMA, Upstream, upstream

TABLES, ROWS_PER_S = 4, 1_000.0
ROWS_DEFAULT = 5_000_000
REPLAYING = "replaying"
BEHIND_S, CAUGHT_UP_S = 2.0, 900.0
REPLAY_TIMEOUT_S = 1_800.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=int(os.environ.get("LAG_BACKLOG_ROWS", ROWS_DEFAULT)))
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--warm-up", type=float, default=10.0)
    parser.add_argument("--master", default="local[2]")
    options = parser.parse_args(argv)
    with (
        tempfile.TemporaryDirectory(prefix="tidebus-bench-") as folder,
        upstream() as source,
        feeds_bus(Path(folder), source, TABLES, warm=True, master=options.master) as running,
        contextlib.closing(Arrivals(running.bus.addresses.kafka)) as arrivals,
    ):
        print(json.dumps(_measure(options, source, running, arrivals)), flush=True)
    return 0


def _measure(options: argparse.Namespace, source: Upstream, running: FeedsBus, arrivals: Arrivals) -> dict[str, object]:
    source.write(ROWS_PER_S, TABLES)
    running.create(1, protocol="canal-json", rules=[f"{SCHEMA}.*"])
    neighbour = running.names[0]
    _await(running, arrivals)
    start_ts = compose_ts(int(time.time() * 1000))
    say(f"{options.rows} rows are committed in {LATE_SCHEMA}")
    source.add(options.rows, TABLES)
    end_ts = compose_ts(int(time.time() * 1000))
    _await(running, arrivals)
    arrivals.take(options.warm_up)
    alone = arrivals.take(options.seconds)[neighbour]
    running.bus.create_changefeed(_replaying(running.bus, start_ts))
    meanwhile, began = list[float](), time.monotonic()
    while (entry := _entry(running.bus)) is None or entry.checkpoint_ts < end_ts:
        running.bus.tick()
        meanwhile += arrivals.take(2.0).get(neighbour, [])
        say(f"{entry.rows_total if entry else 0} rows after {time.monotonic() - began:.0f} s")
        if time.monotonic() > began + REPLAY_TIMEOUT_S:
            raise TimeoutError("it has not caught up")
    replay_s = time.monotonic() - began
    (alone_p50, alone_p99), (p50, p99) = (np.percentile(lags, [50, 99]).tolist() for lags in (alone, meanwhile))
    return {
        "bench": "lag_during_backlog",
        "ratio": round(p99 / alone_p99, 2),
        "alone_p50_s": round(alone_p50, 3),
        "alone_p99_s": round(alone_p99, 3),
        "p50_s": round(p50, 3),
        "p99_s": round(p99, 3),
        "worst_s": round(max(meanwhile), 3),
        "rows": options.rows,
        "replay_s": round(replay_s, 1),
        "spark_share": round(entry.spark_rows_total / entry.rows_total, 2),
        "master": options.master,
    }


def _await(running: FeedsBus, arrivals: Arrivals) -> None:
    if not await_all(running, arrivals, BEHIND_S, CAUGHT_UP_S):
        raise TimeoutError("the neighbour does not run, or did not catch up")


def _replaying(bus: LocalBus, start_ts: Ts) -> ChangefeedRequest:
    return ChangefeedRequest(
        upstream=UPSTREAM,
        sink_uri=f"kafka://{bus.addresses.kafka}/{TOPIC_PREFIX}{REPLAYING}?protocol=canal-json&partition-num=3",
        config={"filter": {"rules": [f"{LATE_SCHEMA}.*"]}},
        changefeed_id=REPLAYING,
        start_ts=start_ts,
    )


def _entry(bus: LocalBus) -> FeedEntry | None:
    """Return what its service says of the changefeed that replays; None: nothing yet."""
    paths = ServicePaths(bus.zk_paths)
    with Session(bus.addresses.zookeeper_access) as session, session.requests("reading what services say") as client:
        folders = [f"{paths.progress}/{service}" for service in client.get_children(paths.progress)]
        nodes = [client.get(f"{folder}/{number}")[0] for folder in folders for number in client.get_children(folder)]
    entries = (entry for node in nodes for entry in decode_entries(node))
    return next((entry for entry in entries if entry.changefeed_id == REPLAYING), None)


if __name__ == "__main__":
    sys.exit(main())
