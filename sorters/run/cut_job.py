"""One cut, from the raw log to the sink: by Spark, or by the driver, as :mod:`sorters.core.cut.runner` chooses."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from edges.kafka.offsets import TopicReader
from schemas.rawlog.topics import RawTopics
from schemas.sink.fence import NO_FENCE
from sorters.core.cut.cut import Cut
from sorters.core.cut.runner import Choice, Costs, CutSize, Reason, Runner, choose_runner
from sorters.core.records.order import OutputRecords
from sorters.cut.feed_share import FeedShare, WholeProcess
from sorters.cut.leave import Leave
from sorters.cut.raw_cut import RAW_RECORD_BYTES_GUESS, RawReader
from sorters.cut.small_cut import SmallCut
from sorters.cut.worker import CutCounts, FeedProgram
from sorters.run.damage_notes import DamageNotes
from sorters.run.preparation import Preparation
from sorters.spark.session import Session

if TYPE_CHECKING:
    from sorters.spark.cut import SparkCut

log = logging.getLogger(__name__)

DRIVER_CUT_BYTES_MAX = 16 * 1024 * 1024
"""Raw bytes (some 70,000 rows) that the driver may hold of a cut."""
COLD_DRIVER_RATIO = 4
"""Times as many it may hold while there is no Spark: a JVM starts on a full machine in 16 s, by which a changefeed of
20,000 rows/s that has just begun (its first cut, that imports, takes 2 s) would fall behind."""
OVER_GUESS_RATIO = 2
"""A cut is chosen by a guess of its size, and may turn out so many times as large before it is given up: what was read
of it would be read again."""
TASK_CUT_BYTES_MAX = 16 * 1024 * 1024
"""Raw bytes that one task may hold: a larger cut is a job of its own, of two steps."""
TABLES_AT_ONCE_MAX = 500
"""Tables that are made ready for a large cut though they may have no rows in it; where more wait, its tasks look first
which have: they read the raw log twice then."""
ROW_BYTES_GUESS = 256
"""Bytes of raw records for each row message that comes of them, before the first cut."""


@dataclass(frozen=True, kw_only=True)
class RunBy:
    """What is said of who runs a changefeed's cuts."""

    on_cluster: bool = False
    """Whether executors have machines of their own (:func:`sorters.core.cut.runner.is_cluster`)."""
    tasks: int = 1
    """That run at once, on cores of their own."""
    is_warm: Callable[[], bool] = lambda: True
    """Whether Spark runs. While it does not, the driver runs cuts up to ``COLD_DRIVER_RATIO`` times as large, rather
    than wait for its start; an option that asks for Spark waits. True by default: then the driver's bound is the small
    one."""
    by_changefeed: Runner | None = None
    """The changefeed's option; None: ``auto``."""
    by_service: Runner | None = None
    """The service's, likewise."""


@dataclass(frozen=True, slots=True)
class WrittenCut:
    """A cut that was written."""

    counts: CutCounts
    choice: Choice
    damaged: int = 0
    """Damaged raw records that were passed over, and were not in an earlier cut."""


@dataclass(frozen=True, slots=True)
class _Orders:
    cut: Cut
    preparation: Preparation
    extras: OutputRecords
    encoded_at_ms: int
    leave: Leave


