"""What must stand before a cut may run: topics, registered schemas, and the program that workers get.

It hangs on the schema, so it is made anew when a DDL within the range has changed the schema, and on which tables have
had rows (:mod:`sorters.run.ready_tables`).
"""

import logging
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

from schemas.ddl.schema_change import SchemaChange
from schemas.flow.flow_sum import TableSums
from schemas.ids import TableId, Ts
from schemas.rawlog.images import IdRange
from schemas.sink.image_note import ImageNote, WatermarkNote
from sorters.core.cut.cut import Cut
from sorters.core.cut.watermark_pace import watermark_is_due
from sorters.core.feed.companions import bootstrap_records, ddl_records, start_bootstraps, watermark_records
from sorters.core.feed.cut_tables import CutTables
from sorters.core.feed.feed import CompiledFeed
from sorters.core.feed.image_notes import NotedTables, note_of, watermark_note
from sorters.core.feed.initial_schemas import initial_schemas, not_told
from sorters.core.feed.resync_events import noted_names, resync_events, resync_records
from sorters.core.feed.route_check import check_routes
from sorters.core.feed.scope import check_jobs, watermark_topics_at
from sorters.core.records.order import OutputRecords, join_records
from sorters.cut.worker import FeedProgram
from sorters.registry.registry import SchemaRegistry
from sorters.run.ready_tables import ReadyTables, SinkTopics
from sorters.run.sources import SchemaSource
from sorters.run.topic_growth import TopicGrowth
from sorters.spark.jobs.task_jobs import SparkBroadcast
from sorters.spark.session import Session
from sorters.spark.worker.program_sender import ProgramSender, SentProgram

log = logging.getLogger(__name__)


