"""The two steps of a cut's Spark job, as functions for ``mapInArrow``: read and make runs, merge runs and write.

Spark ships these functions by name, so the package must be importable where executors run. Between the steps Spark
moves rows of two columns: the slot, and a block that holds a whole run (:mod:`sorters.core.records.runs`), or where all
tasks run on one machine only a reference to that block (:mod:`sorters.spark.run_folder`). Kafka is read and written
here and not by Spark's connector, so that the JVM moves blocks and nothing else.
"""

import gc
import sys
import zipimport
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import pyarrow as pa

from edges.kafka.offsets import TopicReader
from schemas.errors import BusError
from sorters.core.cut.cut import Cut
from sorters.core.records.order import OutputRecords
from sorters.core.records.row_batches import RowJoin
from sorters.core.records.runs import Run, merge_runs, pack_run, split_runs, unpack_run
from sorters.cut.raw_records import raw_records, tables_of
from sorters.cut.sink_writer import SinkWriter
from sorters.cut.worker import FeedProgram, output_records
from sorters.log.failures import WorkerError
from sorters.spark.program_sender import SentProgram
from sorters.spark.run_folder import RunFile, RunFiles
from sorters.spark.run_store import RunStore

BLOCK_SCHEMA = pa.schema([pa.field("slot", pa.int32(), nullable=False), pa.field("block", pa.binary(), nullable=False)])
BLOCK_COLUMNS = "slot int, block binary"
SIGN_COLUMNS = "sign binary"
TABLE_COLUMNS = "table_id long"
_SIGN = pa.record_batch([pa.array([bytes(128 * 1024)])], names=["sign"])
"""What the second step says after each window: more than Spark's pipe to a worker buffers, so that a task whose Spark
task was killed finds its pipe broken, and stops writing, a window later."""

WINDOWS_A_RELEASE = 8
"""Windows after which the pages of run files are given back: some 64 MiB of short rows."""

ArrowBatches = Iterator[Any]
"""Of ``pyarrow.RecordBatch``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What tasks count for the driver: Spark accumulators."""

    rows: Any
    """Row messages made."""
    raw_bytes: Any
    """Raw records read, also those that were skipped."""
    corrupt: Any
    """:class:`sorters.core.mount.corrupt_rows.CorruptRows` that were written all the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LookTask:
    """Orders to tasks that look which tables have rows in a cut, before it is run."""

    cut: Cut
    raw_config: Mapping[str, Any]
    """librdkafka's: servers, TLS, SASL."""
    raw_topic: str
    tasks: int
    nonce: str
    """Of the job's errors: :class:`sorters.log.failures.WorkerError`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTask:
    """Orders to the tasks of the first step."""

    cut: Cut
    raw_config: Mapping[str, Any]
    """librdkafka's: servers, TLS, SASL."""
    raw_topic: str
    extras: OutputRecords
    """Records that stem from no row: DDL events and watermarks. Task 0 adds them."""
    encoded_at_ms: int
    folder: str | None
    """Takes the runs, if all tasks are on one machine; None: they go through Spark."""
    slots: tuple[int, ...]
    """Values of column ``slot`` that Spark hashes to task 0, 1, … of the second step; the first has as many tasks."""
    nonce: str
    """Of the job's errors: :class:`sorters.log.failures.WorkerError`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteTask:
    """Orders to the tasks of the second step."""

    may_repeat: bool
    folder: str | None
    """As in the first step."""
    row_join: RowJoin | None
    sink_config: Mapping[str, Any]
    """librdkafka's, of a producer that keeps the order; with PEM texts and no files, which executors do not have."""
    batch_bytes: int
    memory_bytes_max: int
    nonce: str
    """Of the job's errors: :class:`sorters.log.failures.WorkerError`."""


def look_step(task: LookTask) -> Callable[[ArrowBatches], ArrowBatches]:
    """Return a step that says which physical tables have rows in a cut."""

    def look(batches: ArrowBatches) -> ArrowBatches:
        number = _number_of(batches)
        with _ready_worker(task.nonce):
            reader = _reader(tuple(sorted(task.raw_config.items())), task.raw_topic)
            records = raw_records(reader, task.cut, lambda _: None, number, task.tasks)
            yield pa.record_batch([pa.array(sorted(tables_of(records, task.cut)), pa.int64())], names=["table_id"])

    return look


def read_step(task: ReadTask, program: SentProgram, tally: Tally) -> Callable[[ArrowBatches], ArrowBatches]:
    """Return the first step; what it gets from Spark does not matter."""

    def read(batches: ArrowBatches) -> ArrowBatches:
        number = _number_of(batches)
        with _ready_worker(task.nonce):
            yield from read_runs(task, _unpacked(program), tally, number)

    return read


def write_step(task: WriteTask) -> Callable[[ArrowBatches], ArrowBatches]:
    """Return the second step."""

    def write(batches: ArrowBatches) -> ArrowBatches:
        with _ready_worker(task.nonce):
            yield from write_runs(batches, task)

    return write


