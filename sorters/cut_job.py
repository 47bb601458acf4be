"""The Spark job of one cut: read raw offsets, map in Python, order, write with Spark's Kafka sink.

A cut that is too small to be worth a job is done on the driver by the same functions.
"""

import json
from collections.abc import Mapping
from typing import Any

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 # Spark's own convention

from schemas.position import POSITION_HEADER
from sorters.core.cut import Cut
from sorters.core.order import OutputRecords
from sorters.small_cut import SmallCut
from sorters.worker import CutTask, Tally, mapper

DRIVER_BATCH_BYTES_MAX = 1024 * 1024
"""Raw bytes (some 5,000 rows) up to which the driver does the batch itself: :mod:`sorters.small_cut`."""
SMALL_BATCH_BYTES_MAX = 12 * 1024 * 1024
"""Up to here one task does the whole batch, without a shuffle: a second Python task alone costs about 0.1 s."""
RAW_RECORD_BYTES_GUESS = 64 * 1024
"""Size of a raw record until one batch has told."""
FETCH_BYTES_MAX = 16 * 1024 * 1024
"""Per partition and fetch: measured 542 → 661 k rows/s against Kafka's default of 1 MiB."""

_MAPPED = "topic string, partition int, key binary, value binary, position binary"
_MAPPED_WITH_SLOT = _MAPPED + ", slot int"
BULK_PRODUCER = {
    "kafka.linger.ms": "20",
    "kafka.batch.size": "262144",
}
"""Larger requests; Spark flushes at the end of a task, which does not wait for linger."""


class CutJob:
    """Runs cuts of one changefeed, one at a time."""

    def __init__(
        self,
        spark: Any,
        *,
        raw_topic: str,
        source_options: Mapping[str, str],
        sink_options: Mapping[str, str],
        group_id: str,
        small: SmallCut,
    ) -> None:
        """``small`` does the cuts that are not worth a job; :meth:`close` closes it.

        ``source_options`` and ``sink_options`` are Spark's Kafka options: servers, TLS, SASL, producer settings."""
        self._spark = spark
        self._small = small
        self._raw_topic = raw_topic
        # A fixed group id lets Spark keep the consumers of the last batch: they are assigned, never subscribed, so it
        # joins nothing. By default each batch would connect anew, once for every partition.
        self._source_options = {
            **source_options,
            "kafka.group.id": group_id,
            "kafka.max.partition.fetch.bytes": str(FETCH_BYTES_MAX),
            "kafka.fetch.max.bytes": str(4 * FETCH_BYTES_MAX),
            "failOnDataLoss": "true",
        }
        self._sink_options = {**BULK_PRODUCER, **sink_options}
        self._tasks = max(2, spark.sparkContext.defaultParallelism)
        self._found_slots: tuple[int, ...] = ()
        self._record_bytes: float = RAW_RECORD_BYTES_GUESS

    def close(self) -> None:
        """Give up what is under way outside Spark."""
        self._small.close()

    def run(self, cut: Cut, program: Any, extras: OutputRecords, encoded_at_ms: int) -> int:
        """Write everything of ``cut``, and ``extras``, in order; return the row messages once they are acknowledged.

        ``program`` is a broadcast :class:`Program`. The number tells repeats too, before they were dropped.

        Raises:
            Exception: Spark's, Py4J's; see :func:`sorters.failures.bus_error`.
        """
        if cut.offsets * self._record_bytes <= DRIVER_BATCH_BYTES_MAX:
            rows = self._small.run(cut, program.value, extras, encoded_at_ms)
            self._learn_record_bytes(cut, self._small.raw_bytes)
            return rows
        context = self._spark.sparkContext
        tally = Tally(rows=context.accumulator(0), raw_bytes=context.accumulator(0))
        whole = cut.offsets * self._record_bytes <= SMALL_BATCH_BYTES_MAX
        slots = () if whole else self._slots()
        task = CutTask(cut=cut, extras=extras, encoded_at_ms=encoded_at_ms, slots=slots)
        raw = self._read(cut, tasks=max(1, len(slots)))
        mapped = raw.mapInArrow(mapper(task, program, tally), _MAPPED if whole else _MAPPED_WITH_SLOT)
        if not whole:
            mapped = mapped.repartition(len(slots), "slot")
            mapped = _sorted_without_repeats(mapped) if cut.may_repeat else mapped.sortWithinPartitions("position")
        self._write(mapped)
        self._learn_record_bytes(cut, tally.raw_bytes.value)
        return int(tally.rows.value)

    def _learn_record_bytes(self, cut: Cut, raw_bytes: int) -> None:
        if cut.offsets:
            self._record_bytes = (self._record_bytes + raw_bytes / cut.offsets) / 2

    def _read(self, cut: Cut, *, tasks: int) -> Any:
        ranges = {p: (start, end) for p, (start, end) in enumerate(zip(cut.start, cut.end, strict=True)) if end > start}
        options = {
            **self._source_options,
            "assign": json.dumps({self._raw_topic: sorted(ranges)}),
            "startingOffsets": json.dumps({self._raw_topic: {str(p): start for p, (start, _) in ranges.items()}}),
            "endingOffsets": json.dumps({self._raw_topic: {str(p): end for p, (_, end) in ranges.items()}}),
        }
        if tasks > 1:
            options["minPartitions"] = str(tasks * 2)
        frame = self._spark.read.format("kafka").options(**options).load().select("value")
        return frame.coalesce(tasks)

    def _write(self, frame: Any) -> None:
        header = F.struct(F.lit(POSITION_HEADER).alias("key"), F.col("position").alias("value"))
        frame.select("topic", "partition", "key", "value", F.array(header).alias("headers")).write.format(
            "kafka"
        ).options(**self._sink_options).save()

    def _slots(self) -> tuple[int, ...]:
        """Return one number for each task that ``repartition(tasks, "slot")`` sends there."""
        if self._found_slots:
            return self._found_slots
        tasks = self._tasks
        rows = (
            self._spark.range(64 * tasks)
            .select(F.col("id").cast("int").alias("slot"))
            .select("slot", F.expr(f"pmod(hash(slot), {tasks})").alias("task"))
            .groupBy("task")
            .agg(F.min("slot").alias("slot"))
            .collect()
        )
        by_task = {row["task"]: row["slot"] for row in rows}
        self._found_slots = tuple(by_task[task] for task in range(tasks))
        return self._found_slots


def _sorted_without_repeats(frame: Any) -> Any:
    """Sort, and keep the first of equal records.

    The window's partitions are the equal records themselves, so it buffers one or two rows at a time; the sort that it
    needs is the one that the order asks for.
    """
    same = Window.partitionBy("slot", "position", "topic", "partition").orderBy("position")
    return frame.withColumn("copy", F.row_number().over(same)).where("copy = 1")
