"""A whole cut in one task: what :class:`~sorters.cut.small_cut.SmallCut` does on the driver, by the same functions.

What stops the changefeed is an answer and no failure: a job may hold cuts of several changefeeds, a task each.
"""

import logging
import pickle
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from schemas.ids import TableId
from schemas.rawlog.topics import RawTopics
from schemas.sink.fence import NO_FENCE
from sorters.core.cut.cut import Cut
from sorters.core.records.order import OutputRecords
from sorters.cut.raw_cut import read_cut, with_chunks
from sorters.cut.sending import Sending
from sorters.cut.whole_cut import whole_cut
from sorters.cut.worker import batch_bytes, writer_options
from sorters.log.failures import bus_error
from sorters.spark.tasks.cut_answers import counts_as_json, error_answer, not_ready_answer, too_large_answer
from sorters.spark.worker.program_sender import SentProgram
from sorters.spark.worker.work import fence_of_attempt
from sorters.spark.worker.worker_state import lend_reader, lend_writer, unpacked

log = logging.getLogger(__name__)

OUTPUT_BYTES_MAX = 256 * 1024 * 1024
"""Bytes of messages that a task holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CutTask:
    """Orders to the task that runs a whole cut."""

    cut: Cut
    raw_config: Mapping[str, object]
    """librdkafka's: servers, TLS, SASL."""
    topics: RawTopics
    raw_bytes_max: int
    """Of the cut's raw records and chunks of table images."""
    extras: OutputRecords
    """Records that stem from no row: DDL events and watermarks."""
    encoded_at_ms: int
    not_ready: frozenset[TableId]
    """Tables whose rows may not be written yet."""
    program: SentProgram
    sink_config: Mapping[str, object]
    """librdkafka's, of a producer that keeps the order; with PEM texts and no files, which executors do not have."""
    fence: bytes = NO_FENCE
    """Of the attempt, without the task's."""


def cut_step(tasks: tuple[bytes, ...], number: int) -> bytes:
    """Run one of the cuts of a job, each a pickled :class:`CutTask`; return its answer as JSON.

    See :mod:`sorters.spark.tasks.cut_answers`. Each task unpickles its own alone.
    """
    task: CutTask = pickle.loads(tasks[number])  # noqa: S301 # our driver's, in the command that Spark has pickled, too
    try:
        return run_task(task)
    except Exception as error:
        failure = bus_error(error)
        log.warning("cut fails", extra={"code": failure.code, "reason": str(failure)}, exc_info=error)
        return error_answer(failure)


def run_task(task: CutTask) -> bytes:
    """Run a cut; return what it has come to.

    Raises:
        BusError: a row or a record cannot be sent, or Kafka does not answer.
    """
    cut, began_cpu_s = task.cut, time.process_time()
    with lend_reader(task.raw_config, task.topics.region_events) as reader:
        raw = read_cut(reader, cut, task.raw_bytes_max)
    if raw is not None and cut.chunks:
        with lend_reader(task.raw_config, task.topics.images) as reader:
            raw = with_chunks(raw, reader, cut, task.raw_bytes_max)
    if raw is None:
        return too_large_answer()
    lacking = raw.tables(cut) & task.not_ready if task.not_ready else None
    if lacking:
        return not_ready_answer(lacking)
    program = unpacked(task.program)
    whole = whole_cut(cut, raw, program, task.extras, task.encoded_at_ms, OUTPUT_BYTES_MAX)
    if whole is None:
        return too_large_answer()
    with lend_writer(writer_options(task.sink_config, program), batch_bytes(program)) as writer:
        sending = Sending(writer)
        sending.write(whole.records, fence_of_attempt(task.fence), cut.note)
        sent = sending.finish()
    counts = whole.counts(raw.raw_bytes)
    return counts_as_json(replace(counts, cpu_s=time.process_time() - began_cpu_s, sent=sent))
