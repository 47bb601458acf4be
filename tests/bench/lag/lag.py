"""How long a row is under way: from its commit_ts (the upstream's clock) to a consumer of the sink topic.

``python -m tests.bench.lag.lag`` starts the whole bus by the processes of `tidebus run`, with a generator of 1,000
rows/s and one canal-json changefeed, lets it warm up, and then takes each row message's time of arrival against its
commit_ts for LAG_SECONDS (30); then the same anew with 250 rows/s. All clocks are this machine's. It prints one JSON
line each.

A row's way is told in three parts, by the times that Kafka keeps with records:

    commit_ts --published--> first frontier record at or above it --sorted--> produced --delivered--> consumer

``published`` holds the wait for the upstream's next round of resolved ts: TiKV's ``cdc.min-ts-interval``, here 200 ms,
as in TiCDC's own benchmarks; that is 100 ms in the mean and 200 ms in the worst case that no client of it can avoid.
``cores`` are those that capture and sorter took meanwhile. Above 5,000 rows/s a third of the rows is read, those of one
partition (they go by their keys), and ``rows_per_s`` is three times as many.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil
from confluent_kafka import Consumer, TopicPartition

from compose.local.bus import BusOptions, LocalBus
from compose.ports import LOOPBACK
from compose.stack.local import Addresses
from consumers.control.changefeeds.store import ChangefeedRequest
from edges.zookeeper.connection import zookeeper_client
from schemas.errors import BusError
from schemas.ids import Ts, UpstreamId, physical_ms
from schemas.nodes.changefeed import ZkPaths
from schemas.nodes.service_paths import ServicePaths
from schemas.nodes.sorter_service import decode_entries
from schemas.sink.position import POSITION_HEADER, PositionClass, decode_position
from sorters.run.nodes.feed_lock import SESSION_S
from tests.bench.rig.frontier_trace import read_advances
from tests.support.processes.spark_cluster import SparkCluster, spark_cluster

PARTITIONS = 3
READ_ALL_ROWS_PER_S = 5_000.0
"""Above, one partition is read of the three: reading 20,000 rows/s takes a quarter of a core of the two."""
START_TIMEOUT_S = 240.0
CAUGHT_UP_S = 5.0
"""A row that is under way for less shows that what was written before the changefeed ran is done."""
CAPTURE = "capture"


@dataclass(frozen=True, slots=True)
class Arrival:
    """One row message. Times by this machine's clock, since the Unix epoch."""

    commit_ts: Ts
    produced_s: float
    arrived_s: float

    @property
    def lag_s(self) -> float:
        """How long the row has been under way."""
        return self.arrived_s - physical_ms(self.commit_ts) / 1000


def main(
    argv: Sequence[str] | None = None,
    *,
    figure: Mapping[str, object] | None = None,
    description: str | None = __doc__,
    rows_per_s: tuple[float, ...] = (1000.0, 250.0),
    master: str = "local[2]",
    run_cuts: str = "auto",
    workers: int = 0,
) -> int:
    """Run the benchmark; return the exit status. ``figure`` begins each line; ``run_cuts`` goes to the changefeed;
    ``workers`` of a Spark standalone cluster that is started here, in place of ``master``.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=float(os.environ.get("LAG_SECONDS", "30")))
    parser.add_argument("--warm-up", type=float, default=15.0, help="seconds that do not count, once it has caught up")
    parser.add_argument("--rows-per-s", type=float, nargs="+", default=rows_per_s)
    parser.add_argument("--master", default=master)
    parser.add_argument("--workers", type=int, default=workers, help="of a standalone cluster that is started here")
    parser.add_argument("--kafka", default="", help="address; the default starts one here")
    parser.add_argument("--zookeeper", default="")
    parser.add_argument("--schema-registry", default="")
    options = parser.parse_args(argv)
    for rate in options.rows_per_s:
        print(json.dumps({**(figure or {"bench": "lag"}), **_figure(options, rate, run_cuts)}), flush=True)
    return 0


def _figure(options: argparse.Namespace, rate: float, run_cuts: str) -> dict[str, object]:
    name, read = f"lag-{rate:g}", PARTITIONS if rate <= READ_ALL_ROWS_PER_S else 1
    with (
        tempfile.TemporaryDirectory(prefix="tidebus-bench-") as folder,
        _cluster(Path(folder) / "spark", options.workers) as cluster,
    ):
        bus_options = BusOptions(
            data_dir=Path(folder) / "bus",
            given=Addresses(kafka=options.kafka, zookeeper=options.zookeeper, schema_registry=options.schema_registry),
            upstream=UpstreamId(name),
            generate_rows_per_s=rate,
            master=options.master if cluster is None else cluster.master,
            capture_arguments=() if cluster is None else _to_cluster(cluster),
        )
        with LocalBus(bus_options, say=_say) as bus:
            _create_changefeed(bus, name, run_cuts)
            arrivals, cores, of_cluster = _measure(bus, cluster, name, options, read)
            parts = _parts(arrivals, bus)
            by_spark = _by_spark(bus)
    p50, p99 = np.percentile([arrival.lag_s for arrival in arrivals], [50, 99])
    return {
        "p50_s": round(float(p50), 3),
        "p99_s": round(float(p99), 3),
        "max_s": round(max(arrival.lag_s for arrival in arrivals), 3),
        "rows": len(arrivals),
        "rows_per_s": round(len(arrivals) / options.seconds * PARTITIONS / read),
        "by_spark": round(by_spark, 3),
        **{f"{name}_p50_s": round(float(np.percentile(part, 50)), 3) for name, part in parts.items()},
        **{f"{name}_p99_s": round(float(np.percentile(part, 99)), 3) for name, part in parts.items()},
        "cores": round(cores, 2),
        **({} if cluster is None else {"cluster_cores": round(of_cluster, 2)}),
    }


def _cluster(folder: Path, workers: int) -> AbstractContextManager[SparkCluster | None]:
    # As a cluster is started that is not told how: the figures are of one.
    return spark_cluster(folder, workers, java_options="") if workers else nullcontext()


def _to_cluster(cluster: SparkCluster) -> tuple[str, ...]:
    """Return what a capture is given for its service's driver to find the cluster, and to be let in."""
    settings = {
        "spark.driver.host": LOOPBACK,
        "spark.driver.bindAddress": LOOPBACK,
        "spark.executor.memory": "512m",
        "spark.authenticate.secret.file": str(cluster.secret_file),
    }
    return tuple(part for key, value in settings.items() for part in ("--sorter-conf", f"{key}={value}"))