class Preparation:
    """Keeps the program of one changefeed fit for the next cut. Cuts come in ts order."""

    def __init__(
        self,
        spark: Session,
        feed: CompiledFeed,
        schemas: SchemaSource,
        topics: SinkTopics,
        registry: SchemaRegistry | None,
        *,
        start_ts: Ts | None = None,
        target_ts: Ts | None = None,
        growth: TopicGrowth | None = None,
    ) -> None:
        """Both ts are the changefeed's: its first cut is held against the dispatcher rules as a whole, its last one has
        watermarks in any case. ``growth``: of ``topics``; None: they do not grow.
        """
        self._growth = growth
        self.feed = feed
        self._schemas = schemas
        self._tables = ReadyTables(feed, topics, registry)
        self._start_ts, self._target_ts = start_ts, target_ts
        self._ready_upto: Ts | None = None
        self._program: FeedProgram | None = None
        self._spark = spark
        self._sender: tuple[Any, ProgramSender] | None = None
        """With the context of the session that it sends by."""
        self._watermark_topics: tuple[str, ...] = ()
        self._noted: NotedTables | None = None
        """As of the last DDL, once a watermark has to speak of images."""
        self._resynced: tuple[tuple[IdRange, ...], Mapping[tuple[str, str, Ts], TableId]] | None = None
        """Of the last cut with a resync, until a DDL changes its tables."""
        self._cut_tables = CutTables()

    def follow_growth(self, border_ts: Ts) -> None:
        """Take up the partitions that topics have got, for a new epoch whose first cut begins at ``border_ts``."""
        if self._growth is None:
            return
        self._growth.begin(border_ts)
        grown = self._growth.look(self.feed.partitions)
        if grown:
            self.feed = replace(self.feed, partitions={**self.feed.partitions, **grown})
            self._program = FeedProgram(self._schemas.store, self.feed)

    def note_topics(self) -> None:
        """Write down which partitions are used: behind the begun epoch, and before any record.

        Raises:
            ZooKeeperUnreachableError
        """
        if self._growth is not None:
            self._growth.write()

    def begin(self, cut: Cut) -> FeedProgram:
        """Return the program for a cut; what rows of single tables need besides, :meth:`make_ready` adds.

        Raises:
            DispatchError, ColumnSelectorError: in the changefeed's first cut, the tables that the dispatcher rules or
                column selectors do not fit.
            BusError: a DDL job up to the cut's end that concerns the changefeed does not decode or fit, a topic or
                schema is refused, or Kafka or the registry does not answer.
        """
        self._schemas.advance(cut.ddl_end)
        self.check_jobs(cut.upto_ts)
        store = self._schemas.store
        if self._growth is not None:
            self._growth.begin(cut.after_ts)
        changed = self._ready_upto is None or bool(store.changes_between(self._ready_upto, cut.upto_ts))
        self._cut_tables.begin(is_changed=changed)
        if cut.after_ts == self._start_ts:
            check_routes(store, cut.after_ts, self.feed)
        if changed:
            # All that the store has taken in so far, also of later cuts: what is sent to tasks holds that too.
            touched = {table for change in store.changes for table in _physical_ids(change)}
            self._schemas.forget(cut.after_ts)
            self.feed = self._tables.begin(cut, self._ready_upto, store, self.feed)
            self._program = FeedProgram(store, self.feed)
            if self._sender is not None:
                self._sender[1].note_changed(touched)
            self._watermark_topics = watermark_topics_at(store, cut.upto_ts, self.feed)
            self._noted = self._resynced = None
        elif self._program is not None and self._program.schemas is not store:
            # Tables of system schemas are no change, but their rows must be known for what they are.
            self._program = FeedProgram(store, self.feed)
        self._ready_upto = cut.upto_ts
        return self.program

    @property
    def program(self) -> FeedProgram:
        """The program of the cut that was begun last, as far as it is ready."""
        assert self._program is not None, "a cut is begun first"
        return self._program

    def check_jobs(self, upto_ts: Ts) -> None:
        """See :func:`sorters.core.feed.scope.check_jobs`."""
        check_jobs(self._schemas.bad, upto_ts, self._schemas.store, self.feed)

    def writes_ahead(self, cut: Cut) -> bool:
        """Tell whether something must be written before the records of a cut that was begun: which partitions are used
        (:meth:`note_topics`), schemas (:meth:`schemas_at_start`), or what a resync makes ready.
        """
        has_topics = self._growth is not None and self._growth.is_unwritten
        return bool(cut.after_ts == self._start_ts or cut.resync or has_topics or self._new_partitions(cut))

    def schemas_at_start(self, cut: Cut, encoded_at_ms: int) -> Iterator[OutputRecords]:
        """Yield the schemas that stand before everything else of the changefeed's first cut, in their order; and in
        the first cut after topics have grown those that stand so in their new partitions.
        """
        if cut.after_ts == self._start_ts:
            yield from start_bootstraps(self._schemas.store, cut.after_ts, self.feed, encoded_at_ms)
            yield from initial_schemas(self._schemas.store, cut.after_ts, self.feed, encoded_at_ms)
            if left_out := not_told(self._schemas.store, cut.after_ts, self.feed):
                log.warning("views or sequences are not told", extra={"code": left_out.code, "said": str(left_out)})
        elif grown := self._new_partitions(cut):
            yield from start_bootstraps(self._schemas.store, cut.after_ts, self.feed, encoded_at_ms, only=grown)

    def _new_partitions(self, cut: Cut) -> Mapping[str, range]:
        """Return the partitions that get schemas at the cut's start, as their topics have grown."""
        if self._growth is None or self.feed.bootstraps is None:
            return {}
        return self._growth.new_partitions(cut.after_ts)

    def companions(self, cut: Cut, encoded_at_ms: int) -> OutputRecords:
        """Return the records of a cut that stem from no row: its DDL events, the watermarks of its end if due, what
        begins and ends resyncs, and the schemas that are sent within it, other than those of
        :meth:`schemas_at_start`.
        """
        store = self._schemas.store
        ddl = ddl_records(store, cut.after_ts, cut.upto_ts, self.feed, encoded_at_ms)
        bootstraps = bootstrap_records(store, cut.after_ts, cut.upto_ts, self.feed, encoded_at_ms, at_start=False)
        if events := resync_events(cut, store, self.feed):
            self.make_ready(cut, {table for event in events if event.post for table in event.post.physical_ids})
            ddl = join_records([ddl, resync_records(events, self.feed, encoded_at_ms)])
        topics = self._watermark_topics
        messages = sum(self.feed.partitions[topic] for topic in topics)
        note = self._image_note(cut)
        needed = ddl.num_rows > 0 or (note is not None and bool(note.whole))
        if not watermark_is_due(cut, messages, is_needed=needed, target_ts=self._target_ts):
            return join_records([ddl, bootstraps])
        return join_records([watermark_records(cut.upto_ts, topics, self.feed, encoded_at_ms), ddl, bootstraps])

    def watermark_note(self, cut: Cut) -> WatermarkNote | None:
        """Return what watermarks of a cut that was begun say of table images; None: nothing."""
        note = self._image_note(cut)
        return None if note is None else watermark_note(cut, note)

    def noted_names(self, cut: Cut) -> Mapping[tuple[str, str, Ts], TableId]:
        """Return :func:`sorters.core.feed.resync_events.noted_names` of a cut that was begun."""
        if self._resynced is None or self._resynced[0] != cut.resync:
            self._resynced = cut.resync, noted_names(cut, self._schemas.store, self.feed)
        return self._resynced[1]

    def _image_note(self, cut: Cut) -> ImageNote | None:
        if self.feed.has_processors or (cut.left_out is None and cut.read_again is None):
            return None
        if self._noted is None:
            self._noted = NotedTables.at(self._schemas.store, cut.upto_ts, self.feed)
        return note_of(cut, self._noted)

    @property
    def waiting(self) -> int:
        """Physical tables for whose rows something must be made ready first."""
        return self._tables.waiting

    @property
    def waiting_tables(self) -> frozenset[TableId]:
        """These tables."""
        return self._tables.waiting_tables

    def make_ready(self, cut: Cut, tables: Collection[TableId] | None) -> FeedProgram:
        """Return the program of a cut, fit for rows of these physical tables; None: of all of the changefeed.

        Raises:
            BusError: a topic or schema is refused, or Kafka or the registry does not answer.
        """
        feed = self._tables.make_ready(cut, tables, self._schemas.store, self.feed)
        if feed is not None:
            self.feed = feed
            self._program = FeedProgram(self._schemas.store, feed)
            self.note_topics()
        return self.program

    def tables_text(self, cut: Cut, with_rows: Collection[TableId] | None = None) -> str:
        """Return tables of the cut that was begun, for Spark's UI; ``with_rows``: those that have rows, if known."""
        return self._cut_tables.text(cut, self._schemas.store, self.feed, with_rows)

    def note_rows(self, written: TableSums) -> None:
        """Take the tables that a cut had rows of: they are named first in the next one."""
        self._cut_tables.note_rows(written)

    def sent(self, program: FeedProgram) -> SentProgram:
        """Return the program as tasks get it, having sent what they do not have; it is what :meth:`make_ready` gave."""
        context = self._spark().sparkContext
        if self._sender is None or self._sender[0] is not context:  # what was sent went with the session before
            self._sender = context, ProgramSender(lambda value: SparkBroadcast(context.broadcast(value)))
        return self._sender[1].send(program)

    def close(self) -> None:
        """Take back what tasks were sent; none of them runs any more."""
        if self._sender is not None:
            self._sender[1].close()
            self._sender = None


def _physical_ids(change: SchemaChange) -> set[TableId]:
    sides = (side for table in change.tables for side in (table.pre, table.post) if side is not None)
    return {physical_id for side in sides for physical_id in side.physical_ids}.union(change.truncated)
