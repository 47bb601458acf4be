"""The sorter job against a plain Spark Kafka-to-Kafka copy of the same rows, in one run.

``python -m tests.bench.spark.sorter_vs_copy`` prints one JSON line. The copy reads one record a row (TiKV key and
value) and writes it as it is, in a Spark session of its own with Spark's own JVM settings; the sorter reads the same
rows as region batches, and mounts, encodes, sorts and writes them. Both are warmed up; two copies stand before and
after the sorter, and their mean counts. The sorter's time is that of a whole changefeed: from the publishing of the
frontier record to the checkpoint. ``peak_mb`` are resident sizes, of the driver (JVM and Python) and of all Python
workers together, while the sorter ran. CPU times a row are beside the rates, since the machine may be shared.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from pyspark.sql import SparkSession

from compose.stack.local import Addresses, LocalStack
from compose.stack.spark_files import name_spark_files
from sorters.spark.connector import connector_jars
from sorters.spark.session import DRIVER_MEMORY, create_session
from tests.bench.rig.changefeed_run import SINK_PARTITIONS, ChangefeedRun
from tests.bench.rig.process_meter import ProcessMeter
from tests.support.rawlog.raw_log import START_TS, Change, RawLog, create_topic, recorded, row_key

TABLE = 114
RAW_PARTITIONS = 8
ROWS_PER_BATCH = 1_200
"""About 256 KiB, as producers land a busy table."""
WARM_ROWS = 250_000
"""Copied, and sorted as one batch, before anything is measured: enough that the batch is a Spark job."""
COPY_SOURCE = {"kafka.max.partition.fetch.bytes": str(16 * 1024 * 1024)}
"""Measured 542 → 661 k rows/s against Kafka's default of 1 MiB."""
COPY_SINK = {
    "kafka.acks": "all",
    "kafka.enable.idempotence": "true",
    "kafka.linger.ms": "20",
    "kafka.batch.size": "262144",
}
"""What the sorter asks of its producer, and requests large enough for it."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark, or the process of the copies; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000, help="that are measured")
    parser.add_argument("--protocol", default="avro", choices=("avro", "canal-json", "open-protocol"))
    parser.add_argument("--kafka", default="", help="address; the default starts one here")
    parser.add_argument("--zookeeper", default="")
    parser.add_argument("--schema-registry", default="")
    parser.add_argument("--repeats", action="store_true", help="say that the log may hold repeats")
    parser.add_argument("--copy-topic", default="", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.copy_topic:
        _serve_copies(options.kafka, options.copy_topic)
        return 0
    given = Addresses(kafka=options.kafka, zookeeper=options.zookeeper, schema_registry=options.schema_registry)
    with (
        tempfile.TemporaryDirectory(prefix="tidebus-bench-") as folder,
        LocalStack(data=Path(folder) / "stack", given=given, say=_say) as stack,
    ):
        figure = _measure(options, stack.addresses, Path(folder))
    print(json.dumps(figure), flush=True)
    return 0


def _measure(options: argparse.Namespace, addresses: Addresses, folder: Path) -> dict[str, object]:
    name = uuid.uuid4().hex[:8]
    log, end = RawLog(addresses.kafka, f"bench-{name}", RAW_PARTITIONS), WARM_ROWS + options.rows
    log.snapshot([recorded("sbtest1")[0]])
    copy_topic = f"rows-{name}"
    create_topic(addresses.kafka, copy_topic, RAW_PARTITIONS)
    name_spark_files()
    spark = create_session("local[2]", "sorter-vs-copy", folder)
    feed = ChangefeedRun(
        spark, addresses, upstream=log.upstream, data_dir=folder / "feed", name=name, protocol=options.protocol
    )
    copies = Copies(addresses.kafka, copy_topic)
    try:
        _fill(log, addresses.kafka, copy_topic, 0, WARM_ROWS, repeats=options.repeats)
        feed.run.start()
        feed.wait(START_TS + WARM_ROWS)
        copies.run()
        _fill(log, addresses.kafka, copy_topic, WARM_ROWS, end, repeats=options.repeats, publish=False)
        before = copies.run()
        with ProcessMeter(others=copies.pids()) as meter:
            started = time.monotonic()
            log.advance(START_TS + end, repeats=options.repeats)
            feed.wait(START_TS + end)
            rows_per_s = options.rows / (time.monotonic() - started)
        after = copies.run()
    finally:
        copies.close()
        feed.close()
        spark.stop()
    copy_rate, rows = (before["rows_per_s"] + after["rows_per_s"]) / 2, options.rows
    return {
        "bench": "sorter_vs_copy",
        "protocol": options.protocol,
        "ratio": round(rows_per_s / copy_rate, 3),
        "rows": rows,
        "rows_per_s": round(rows_per_s),
        "copy_rows_per_s": round(copy_rate),
        "cpu_us_per_row": round(1e6 * meter.cpu_s / rows, 2),
        "workers_cpu_us_per_row": round(1e6 * meter.workers_cpu_s / rows, 2),
        "copy_cpu_us_per_row": round(after["cpu_us_per_row"], 2),
        "driver_peak_mb": round(meter.driver_mb),
        "workers_peak_mb": round(meter.workers_mb),
    }


class Copies:
    """The process of the plain job."""

    def __init__(self, kafka: str, topic: str) -> None:
        command = [
            sys.executable,
            "-m",
            "tests.bench.spark.sorter_vs_copy",
            f"--kafka={kafka}",
            f"--copy-topic={topic}",
        ]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def pids(self) -> set[int]:
        """Return it, so that nobody counts it and what it has started as the sorter's."""
        return {self._process.pid}

    def run(self) -> dict[str, float]:
        """Copy the whole topic to a new one; return the figures."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(file=self._process.stdin, flush=True)
        figures: dict[str, float] = json.loads(self._process.stdout.readline())
        return figures

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


def _serve_copies(kafka: str, topic: str) -> None:
    """Copy once for each line on standard input."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", connector_jars())
        .config("spark.driver.memory", DRIVER_MEMORY)
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    for number, _ in enumerate(sys.stdin):
        print(json.dumps(_copy(spark, kafka, topic, f"copy-{topic}-{number}")), flush=True)
    spark.stop()


