"""The Spark source beside reading the canal-json topic of the same changes and parsing it in Spark, in one session.

``python -m tests.bench.spark.spark_source`` prints a JSON line a way of reading: ``read`` (``spark.read``), ``stream``
(``readStream`` with ``availableNow``, all in one batch) and ``follow`` (``readStream`` that is left running until it
has all: ours in batches of ``maxRowsPerBatch``'s default, the topic's in one). Both readers end in Spark's ``noop``
sink with the same typed columns. The topic has what a canal-json changefeed writes, by the very encoder, a record a
change; it is parsed as users do: ``from_json`` with a schema of the fields that are wanted and no others. The session
is a plain one, with no settings of ours but its jars. After one warm-up of each they take turns; CPU is that of the
whole tree of processes (driver, JVM, Python workers), the median of the repeats, and ``ratio`` is of changes per CPU
second. ``rows_per_s`` are by the wall, of ``cores`` cores. A fifth of the changes are updates: two rows of ours, and
one record of the topic.

``start_cpu_s`` is what a query costs that finds nothing to read. For each streaming query of a Python source Spark
starts a process, which imports pyspark; its own Kafka reader needs none.
``ratio_beyond_start`` is without it: of a query that runs for long. Both are of streams alone, for Spark refuses a
batch that begins at a topic's end.

``floor_cpu_s`` is Spark's own part of ``follow``: what a Python source of nobody's takes for as many ``batches`` with a
task each and no row, its query's start included, in the same session. Ours may be below it, as its processes begin with
compiled code (:mod:`sorters.source.python_start`).
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Producer
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.functions import col, explode, from_json

from compose.stack.local import LocalStack
from compose.stack.spark_files import name_spark_files
from schemas.changes import RowChanges
from schemas.ids import RegionId, Ts
from schemas.rawlog.region_batch import RegionBatch, encode_region_batch
from schemas.tidb.table_info import table_version
from sorters.core.encode.canal.json import CanalJsonEncoder
from sorters.core.mount import mount
from sorters.core.source.options import ROWS_PER_BATCH_MAX
from sorters.spark.connector import connector_jars
from sorters.spark.session import DRIVER_MEMORY
from tests.bench.rig.bulk_rows import ROWS_PER_BATCH, bulk_rows
from tests.bench.rig.process_meter import ProcessMeter
from tests.support.rawlog.raw_log import START_TS, RawLog, create_topic, recorded
from tidebus.spark import register

TABLE, PARTITIONS, CORES = 114, 8, 2
UPDATE_EVERY = 5
RECORDS_PER_FRONTIER = 64
"""Raw records that a frontier record covers: of a busy upstream a fifth of a second."""
WAYS = ("read", "stream", "follow")
MESSAGE = (
    "database STRING, table STRING, type STRING, _tidb STRUCT<commitTs: BIGINT>, "
    "data ARRAY<STRUCT<id: STRING, k: STRING, c: STRING, pad: STRING>>"
)
"""What a user asks of a message: the schema that ``from_json`` parses by."""
Reader = Callable[[str], Any]
"""Returns a DataFrame, or one that streams, of what comes after ``earliest`` or ``latest``."""


class NothingSource(DataSource):  # type: ignore[misc] # pyspark's classes have no types here
    """A stream of as many batches as its option ``batches`` says, each of a task and without a row."""

    @classmethod
    def name(cls) -> str:
        return "nothing"

    def schema(self) -> str:
        return "id INT"

    def streamReader(self, schema: Any) -> "NothingReader":  # noqa: N802 # Spark's name
        return NothingReader(int(self.options["batches"]))


class NothingReader(DataSourceStreamReader):  # type: ignore[misc] # pyspark's classes have no types here
    def __init__(self, batches: int) -> None:
        self._batches, self._at = batches, 0

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 # Spark's name
        return {"at": 0}

    def latestOffset(self) -> dict[str, int]:  # noqa: N802 # Spark's name
        self._at = min(self._at + 1, self._batches)
        return {"at": self._at}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Any:
        return iter(())


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--changes", type=int, default=2_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--way", choices=WAYS, action="append", help="all by default")
    options = parser.parse_args(argv)
    with (
        tempfile.TemporaryDirectory(prefix="tidebus-bench-") as folder,
        LocalStack(data=Path(folder) / "stack", say=_say) as stack,
    ):
        name = uuid.uuid4().hex[:8]
        log, topic = RawLog(stack.addresses.kafka, f"bench-{name}", PARTITIONS), f"canal-{name}"
        create_topic(log.kafka, topic, PARTITIONS)
        rows = _fill(log, topic, options.changes)
        name_spark_files()
        spark = _session()
        register(spark)
        spark.dataSource.register(NothingSource)
        try:
            for figure in _measure(spark, log, topic, rows, options, Path(folder)):
                print(json.dumps(figure), flush=True)
        finally:
            spark.stop()
    return 0


def _session() -> Any:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master(f"local[{CORES}]")
        .config("spark.jars", connector_jars())
        .config("spark.driver.memory", DRIVER_MEMORY)
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def _fill(log: RawLog, topic: str, changes: int) -> int:
    """Write the changes to both; return how many rows the source makes of them."""
    info, recorded_rows = recorded("sbtest1")
    log.snapshot([info])
    table = table_version(info, schema_id=1, schema="sb", version=Ts(START_TS))
    encoder, rows = CanalJsonEncoder(enable_tidb_extension=True), 0
    new_values = pa.array([row.value2 for row in recorded_rows], pa.binary())
    producer = Producer({"bootstrap.servers": log.kafka, "linger.ms": 50, "queue.buffering.max.messages": 500_000})
    for number, at in enumerate(range(0, changes, ROWS_PER_BATCH)):
        handles = np.arange(at, min(at + ROWS_PER_BATCH, changes), dtype=np.int64)
        batch = _with_updates(bulk_rows(TABLE, handles, START_TS + 1 + handles), handles, new_values)
        partition = number % PARTITIONS
        log.raw(encode_region_batch(RegionBatch(region_id=RegionId(1), may_repeat=False, rows=batch), 1), partition)
        encoded = encoder.encode_rows(mount(table, batch), encoded_at_ms=1_700_000_000_000)
        for value in encoded.values.to_pylist():
            producer.produce(topic, value, partition=partition)
        producer.poll(0)
        if (number + 1) % RECORDS_PER_FRONTIER == 0:
            log.advance(START_TS + 1 + int(handles[-1]))
        rows += len(handles) + int((handles % UPDATE_EVERY == 0).sum())
    producer.flush()
    log.advance(START_TS + changes + 1)
    return rows


def _with_updates(rows: RowChanges, handles: Any, new_values: Any) -> RowChanges:
    """Make every fifth change an update of the row that the others insert."""
    is_update = pa.array(handles % UPDATE_EVERY == 0)
    new = new_values.take(pa.array(handles % len(new_values)))
    return replace(
        rows,
        value=pc.if_else(is_update, new, rows.value),
        old_value=pc.if_else(is_update, rows.value, rows.old_value),
    )


def _measure(
    spark: Any, log: RawLog, topic: str, rows: int, options: argparse.Namespace, folder: Path
) -> list[dict[str, object]]:
    source = {"kafka": log.kafka, "raw": log.upstream, "table": "sb.sbtest1"}
    canal = {"kafka.bootstrap.servers": log.kafka, "subscribe": topic}

    def ours(reader: Any, start: str, **more: str) -> Any:
        return reader.format("tidebus").options(**source, startingTs=start, **more).load()

    def theirs(reader: Any, start: str) -> Any:
        return _parsed(reader.format("kafka").options(**canal, startingOffsets=start).load())

    ways: dict[str, tuple[Reader, Reader]] = {
        "read": (lambda start: ours(spark.read, start), lambda start: theirs(spark.read, start)),
        "stream": (
            lambda start: ours(spark.readStream, start, maxRowsPerBatch="0"),
            lambda start: theirs(spark.readStream, start),
        ),
        "follow": (lambda start: ours(spark.readStream, start), lambda start: theirs(spark.readStream, start)),
    }
    assert ways["read"][0]("earliest").count() == rows
    assert ways["read"][1]("earliest").count() == options.changes
    figures = []
    for way in options.way or WAYS:
        readers, changes = ways[way], options.changes
        drain = partial(_drain, folder=folder, follow=way == "follow")
        (cpu_s, wall_s), (canal_cpu_s, canal_wall_s) = _in_turns(readers, "earliest", options.repeats, drain)
        beyond_start: dict[str, object] = {}
        if way != "read":
            (start_cpu_s, _), (canal_start_cpu_s, _) = _in_turns(readers, "latest", options.repeats, drain)
            beyond_start = {
                "ratio_beyond_start": round((canal_cpu_s - canal_start_cpu_s) / (cpu_s - start_cpu_s), 2),
                "start_cpu_s": round(start_cpu_s, 2),
                "canal_start_cpu_s": round(canal_start_cpu_s, 2),
            }
        if way == "follow":
            batches = -(-rows // ROWS_PER_BATCH_MAX)
            floor = spark.readStream.format("nothing").option("batches", batches)
            spent = [_timed(lambda: drain(floor.load()))[0] for _ in range(options.repeats + 1)]  # noqa: B023
            beyond_start |= {"batches": batches, "floor_cpu_s": round(statistics.median(spent[1:]), 2)}
        figures.append(
            {
                "bench": "spark_source",
                "way": way,
                "ratio": round(canal_cpu_s / cpu_s, 2),
                "changes_per_cpu_s": round(changes / cpu_s),
                "canal_changes_per_cpu_s": round(changes / canal_cpu_s),
                "rows_per_cpu_s": round(rows / cpu_s),
                "rows_per_s": round(rows / wall_s),
                "canal_rows_per_s": round(changes / canal_wall_s),
                "changes": changes,
                "rows": rows,
                "cores": CORES,
                "load": round(os.getloadavg()[0], 2),
                **beyond_start,
            }
        )
    return figures


def _in_turns(
    readers: tuple[Reader, Reader], start: str, repeats: int, drain: Callable[[Any], None]
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Run both readers in turns; return the median CPU and wall seconds of each. The first run warms up."""
    ran: tuple[list[tuple[float, float]], ...] = [], []
    for number in range(repeats + 1):
        for kept, reader in zip(ran, readers, strict=True):
            spent = _timed(lambda reader=reader: drain(reader(start)))  # type: ignore[misc]
            if number:
                kept.append(spent)
    ours, theirs = ([statistics.median(each) for each in zip(*kept, strict=True)] for kept in ran)
    return (ours[0], ours[1]), (theirs[0], theirs[1])


