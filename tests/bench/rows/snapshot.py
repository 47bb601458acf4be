"""A table image by the whole bus: what a row costs from KvScan to its topic, and what it does to changes meanwhile.

``python -m tests.bench.rows.snapshot`` starts a region server (:mod:`tests.bench.rig.upstream`), with SNAPSHOT_ROWS
rows (300,000) in two tables and a generator of 500 rows/s into two others, and the processes of `tidebus run`. A
*neighbour* takes the busy tables alone; its rows' way from commit_ts to a consumer is taken for a while. Then a
changefeed of all tables is created, with ``initial = "snapshot"`` for the two old ones, and both are read, each in a
process of its own, until the images are there to the last row. It does that twice, on buses of their own, and prints a
JSON line for each: as fast as it goes (``bound_rows_per_s`` 0), and with ``--image-rows-per-second`` at what lets
others go on undisturbed (25,000 of all stores together; the option is of each).

* ``rows_per_s``: rows of images, from the first to the last at the consumer.
* ``rows_per_cpu_s``: by the CPU time of capture and sorter service, with all that they start, over that time, less what
  they took before for the neighbour. The stores are not counted: they are no TiKV.
  None: they took more before, as on a machine so busy that they were still starting; use a longer ``--warm-up``.
* ``neighbour_lag_ratio``: the neighbour's p99 while image rows flow, by its p99 before.
* ``own_lag_p99_s``: of the imaged changefeed's own changes meanwhile.

The stores make a page of rows by key, on the same cores; ``store_cpu_s`` is what they took. ``published_p99_s`` is the
neighbour's lag up to the frontier record that let its rows go, ``sorted_p99_s`` from there to its topic.
``rss_before_mb`` and ``rss_mb`` are the sizes of capture and service before the image and at its end.
"""

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import psutil

from compose.local.bus import BusOptions, LocalBus
from consumers.control.changefeeds.store import ChangefeedRequest
from producers.region_server.server import RegionServerOptions
from schemas.errors import BusError
from schemas.ids import Ts, UpstreamId, physical_ms
from tests.bench.rig.frontier_trace import read_advances
from tests.bench.rig.topic_reader import TopicReader, topic_reader
from tests.bench.rig.tree_cpu import TreeCpu
from tests.bench.rig.upstream import OLD_SCHEMA, SCHEMA, Upstream, upstream

UPSTREAM = UpstreamId("snapshot")
NEIGHBOUR, IMAGED = "neighbour", "imaged"
PARTITIONS = 2
BUSY_ROWS_PER_S = 500.0
START_TIMEOUT_S, IMAGE_TIMEOUT_S = 240.0, 1_800.0
CAUGHT_UP_S = 5.0
TICK_S = 0.2
TABLES = 2
BOUNDS_ROWS_PER_S = (0, 25_000)
STORES = RegionServerOptions().stores


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=int(os.environ.get("SNAPSHOT_ROWS", "300000")))
    parser.add_argument("--seconds", type=float, default=20.0, help="for which the neighbour is read before")
    parser.add_argument("--warm-up", type=float, default=15.0)
    parser.add_argument("--protocol", default="canal-json")
    parser.add_argument(
        "--bounds", type=int, nargs="+", default=BOUNDS_ROWS_PER_S, help="rows/s of image scans; 0: as fast as it goes"
    )
    options = parser.parse_args(argv)
    for bound in options.bounds:
        print(json.dumps({"bench": "snapshot", **_measured(options, bound)}), flush=True)
    return 0


