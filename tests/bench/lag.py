"""How long a row is under way: from its commit_ts (the upstream's clock) to a consumer of the sink topic.

``python -m tests.bench.lag`` starts the whole bus by the processes of `tidebus run`, with a generator of 1,000 rows/s
and one canal-json changefeed, lets it warm up, and then takes each row message's time of arrival against its commit_ts
for 45 seconds; then the same anew with 250 rows/s. All clocks are this machine's. It prints one JSON line for each.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from confluent_kafka import Consumer, Message, TopicPartition

from compose.local_bus import BusOptions, LocalBus
from compose.stack.local import Addresses
from consumers.changefeed_store import ChangefeedRequest
from schemas.errors import BusError
from schemas.ids import UpstreamId, physical_ms
from schemas.position import POSITION_HEADER, PositionClass, decode_position

PARTITIONS = 3
START_TIMEOUT_S = 240.0
CAUGHT_UP_S = 5.0
"""A row that is under way for less shows that what was written before the changefeed ran is done."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=45.0)
    parser.add_argument("--warm-up", type=float, default=30.0, help="seconds that do not count, once it has caught up")
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
            lags_s = _measure(bus, name, options.warm_up, options.seconds)
    p50, p99 = np.percentile(lags_s, [50, 99])
    return {
        "bench": "lag",
        "p50_s": round(float(p50), 3),
        "p99_s": round(float(p99), 3),
        "max_s": round(float(max(lags_s)), 3),
        "rows": len(lags_s),
        "rows_per_s": round(len(lags_s) / options.seconds),
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


def _measure(bus: LocalBus, topic: str, warm_up_s: float, seconds: float) -> list[float]:
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
        lags_s: list[float] = []
        counts_from = counts_to = 0.0
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            bus.tick()
            messages = consumer.consume(1000, timeout=0.01)
            now, arrived_at = time.monotonic(), time.time()
            if not counts_from:
                if now > deadline:
                    raise TimeoutError("the sorter did not catch up")
                lags_now = [lag_s for message in messages if (lag_s := _lag_s(message, arrived_at)) is not None]
                if lags_now and min(lags_now) < CAUGHT_UP_S:
                    counts_from, counts_to = now + warm_up_s, now + warm_up_s + seconds
                continue
            if now > counts_to:
                return lags_s
            if now >= counts_from:
                found = (_lag_s(message, arrived_at) for message in messages)
                lags_s += [lag_s for lag_s in found if lag_s is not None]
    finally:
        consumer.close()


def _lag_s(message: Message, arrived_at: float) -> float | None:
    """Return how long a row has been under way; None for DDL events and watermarks."""
    position = decode_position(dict(message.headers() or [])[POSITION_HEADER])
    if position.position_class is not PositionClass.ROW:
        return None
    return arrived_at - physical_ms(position.commit_ts) / 1000


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
