"""One reign of an owner that pulls everything itself: what happens at each tick, apart from sessions and signals."""

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from compose.split_watch import SplitWatch
from consumers.core.held_tables import pulled_from
from consumers.core.span_split import SplitSettings
from consumers.core.table_set import TableSet
from consumers.frontier_topic import FrontierUnavailableError
from consumers.owner import HELD_LAG_S, Owner
from producers.ddl_feed import DdlFeed
from producers.feed_types import SpanStatus
from producers.puller import Puller, PullerStats
from schemas.ids import CaptureId, TableId, Ts, physical_ms
from schemas.rawlog.ddl_record import DdlRecord
from schemas.rawlog.frontier import DdlReport, FrontierRecord
from schemas.spans import TableSpan
from schemas.tidb.bad_jobs import BadJobs
from schemas.tidb.schema_store import SchemaStore

log = logging.getLogger(__name__)

GC_EVERY_S = 60.0
"""How often the owner forgets schemas that it needs no more; each run looks at all tables that changed."""
BUSY_SHARE_MAX = 0.2
"""Of the time in ticks: with very many tables one takes long, and the puller needs the interpreter too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReignOptions:
    """Times of the owner."""

    tick_s: float = 0.05
    """Between two looks at what has landed: half of the frontier's share of the latency budget (DESIGN §5)."""
    status_s: float = 1.0
    """Between two writes of the status node."""
    repeats_s: float = 60.0
    """How long after a takeover the predecessor may be landing still, so that all records count as repeating. What is
    on its way from a process that is gone arrives within Kafka's request timeout (30 s)."""
    held_lag_s: float = HELD_LAG_S
    """A table that is further behind the first one is held: only changefeeds that contain it wait for it."""
    split: SplitSettings = field(default_factory=SplitSettings)
    """Which tables are pulled in several spans."""
    split_look_s: float = 300.0
    """Between two counts of the tables' regions, each of which reads all of them from PD."""


