"""The sorter job against a plain Spark Kafka-to-Kafka copy of the same rows, in one run, on the same session settings.

``python -m tests.bench.sorter_vs_copy`` prints one JSON line. The copy reads one record a row (TiKV key and value) and
writes it as it is; the sorter reads the same rows as region batches, and mounts, encodes, sorts and writes them. Both
are warmed up; two copies stand before and after the sorter, and their mean counts. The sorter's time is that of a whole
changefeed: from the publishing of the frontier record to the checkpoint. ``peak_mb`` are resident sizes, of the driver
(JVM and Python) and of all Python workers together, while the sorter ran. CPU times a row are beside the rates, since
the machine may be shared.
"""

import argparse
import json
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import Consumer, Producer, TopicPartition

from compose.stack.local import Addresses, LocalStack
from schemas.changefeed import ChangefeedInfo
from schemas.config.changefeed import load_changefeed
from schemas.ids import Ts, UpstreamId
from sorters.epochs import Progress
from sorters.feed_run import FeedRun
from sorters.spark_session import create_session
from tests.support.raw_log import START_TS, Change, RawLog, create_topic, recorded, row_key

TABLE = 114
RAW_PARTITIONS = 8
SINK_PARTITIONS = 6
ROWS_PER_BATCH = 1_200
"""About 256 KiB, as producers land a busy table."""
WARM_ROWS = 250_000
"""Copied, and sorted as one batch, before anything is measured: enough that the batch is a Spark job."""
TIMEOUT_S = 600.0
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
    """Run the benchmark; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000, help="that are measured")
    parser.add_argument("--protocol", default="avro", choices=("avro", "canal-json"))
    parser.add_argument("--kafka", default="", help="address; the default starts one here")
    parser.add_argument("--zookeeper", default="")
    parser.add_argument("--schema-registry", default="")
    parser.add_argument("--repeats", action="store_true", help="say that the log may hold repeats")
    options = parser.parse_args(argv)
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
    spark = create_session("local[2]", "sorter-vs-copy", folder)
    feed = Feed(spark, log, addresses, folder / "feed", options.protocol, name)
    try:
        _fill(log, addresses.kafka, copy_topic, 0, WARM_ROWS, repeats=options.repeats)
        feed.run.start()
        feed.wait(WARM_ROWS)
        copies = Copies(spark, addresses.kafka, copy_topic, name)
        copies.run("warm")
        _fill(log, addresses.kafka, copy_topic, WARM_ROWS, end, repeats=options.repeats, publish=False)
        before = copies.run("before")
        with Memory() as memory:
            started = time.monotonic()
            log.advance(START_TS + end, repeats=options.repeats)
            feed.wait(end)
            rows_per_s = options.rows / (time.monotonic() - started)
        with Memory() as copy_memory:
            after = copies.run("after")
    finally:
        feed.run.close()
        spark.stop()
    copy_rate, rows = (before + after) / 2, options.rows
    return {
        "bench": "sorter_vs_copy",
        "protocol": options.protocol,
        "ratio": round(rows_per_s / copy_rate, 3),
        "rows": rows,
        "rows_per_s": round(rows_per_s),
        "copy_rows_per_s": round(copy_rate),
        "cpu_us_per_row": round(1e6 * (memory.driver_cpu_s + memory.workers_cpu_s) / rows, 2),
        "workers_cpu_us_per_row": round(1e6 * memory.workers_cpu_s / rows, 2),
        "copy_cpu_us_per_row": round(1e6 * copy_memory.driver_cpu_s / end, 2),
        "driver_peak_mb": round(memory.driver_mb),
        "workers_peak_mb": round(memory.workers_mb),
    }


class Feed:
    """A changefeed, run by the sorter's own code in this process."""

    def __init__(self, spark: Any, log: RawLog, addresses: Addresses, data_dir: Path, protocol: str, name: str) -> None:
        uri = f"kafka://{addresses.kafka}/sorted-{name}?protocol={protocol}&enable-tidb-extension=true"
        uri += f"&partition-num={SINK_PARTITIONS}"
        if protocol == "avro":
            uri += f"&schema-registry={addresses.schema_registry}"
        info = ChangefeedInfo(
            changefeed_id=name,
            upstream=UpstreamId(log.upstream),
            sink_uri=uri,
            config={"sink": {"dispatchers": [{"matcher": ["*.*"], "partition": "index-value"}]}},
            start_ts=START_TS,
        )
        self._done_ts = Ts(0)
        self.run = FeedRun(
            spark,
            kafka=addresses.kafka,
            raw_topics=log.topics,
            schema_registry=None,
            data_dir=data_dir,
            info=info,
            config=load_changefeed(uri, info.config),
            checkpoint_ts=START_TS,
            before_cut=lambda: None,
            on_progress=self._on_progress,
        )

    def _on_progress(self, progress: Progress) -> None:
        self._done_ts = progress.checkpoint_ts

    def wait(self, rows: int) -> None:
        """Wait until the checkpoint has passed the first ``rows``."""
        deadline = time.monotonic() + TIMEOUT_S
        while self._done_ts < START_TS + rows:
            failure = self.run.failure()
            if failure is not None:
                raise failure
            if time.monotonic() > deadline:
                raise TimeoutError("the sorter did not get there")
            time.sleep(0.01)