def _copy(spark: Any, kafka: str, topic: str, target: str) -> dict[str, float]:
    create_topic(kafka, target, SINK_PARTITIONS)
    with ProcessMeter() as meter:
        started = time.monotonic()
        frame = (
            spark.read.format("kafka")
            .option("kafka.bootstrap.servers", kafka)
            .options(**COPY_SOURCE)
            .option("subscribe", topic)
            .load()
        )
        options = {"kafka.bootstrap.servers": kafka, **COPY_SINK}
        frame.select("key", "value").write.format("kafka").options(**options).option("topic", target).save()
        elapsed = time.monotonic() - started
    rows = _count(kafka, target)
    return {"rows_per_s": rows / elapsed, "cpu_us_per_row": 1e6 * meter.cpu_s / rows}


def _fill(
    log: RawLog, kafka: str, copy_topic: str, start: int, end: int, *, repeats: bool, publish: bool = True
) -> None:
    """Write rows ``[start, end)`` to the raw log, shuffled a little, and one by one to the copy's topic."""
    _, rows = recorded("sbtest1")
    producer = Producer({"bootstrap.servers": kafka, "linger.ms": 50, "queue.buffering.max.messages": 500_000})
    for number, at in enumerate(range(start, end, ROWS_PER_BATCH)):
        changes = [
            Change(START_TS + 1 + row, row_key(TABLE, row), rows[row % len(rows)].value)
            for row in range(at, min(at + ROWS_PER_BATCH, end))
        ]
        partition = number % RAW_PARTITIONS
        log.rows(TABLE, changes[::-1] if number % 2 else changes, partition)
        for change in changes:
            producer.produce(copy_topic, change.value, change.key, partition=partition)
        producer.poll(0)
    producer.flush()
    if publish:
        log.advance(START_TS + end, repeats=repeats)


def _count(kafka: str, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": kafka, "group.id": "bench"})
    try:
        partitions = consumer.list_topics(topic, timeout=20).topics[topic].partitions
        return sum(consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=20)[1] for p in partitions)
    finally:
        consumer.close()


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
