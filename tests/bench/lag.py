"""How long a row is under way: from its commit_ts (the upstream's clock) to a consumer of the sink topic.

``python -m tests.bench.lag`` starts the whole bus by the processes of `tidebus run`, with a generator of 1,000 rows/s
and one canal-json changefeed, lets it warm up, and then takes each row message's time of arrival against its commit_ts
for LAG_SECONDS (30); then the same anew with 250 rows/s. All clocks are this machine's. It prints one JSON line each.

A row's way is told in three parts, by the times that Kafka keeps with records:

    commit_ts --published--> first frontier record at or above it --sorted--> produced --delivered--> consumer

``published`` holds the wait for the upstream's next round of resolved ts: TiKV's ``cdc.min-ts-interval``, here 200 ms,
as in TiCDC's own benchmarks; that is 100 ms in the mean and 200 ms in the worst case that no client of it can avoid.
``cores`` are those that capture and sorter took meanwhile.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import psutil
from confluent_kafka import Consumer, Message, TopicPartition

from compose.local.bus import BusOptions, LocalBus
from compose.stack.local import Addresses
from consumers.control.changefeeds.store import ChangefeedRequest
from schemas.errors import BusError
from schemas.ids import Ts, UpstreamId, physical_ms
from schemas.sink.position import POSITION_HEADER, PositionClass, decode_position
from tests.bench.frontier_trace import read_advances

PARTITIONS = 3
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


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=float(os.environ.get("LAG_SECONDS", "30")))
    parser.add_argument("--warm-up", type=float, default=15.0, help="seconds that do not count, once it has caught up")
    parser.add_argument("--rows-per-s", type=float, nargs="+", default=(1000.0, 250.0))
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--kafka", default="", help="address; the default starts one here")
    parser.add_argument("--zookeeper", default="")
    parser.add_argument("--schema-registry", default="")
    options = parser.parse_args(argv)
    for rate in options.rows_per_s:
        print(json.dumps(_figure(options, rate)), flush=True)
    return 0


def _figure(options: argparse.Namespace, rate: float) -> dict[str, object]:
    name = f"lag-{rate:g}"
    with tempfile.TemporaryDirectory(prefix="tidebus-bench-") as folder:
        bus_options = BusOptions(
            data_dir=Path(folder),
            given=Addresses(kafka=options.kafka, zookeeper=options.zookeeper, schema_registry=options.schema_registry),
            upstream=UpstreamId(name),
            generate_rows_per_s=rate,
            master=options.master,
        )
        with LocalBus(bus_options, say=_say) as bus:
            _create_changefeed(bus, name)
            arrivals, cores = _measure(bus, name, options.warm_up, options.seconds)
            parts = _parts(arrivals, bus)
    p50, p99 = np.percentile([arrival.lag_s for arrival in arrivals], [50, 99])
    return {
        "bench": "lag",
        "p50_s": round(float(p50), 3),
        "p99_s": round(float(p99), 3),
        "max_s": round(max(arrival.lag_s for arrival in arrivals), 3),
        "rows": len(arrivals),
        "rows_per_s": round(len(arrivals) / options.seconds),
        **{f"{name}_p50_s": round(float(np.percentile(part, 50)), 3) for name, part in parts.items()},
        **{f"{name}_p99_s": round(float(np.percentile(part, 99)), 3) for name, part in parts.items()},
        "cores": round(cores, 2),
    }


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


def _create_changefeed(bus: LocalBus, name: str) -> None:
    uri = f"kafka://{bus.addresses.kafka}/{name}?protocol=canal-json&enable-tidb-extension=true"
    request = ChangefeedRequest(
        upstream=bus.options.upstream,
        sink_uri=f"{uri}&partition-num={PARTITIONS}",
        config={"sink": {"dispatchers": [{"matcher": ["*.*"], "partition": "index-value"}]}},
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


def _measure(bus: LocalBus, topic: str, warm_up_s: float, seconds: float) -> tuple[list[Arrival], float]:
    """Return what arrived in ``seconds``, and the cores that the capture and its sorter took."""
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
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
        arrivals: list[Arrival] = []
        cpu_s = 0.0
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
                    counts_from, counts_to = now + warm_up_s, now + warm_up_s + seconds
                continue
            if now > counts_to:
                return arrivals, (_cpu_s(bus) - cpu_s) / seconds
            if now >= counts_from:
                cpu_s = cpu_s or _cpu_s(bus)
                arrivals += _arrivals(messages, arrived_at)
    finally:
        consumer.close()


def _arrivals(messages: Sequence[Message], arrived_s: float) -> list[Arrival]:
    """Return the rows among messages; the others are DDL events and watermarks."""
    found = []
    for message in messages:
        position = decode_position(dict(message.headers() or [])[POSITION_HEADER])
        if position.position_class is PositionClass.ROW:
            found.append(Arrival(position.commit_ts, message.timestamp()[1] / 1000, arrived_s))
    return found


def _cpu_s(bus: LocalBus) -> float:
    """Return what the capture and all that it has started have taken so far; none of them ends in a good run."""
    capture = psutil.Process(bus.processes[CAPTURE].pid)
    times = [process.cpu_times() for process in (capture, *capture.children(recursive=True))]
    return sum(time_.user + time_.system for time_ in times)


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