def _parsed(frame: Any) -> Any:
    message = from_json(col("value").cast("string"), MESSAGE).alias("m")
    exploded = frame.select(message).select("m.type", "m._tidb.commitTs", explode("m.data").alias("row"))
    return exploded.select(
        col("row.id").cast("int").alias("id"),
        col("row.k").cast("int").alias("k"),
        col("row.c").alias("c"),
        col("row.pad").alias("pad"),
        col("type").alias("_change_type"),
        col("commitTs").alias("_commit_version"),
    )


def _drain(frame: Any, folder: Path, *, follow: bool) -> None:
    if not frame.isStreaming:
        frame.write.format("noop").mode("overwrite").save()
        return
    checkpoint = folder / f"checkpoint-{uuid.uuid4().hex}"
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    if not follow:
        writer.trigger(availableNow=True).start().awaitTermination()
        return
    query = writer.start()
    query.processAllAvailable()
    query.stop()


def _timed(run: Callable[[], None]) -> tuple[float, float]:
    """Return CPU and wall seconds. The meter looks seldom meanwhile: on a busy machine its looks would count."""
    meter = ProcessMeter()
    before, started = meter.cpu_now(), time.monotonic()
    with meter.seeing_ends():
        run()
    elapsed_s = time.monotonic() - started
    driver_s, workers_s = (now - then for now, then in zip(meter.cpu_now(), before, strict=True))
    if driver_s <= 0 or workers_s < 0:
        raise RuntimeError(f"no figure: CPU time went back: driver {driver_s} s, workers {workers_s} s")
    return driver_s + workers_s, elapsed_s


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