def _parts(arrivals: Sequence[Arrival], bus: LocalBus) -> dict[str, npt.NDArray[np.float64]]:
    """Return the seconds that each row has spent in each part of its way."""
    advances = read_advances(bus.addresses.kafka, bus.options.upstream)
    commit_ts = np.array([arrival.commit_ts for arrival in arrivals])
    committed_s = np.array([physical_ms(arrival.commit_ts) / 1000 for arrival in arrivals])
    first = np.searchsorted([advance.resolved_ts for advance in advances], commit_ts)
    published_s = np.array([advance.at_s for advance in advances])[first]
    produced_s = np.array([arrival.produced_s for arrival in arrivals])
    arrived_s = np.array([arrival.arrived_s for arrival in arrivals])
    return {
        "published": published_s - committed_s,
        "sorted": produced_s - published_s,
        "delivered": arrived_s - produced_s,
    }


def _create_changefeed(bus: LocalBus, name: str, run_cuts: str) -> None:
    uri = f"kafka://{bus.addresses.kafka}/{name}?protocol=canal-json&enable-tidb-extension=true"
    request = ChangefeedRequest(
        upstream=bus.options.upstream,
        sink_uri=f"{uri}&partition-num={PARTITIONS}",
        config={
            "sink": {"dispatchers": [{"matcher": ["*.*"], "partition": "index-value"}]},
            "sorter": {"run-cuts": run_cuts},
        },
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


def _measure(
    bus: LocalBus, cluster: SparkCluster | None, topic: str, options: argparse.Namespace, read: int
) -> tuple[list[Arrival], float, float]:
    """Return what arrived in ``seconds``, the cores that the capture and its sorter took, and those of the cluster."""
    seconds, ours = float(options.seconds), (bus.processes[CAPTURE].pid,)
    theirs = () if cluster is None else (cluster.master_process.pid, *(worker.pid for worker in cluster.workers))
    consumer = Consumer(
        {
            "bootstrap.servers": bus.addresses.kafka,
            "group.id": "lag",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 10,
        }
    )
    try:
        _await_topic(bus, consumer, topic)
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(read)])
        arrivals: list[Arrival] = []
        cpu_s = (0.0, 0.0)
        counts_from = counts_to = 0.0
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            bus.tick()
            messages = consumer.consume(1000, timeout=0.01)
            now, arrived_at = time.monotonic(), time.time()
            if not counts_from:
                if now > deadline:
                    raise TimeoutError("the sorter did not catch up")
                lags_now = [arrival.lag_s for arrival in _arrivals(messages, arrived_at)]
                if lags_now and min(lags_now) < CAUGHT_UP_S:
                    counts_from, counts_to = now + options.warm_up, now + options.warm_up + seconds
                continue
            if now > counts_to:
                return arrivals, (_cpu_s(ours) - cpu_s[0]) / seconds, (_cpu_s(theirs) - cpu_s[1]) / seconds
            if now >= counts_from:
                cpu_s = cpu_s if any(cpu_s) else (_cpu_s(ours), _cpu_s(theirs))
                arrivals += _arrivals(messages, arrived_at)
    finally:
        consumer.close()


def _arrivals(messages: Sequence[Any], arrived_s: float) -> list[Arrival]:
    """Return the rows among messages; the others are DDL events and watermarks."""
    arrivals = []
    for message in messages:
        position = decode_position(dict(message.headers() or [])[POSITION_HEADER])
        if position.position_class is PositionClass.ROW:
            arrivals.append(Arrival(position.commit_ts, message.timestamp()[1] / 1000, arrived_s))
    return arrivals


def _cpu_s(pids: Sequence[int]) -> float:
    """Return what processes and all that they have started have taken so far; none of them ends in a good run."""
    roots = [psutil.Process(pid) for pid in pids]
    times = [process.cpu_times() for root in roots for process in (root, *root.children(recursive=True))]
    return sum(time_.user + time_.system for time_ in times)


def _by_spark(bus: LocalBus) -> float:
    """Return Spark's share of the rows that the bus's one changefeed has got since it runs where it runs."""
    nodes = ServicePaths(ZkPaths(bus.options.cluster))
    with zookeeper_client(bus.addresses.zookeeper_access, SESSION_S) as zookeeper:
        client = zookeeper.client
        folders = [nodes.service_progress(name) for name in client.get_children(nodes.progress)]
        paths = [f"{folder}/{number}" for folder in folders for number in client.get_children(folder)]
        entries = [entry for path in paths for entry in decode_entries(client.get(path)[0])]
    return sum(entry.spark_rows_total for entry in entries) / max(1, sum(entry.rows_total for entry in entries))


def _await_topic(bus: LocalBus, consumer: Consumer, topic: str) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while topic not in consumer.list_topics(timeout=10).topics:
        bus.tick()
        if time.monotonic() > deadline:
            raise TimeoutError("the changefeed has made no topic")
        time.sleep(0.2)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
