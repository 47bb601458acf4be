"""Which tables an owner must have pulled, by which spans and from which ts: what the DDL feed's records come to."""

import logging
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Executor

from consumers.control.core.frontier.held_tables import pulled_from
from consumers.control.core.frontier.span_split import SplitSettings
from consumers.control.core.frontier.table_set import TableSet
from consumers.control.owner.split_watch import SplitWatch
from schemas.ddl.bad_jobs import BadJob, BadJobs
from schemas.ddl.schema_change import SchemaChange, StoredTable
from schemas.ddl.schema_store import SchemaStore
from schemas.ids import TableId, Ts
from schemas.rawlog.ddl_record import DdlRecord
from schemas.rawlog.frontier import FrontierRecord
from schemas.tidb.spans import Boundaries, TableSpan

log = logging.getLogger(__name__)

Spans = Mapping[TableId, tuple[TableSpan, ...]]


class PulledTables:
    """One reign's. :attr:`spans` is what the coordinator is given: another object at each change, never changed itself.

    A table that is to be pulled by other spans than before is first pulled by none: it leaves :attr:`spans` until
    nobody has the old ones, and is among :attr:`split_anew` meanwhile.
    """

    def __init__(
        self,
        settings: SplitSettings,
        count_regions: Callable[[Collection[TableId], int], Boundaries],
        *,
        look_s: float,
        clock: Callable[[], float],
        counter: Executor | None = None,
    ) -> None:
        self._splits = SplitWatch(settings, count_regions, every_s=look_s, clock=clock, counter=counter)
        self._store, self._bad_jobs = SchemaStore.empty(), BadJobs()
        self._tables: TableSet | None = None
        self._followed: Mapping[TableId, Ts] | None = None
        self.spans: Spans = {}
        self.split_anew: dict[TableId, tuple[TableSpan, ...]] = {}
        self._old_spans: dict[TableId, tuple[TableSpan, ...]] = {}
        """Of the tables in ``split_anew``."""

    @property
    def bad_jobs(self) -> tuple[BadJob, ...]:
        """DDL jobs that cannot be read or applied, in order."""
        return self._bad_jobs.jobs

    @property
    def store(self) -> SchemaStore:
        """All schemas that are known; not to be changed."""
        return self._store

    def take(self, record: DdlRecord) -> SchemaChange | None:
        """Take the next record of the DDL feed; return what it changed, if it is a job that can be used."""
        known = len(self._bad_jobs.jobs)
        change = self._bad_jobs.apply(self._store, record)
        for job in self._bad_jobs.jobs[known:]:
            log.error("ddl job cannot be used", extra={"code": job.error.code, "error": str(job.error)})
        if record.kind == "snapshot_end" and self._tables is None:
            self._tables = TableSet.at_snapshot(self._store, record.ts)
        elif change is not None and self._tables is not None:
            self._tables = self._tables.with_ddl(change)
        return change

    def look(self, known_ts: Ts, published: FrontierRecord, captures: int) -> bool:
        """Bring :attr:`spans` up to date; return False while nothing may be scheduled yet.

        Args:
            known_ts: all DDL jobs up to it were taken.
            published: the newest published record.
            captures: that share the work.

        Raises:
            BusError: R has passed, as a good one, a job that cannot be used here.
        """
        self._check_passed_jobs(published)
        if self._tables is None:
            return False
        tables = self._tables.known_up_to(known_ts)
        stop_ts = min([published.resolved_ts, *(held.ts for held in published.held_ddl)])
        self._tables = tables.published(stop_ts, {table: held.ts for held in published.held for table in held.tables})
        self._splits.captures = captures
        # A large table begun whole would only have to begin anew.
        if not self._splits.ready(self._tables.starts):
            return False
        if self._tables.starts is not self._followed:
            self._followed = self._tables.starts
            self._follow(self._followed)
        self._split_anew()
        return True

    def heard(self, wanted: Collection[TableSpan]) -> None:
        """Take over the spans that the coordinator makes of :attr:`spans`: what a predecessor has cut otherwise, and
        runs, stays as it is."""
        parts: dict[TableId, list[TableSpan]] = {}
        for span in wanted:
            if not span.whole or len(self.spans.get(span.table_id, ())) > 1:
                parts.setdefault(span.table_id, []).append(span)
        other = {table: tuple(sorted(own_parts)) for table, own_parts in parts.items() if table in self.spans}
        other = {table: own_parts for table, own_parts in other.items() if own_parts != self.spans[table]}
        if other:
            self.spans = {**self.spans, **other}

    def forgotten(self, existing: Collection[TableSpan]) -> None:
        """Hear which spans anybody has, or is not known to have left: tables that wait for that begin by new ones."""
        free = [table for table, old in self._old_spans.items() if not any(span in existing for span in old)]
        if free:
            self.spans = {**self.spans, **{table: self.split_anew.pop(table) for table in free}}
            for table in free:
                del self._old_spans[table]

    def start_of(self, published: FrontierRecord, table: TableId) -> Ts:
        """Return from where a table begins now, wherever: a published ts of it, or that of the job that made it."""
        made_ts = self._tables.starts.get(table, Ts(0)) if self._tables is not None else Ts(0)
        return pulled_from(published, table, made_ts)

    def newest_of(self, table: TableId) -> StoredTable | None:
        """Return the table or partition as the newest DDL has left it; None: nobody has heard of it."""
        return self._store.newest_of(table)

    def forget_below(self, ts: Ts) -> None:
        """Forget schemas that nobody needs who stands at ``ts``."""
        self._store.gc(ts)

    def close(self) -> None:
        """Count no more regions."""
        self._splits.close()

    def _follow(self, starts: Mapping[TableId, Ts]) -> None:
        """Begin with tables that are new, and leave those that have ended."""
        over = [table for table in (*self.spans, *self.split_anew) if table not in starts]
        new = [table for table in starts if table not in self.spans and table not in self.split_anew]
        if not over and not new:
            return
        for table in over:
            self.split_anew.pop(table, None)
            self._old_spans.pop(table, None)
        kept = {table: parts for table, parts in self.spans.items() if table in starts}
        self.spans = {**kept, **{table: self._splits.spans_of(table) for table in new}}
        log.info("tables to pull", extra={"new": len(new), "over": len(over), "all": len(starts)})

    def _split_anew(self) -> None:
        """Have tables that have grown, or become uneven, pulled by other spans: from where they are published."""
        new = self._splits.look(self.spans)
        if not new:
            return
        for table, parts in new.items():
            log.info("table is split anew", extra={"table_id": table, "spans": len(parts)})
            self._old_spans[table], self.split_anew[table] = self.spans[table], parts
        self.spans = {table: parts for table, parts in self.spans.items() if table not in new}

    def _check_passed_jobs(self, published: FrontierRecord) -> None:
        """Let no R move on by a schema that lacks a job which R has passed as a good one."""
        held = {(held.ts, held.start_ts) for held in published.held_ddl}
        for job in self._bad_jobs.jobs:
            if job.scope.ts <= published.resolved_ts and (job.scope.ts, job.scope.start_ts) not in held:
                raise job.error
