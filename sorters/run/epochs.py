"""Runs the epochs of a changefeed: frontier offsets to cuts, cuts to jobs, jobs to the checkpoint."""

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from schemas.flow.proof import ProofWindow
from schemas.ids import Ts, physical_ms
from schemas.rawlog.frontier import FrontierRecord, follow_frontier
from schemas.sink_figures import NO_FIGURES, SinkFigures
from sorters.core.cut.beginning import BegunEpoch
from sorters.core.cut.cut import ChangefeedFrontier, Cut, frontier_for
from sorters.core.cut.cut_plan import plan_cuts
from sorters.core.flow.ledger import window_of
from sorters.core.mount.corrupt_rows import CorruptRows
from sorters.cut.feed_share import FeedShare, WholeProcess
from sorters.cut.leave import Leave
from sorters.cut.worker import FeedProgram
from sorters.run.cut_job import CutJob, WrittenCut
from sorters.run.held_tables import frontier_of_tables
from sorters.run.imaged_frontier import ImagedFrontier
from sorters.run.preparation import Preparation
from sorters.run.proofs.state_proofs import StateProofs
from sorters.run.sources import FrontierSource, SchemaSource
from sorters.spark.backlog.query_folder import Folder, epoch_offsets

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CutProgress:
    """What a finished cut means to the changefeed."""

    checkpoint_ts: Ts
    resolved_ts: Ts
    """The frontier's, for this changefeed."""
    rows: int
    corrupt_rows: int
    """Rows among them that do not fit their checksum."""
    damaged_records: int = 0
    """Damaged raw records that were passed over for the first time in this run."""
    cut_s: float
    """How long the cut took."""
    by_spark: bool = False
    """Whether Spark's tasks ran it, and not the driver."""
    reason: str = ""
    """Why (:class:`sorters.core.cut.runner.Reason`)."""
    window: ProofWindow | None = None
    """What was read against what was written; None: nobody has counted."""
    states_proven: int = 0
    """Physical tables whose state proof is carried."""
    states_unproven: int = 0
    tasks_cpu_s: float = 0.0
    """CPU time of Spark's tasks in it."""
    sent: SinkFigures = NO_FIGURES
    """How its messages went to Kafka."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """What is to be done for a range of frontier offsets: a pure function of them, and of where the run began."""

    start: int
    end: int
    last: FrontierRecord
    """Where a reader stands that has read up to ``end``."""
    resolved_ts: Ts
    """What ``last`` says for this changefeed."""
    cuts: tuple[Cut, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochSources:
    """Where epochs are read."""

    frontier: FrontierSource
    frontier_topic: str
    schemas: SchemaSource
    folder: Folder
    """Of the streaming query that runs a backlog."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochWork:
    """Who prepares cuts and runs them."""

    preparation: Preparation
    job: CutJob
    share: FeedShare = field(default_factory=WholeProcess)
    """Is asked before each cut, and told what it takes of the process."""
    states: Callable[[], StateProofs | None] = lambda: None
    """What carries the state proofs of the changefeed's tables; None: no table has one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochBounds:
    """From where to where a run goes, and what it waits for."""

    origin_ts: Ts
    """Where the first epoch begins."""
    checkpoint_ts: Ts
    """What is downstream already."""
    target_ts: Ts | None
    """Where the changefeed ends; None: nowhere."""
    image_name: str = ""
    """What frontier records call the changefeed where they say of table images; '': it goes by none."""
    waits_at: Ts | None = None
    """Where it stands until frontier records know it; None: they need not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochControl:
    """Who lets a run go on, and hears how far it is."""

    begin: Callable[[BegunEpoch], Leave]
    """Writes down what is begun, and asks for leave to write the epoch's first cut."""
    ask: Callable[[], Leave]
    """Asks for leave to write each of the others."""
    note: Callable[[CutProgress], None]
    """Hears of each cut that is finished."""
    stopping: Callable[[], bool]
    """While it says so no further cut is begun."""


