"""A cut by Spark: as one task, in a job with other changefeeds' cuts (:mod:`sorters.spark.tasks.cut_task`); a large one
as a job of two steps: read and make runs, merge runs and write (:mod:`sorters.spark.tasks.two_steps`).
"""

import logging
import pickle
import secrets
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import numpy as np

from schemas.ids import TableId
from schemas.rawlog.topics import RawTopics
from schemas.sink.fence import NO_FENCE
from sorters.core.cut.cut import Cut
from sorters.core.flow.ledger import check_flow
from sorters.core.records.order import OutputRecords
from sorters.cut.image_chunks import chunk_tables
from sorters.cut.worker import CutCounts, FeedProgram, batch_bytes, writer_options
from sorters.log.failures import SparkJobError
from sorters.spark.jobs.job_group import Member, hangs
from sorters.spark.jobs.own_job import run_own_job
from sorters.spark.jobs.session_jobs import SessionJobs
from sorters.spark.jobs.spark_counts import OF_PROCESS
from sorters.spark.jobs.task_jobs import errors_of_workers
from sorters.spark.tasks.cut_answers import NotReady, TooLarge, cut_answer, sum_of_counts
from sorters.spark.tasks.cut_task import CutTask
from sorters.spark.tasks.run_folder import run_folder
from sorters.spark.tasks.run_store import MEMORY_BYTES_MAX
from sorters.spark.tasks.two_steps import ANSWER, LookTask, ReadTask, WriteTask, look_step, read_step, write_step
from sorters.spark.worker.program_sender import SentProgram

log = logging.getLogger(__name__)


