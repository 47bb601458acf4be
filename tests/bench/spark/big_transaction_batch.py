"""One transaction of millions of rows through the sorter: time, memory, and that each row comes once, in order.

``python -m tests.bench.spark.big_transaction_batch`` prints one JSON line. All rows have one commit_ts, so the
transaction is one cut, however large; it lies over the raw partitions in batches out of order, as a puller lands it.
When the checkpoint has passed it the topic is read again: in each partition positions must rise, and all rows must be
there.
"""

import argparse
import json
import os
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from confluent_kafka import Consumer, TopicPartition

from compose.stack.local import Addresses, LocalStack
from compose.stack.spark_files import name_spark_files
from schemas.ids import compose_ts, physical_ms
from schemas.sink.position import POSITION_HEADER, PositionClass, decode_position
from sorters.spark.session import create_session
from tests.bench.rig.bulk_rows import fill
from tests.bench.rig.changefeed_run import SINK_PARTITIONS, ChangefeedRun
from tests.bench.rig.process_meter import ProcessMeter
from tests.support.rawlog.raw_log import START_TS, RawLog, recorded

ROWS_DEFAULT = 2_000_000
RAW_PARTITIONS = 8
TABLE = 114
WARM_ROWS = 200_000
WARM_TS, COMMIT_TS = (compose_ts(physical_ms(START_TS) + 1_000 * second) for second in (1, 2))
CHECK_TIMEOUT_S = 300.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=int(os.environ.get("BIG_TRANSACTION_ROWS", ROWS_DEFAULT)))
    parser.add_argument("--protocol", default="avro")
    parser.add_argument("--kafka", default="", help="address; the default starts one here")
    parser.add_argument("--zookeeper", default="-")
    parser.add_argument("--schema-registry", default="")
    options = parser.parse_args(argv)
    given = Addresses(kafka=options.kafka, zookeeper=options.zookeeper, schema_registry=options.schema_registry)
    with (
        tempfile.TemporaryDirectory(prefix="tidebus-bench-") as folder,
        LocalStack(data=Path(folder) / "stack", given=given, say=_say) as stack,
    ):
        print(json.dumps(_measure(options, stack.addresses, Path(folder))), flush=True)
    return 0


def _measure(options: argparse.Namespace, addresses: Addresses, folder: Path) -> dict[str, Any]:
    name = uuid.uuid4().hex[:8]
    log, end = RawLog(addresses.kafka, f"big-{name}", RAW_PARTITIONS), WARM_ROWS + options.rows
    log.snapshot([recorded("sbtest1")[0]])
    _transaction(log, 0, WARM_ROWS, WARM_TS)
    name_spark_files()
    spark = create_session("local[2]", "big-transaction-batch", folder)
    feed = ChangefeedRun(
        spark, addresses, upstream=log.upstream, data_dir=folder / name, name=name, protocol=options.protocol
    )
    try:
        feed.run.start()
        feed.wait(WARM_TS)
        with ProcessMeter() as meter:
            _transaction(log, WARM_ROWS, end, COMMIT_TS, publish=False)
            started = time.monotonic()
            log.advance(COMMIT_TS)
            feed.wait(COMMIT_TS)
            elapsed = time.monotonic() - started
    finally:
        feed.close()
        spark.stop()
    _check(addresses.kafka, feed.topic, end)
    return {
        "bench": "big_transaction_batch",
        "rows": options.rows,
        "seconds": round(elapsed, 1),
        "rows_per_s": round(options.rows / elapsed),
        "cuts": len(feed.cuts) - 1,
        "peak_rss_mb": round(meter.peak_mb),
        "peak_private_mb": round(meter.peak_private_mb),
        "protocol": options.protocol,
        "in_order": True,  # or the check had raised
    }


def _transaction(log: RawLog, start: int, end: int, ts: int, *, publish: bool = True) -> None:
    def one_ts(handles: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return np.full(len(handles), ts, np.int64)

    fill(log, start, end, table_of=lambda _: TABLE, ts_of=one_ts)
    if publish:
        log.advance(ts)


def _check(kafka: str, topic: str, rows: int) -> None:
    """Read the topic; raise AssertionError if a row is missing, there twice, or out of order."""
    consumer: Any = Consumer({"bootstrap.servers": kafka, "group.id": "bench", "enable.auto.commit": False})
    ends = {
        partition: consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=20)[1]
        for partition in range(SINK_PARTITIONS)
    }
    consumer.assign([TopicPartition(topic, partition, 0) for partition in ends])
    last: dict[int, bytes] = dict.fromkeys(ends, b"")
    rows_read, left, deadline = 0, sum(ends.values()), time.monotonic() + CHECK_TIMEOUT_S
    while left:
        assert time.monotonic() < deadline, f"{left} messages are missing"
        for message in consumer.consume(min(left, 10_000), timeout=1.0):
            assert message.error() is None, message.error()
            position = dict(message.headers() or [])[POSITION_HEADER]
            assert position > last[message.partition()], "positions must rise"
            last[message.partition()] = position
            rows_read += decode_position(position).position_class is PositionClass.ROW
            left -= 1
    consumer.close()
    assert rows_read == rows, f"{rows_read} rows of {rows}"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