def read_runs(task: ReadTask, program: FeedProgram, tally: Tally, number: int) -> ArrowBatches:
    """Yield the blocks of one task, with what slot each is of."""
    reader = _reader(tuple(sorted(task.raw_config.items())), task.raw_topic)
    records = raw_records(reader, task.cut, tally.raw_bytes.add, number, len(task.slots))
    tables = output_records(records, task.cut, program, task.encoded_at_ms, tally.corrupt.add)
    with ExitStack() as files:
        keep = files.enter_context(RunFile(task.folder)).add if task.folder is not None else _as_it_is
        for table in tables:
            tally.rows.add(table.num_rows)
            yield _blocks(table, task.slots, keep)
        if number == 0 and task.extras.num_rows:
            yield _blocks(task.extras, task.slots, keep)


def write_runs(batches: ArrowBatches, task: WriteTask) -> Generator[Any, None, None]:
    """Write what is in the blocks, in order; yield a sign of life for each window.

    Raises:
        BusError: a record cannot be sent, or Kafka does not answer.
    """
    writer = _writer(tuple(sorted(task.sink_config.items())), task.batch_bytes)
    done = False
    with RunStore(task.memory_bytes_max) as store:
        try:
            files = RunFiles(task.folder) if task.folder is not None else None
            windows = merge_runs(_runs(batches, store, files), may_repeat=task.may_repeat)
            for number, messages in enumerate(task.row_join.stream(windows) if task.row_join is not None else windows):
                writer.write(messages)
                yield _SIGN
                if files is not None and number % WINDOWS_A_RELEASE == 0:
                    files.release()
            writer.finish()
            done = True
        finally:
            if not done:
                writer.abandon()
                _writer.cache_clear()


def _runs(batches: ArrowBatches, store: RunStore, files: RunFiles | None) -> list[Run]:
    """Take everything in; return the runs."""
    runs = []
    for batch in batches:
        for block in batch.column("block"):
            if files is not None:
                runs.append(unpack_run(files.block(block.as_py())))
            else:
                store.add(block.as_buffer())
    return runs if files is not None else store.take()


def _number_of(batches: ArrowBatches) -> int:
    """Return the number of the task that we are; what Spark hands to it does not matter."""
    from pyspark import TaskContext

    for _ in batches:
        pass
    context = TaskContext.get()
    assert context is not None
    return int(context.partitionId())


def _unpacked(program: SentProgram) -> FeedProgram:
    """Return the program, without letting Python's collector go through it.

    What it would cost with very many tables: docs/decisions/2026-11-22-small-cuts-on-the-driver.md.
    """
    gc.disable()
    try:
        loaded = program.load()
    finally:
        gc.enable()
    _freeze_for(id(program.base))  # an object for as long as the worker has these schemas
    return loaded


def _as_it_is(block: Any) -> Any:
    return block.to_pybytes()


def _blocks(table: OutputRecords, slots: tuple[int, ...], keep: Callable[[Any], bytes]) -> Any:
    """Return the runs of a table as rows for Spark; ``keep`` says what stands for a block in them."""
    runs = list(split_runs(table, len(slots)))
    columns = [[slots[slot] for slot, _ in runs], [keep(pack_run(run)) for _, run in runs]]
    return pa.record_batch(
        [pa.array(column, field.type) for column, field in zip(columns, BLOCK_SCHEMA, strict=True)], schema=BLOCK_SCHEMA
    )


@cache
def _reader(config: tuple[tuple[str, Any], ...], topic: str) -> TopicReader:
    """Return this process's reader: Spark uses its Python workers again, and a new client must connect anew."""
    return TopicReader(dict(config), topic)


@cache
def _writer(config: tuple[tuple[str, Any], ...], batch_bytes: int) -> SinkWriter:
    """Return this process's writer; one that has failed must be taken out of the cache."""
    return SinkWriter(dict(config), batch_bytes=batch_bytes)


@contextmanager
def _ready_worker(nonce: str) -> Iterator[None]:
    """Make the worker's next task cheap, and carry errors of ours to the driver.

    Between tasks pyspark drops import caches and collects garbage. The first reads the directory of pyspark's zip file
    anew for each of its packages that was imported, unless no finder of it is kept; the second looks at every object of
    every module, unless they are frozen
    (docs/decisions/2026-11-22-small-cuts-on-the-driver.md).
    """
    _freeze()
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimport.zipimporter):
            del sys.path_importer_cache[path]
    try:
        yield
    except BusError as error:
        raise WorkerError(error, nonce) from error


@cache
def _freeze() -> None:
    gc.collect()
    gc.freeze()


@lru_cache(maxsize=1)
def _freeze_for(schemas: int) -> None:
    """Freeze the objects that came with these schemas; nothing of theirs refers to itself, so they can still go."""
    gc.freeze()