class SparkCut:
    """Runs cuts of one changefeed in a Spark session, one at a time."""

    def __init__(
        self,
        shared: SessionJobs,
        *,
        topics: RawTopics,
        raw_config: Mapping[str, object],
        sink_config: Mapping[str, object],
        name: str = "",
    ) -> None:
        """Both maps are librdkafka's; the sink's must keep the order, and hold texts where it could name files.

        ``name`` is the changefeed's, for Spark's UI and its pool.
        """
        self.shared = shared
        self._topics, self._raw_config, self._sink_config = topics, raw_config, sink_config
        self._name = name or "a changefeed"
        self._given_up = threading.Event()
        self._tag = f"tidebus-feed-{secrets.token_hex(8)}"
        """Of jobs of its own."""
        self.runs_parent = shared.runs_parent

    def give_up(self) -> None:
        """Let what is under way fail, this changefeed's alone; from any thread. A job that is about to begin goes on:
        call until the run has ended.
        """
        self._given_up.set()
        if self.shared.is_gone():
            return
        self.shared.group.give_up(self._given_up)
        try:
            self.shared.jobs.cancel(self._tag)
        except Exception as error:  # Py4J's, of many kinds: where nobody is left, nothing runs
            log.warning("spark job is not cancelled", extra={"tag": self._tag, "reason": repr(error)})

    def tables_of(self, cut: Cut) -> set[TableId]:
        """Return the tables that have rows in a cut, or in its chunks of table images."""
        tasks = self.shared.tasks
        task = LookTask(cut=cut, raw_config=self._raw_config, topics=self._topics, tasks=tasks)

        def look() -> list[bytes]:
            return self.shared.jobs.answers(partial(look_step, task), tasks)

        answers = self._own_job(look, f"{self._named(cut)}: which tables have rows")
        tables = {TableId(table_id) for answer in answers for table_id in np.frombuffer(answer, "<i8").tolist()}
        return tables | chunk_tables(cut)

    def run_small(
        self,
        cut: Cut,
        sent: SentProgram,
        extras: OutputRecords,
        encoded_at_ms: int,
        *,
        not_ready: frozenset[TableId],
        raw_bytes_max: int,
        fence: bytes = NO_FENCE,
        tables: str = "",
    ) -> CutCounts | NotReady | TooLarge:
        """Write everything of ``cut``, and ``extras``, in order, by one task.

        Args:
            not_ready: tables whose rows may not be written yet.
            raw_bytes_max: of the cut's raw records, for a task holds them.
            fence: of this attempt; each task's own attempt is added (:mod:`schemas.sink.fence`).
            tables: their names, for Spark's UI.

        Raises:
            BusError: what the task raised, or Spark.
        """
        self._check()
        task = CutTask(
            cut=cut,
            raw_config=self._raw_config,
            topics=self._topics,
            raw_bytes_max=raw_bytes_max,
            extras=extras,
            encoded_at_ms=encoded_at_ms,
            not_ready=not_ready,
            program=sent,
            sink_config=self._sink_config,
            fence=fence,
        )
        pickled = pickle.dumps(task, protocol=pickle.HIGHEST_PROTOCOL)
        member = Member(self._named(cut, tables), pickled, (sent.base, sent.rest), self._given_up)
        return cut_answer(self.shared.group.run(member))

    def run(
        self,
        cut: Cut,
        program: FeedProgram,
        sent: SentProgram,
        extras: OutputRecords,
        encoded_at_ms: int,
        *,
        fence: bytes = NO_FENCE,
        tables: str = "",
    ) -> CutCounts:
        """Write everything of ``cut``, and ``extras``, in order, by two steps; ``sent`` is ``program`` as tasks get it.
        ``fence`` is as for :meth:`run_small`.

        Raises:
            FlowBrokenError: what was written is not what was read.
            BusError: what a worker raised.
            Exception: Spark's, Py4J's; see :func:`sorters.log.failures.bus_error`.
        """
        runs = nullcontext() if self.runs_parent is None else run_folder(self.runs_parent)
        with runs as folder, errors_of_workers() as nonce:
            work = partial(self._two_steps, folder, cut, program, sent, extras, encoded_at_ms, fence, nonce)
            frames = self._own_job(work, self._named(cut, tables))
        OF_PROCESS.add(cuts=1)
        counts = sum_of_counts(frame.removeprefix(ANSWER) for frame in frames)
        check_flow(counts.flow, cut.after_ts, cut.upto_ts, may_repeat=cut.may_repeat, is_written=True)
        return counts

    def _two_steps(
        self,
        folder: str | None,
        cut: Cut,
        program: FeedProgram,
        sent: SentProgram,
        extras: OutputRecords,
        encoded_at_ms: int,
        fence: bytes,
        nonce: str,
    ) -> list[bytes]:
        tasks = self.shared.tasks
        read = ReadTask(
            cut=cut,
            raw_config=self._raw_config,
            topics=self._topics,
            extras=extras,
            encoded_at_ms=encoded_at_ms,
            folder=folder,
            tasks=tasks,
        )
        write = WriteTask(
            may_repeat=cut.may_repeat,
            folder=folder,
            row_join=program.feed.row_join,
            sink_config=writer_options(self._sink_config, program),
            batch_bytes=batch_bytes(program),
            memory_bytes_max=MEMORY_BYTES_MAX,
            after_ts=cut.after_ts,
            flow_writer=program.feed.flow_writer,
            fence=fence,
            note=cut.note,
        )
        return self.shared.jobs.two_steps(
            partial(read_step, read, sent), partial(write_step, write), tasks, nonce, broadcasts=(sent.base, sent.rest)
        )

    def _own_job(self, work: Any, description: str) -> list[bytes]:
        """Run a job for this changefeed alone; given up, or hanging, it ends when its tasks can write nothing more."""
        self._check()
        with self._counted(), self.shared.watch.over_large(self._tag) as watched:
            try:
                return run_own_job(
                    partial(self.shared.in_own_thread, work, pool=self._name, tag=self._tag, description=description),
                    end_tasks=partial(self.shared.jobs.end_tasks, self._tag),
                    is_given_up=lambda: self._given_up.is_set() or watched.is_over,
                    is_gone=self.shared.is_gone,
                )
            except Exception as error:
                if not watched.is_over or self._given_up.is_set():
                    raise
                raise hangs(watched, description) from error

    @contextmanager
    def _counted(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            OF_PROCESS.add(jobs_failed=1)
            raise
        OF_PROCESS.add(jobs=1)

    def _check(self) -> None:
        if self._given_up.is_set():
            raise SparkJobError("spark job failed", reason="the cut was given up")

    def _named(self, cut: Cut, tables: str = "") -> str:
        return f"{self._name}: cut ({cut.after_ts}, {cut.upto_ts}]" + (f" of {tables}" if tables else "")
