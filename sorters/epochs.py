"""Runs the epochs of a changefeed's streaming query: frontier offsets to cuts, cuts to jobs, jobs to the checkpoint."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from schemas.ids import Ts, physical_ms
from schemas.rawlog.frontier import FrontierRecord, HeldDdl, follow_frontier
from schemas.tidb.ddl_job import JobScope
from sorters.core.batch_plan import plan_batches
from sorters.core.corrupt_rows import CorruptRows
from sorters.core.cut import Cut, FrontierPlace, place_for
from sorters.core.scope import concerns, held_for
from sorters.cut_job import CutJob
from sorters.frontier_reader import FrontierReader
from sorters.preparation import Preparation
from sorters.query_folder import Folder, epoch_offsets
from sorters.schema_feed import SchemaFeed

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What a finished cut means to the changefeed."""

    checkpoint_ts: Ts
    resolved_ts: Ts
    """Of the frontier, for this changefeed."""
    rows: int
    corrupt_rows: int
    """Rows among them that do not fit their checksum."""
    batch_s: float


class Epochs:
    """The body of ``foreachBatch``. What it does with an epoch is a pure function of the epoch's offsets."""

    def __init__(
        self,
        *,
        frontier: FrontierReader,
        frontier_topic: str,
        query_folder: Folder,
        schemas: SchemaFeed,
        preparation: Preparation,
        job: CutJob,
        origin_ts: Ts,
        checkpoint_ts: Ts,
        target_ts: Ts | None,
        before_cut: Callable[[], None],
        on_progress: Callable[[Progress], None],
    ) -> None:
        """``origin_ts`` is where the query began; ``checkpoint_ts`` what is downstream already.

        ``before_cut`` raises where this process must not write.
        """
        self._frontier = frontier
        self._frontier_topic = frontier_topic
        self._query_folder = query_folder
        self._schemas = schemas
        self._preparation = preparation
        self._job = job
        self._origin_ts = origin_ts
        self._checkpoint_ts = checkpoint_ts
        self._target_ts = target_ts
        self._before_cut = before_cut
        self._on_progress = on_progress
        self._last: tuple[int, FrontierRecord] | None = None

    def run(self, epoch: int) -> None:
        """Write everything of an epoch. Cuts that an earlier try has finished are passed over, the rest is the same."""
        self.run_records(*epoch_offsets(self._query_folder, self._frontier_topic, epoch))

    @property
    def checkpoint_ts(self) -> Ts:
        """Up to where everything is downstream."""
        return self._checkpoint_ts

    def run_records(self, start: int, end: int) -> None:
        """Write everything that the frontier records at offsets ``[start, end)`` bring."""
        record = self._record_before(start)
        base, places = self.place(record), []
        for read in self._frontier.read(start, end):
            record = follow_frontier(record, read)
            places.append(self.place(record))
        after_ts = max(self._origin_ts, base.resolved_ts)
        for cut in plan_batches(base, places, after_ts, target_ts=self._target_ts):
            if cut.upto_ts > self._checkpoint_ts:
                self._run_cut(cut, places[-1].resolved_ts)
        self._last = (end, record)

    def place(self, record: FrontierRecord) -> FrontierPlace:
        """Return what a frontier record says for this changefeed."""
        if not (record.held or record.held_ddl):
            return place_for(record, lambda _: False)
        # Which of the held tables are ours is told by the schema at the record's own ts, whatever has been read since.
        self._schemas.advance(record.ddl_high)
        store, feed = self._schemas.store, self._preparation.feed

        def stops_us(held: HeldDdl) -> bool:
            scope = JobScope(
                ts=held.ts, start_ts=held.start_ts, schema=held.schema, table=held.table, table_id=held.table_id
            )
            return concerns(scope, store, feed)

        place = place_for(replace(record, held=held_for(record, store, feed)), lambda _: True, stops_us)
        if place.resolved_ts <= self._checkpoint_ts:
            # No cut will come that could fail at a job which is held.
            self._preparation.check_jobs(self._checkpoint_ts)
        return place

    def _record_before(self, offset: int) -> FrontierRecord:
        if self._last is not None and self._last[0] == offset:
            return self._last[1]
        return self._frontier.place_before(offset)

    def _run_cut(self, cut: Cut, resolved_ts: Ts) -> None:
        started = time.monotonic()
        program: Any = self._preparation.program_for(cut)
        # Messages carry the time at which they were encoded; a wall clock would make a repeated message another one.
        encoded_at_ms = physical_ms(cut.upto_ts)
        self._before_cut()
        for told in self._preparation.told_at_start(cut, encoded_at_ms):
            self._job.write(program, told)
        companions = self._preparation.companions(cut, encoded_at_ms)
        rows = self._job.run(cut, program, self._preparation, companions, encoded_at_ms)
        self._checkpoint_ts = cut.upto_ts
        batch_s = time.monotonic() - started
        corrupt = self._job.corrupt
        _log_corrupt(corrupt)
        self._on_progress(
            Progress(
                checkpoint_ts=cut.upto_ts,
                resolved_ts=resolved_ts,
                rows=rows,
                corrupt_rows=corrupt.count,
                batch_s=batch_s,
            )
        )


def _log_corrupt(corrupt: CorruptRows) -> None:
    for row in corrupt.named:
        where = {"table": row.table, "key": row.key, "commit_ts": row.commit_ts}
        log.warning("row does not fit its checksum", extra=where)
    if corrupt.count > len(corrupt.named):
        log.warning("more rows do not fit their checksums", extra={"rows": corrupt.count - len(corrupt.named)})
