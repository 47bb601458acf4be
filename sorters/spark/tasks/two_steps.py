"""The two steps of a cut's Spark job: read and make runs, merge runs and write (:mod:`sorters.spark.jobs.task_jobs`).

Spark ships these functions by name, so the package must be importable where executors run. Between the steps Spark
moves frames by twos: the slot, and a block that holds a whole run (:mod:`sorters.core.records.runs`), or where all
tasks run on one machine only a reference to that block (:mod:`sorters.spark.tasks.run_folder`). Kafka is read and
written here and not by Spark's connector, so that the JVM moves blocks and nothing else.
"""

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from schemas.ids import Ts
from schemas.rawlog.topics import RawTopics
from schemas.sink.fence import NO_FENCE
from schemas.sink.image_note import WatermarkNote
from schemas.sink_figures import SinkFigures
from sorters.core.cut.cut import Cut
from sorters.core.flow.flow_marks import FlowMarker
from sorters.core.flow.ledger import FlowLedger
from sorters.core.mount.corrupt_rows import CorruptRows
from sorters.core.records.order import OutputRecords
from sorters.core.records.row_batches import RowJoin
from sorters.core.records.runs import Run, merge_runs, pack_run, split_runs, unpack_run
from sorters.cut.cut_books import CutBooks
from sorters.cut.image_chunks import RawChunk, read_chunks
from sorters.cut.raw_records import raw_records, tables_of
from sorters.cut.sending import Sending
from sorters.cut.worker import CutCounts, FeedProgram, output_records
from sorters.spark.tasks.cut_answers import counts_as_json, sum_of_counts
from sorters.spark.tasks.run_folder import RunFile, RunFiles
from sorters.spark.tasks.run_store import RunStore
from sorters.spark.worker.program_sender import SentProgram
from sorters.spark.worker.work import fence_of_attempt
from sorters.spark.worker.worker_state import lend_reader, lend_writer, unpacked

_SIGN = bytes(128 * 1024)
"""What the second step says after each window: more than Spark's pipe to a worker buffers, so that a task whose Spark
task was killed finds its pipe broken, and stops writing, a window later."""

ANSWER = b"\xffcounts "
"""What stands before the counts of a task of the first step: Arrow's blocks begin with four bytes 255, references to
them are text, and signs are zeros."""
WINDOWS_A_RELEASE = 8
"""Windows after which the pages of run files are given back: some 64 MiB of short rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LookTask:
    """Orders to tasks that look which tables have rows in a cut, before it is run."""

    cut: Cut
    raw_config: Mapping[str, object]
    """librdkafka's: servers, TLS, SASL."""
    topics: RawTopics
    tasks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTask:
    """Orders to the tasks of the first step."""

    cut: Cut
    raw_config: Mapping[str, object]
    """librdkafka's: servers, TLS, SASL."""
    topics: RawTopics
    extras: OutputRecords
    """Records that stem from no row: DDL events and watermarks. Task 0 adds them."""
    encoded_at_ms: int
    folder: str | None
    """Takes the runs, if all tasks are on one machine; None: they go through Spark."""
    tasks: int
    """Of each step; a slot is the number of its task in the second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteTask:
    """Orders to the tasks of the second step."""

    may_repeat: bool
    folder: str | None
    """As in the first step."""
    row_join: RowJoin | None
    sink_config: Mapping[str, object]
    """librdkafka's, of a producer that keeps the order; with PEM texts and no files, which executors do not have."""
    batch_bytes: int
    memory_bytes_max: int
    after_ts: Ts = Ts(0)
    """Of the cut."""
    flow_writer: str = ""
    """Whose the sums are that watermarks tell processors; '': they tell none."""
    fence: bytes = NO_FENCE
    """Of the attempt, without the task's."""
    note: WatermarkNote | None = None
    """Of the cut's watermarks."""


def look_step(task: LookTask, number: int) -> bytes:
    """Return which physical tables have rows in one task's part of a cut, as 64-bit integers, little-endian."""
    with lend_reader(task.raw_config, task.topics.region_events) as reader:
        records = raw_records(reader, task.cut, lambda _: None, number, task.tasks, keeps_unknown=True)
        return np.array(sorted(tables_of(records, task.cut)), "<i8").tobytes()


def read_step(task: ReadTask, program: SentProgram, number: int, frames: Iterator[bytes]) -> Iterator[bytes]:
    """Run the first step; what it gets from Spark does not matter."""
    for _ in frames:
        pass
    yield from read_runs(task, unpacked(program), number)