def _measured(options: argparse.Namespace, bound_rows_per_s: int) -> dict[str, object]:
    with tempfile.TemporaryDirectory(prefix="tidebus-bench-") as folder, upstream() as source:
        source.make(options.rows, TABLES)
        source.write(BUSY_ROWS_PER_S, TABLES)
        of_a_store = str(bound_rows_per_s // STORES)
        quota = ("--image-rows-per-second", of_a_store) if bound_rows_per_s else ()
        bus_options = BusOptions(data_dir=Path(folder), pd=source.pd, upstream=UPSTREAM, capture_arguments=quota)
        with (
            LocalBus(bus_options, say=_say) as bus,
            contextlib.closing(TreeCpu(bus.processes["capture"].pid)) as tree,
            contextlib.ExitStack() as stack,
        ):

            def readers(topic: str) -> TopicReader:
                return stack.enter_context(topic_reader(bus.addresses.kafka, topic, PARTITIONS))

            return {"bound_rows_per_s": bound_rows_per_s, **_figure(bus, source, tree, options, readers)}


def _figure(
    bus: LocalBus, source: Upstream, tree: TreeCpu, options: argparse.Namespace, readers: Callable[[str], TopicReader]
) -> dict[str, object]:
    store = psutil.Process(source.pid)
    _create(bus, NEIGHBOUR, options.protocol, {"filter": {"rules": [f"{SCHEMA}.*"]}})
    neighbour = readers(NEIGHBOUR)
    _wait_until(bus, lambda: neighbour.tell().newest_lag_s < CAUGHT_UP_S, START_TIMEOUT_S)
    _wait_for(bus, options.warm_up)
    neighbour.take()
    idle_cpu_s = tree.cpu_s()
    _wait_for(bus, options.seconds)
    idle_cores = (tree.cpu_s() - idle_cpu_s) / options.seconds
    before_p99_s, rss_before_mb = _p99_s(neighbour.take().lags_s), tree.rss_mb()

    rules = {"initial": "none", "initial-rules": [{"matcher": [f"{OLD_SCHEMA}.*"], "initial": "snapshot"}]}
    began_s, cpu_s, stored = time.time(), tree.cpu_s(), store.cpu_times()
    _create(bus, IMAGED, options.protocol, {**rules, "filter": {"rules": [f"{OLD_SCHEMA}.*", f"{SCHEMA}.*"]}})
    imaged = readers(IMAGED)
    _wait_until(bus, lambda: imaged.tell().image_rows > 0, START_TIMEOUT_S)
    neighbour.take()
    imaged.take()
    _wait_until(bus, lambda: imaged.tell().image_rows >= options.rows, IMAGE_TIMEOUT_S)
    took_s = time.time() - began_s
    image_cpu_s = tree.cpu_s() - cpu_s - idle_cores * took_s
    stored_after = store.cpu_times()
    own, beside = imaged.take(), neighbour.take()
    published_p99_s, sorted_p99_s = _stages(bus, beside.produced)
    during_p99_s = _p99_s(beside.lags_s)
    return {
        "protocol": options.protocol,
        "rows": own.image_rows,
        "rows_per_s": round(own.image_rows / max(own.last_at_s - own.first_at_s, 1e-3)),
        "rows_per_cpu_s": round(own.image_rows / image_cpu_s) if image_cpu_s > 0 else None,
        "image_cpu_s": round(image_cpu_s, 1),
        "idle_cores": round(idle_cores, 2),
        "neighbour_lag_ratio": round(during_p99_s / before_p99_s, 2),
        "neighbour_p99_s": round(during_p99_s, 3),
        "published_p99_s": round(published_p99_s, 3),
        "sorted_p99_s": round(sorted_p99_s, 3),
        "own_lag_p99_s": round(_p99_s(own.lags_s), 3),
        "first_row_s": round(own.first_at_s - began_s, 2),
        "store_cpu_s": round(sum(stored_after[:2]) - sum(stored[:2]), 1),
        "rss_before_mb": round(rss_before_mb),
        "rss_mb": round(tree.rss_mb()),
        "load": round(os.getloadavg()[0], 1),
    }


def _stages(bus: LocalBus, produced: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Return the p99 from commit_ts to the frontier record of each change, and from there to its topic, in seconds."""
    commit_ts = np.array([commit_ts for commit_ts, _ in produced], np.int64)
    produced_s = np.array([produced_s for _, produced_s in produced])
    advances = read_advances(bus.addresses.kafka, UPSTREAM)
    first = np.searchsorted([advance.resolved_ts for advance in advances], commit_ts)
    published_s = np.array([advance.at_s for advance in advances])[first]
    committed_s = np.array([physical_ms(Ts(int(each))) for each in commit_ts]) / 1000
    return float(np.percentile(published_s - committed_s, 99)), float(np.percentile(produced_s - published_s, 99))


def _create(bus: LocalBus, name: str, protocol: str, config: dict[str, object]) -> None:
    uri = f"kafka://{bus.addresses.kafka}/{name}?protocol={protocol}&enable-tidb-extension=true"
    sink = {"dispatchers": [{"matcher": ["*.*"], "partition": "index-value"}]}
    request = ChangefeedRequest(
        upstream=UPSTREAM,
        sink_uri=f"{uri}&partition-num={PARTITIONS}",
        config={"sink": sink, **config},
        changefeed_id=name,
    )
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        bus.tick()
        try:
            bus.create_changefeed(request)
            return
        except BusError as error:
            if time.monotonic() > deadline:
                raise
            _say(f"waiting for the raw log: {error}")
            time.sleep(1.0)


def _p99_s(lags_s: Sequence[float]) -> float:
    return float(np.percentile(lags_s, 99)) if lags_s else float("nan")


def _wait_for(bus: LocalBus, seconds: float) -> None:
    until_s = time.monotonic() + seconds
    _wait_until(bus, lambda: time.monotonic() >= until_s, 2 * seconds + 60)


def _wait_until(bus: LocalBus, is_over: Callable[[], bool], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_over():
        bus.tick()
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout_s:.0f} s")
        time.sleep(TICK_S)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