class Epochs:
    """Plans and runs epochs, one at a time and in order."""

    def __init__(self, sources: EpochSources, work: EpochWork, bounds: EpochBounds, control: EpochControl) -> None:
        self._sources, self._control = sources, control
        self._preparation, self._job, self._share, self._states = work.preparation, work.job, work.share, work.states
        self._origin_ts, self._target_ts = bounds.origin_ts, bounds.target_ts
        self._checkpoint_ts = bounds.checkpoint_ts
        self._imaged = ImagedFrontier(
            sources.frontier,
            self._of_tables,
            image_name=bounds.image_name,
            waits_at=bounds.waits_at,
            origin_ts=bounds.origin_ts,
        )
        self._last: tuple[int, FrontierRecord] | None = None
        """Up to which frontier offset all has been run, and where a reader stands there."""
        self._ended_s = time.monotonic()
        """When the last cut had ended."""

    @property
    def checkpoint_ts(self) -> Ts:
        """Up to where everything is downstream."""
        return self._checkpoint_ts

    def run_logged(self, number: int) -> None:
        """Run an epoch of the streaming query, whose offset log has it: the body of ``foreachBatch``."""
        self.run(self.plan(*epoch_offsets(self._sources.folder, self._sources.frontier_topic, number)), backlog=True)

    def plan(self, start: int, end: int, records: Iterable[FrontierRecord] | None = None) -> Epoch:
        """Return the epoch of the frontier records at ``[start, end)``, which are read unless they are given."""
        record = self._record_before(start)
        base, frontiers = self.frontier_of(record), []
        for read in self._sources.frontier.read(start, end) if records is None else records:
            record = follow_frontier(record, read)
            frontiers.append(self.frontier_of(record))
        after_ts = max(self._origin_ts, base.resolved_ts)
        cuts = plan_cuts(base, frontiers, after_ts, target_ts=self._target_ts)
        return Epoch(start=start, end=end, last=record, resolved_ts=frontiers[-1].resolved_ts, cuts=cuts)

    def run(self, epoch: Epoch, *, repeat: bool = False, backlog: bool = False) -> None:
        """Write everything of an epoch. Cuts that an earlier try has finished are passed over, the rest is the same.

        ``repeat``: an earlier run has begun it, so it goes to the partitions that topics had then. ``backlog``: a
        streaming query runs it.
        """
        begun: BegunEpoch | None = BegunEpoch(self._sources.frontier_topic, self._checkpoint_ts, epoch.start, epoch.end)
        for cut in self.missing(epoch):
            self._share.begin_cut(self._control.stopping)
            if self._control.stopping():
                return
            if begun is not None and not repeat:
                self._preparation.follow_growth(cut.after_ts)
            self._run_cut(cut, epoch.resolved_ts, begun, backlog=backlog)
            begun = None
        self._last = (epoch.end, epoch.last)

    def missing(self, epoch: Epoch) -> list[Cut]:
        """Return what of an epoch is not downstream yet."""
        return [cut for cut in epoch.cuts if cut.upto_ts > self._checkpoint_ts]

    def frontier_of(self, record: FrontierRecord) -> ChangefeedFrontier:
        """Return what a frontier record says for this changefeed."""
        return self._imaged.of(record)

    def _of_tables(self, record: FrontierRecord) -> ChangefeedFrontier:
        if not (record.held or record.held_ddl):
            return frontier_for(record, lambda _: False)
        frontier = frontier_of_tables(record, self._sources.schemas, self._preparation.feed)
        if frontier.resolved_ts <= self._checkpoint_ts:
            # No cut will come that could fail at a job which is held.
            self._preparation.check_jobs(self._checkpoint_ts)
        return frontier

    @property
    def end(self) -> int | None:
        """The frontier offset up to which all has been run; None: nothing yet."""
        return None if self._last is None else self._last[0]

    def _record_before(self, offset: int) -> FrontierRecord:
        if self._last is not None and self._last[0] == offset:
            return self._last[1]
        return self._sources.frontier.record_before(offset)

    def _run_cut(self, cut: Cut, resolved_ts: Ts, begun: BegunEpoch | None, *, backlog: bool) -> None:
        """Run a cut. ``begun``: the epoch, if this is the first one that is run of it."""
        started = time.monotonic()
        states = self._states()
        with self._share.preparing():
            program = self._preparation.begin(cut)
            if states is not None:
                cut = states.plan(cut, self._sources.schemas.store, self._preparation.feed)
        # Messages carry the time at which they were encoded; a wall clock would make a repeated message another one.
        encoded_at_ms = physical_ms(cut.upto_ts)
        leave = self._control.ask() if begun is None else self._control.begin(begun)
        try:
            written = self._write(cut, program, encoded_at_ms, leave, backlog=backlog)
        except Exception:
            # A sorter that has lost the changefeed reports no failure: this raises where the leave is refused.
            leave.wait()
            raise
        counts = written.counts
        self._share.end_cut(counts.rows)
        window = window_of(counts.flow, cut.after_ts, cut.upto_ts)
        if states is not None:  # before the checkpoint: a state that is behind it would lack rows
            lacking = {each.table_id for each in counts.damaged if each.is_skipped}
            window = replace(window, states=states.tell(counts.states, lacking))
        proven = [] if states is None else [state.is_proven for state in states.states.values()]
        self._checkpoint_ts = cut.upto_ts
        before_s, self._ended_s = self._ended_s, time.monotonic()
        cut_s = self._ended_s - started
        _log_corrupt(counts.corrupt)
        self._control.note(
            CutProgress(
                checkpoint_ts=cut.upto_ts,
                resolved_ts=resolved_ts,
                rows=counts.rows,
                corrupt_rows=counts.corrupt.count,
                damaged_records=written.damaged,
                cut_s=cut_s,
                by_spark=counts.by_spark,
                reason=written.choice.reason.value,
                window=window,
                states_proven=sum(proven),
                states_unproven=len(proven) - sum(proven),
                tasks_cpu_s=counts.cpu_s,
                sent=counts.sent.of_batch(cut_s, self._ended_s - before_s),
            )
        )

    def _write(self, cut: Cut, program: FeedProgram, encoded_at_ms: int, leave: Leave, *, backlog: bool) -> WrittenCut:
        if self._preparation.writes_ahead(cut):
            leave.wait()
            self._preparation.note_topics()
            for schemas in self._preparation.schemas_at_start(cut, encoded_at_ms):
                self._job.write(program, schemas)
        with self._share.preparing():
            companions = self._preparation.companions(cut, encoded_at_ms)
        return self._job.run(cut, self._preparation, companions, encoded_at_ms, leave, backlog=backlog)


def _log_corrupt(corrupt: CorruptRows) -> None:
    for row in corrupt.named:
        where = {"table": row.table, "key": row.key, "commit_ts": row.commit_ts}
        log.warning("row does not fit its checksum", extra=where)
    if corrupt.count > len(corrupt.named):
        log.warning("more rows do not fit their checksums", extra={"rows": corrupt.count - len(corrupt.named)})