def write_step(task: WriteTask, number: int, frames: Iterator[bytes]) -> Iterator[bytes]:
    """Run the second step: write, with a sign of life for each window; then answer with the counts of the tasks of the
    first step that came here, which is all of the task of the same number, and its own added to them.
    """
    counts: list[bytes] = []
    began_cpu_s = time.process_time()

    def blocks() -> Iterator[bytes]:
        for frame in frames:
            if frame.startswith(ANSWER):
                counts.append(frame)
            else:
                yield frame

    ledger = FlowLedger()
    sent = yield from write_runs(blocks(), task, ledger)
    written = CutCounts(
        rows=0,
        raw_bytes=0,
        corrupt=CorruptRows(),
        flow=ledger.close(),
        cpu_s=time.process_time() - began_cpu_s,
        sent=sent,
    )
    answers = [counts_as_json(written), *(each.removeprefix(ANSWER) for each in counts)]
    yield ANSWER + counts_as_json(sum_of_counts(answers))


def read_runs(task: ReadTask, program: FeedProgram, number: int) -> Iterator[bytes]:
    """Yield the blocks of one task, each after the slot that it is of, and in the end its counts for its own number."""
    raw_bytes, rows, books = 0, 0, CutBooks.of(task.cut, program.feed)
    began_cpu_s = time.process_time()

    def count(size: int) -> None:
        nonlocal raw_bytes
        raw_bytes += size

    with lend_reader(task.raw_config, task.topics.region_events) as reader, ExitStack() as held:
        records = raw_records(reader, task.cut, count, number, task.tasks, keeps_unknown=True)
        chunks: Iterable[RawChunk] = ()
        if number < len(task.cut.chunks):
            images = held.enter_context(lend_reader(task.raw_config, task.topics.images))
            chunks = read_chunks(images, task.cut, count, number, task.tasks)
        tables = output_records(records, task.cut, program, task.encoded_at_ms, books, chunks=chunks)
        keep = held.enter_context(RunFile(task.folder)).add if task.folder is not None else _as_it_is
        for table in tables:
            rows += table.num_rows
            yield from _blocks(table, task.tasks, keep)
        if number == 0 and task.extras.num_rows:
            yield from _blocks(task.extras, task.tasks, keep)
    yield number.to_bytes(8, "big")
    counts = CutCounts(
        rows=rows,
        raw_bytes=raw_bytes,
        corrupt=books.all_corrupt(),
        flow=books.flow.close(),
        states=books.close_states(),
        cpu_s=time.process_time() - began_cpu_s,
        damaged=books.all_damaged(),
    )
    yield ANSWER + counts_as_json(counts)


def write_runs(
    blocks: Iterable[bytes], task: WriteTask, ledger: FlowLedger | None = None
) -> Generator[bytes, None, SinkFigures]:
    """Write what is in the blocks, in order; yield a sign of life for each window, and tell ``ledger`` what it holds.
    Return what was sent.

    Raises:
        BusError: a record cannot be sent, or Kafka does not answer.
    """
    with lend_writer(task.sink_config, task.batch_bytes) as writer, RunStore(task.memory_bytes_max) as store:
        files, fence = RunFiles(task.folder) if task.folder is not None else None, fence_of_attempt(task.fence)
        on_order = ledger.write if ledger is not None else None
        windows = merge_runs(_runs(blocks, store, files), may_repeat=task.may_repeat, on_order=on_order)
        joined = task.row_join.stream if task.row_join is not None else iter
        if task.flow_writer:
            marker = FlowMarker(task.after_ts, task.flow_writer)
            made: Iterator[OutputRecords] = map(marker.marked, joined(marker.stream(windows)))
        else:
            made = joined(windows)
        sending = Sending(writer)
        for number, messages in enumerate(made):
            sending.write(messages, fence, task.note)
            yield _SIGN
            if files is not None and number % WINDOWS_A_RELEASE == 0:
                files.release()
        return sending.finish()


def _runs(blocks: Iterable[bytes], store: RunStore, files: RunFiles | None) -> list[Run]:
    """Take everything in; return the runs."""
    if files is not None:
        return [unpack_run(files.block(block)) for block in blocks]
    for block in blocks:
        store.add(pa.py_buffer(block))
    return store.take()


def _as_it_is(block: Any) -> bytes:
    packed: bytes = block.to_pybytes()
    return packed


def _blocks(table: OutputRecords, tasks: int, keep: Callable[[Any], bytes]) -> Iterator[bytes]:
    """Yield the runs of a table as frames for Spark; ``keep`` says what stands for a block in them."""
    for slot, run in split_runs(table, tasks):
        yield slot.to_bytes(8, "big")
        yield keep(pack_run(run))
