"""What runs in Spark's Python workers: raw records in, output records out.

Spark ships functions of this module by name, so it must be importable where executors run.
"""

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from schemas.changes import RowChanges
from schemas.errors import BusError
from schemas.ids import TableId
from schemas.rawlog.region_batch import decode_region_batch, read_batch_head
from sorters.core.cut import Cut, join_rows, keep_rows, overlaps
from sorters.core.feed import CompiledFeed
from sorters.core.order import OUTPUT_SCHEMA, OutputRecords, drop_repeats, join_records, sort_records
from sorters.core.pipeline import run
from sorters.failures import WorkerError

ROWS_PER_CHUNK = 32_768
"""Rows of one table that go through the columnar steps at once: enough that their cost per call does not show."""
BYTES_PER_CHUNK = 32 * 1024 * 1024
"""Raw bytes that a task holds in chunks that are not full yet, over all its tables."""
ROWS_PER_ARROW_BATCH = 16_384
"""Rows that a worker hands back to Spark at once."""
SLOT_FIELD = pa.field("slot", pa.int32(), nullable=False)

ArrowBatches = Iterator[Any]
"""Of ``pyarrow.RecordBatch``."""


@dataclass(frozen=True, slots=True)
class Program:
    """What a worker needs to know of a changefeed; broadcast, and only anew when a DDL or a topic changes it."""

    schemas: Any
    feed: CompiledFeed


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What tasks count for the driver: Spark accumulators."""

    rows: Any
    """Row messages made."""
    raw_bytes: Any
    """Raw records read, also those that were skipped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CutTask:
    """One batch's orders to its tasks."""

    cut: Cut
    extras: OutputRecords
    """Records that stem from no row: DDL events and watermarks. The task of partition 0 adds them."""
    encoded_at_ms: int = 0
    """What messages say about when they were made."""
    slots: tuple[int, ...] = ()
    """For a batch that is shuffled: the values of column ``slot`` that Spark hashes to task 0, 1, …; else one task
    sorts and finishes the whole batch."""


def mapper(task: CutTask, program: Any, tally: Tally) -> Callable[[ArrowBatches], ArrowBatches]:
    """Return the function for ``mapInArrow``. ``program`` is a broadcast :class:`Program`."""

    def map_task(batches: ArrowBatches) -> ArrowBatches:
        return run_task(batches, task, program.value, tally)

    return map_task


def run_task(batches: ArrowBatches, task: CutTask, program: Program, tally: Tally) -> ArrowBatches:
    """Yield the output of one task; ``batches`` have a column ``value`` with raw records."""
    from pyspark import TaskContext

    context = TaskContext.get()
    first = context is None or context.partitionId() == 0
    try:
        tables = _tables(batches, task, program, tally)
        if first and task.extras.num_rows:
            tables = _chain(tables, task.extras)
        if task.slots:
            for table in tables:
                yield from _with_slots(table, task.slots).to_batches(ROWS_PER_ARROW_BATCH)
        else:
            yield from finish_whole(list(tables), task.cut.may_repeat).to_batches(ROWS_PER_ARROW_BATCH)
    except BusError as error:
        raise WorkerError(error) from error


def finish_whole(tables: Sequence[OutputRecords], may_repeat: bool) -> OutputRecords:
    """Sort a whole batch, and drop repeats if there may be any."""
    records = sort_records(join_records([OUTPUT_SCHEMA.empty_table(), *tables]))
    return drop_repeats(records) if may_repeat else records


def output_records(raw: Iterator[memoryview], task: CutTask, program: Program) -> Iterator[OutputRecords]:
    """Yield the records that the rows of a cut become, table by table, in no particular order."""
    for rows in gather_rows(raw, task.cut):
        records = run(rows, program.schemas, program.feed, encoded_at_ms=task.encoded_at_ms)
        if records.num_rows:
            yield records


def _tables(batches: ArrowBatches, task: CutTask, program: Program, tally: Tally) -> Iterator[OutputRecords]:
    for records in output_records(_raw_records(batches, tally), task, program):
        tally.rows.add(records.num_rows)
        yield records


def _raw_records(batches: ArrowBatches, tally: Tally) -> Iterator[memoryview]:
    for batch in batches:
        tally.raw_bytes.add(batch.column(0).nbytes)
        for scalar in batch.column(0):
            yield memoryview(scalar.as_buffer())


def gather_rows(records: Iterator[memoryview], cut: Cut) -> Iterator[RowChanges]:
    """Yield the rows of the cut, those of one table joined to chunks; records outside it are skipped by their head."""
    waiting: dict[TableId, list[RowChanges]] = {}
    counts: dict[TableId, int] = {}
    held_bytes = 0
    for record in records:
        head = read_batch_head(record)
        if not overlaps(head, cut.after_ts, cut.upto_ts):
            continue
        rows = keep_rows(decode_region_batch(record).rows, cut.after_ts, cut.upto_ts)
        if not len(rows):
            continue
        waiting.setdefault(head.table_id, []).append(rows)
        counts[head.table_id] = counts.get(head.table_id, 0) + len(rows)
        held_bytes += len(record)
        if counts[head.table_id] >= ROWS_PER_CHUNK:
            counts[head.table_id] = 0
            yield join_rows(waiting.pop(head.table_id))
        elif held_bytes >= BYTES_PER_CHUNK:
            yield from (join_rows(parts) for parts in waiting.values())
            waiting.clear()
            counts.clear()
            held_bytes = 0
    yield from (join_rows(parts) for parts in waiting.values())


def _chain(tables: Iterator[OutputRecords], last: OutputRecords) -> Iterator[OutputRecords]:
    yield from tables
    yield last


def _with_slots(table: OutputRecords, slots: tuple[int, ...]) -> OutputRecords:
    """Add the column that decides the task: neighbouring partitions of a topic go to different tasks."""
    topics = table.column("topic").combine_chunks().dictionary_encode()
    if isinstance(topics, pa.ChunkedArray):
        topics = pa.concat_arrays(topics.chunks)
    starts = np.array([zlib.crc32(topic.encode()) for topic in topics.dictionary.to_pylist()], np.int64)
    place = starts[topics.indices.to_numpy()] + table.column("partition").to_numpy()
    slot = np.asarray(slots, np.int32)[place % len(slots)]
    return table.append_column(SLOT_FIELD, pa.array(slot))
