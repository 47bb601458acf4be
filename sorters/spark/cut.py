"""A cut as a Spark job of two steps: read and make runs, merge runs and write (:mod:`sorters.spark.tasks`)."""

import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from pyspark.accumulators import AccumulatorParam
from pyspark.sql import functions as F  # noqa: N812 # Spark's own convention

from schemas.ids import TableId
from sorters.core.cut.cut import Cut
from sorters.core.mount.corrupt_rows import CorruptRows
from sorters.core.records.order import OutputRecords
from sorters.cut.worker import CutCounts, FeedProgram, batch_bytes
from sorters.log.failures import worker_error
from sorters.spark.program_sender import SentProgram
from sorters.spark.run_folder import clear_run_folders, run_folder
from sorters.spark.run_store import MEMORY_BYTES_MAX
from sorters.spark.tasks import (
    BLOCK_COLUMNS,
    SIGN_COLUMNS,
    TABLE_COLUMNS,
    LookTask,
    ReadTask,
    Tally,
    WriteTask,
    look_step,
    read_step,
    write_step,
)


class CorruptRowsParam(AccumulatorParam):  # type: ignore[misc]  # pyspark has no types here
    """How Spark adds up what its tasks have found."""

    def zero(self, value: CorruptRows) -> CorruptRows:
        return CorruptRows()

    def addInPlace(self, value1: CorruptRows, value2: CorruptRows) -> CorruptRows:  # noqa: N802 # Spark's name
        return value1 + value2


class SparkCut:
    """Runs cuts of one changefeed in a Spark session, one at a time."""

    def __init__(
        self, spark: Any, *, raw_topic: str, raw_config: Mapping[str, Any], sink_config: Mapping[str, Any]
    ) -> None:
        """Both maps are librdkafka's; the sink's must keep the order, and hold texts where it could name files."""
        self._spark = spark
        self._raw_topic, self._raw_config, self._sink_config = raw_topic, raw_config, sink_config
        context = spark.sparkContext
        self._slots = self._find_slots(max(2, context.defaultParallelism))
        self.runs_parent = Path(context.getConf().get("spark.local.dir")) if _on_one_machine(context) else None
        """Where the folders of runs are made; None: tasks may be on several machines, so runs go through Spark."""
        if self.runs_parent is not None:
            clear_run_folders(self.runs_parent)

    def give_up(self) -> None:
        """Cancel what the session runs; from any thread."""
        self._spark.sparkContext.cancelAllJobs()

    def tables_of(self, cut: Cut) -> set[TableId]:
        """Return the tables that have rows in a cut."""
        tasks = len(self._slots)
        with _errors_of_workers() as nonce:
            task = LookTask(cut=cut, raw_config=self._raw_config, raw_topic=self._raw_topic, tasks=tasks, nonce=nonce)
            rows = self._spark.range(0, tasks, 1, tasks).mapInArrow(look_step(task), TABLE_COLUMNS).collect()
        return {TableId(row["table_id"]) for row in rows}

    def run(
        self, cut: Cut, program: FeedProgram, sent: SentProgram, extras: OutputRecords, encoded_at_ms: int
    ) -> CutCounts:
        """Write everything of ``cut``, and ``extras``, in order; ``sent`` is ``program`` as tasks get it.

        Raises:
            BusError: what a worker raised.
            Exception: Spark's, Py4J's; see :func:`sorters.log.failures.bus_error`.
        """
        runs = nullcontext() if self.runs_parent is None else run_folder(self.runs_parent)
        with runs as folder, _errors_of_workers() as nonce:
            return self._run_with(folder, cut, program, sent, extras, encoded_at_ms, nonce)

    def _run_with(
        self,
        folder: str | None,
        cut: Cut,
        program: FeedProgram,
        sent: SentProgram,
        extras: OutputRecords,
        encoded_at_ms: int,
        nonce: str,
    ) -> CutCounts:
        context, slots = self._spark.sparkContext, self._slots
        tally = Tally(
            rows=context.accumulator(0),
            raw_bytes=context.accumulator(0),
            corrupt=context.accumulator(CorruptRows(), CorruptRowsParam()),
        )
        read = ReadTask(
            cut=cut,
            raw_config=self._raw_config,
            raw_topic=self._raw_topic,
            extras=extras,
            encoded_at_ms=encoded_at_ms,
            folder=folder,
            slots=slots,
            nonce=nonce,
        )
        write = WriteTask(
            may_repeat=cut.may_repeat,
            folder=folder,
            row_join=program.feed.row_join,
            sink_config=self._sink_config,
            batch_bytes=batch_bytes(program),
            memory_bytes_max=MEMORY_BYTES_MAX,
            nonce=nonce,
        )
        blocks = self._spark.range(0, len(slots), 1, len(slots)).mapInArrow(read_step(read, sent, tally), BLOCK_COLUMNS)
        signs = blocks.repartition(len(slots), "slot").mapInArrow(write_step(write), SIGN_COLUMNS)
        signs.write.format("noop").mode("overwrite").save()
        return CutCounts(rows=int(tally.rows.value), raw_bytes=int(tally.raw_bytes.value), corrupt=tally.corrupt.value)

    def _find_slots(self, tasks: int) -> tuple[int, ...]:
        """Return one number for each task that ``repartition(tasks, "slot")`` sends there."""
        rows = (
            self._spark.range(64 * tasks)
            .select(F.col("id").cast("int").alias("slot"))
            .select("slot", F.expr(f"pmod(hash(slot), {tasks})").alias("task"))
            .groupBy("task")
            .agg(F.min("slot").alias("slot"))
            .collect()
        )
        by_task = {row["task"]: row["slot"] for row in rows}
        return tuple(by_task[task] for task in range(tasks))


@contextmanager
def _errors_of_workers() -> Iterator[str]:
    """Give a nonce to a job's tasks, and raise what they raised; see :mod:`sorters.log.failures`."""
    nonce = secrets.token_hex(16)
    try:
        yield nonce
    except Exception as error:
        carried = worker_error(error, nonce)
        if carried is None:
            raise
        raise carried from error


def _on_one_machine(context: Any) -> bool:
    """Tell whether all tasks see this machine's files; executors of ``local-cluster`` do too, but only tests use it."""
    return bool(re.fullmatch(r"local(\[.*\])?", context.master))