class Reign:
    """Feeds the owner from puller and DDL feed; not thread-safe."""

    def __init__(
        self,
        capture: CaptureId,
        owner: Owner,
        puller: Puller,
        ddl: DdlFeed,
        options: ReignOptions,
        *,
        had_predecessor: bool,
    ) -> None:
        """Begin at the owner's place: all tables start from it at the first tick."""
        self._capture, self._owner, self._puller, self._ddl, self._options = capture, owner, puller, ddl, options
        self._store, self._bad_jobs = SchemaStore.empty(), BadJobs()
        self._tables: TableSet | None = None
        self._spans: dict[TableId, tuple[TableSpan, ...]] = {}
        """Of each table that is pulled, ascending."""
        self._assigned: dict[TableSpan, CaptureId] = {}
        self._splits = SplitWatch(options.split, puller.table_regions, every_s=options.split_look_s)
        self._repeats_until = time.monotonic() + options.repeats_s if had_predecessor else 0.0
        self._status_at = self._gc_at = self._unpublished_since = 0.0
        puller.published(owner.place)

    def tick(self) -> float:
        """Take one step; return how long to rest, in seconds.

        Raises:
            BusError: a schema snapshot that does not decode, a DDL job that an earlier version could read and this one
                cannot, or a lost lease.
        """
        began_at = time.monotonic()
        # The report first: jobs up to its landed_ts are then among those that are taken.
        ddl_report = self._ddl.report()
        for record in self._ddl.take():
            self._apply(record)
        self._check_passed_jobs()
        if self._tables is not None:
            self._tables = self._tables.known_up_to(ddl_report.landed_ts)
            if self._splits.ready(self._tables.starts):  # before it nothing is assigned, so no R may be said
                self._assign_new()
                self._split_anew()
                self._publish(ddl_report, began_at)
        spent_s = time.monotonic() - began_at
        return max(self._options.tick_s, spent_s / BUSY_SHARE_MAX - spent_s)

    def close(self) -> None:
        """Count no more regions."""
        self._splits.close()

    def status_is_due(self) -> bool:
        """Tell whether the status node should be written now."""
        now = time.monotonic()
        if now < self._status_at:
            return False
        self._status_at = now + self._options.status_s
        return True

    def status(self) -> dict[str, Any]:
        """Return what the live display shows of this upstream, ready for JSON; times by this machine's clock."""
        place, stats = self._owner.place, self._puller.stats()
        return {
            "capture": self._capture,
            "owner_rev": place.owner_rev,
            "resolved_ts": place.resolved_ts,
            "lag_s": round(time.time() - physical_ms(place.resolved_ts) / 1000, 3),
            "rows_in": stats.landing.acked_rows,
            "tables": len(self._spans),
            "tables_held": sum(len(held.tables) for held in place.held),
            "spans": len(self._assigned),
            "regions": stats.regions,
            "regions_initialized": stats.regions_initialized,
            "scans_running": stats.scans_running,
            "scans_waiting": stats.scans_waiting,
            "troubles": dict(stats.troubles),
            "held_bytes": stats.held_bytes,
            "spilled_bytes": stats.spilled_bytes,
            "locks": asdict(stats.locks),
            "stalls": [str(job.error) for job in self._bad_jobs.jobs[:5]] + _stalls(stats),
            "at_s": round(time.time(), 3),
        }

    def seen(self) -> tuple[FrontierRecord, PullerStats, SpanStatus]:
        """Return the published place, the puller's numbers and the DDL feed's span; unlike all else from any thread."""
        return self._owner.place, self._puller.stats(), self._ddl.status()

    def _apply(self, record: DdlRecord) -> None:
        known = len(self._bad_jobs.jobs)
        change = self._bad_jobs.apply(self._store, record)
        for job in self._bad_jobs.jobs[known:]:
            log.error("ddl job cannot be used", extra={"code": job.error.code, "error": str(job.error)})
        if record.kind == "snapshot_end" and self._tables is None:
            self._tables = TableSet.at_snapshot(self._store, record.ts)
        elif change is not None and self._tables is not None:
            self._tables = self._tables.with_ddl(change)

    def _check_passed_jobs(self) -> None:
        """Let no R move on by a schema that lacks a job which R has passed as a good one."""
        place = self._owner.place
        held = {(held.ts, held.start_ts) for held in place.held_ddl}
        for job in self._bad_jobs.jobs:
            if job.scope.ts <= place.resolved_ts and (job.scope.ts, job.scope.start_ts) not in held:
                raise job.error

    def _assign_new(self) -> None:
        """Assign tables that nobody pulls, and remove those that ended."""
        assert self._tables is not None
        place = self._owner.place
        stop_ts = min([place.resolved_ts, *(held.ts for held in place.held_ddl)])
        self._tables = self._tables.published(stop_ts, {table: held.ts for held in place.held for table in held.tables})
        new = [table for table in self._tables.starts if table not in self._spans]
        if new:
            self._assign({table: self._splits.spans_of(table) for table in new})
            log.info("tables assigned", extra={"tables": len(new), "all": len(self._spans)})
        if len(self._spans) > len(self._tables.starts):
            over = self._spans.keys() - self._tables.starts.keys()
            self._remove(over)
            log.info("tables removed", extra={"tables": len(over), "all": len(self._spans)})

    def _split_anew(self) -> None:
        """Pull tables that have grown, or become uneven, by other spans: from where they are published."""
        new = self._splits.look(self._spans)
        if new:
            self._remove(new)
            self._assign(new)
            for table, spans in new.items():
                log.info("table is split anew", extra={"table_id": table, "spans": len(spans)})

    def _assign(self, tables: Mapping[TableId, tuple[TableSpan, ...]]) -> None:
        assert self._tables is not None
        spans: dict[TableSpan, Ts] = {}
        for table, parts in tables.items():
            spans |= dict.fromkeys(parts, pulled_from(self._owner.place, table, self._tables.starts[table]))
        self._puller.assign(spans)
        self._spans.update(tables)
        self._assigned.update(dict.fromkeys(spans, self._capture))

    def _remove(self, tables: Iterable[TableId]) -> None:
        spans = [span for table in tables for span in self._spans.pop(table)]
        self._puller.remove(spans)
        for span in spans:
            del self._assigned[span]

    def _publish(self, ddl_report: DdlReport, now: float) -> None:
        try:
            record = self._owner.tick(
                {self._capture: self._puller.report()},
                ddl_report,
                self._assigned,
                # What is pulled from a held job on may have landed before.
                repeats_possible=now < self._repeats_until or bool(self._owner.place.held_ddl),
                bad_ddl=tuple(job.scope for job in self._bad_jobs.jobs),
            )
        except FrontierUnavailableError as error:
            # The broker is away: rows wait in the producer, and a later record says all that this one would have.
            if not self._unpublished_since:
                self._unpublished_since = now
                log.warning("frontier not published; trying again", extra={"error": str(error)})
            return
        if self._unpublished_since:
            log.info("frontier published again", extra={"after_s": round(now - self._unpublished_since, 1)})
            self._unpublished_since = 0.0
        if record is not None:
            self._puller.published(record)
            if now >= self._gc_at:
                self._gc_at = now + GC_EVERY_S
                self._store.gc(record.resolved_ts)


def _stalls(stats: PullerStats) -> list[str]:
    reasons = [f"{one.span}: {one.reason}" for one in stats.stalls[:5]]
    return reasons + ([f"kafka: {stats.broker_reason}"] if stats.broker_reason else [])