class Copies:
    """The plain job: read, write."""

    def __init__(self, spark: Any, kafka: str, topic: str, name: str) -> None:
        self._spark, self._kafka, self._topic, self._name = spark, kafka, topic, name

    def run(self, tag: str) -> float:
        """Copy the whole topic to a new one; return rows a second."""
        target = f"copy-{tag}-{self._name}"
        create_topic(self._kafka, target, SINK_PARTITIONS)
        started = time.monotonic()
        frame = (
            self._spark.read.format("kafka")
            .option("kafka.bootstrap.servers", self._kafka)
            .options(**COPY_SOURCE)
            .option("subscribe", self._topic)
            .load()
        )
        options = {"kafka.bootstrap.servers": self._kafka, **COPY_SINK}
        frame.select("key", "value").write.format("kafka").options(**options).option("topic", target).save()
        elapsed = time.monotonic() - started
        return _count(self._kafka, target) / elapsed


class Memory:
    """Samples resident sizes of this process's tree, and takes its CPU times, until it is left."""

    driver_mb = workers_mb = driver_cpu_s = workers_cpu_s = 0.0

    def __enter__(self) -> "Memory":
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._cpu_s = [cpu_s for _, cpu_s in self._look()]
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        now = [cpu_s for _, cpu_s in self._look()]
        self.driver_cpu_s, self.workers_cpu_s = (b - a for a, b in zip(self._cpu_s, now, strict=True))

    def _sample(self) -> None:
        while not self._stop.wait(0.1):
            (driver, _), (workers, _) = self._look()
            self.driver_mb = max(self.driver_mb, driver / 2**20)
            self.workers_mb = max(self.workers_mb, workers / 2**20)

    def _look(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """Return (resident bytes, CPU seconds) of the driver with its JVM, and of the Python workers."""
        sizes, cpu_s = [0.0, 0.0], [0.0, 0.0]
        me = psutil.Process()
        for process in (me, *me.children(recursive=True)):
            try:
                command, size, times = " ".join(process.cmdline()), process.memory_info().rss, process.cpu_times()
            except psutil.Error:
                continue
            if process.pid != me.pid and not any(word in command for word in ("pyspark.daemon", "SparkSubmit")):
                continue
            kind = 1 if "pyspark.daemon" in command else 0
            sizes[kind] += size
            cpu_s[kind] += times.user + times.system
        return (sizes[0], cpu_s[0]), (sizes[1], cpu_s[1])


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
