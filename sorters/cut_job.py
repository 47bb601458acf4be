"""One cut, from the raw log to the sink: by a Spark job of two steps, or by the driver if it is not worth one."""

import re
from collections.abc import Collection, Mapping, Set
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Protocol

from pyspark.accumulators import AccumulatorParam
from pyspark.sql import functions as F  # noqa: N812 # Spark's own convention

from schemas.ids import TableId
from sorters.core.corrupt_rows import CorruptRows
from sorters.core.cut import Cut
from sorters.core.order import OutputRecords
from sorters.cut_tasks import (
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
from sorters.run_folder import clear_run_folders, run_folder
from sorters.run_store import MEMORY_BYTES_MAX
from sorters.shared_program import SharedProgram
from sorters.small_cut import SmallCut
from sorters.worker import Program, batch_bytes

DRIVER_BATCH_BYTES_MAX = 16 * 1024 * 1024
"""Raw bytes (some 70,000 rows) up to which the driver does the batch itself, in less time than a Spark job takes."""
TABLES_AT_ONCE_MAX = 500
"""Tables that are made ready for a large cut though they may have no rows in it; where more wait, its tasks look first
which have: they read the raw log twice then."""
RAW_RECORD_BYTES_GUESS = 64 * 1024
"""Size of a raw record until one batch has told; the driver gives up a batch of far more bytes than it took it for."""


class CorruptRowsParam(AccumulatorParam):  # type: ignore[misc]  # pyspark has no types here
    """How Spark adds up what its tasks have found."""

    def zero(self, value: CorruptRows) -> CorruptRows:
        return CorruptRows()

    def addInPlace(self, value1: CorruptRows, value2: CorruptRows) -> CorruptRows:  # noqa: N802 # Spark's name
        return value1 + value2


class TablesToReady(Protocol):
    """Makes a program fit for rows of tables."""

    @property
    def waiting(self) -> int:
        """How many tables' rows are not ready to come."""
        ...

    def make_ready(self, cut: Cut, tables: Collection[TableId] | None) -> None:
        """Make these tables' rows ready to come; None: all."""
        ...


class CutJob:
    """Runs cuts of one changefeed, one at a time."""

    def __init__(
        self, spark: Any, *, raw_topic: str, raw_config: Mapping[str, Any], sink_config: Mapping[str, Any]
    ) -> None:
        """Both maps are librdkafka's; the sink's must keep the order, and hold texts where it could name files."""
        self._spark = spark
        self._raw_topic, self._raw_config, self._sink_config = raw_topic, raw_config, sink_config
        self._small = SmallCut(raw_config, raw_topic, sink_config)
        self._tasks = max(2, spark.sparkContext.defaultParallelism)
        self._found_slots: tuple[int, ...] = ()
        context = spark.sparkContext
        self.runs_parent = Path(context.getConf().get("spark.local.dir")) if _on_one_machine(context) else None
        """Where the folders of runs are made; None: tasks may be on several machines, so runs go through Spark."""
        if self.runs_parent is not None:
            clear_run_folders(self.runs_parent)
        self._record_bytes: float = RAW_RECORD_BYTES_GUESS
        self.corrupt = CorruptRows()
        """What the last cut has written although its checksum does not fit."""

    def close(self) -> None:
        """Give up what is under way outside Spark."""
        self._small.close()

    def write(self, program: SharedProgram, records: OutputRecords) -> None:
        """Write records on the driver that stand before all of the next cut, in their order, until acknowledged.

        Raises:
            BusError: a record cannot be sent, or Kafka does not answer.
        """
        self._small.write(records, batch_bytes(program.value))

    def run(
        self, cut: Cut, program: SharedProgram, tables: TablesToReady, extras: OutputRecords, encoded_at_ms: int
    ) -> int:
        """Write everything of ``cut``, and ``extras``, in order; return the row messages once they are acknowledged.

        The number tells repeats too, before they were dropped.

        Raises:
            Exception: Spark's, Py4J's; see :func:`sorters.failures.bus_error`.
        """
        done: tuple[int, int] | None = None

        def ready(found: Set[TableId]) -> Program:
            tables.make_ready(cut, found)
            return program.value

        if cut.offsets * self._record_bytes <= DRIVER_BATCH_BYTES_MAX:
            done = self._small.run(
                cut,
                ready,
                extras,
                encoded_at_ms,
                raw_bytes_max=2 * DRIVER_BATCH_BYTES_MAX,
            )
        if done:
            self.corrupt = self._small.corrupt
        else:
            many = tables.waiting > TABLES_AT_ONCE_MAX
            tables.make_ready(cut, self._tables_of(cut) if many else None)
        rows, raw_bytes = done or self._run_tasks(cut, program, extras, encoded_at_ms)
        if cut.offsets:
            self._record_bytes = (self._record_bytes + raw_bytes / cut.offsets) / 2
        return rows

    def _run_tasks(
        self, cut: Cut, program: SharedProgram, extras: OutputRecords, encoded_at_ms: int
    ) -> tuple[int, int]:
        """Return the rows, and the bytes of raw records that were read."""
        with nullcontext() if self.runs_parent is None else run_folder(self.runs_parent) as folder:
            return self._run_tasks_with(folder, cut, program, extras, encoded_at_ms)

    def _run_tasks_with(
        self,
        folder: str | None,
        cut: Cut,
        program: SharedProgram,
        extras: OutputRecords,
        encoded_at_ms: int,
    ) -> tuple[int, int]:
        context, slots = self._spark.sparkContext, self._slots()
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
        )
        write = WriteTask(
            may_repeat=cut.may_repeat,
            folder=folder,
            row_join=program.value.feed.row_join,
            sink_config=self._sink_config,
            batch_bytes=batch_bytes(program.value),
            memory_bytes_max=MEMORY_BYTES_MAX,
        )
        blocks = self._spark.range(0, len(slots), 1, len(slots)).mapInArrow(
            read_step(read, program.for_tasks(), tally), BLOCK_COLUMNS
        )
        signs = blocks.repartition(len(slots), "slot").mapInArrow(write_step(write), SIGN_COLUMNS)
        signs.write.format("noop").mode("overwrite").save()
        self.corrupt = tally.corrupt.value
        return int(tally.rows.value), int(tally.raw_bytes.value)

    def _tables_of(self, cut: Cut) -> set[TableId]:
        """Return the tables that have rows in a cut."""
        task = LookTask(cut=cut, raw_config=self._raw_config, raw_topic=self._raw_topic, tasks=self._tasks)
        rows = self._spark.range(0, self._tasks, 1, self._tasks).mapInArrow(look_step(task), TABLE_COLUMNS).collect()
        return {TableId(row["table_id"]) for row in rows}

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


def _on_one_machine(context: Any) -> bool:
    """Tell whether all tasks see this machine's files; executors of ``local-cluster`` do too, but only tests use it."""
    return bool(re.fullmatch(r"local(\[.*\])?", context.master))