class CutJob:
    """Runs cuts of one changefeed, one at a time."""

    def __init__(  # noqa: PLR0913 # the parts of a job, wired once
        self,
        spark: Session,
        raw_reader: Callable[[Callable[[], bool]], RawReader],
        *,
        topics: RawTopics,
        raw_config: Mapping[str, object],
        sink_config: Mapping[str, object],
        run_by: RunBy | None = None,
        name: str = "",
        share: FeedShare | None = None,
        record_bytes: Callable[[], float] = lambda: RAW_RECORD_BYTES_GUESS,
        next_fence: Callable[[], bytes] = lambda: NO_FENCE,
    ) -> None:
        """Both maps are librdkafka's; the sink's must keep the order, and hold texts where it could name files.
        ``raw_reader`` is for the driver: see :class:`~sorters.cut.small_cut.SmallCut`.

        ``spark`` is asked for its session at each cut that Spark is to run: it may be another one each time. ``name``
        is the changefeed's, in Spark's UI. ``share`` is told what the driver does. ``record_bytes`` says how large
        raw records are until a cut of this job has shown it. ``next_fence`` gives each attempt to write something its
        fence (:mod:`schemas.sink.fence`).
        """
        self._share = share or WholeProcess()
        self._spark, self._next_fence = spark, next_fence
        self._topics, self._raw_config, self._sink_config = topics, raw_config, sink_config
        self._run_by, self._name = run_by or RunBy(), name
        self._damage = DamageNotes(name)
        self._small = SmallCut(raw_reader, self._image_reader, sink_config, self._share)
        self._large: SparkCut | None = None
        self._is_given_up = False
        self._record_bytes: float | None = None
        """Mean size of a raw record; None: no cut has been run yet."""
        self._record_bytes_guess = record_bytes
        self._record_rows: float | None = None
        """Mean number of row messages that come of one; None likewise."""

    def give_up(self) -> None:
        """Let what is under way in another thread fail; nothing more is done from here on."""
        self._is_given_up = True
        self._small.give_up()
        if self._large is not None:
            self._large.give_up()

    def close(self) -> None:
        """Close the clients of the driver."""
        self._small.close()

    def tend(self) -> None:
        """Called now and then where no cut is run."""
        self._small.tend()

    def _image_reader(self, stopped: Callable[[], bool]) -> TopicReader:
        return TopicReader(self._raw_config, self._topics.images, stopped=stopped, are_checked=True)

    def is_small(self, cut: Cut) -> bool:
        """Tell whether the driver may hold a cut's changes; table images do not count, they are no backlog."""
        return self._size(cut, with_images=False).raw_bytes <= self._driver_bytes_max()

    @property
    def record_bytes(self) -> float:
        """Mean size of the raw records of the last cuts; before the first one a guess."""
        return self._record_bytes or self._record_bytes_guess()

    def choose(self, cut: Cut, *, backlog: bool = False) -> Choice:
        """Return who is going to run a cut, and why."""
        run_by = self._run_by
        return choose_runner(
            self._size(cut),
            on_cluster=run_by.on_cluster,
            tasks=run_by.tasks if run_by.is_warm() else 1,
            backlog=backlog,
            by_changefeed=run_by.by_changefeed,
            by_service=run_by.by_service,
            costs=Costs(driver_bytes_max=self._driver_bytes_max()),
        )

    def write(self, program: FeedProgram, records: OutputRecords) -> None:
        """Write records on the driver that stand before all of the next cut, in their order, until acknowledged.

        Raises:
            BusError: a record cannot be sent, or Kafka does not answer.
        """
        self._small.write(records, program, self._next_fence())

    def run(
        self,
        cut: Cut,
        preparation: Preparation,
        extras: OutputRecords,
        encoded_at_ms: int,
        leave: Leave,
        *,
        backlog: bool = False,
    ) -> WrittenCut:
        """Write everything of ``cut``, and ``extras``, in order; return once that is acknowledged.

        ``preparation`` has begun the cut (:meth:`Preparation.begin`); the driver waits for ``leave`` when it has
        encoded the messages; ``backlog``: a streaming query runs it.

        Raises:
            SorterLockLostError: the leave is refused.
            Exception: Spark's, Py4J's; see :func:`sorters.log.failures.bus_error`.
        """
        if (note := preparation.watermark_note(cut)) is not None:
            cut = replace(cut, note=note)
        if cut.resync:
            cut = replace(cut, noted=preparation.noted_names(cut))
        orders, choice = _Orders(cut, preparation, extras, encoded_at_ms, leave), self.choose(cut, backlog=backlog)
        counts = self._run_on_driver(orders) if choice.runner is Runner.DRIVER else None
        if counts is None:
            if choice.runner is Runner.DRIVER:
                choice = replace(choice, runner=Runner.SPARK, reason=Reason.BEYOND_DRIVER_MEMORY)
            counts = self._run_by_spark(orders, may_repeat_here=not backlog)
        preparation.note_rows(counts.flow.written)
        if cut.offsets and not cut.chunks:
            self._record_bytes = _mean(self._record_bytes, counts.raw_bytes / cut.offsets)
            self._record_rows = _mean(self._record_rows, counts.rows / cut.offsets)
        log.debug(
            "cut is written",
            extra={
                "changefeed": self._name,
                "after_ts": cut.after_ts,
                "upto_ts": cut.upto_ts,
                "rows": counts.rows,
                "by": choice.runner.value,
                "reason": choice.reason.value,
            },
        )
        return WrittenCut(counts, choice, self._damage.note(counts.damaged, preparation.program.name_of))

    def _size(self, cut: Cut, *, with_images: bool = True) -> CutSize:
        records = cut.offsets
        record_rows = self.record_bytes / ROW_BYTES_GUESS if self._record_rows is None else self._record_rows
        chunks = cut.chunks if with_images else ()
        return CutSize(
            raw_bytes=int(records * self.record_bytes) + sum(chunk.bytes for chunk in chunks),
            rows=int(records * record_rows) + sum(chunk.rows for chunk in chunks),
        )

    def _driver_bytes_max(self) -> int:
        return DRIVER_CUT_BYTES_MAX * (1 if self._run_by.is_warm() else COLD_DRIVER_RATIO)

    def _run_on_driver(self, orders: _Orders) -> CutCounts | None:
        """Run a cut on the driver; None: it is too large for that, and nothing is written."""
        # Before a cut has shown how large records are, the guess is too bad for that.
        raw_bytes_max = self._driver_bytes_max() * (1 if self._record_bytes is None else OVER_GUESS_RATIO)
        raw_bytes, cut = min(raw_bytes_max, self._size(orders.cut).raw_bytes), orders.cut
        with self._share.holding(raw_bytes, self._small.is_given_up):
            raw = self._small.read(cut, raw_bytes_max)
            if raw is None:
                return None
            tables = raw.tables(cut) if orders.preparation.waiting else ()
            if not orders.preparation.waiting_tables.isdisjoint(tables):
                orders.leave.wait()  # topics and schemas of theirs are made
            program = orders.preparation.make_ready(cut, tables)
            fence = self._next_fence()
            return self._small.run(cut, raw, program, orders.extras, orders.encoded_at_ms, fence, orders.leave)

    def _run_by_spark(self, orders: _Orders, *, may_repeat_here: bool) -> CutCounts:
        """Run a cut by Spark; by another session if this one ends meanwhile and ``spark`` has another.

        A cut of a streaming query is not run again here: the query is gone with its session.
        """
        orders.leave.wait()  # tasks write what they have encoded
        self.tend()  # a backlog keeps the driver's writer waiting
        large = self.large()
        try:
            return self._run_in_session(large, orders)
        except Exception as error:
            if self._is_given_up or not may_repeat_here or not large.shared.is_gone():
                raise
            again = self.large()
            if again is large:
                raise
            extra = {"changefeed": self._name, "reason": str(error)}
            log.warning("spark has ended under a cut, which is run again", extra=extra)
            return self._run_in_session(again, orders)

    def _run_in_session(self, large: "SparkCut", orders: _Orders) -> CutCounts:
        from sorters.spark.tasks.cut_answers import NotReady, TooLarge

        cut, preparation = orders.cut, orders.preparation
        # Once a session: there Spark's own numbers of attempts begin anew.
        fence = self._next_fence()
        is_small = self._size(cut).raw_bytes <= TASK_CUT_BYTES_MAX
        if preparation.waiting > TABLES_AT_ONCE_MAX:
            with_rows = large.tables_of(cut)
            preparation.make_ready(cut, with_rows)
            not_ready = None
        else:
            with_rows, not_ready = None, preparation.waiting_tables
        tables = preparation.tables_text(cut, with_rows)
        while is_small:
            answer = large.run_small(
                cut,
                preparation.sent(preparation.program),
                orders.extras,
                orders.encoded_at_ms,
                not_ready=not_ready or frozenset(),
                raw_bytes_max=OVER_GUESS_RATIO * TASK_CUT_BYTES_MAX,
                fence=fence,
                tables=tables,
            )
            if isinstance(answer, NotReady):
                preparation.make_ready(cut, answer.tables)
                not_ready = (not_ready or frozenset()) - answer.tables
                continue
            if isinstance(answer, TooLarge):
                break
            return answer
        program = preparation.make_ready(cut, frozenset() if not_ready is None else None)
        sent = preparation.sent(program)
        return large.run(cut, program, sent, orders.extras, orders.encoded_at_ms, fence=fence, tables=tables)

    def large(self) -> "SparkCut":
        """Return what runs cuts by Spark, in the session that lives; the first call starts Spark."""
        spark = self._spark()
        # After Spark's start: importing pyspark takes as long as all else that a small changefeed imports.
        from sorters.spark.cut import SparkCut
        from sorters.spark.jobs.session_jobs import session_jobs

        shared = session_jobs(spark)
        if self._large is None or self._large.shared is not shared:
            self._large = SparkCut(
                shared,
                topics=self._topics,
                raw_config=self._raw_config,
                sink_config=self._sink_config,
                name=self._name,
            )
        if self._is_given_up:  # while the session began
            self._large.give_up()
        return self._large


def _mean(before: float | None, now: float) -> float:
    return now if before is None else (before + now) / 2
