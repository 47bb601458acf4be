"""One run of a changefeed whose sink is lake tables: a commit each ``commit-interval``, by the frontier's watermarks.

    frontier records ─▶ cuts ─▶ steps between DDL ─▶ each table: mount, order, write, publish ─▶ DDL ─▶ tags

It reads the raw log as every sorter does, and writes to no topic: lake tables are written by columns, and say
themselves how far they are (:mod:`sorters.core.lake.commits`).
"""

import logging
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from edges.kafka.offsets import TopicReader
from schemas.changes import RowChanges
from schemas.config.lake_rules import catalog_options
from schemas.config.settings import ChangefeedConfig
from schemas.ddl.schema_store import SchemaStore
from schemas.errors import BusError
from schemas.ids import Ts
from schemas.nodes.changefeed import ChangefeedInfo
from schemas.rawlog.frontier import FrontierRecord, follow_frontier
from schemas.rawlog.topics import RawTopics
from schemas.tidb.table import TableVersion
from sorters.core.columnar.row_changes import rows_where
from sorters.core.cut.cut import Cut
from sorters.core.cut.cut_plan import plan_cuts
from sorters.core.cut.runner import Reason
from sorters.core.feed.feed import compile_feed
from sorters.core.feed.resync_events import resynced_tables
from sorters.core.feed.scope import check_jobs
from sorters.core.filter.soft_deletes import sent_parts, soft_delete_time
from sorters.core.lake.changes import part_changes
from sorters.core.lake.columns import key_names
from sorters.core.lake.commits import shows_all, steps_of_cut
from sorters.core.rows.pipeline import kept_parts
from sorters.core.rows.wanted_rows import wanted_versions
from sorters.cut.damaged_records import DamagedRecords, naming_damage
from sorters.cut.feed_share import FeedShare, WholeProcess
from sorters.cut.image_chunks import chunk_changes, read_chunks
from sorters.cut.raw_cut import RawCut
from sorters.cut.raw_records import raw_records
from sorters.cut.worker import FeedProgram, gather_rows
from sorters.log.failures import bus_error
from sorters.log.raw_topic_reader import raw_topic_reader
from sorters.run.damage_notes import DamageNotes
from sorters.run.epochs import CutProgress
from sorters.run.held_tables import frontier_of_tables
from sorters.run.imaged_frontier import ImagedFrontier
from sorters.run.lake.catalog import LakeCatalog, lake_owner
from sorters.run.lake.held_changes import HeldChanges, TableChanges
from sorters.run.lake.rows import LakeRows
from sorters.run.lake.step_writes import write_step
from sorters.run.lake.tables import LakeTables, Written
from sorters.run.sources import RunSources
from sorters.spark.session import Session

log = logging.getLogger(__name__)

FRONTIER_RECORDS_MAX = 10_000
"""That are planned at once: of a backlog."""
CUT_OFFSETS_MAX = 512
"""Raw records that a commit adds, some 128 MiB: what stands in the log beyond is another commit's."""
RAW_BYTES_MAX = 128 << 20
"""Of raw records that a commit holds. A cut that is larger, as of a long transaction, is read as it is worked on."""
SETTLED_S = 3600.0
"""Where nothing is compacted here: how often tables forget a resync that is over, for those who compact by hand."""
END_S = 2.0
"""How long a run that is told to end waits for the table under way."""


@dataclass(frozen=True, slots=True)
class OwnReads:
    """What a run reads by clients of its own, once in a while: table images, and cuts that are too large to hold."""

    name: str
    """What frontier records call the changefeed (:func:`schemas.rawlog.images.image_feed`)."""
    raw_config: Mapping[str, object]
    """librdkafka's, of the raw log."""
    topics: RawTopics
    folder: Path
    """For rows that do not fit in memory."""

    def reader(self, topic: str, stopped: Callable[[], bool]) -> TopicReader:
        """Return what reads a topic until ``stopped``; the caller closes it."""
        return raw_topic_reader(self.raw_config, topic, stopped=stopped)


class LakeRun:
    """Holds what one run reads by and writes with; :meth:`close` must be called. Its verbs are those of
    :class:`~sorters.run.feed_run.FeedRun`."""

    def __init__(  # noqa: PLR0913 # the parts of a run, wired once
        self,
        spark: Session,
        *,
        sources: RunSources,
        info: ChangefeedInfo,
        config: ChangefeedConfig,
        checkpoint_ts: Ts,
        before_cut: Callable[[], None],
        on_progress: Callable[[CutProgress], None],
        own: OwnReads,
        share: FeedShare | None = None,
    ) -> None:
        """``sources`` is closed with the run. ``before_cut`` raises where this process must not write."""
        self._spark, self._sources, self._config = spark, sources, config
        self._frontier, self._schemas = sources.frontier, sources.schemas
        self._owner = lake_owner(info)
        self._feed = compile_feed(config, info.namespace, changefeed_id=info.changefeed_id)
        self._checkpoint_ts, self._target_ts = checkpoint_ts, info.target_ts
        self._own = own
        self._imaged = ImagedFrontier(
            self._frontier,
            lambda record: frontier_of_tables(record, self._schemas, self._feed),
            image_name=own.name,
            waits_at=info.start_ts if config.wants_initial else None,
            origin_ts=checkpoint_ts,
        )
        self._before_cut, self._on_progress = before_cut, on_progress
        self._share = share or WholeProcess()
        self._stopping, self._given_up = threading.Event(), threading.Event()
        self._reader = sources.raw_reader(self._given_up.is_set)
        self._damage, self._damaged = DamageNotes(f"{info.namespace}/{info.changefeed_id}"), 0
        """The number is of the cut that is run."""
        self._rows: LakeRows | None = None
        self._last: Cut | None = None
        """All of it has been written."""
        self._thread: threading.Thread | None = None
        self._failure: BusError | None = None

    def start(self) -> None:
        """Begin, in a thread of its own.

        Raises:
            HistoryLostError: the raw log starts above the checkpoint.
            KafkaUnreachableError: the raw log does not answer.
        """
        self._sources.check_log()
        self._thread = threading.Thread(target=self._run, name="lake-run", daemon=True)
        self._thread.start()

    def run_here(self) -> None:
        """Run in the calling thread until :meth:`halt`, or until it fails (:meth:`failure`).

        Raises:
            BusError: see :meth:`start`.
        """
        self._sources.check_log()
        self._run()

    def halt(self) -> None:
        """Begin no further table; safe in any thread, and returns at once."""
        self._stopping.set()

    def give_up(self) -> None:
        """Let reading fail; what Spark writes just then is not published by who has lost its lease."""
        self._stopping.set()
        self._given_up.set()

    def failure(self) -> BusError | None:
        """Return why the run has ended; None while it goes on."""
        return self._failure

    def end(self, may_write: Callable[[], bool]) -> None:
        """Begin nothing more, and wait a little for the table under way, while ``may_write`` says so."""
        self._stopping.set()
        deadline = time.monotonic() + END_S
        while self._thread is not None and self._thread.is_alive() and may_write() and time.monotonic() < deadline:
            self._thread.join(0.1)

    def close(self) -> None:
        """Give up what is under way, and let go of what it reads by."""
        self.give_up()
        if self._thread is not None:
            self._thread.join()
        self._reader.close()
        self._sources.close()

    def _run(self) -> None:
        try:
            self._follow()
        except BaseException as error:
            failure = bus_error(error)
            if not self._stopping.is_set():
                self._failure = failure
                return
            log.warning("lake run ended with an error while it was stopping", extra={"error": str(failure)})
        finally:
            self._close_catalog()

    def _close_catalog(self) -> None:
        """Let go of the catalog's connections, else each run of a process that lives on would leave its own open."""
        rows, self._rows = self._rows, None
        try:
            if rows is not None:
                rows.close()
        except Exception:  # the JVM may have died, which is why the run ends
            log.warning("catalog of lake tables is not closed", exc_info=True)

    def _follow(self) -> None:
        at = self._frontier.find(self._checkpoint_ts)
        record = self._frontier.record_before(at)
        tables = self._begin(record)
        try:
            self._follow_with(tables, record, at)
        except BusError:
            raise
        except Exception as error:
            self._check_there(tables, error)
            raise

    @staticmethod
    def _check_there(tables: LakeTables, error: Exception) -> None:
        """Say of a failure that it is for want of a table, if it is."""
        try:
            tables.check_there()
        except BusError as gone:
            raise gone from error
        except Exception:
            log.warning("it is not known whether lake tables are still there", exc_info=True)

    def _follow_with(self, tables: LakeTables, record: FrontierRecord, at: int) -> None:
        maintained_at = time.monotonic()
        while not self._stopping.is_set():
            end = min(self._frontier.end(), at + FRONTIER_RECORDS_MAX)
            if end > at:
                record = self._commit_all(tables, record, at, end)
                at = end
            if at < self._frontier.end() - FRONTIER_RECORDS_MAX:
                continue
            compaction_s = self._config.sink.iceberg.compaction_interval_s
            if time.monotonic() - maintained_at >= (compaction_s or SETTLED_S) and not self._stopping.is_set():
                compacts = compaction_s > 0
                tables.maintain(self._last, self._schemas.store, self._stopping.is_set, compacts=compacts)
                maintained_at = time.monotonic()
            self._stopping.wait(self._config.sink.iceberg.commit_interval_s)
            self._sources.check_log()

    def _begin(self, record: FrontierRecord) -> LakeTables:
        """Find the tables of earlier runs, and finish what the last one had begun to tag."""
        rows = self._rows = LakeRows(self._spark(), catalog_options(self._config), self._owner.branch)
        tables = LakeTables(
            LakeCatalog(rows, self._owner), rows, self._config.sink.iceberg, self._feed, self._before_cut
        )
        self._schemas.advance(record.ddl_high)
        unfinished = tables.find(self._checkpoint_ts, self._schemas.store, self._schema_at)
        if unfinished is not None:
            log.info("tags of the last run are completed", extra={"watermark_ts": unfinished[0]})
            tables.tag(*unfinished)
        return tables

    def _schema_at(self, ts: Ts) -> SchemaStore:
        """Return a schema that knows all DDL up to a ts, which a run before this one has reached."""
        beyond = min(self._frontier.find(ts) + 1, self._frontier.end())
        self._schemas.advance(self._frontier.record_before(beyond).ddl_high)
        return self._schemas.store

    def _commit_all(self, tables: LakeTables, before: FrontierRecord, start: int, end: int) -> FrontierRecord:
        """Commit what the frontier records at ``[start, end)`` allow; return where a reader stands behind them."""
        record, frontiers = before, []
        base = self._imaged.of(record)
        for read in self._frontier.read(start, end):
            record = follow_frontier(record, read)
            frontiers.append(self._imaged.of(record))
        after_ts = max(self._checkpoint_ts, base.resolved_ts)
        resolved_ts = frontiers[-1].resolved_ts if frontiers else base.resolved_ts
        for cut in plan_cuts(base, frontiers, after_ts, offsets_max=CUT_OFFSETS_MAX, target_ts=self._target_ts):
            self._share.begin_cut(self._stopping.is_set)
            if self._stopping.is_set():
                break
            started = time.monotonic()
            self._damaged = 0
            written = self._commit(tables, cut)
            if written is None:
                break
            self._share.end_cut(written.rows)
            self._checkpoint_ts, self._last = cut.upto_ts, cut
            self._on_progress(
                CutProgress(
                    checkpoint_ts=cut.upto_ts,
                    resolved_ts=resolved_ts,
                    rows=written.rows,
                    corrupt_rows=0,
                    damaged_records=self._damaged,
                    cut_s=time.monotonic() - started,
                    by_spark=written.by_spark,
                    reason=(Reason.LAKE_LAYOUT if written.by_spark else Reason.CHEAPER_ON_DRIVER).value,
                )
            )
        return record

    def _commit(self, tables: LakeTables, cut: Cut) -> Written | None:
        """Write, follow and tag all of a cut; return how many changes it had, None: told to stop within it."""
        self._schemas.advance(cut.ddl_end)
        store = self._schemas.store
        check_jobs(self._schemas.bad, cut.upto_ts, store, self._feed)
        changes = [change for change in store.changes_between(cut.after_ts, cut.upto_ts) if tables.covers(change)]
        whole, ddl_ts = Written(), {change.job.finished_ts for change in changes}
        for after_ts, upto_ts in steps_of_cut(cut.after_ts, cut.upto_ts, ddl_ts):
            chunks = cut.chunks if upto_ts == cut.upto_ts else ()
            step = replace(cut, after_ts=after_ts, upto_ts=upto_ts, chunks=chunks)
            with closing(HeldChanges(self._own.folder)) as held:
                written = write_step(tables, list(self._tables_of(tables, step, held)), step, self._stopping.is_set)
                if written is None:
                    return None
                whole.rows += written.rows
                whole.by_spark |= written.by_spark
                is_last = upto_ts == cut.upto_ts and upto_ts not in ddl_ts
                tables.move(upto_ts, tags=is_last and shows_all(cut.left_out))
            for change in changes:
                if change.job.finished_ts == upto_ts:
                    tables.follow(change, store, cut.left_out)
        if self._stopping.is_set():
            return None
        if shows_all(cut.left_out):
            tables.tag(cut.upto_ts)
        self._schemas.forget(cut.after_ts)
        return whole

    def _tables_of(self, tables: LakeTables, step: Cut, held: HeldChanges) -> Iterator[TableChanges]:
        """Gather the changes of a step that lake tables have not yet; yield those of each table version."""
        mode = self._config.sink.iceberg.mode
        with self._share.computing(self._stopping.is_set), closing(self._rows_of(step)) as chunks:
            for chunk in chunks:
                for version, rows in wanted_versions(chunk, self._schemas.store, self._feed):
                    done = tables.progress(version)
                    if done is not None and done.watermark_ts > step.after_ts:
                        rows = rows_where(rows, rows.commit_ts > done.watermark_ts)
                    changes = held.of(version, key_names(version) if mode == "upsert" else ())
                    kept = kept_parts(rows, version, self._feed) if len(rows) else []
                    if version.soft_deletes:
                        kept = sent_parts(kept, soft_delete_time(version, is_sql=False))
                    for part in kept:
                        held.add(changes, part_changes(part))
        resynced = [held.of(version) for version in self._resynced(tables, step)]
        yield from (changes for changes in held if not changes.is_empty or changes in resynced)

    def _resynced(self, tables: LakeTables, step: Cut) -> Iterator[TableVersion]:
        """Yield the tables that a step says more of than rows, and have not had it."""
        for stored in resynced_tables(step, self._schemas.store, self._feed):
            version = self._schemas.store.decoded(stored)
            said = tables.table_step(version, step)
            if said is None or not said.chunks:
                continue
            done = tables.progress(version)
            if done is not None and done.watermark_ts < step.upto_ts:
                yield version

    def _rows_of(self, step: Cut) -> Generator[RowChanges]:
        program = FeedProgram(self._schemas.store, self._feed)
        damaged = DamagedRecords(self._feed.skipped_records)
        raw = self._reader.read_cut(step, RAW_BYTES_MAX)
        with naming_damage(program.name_of):
            yield from self._changes_of(raw, step, program, damaged)
        self._damaged += self._damage.note(damaged.passed, program.name_of)
        if raw is not None and raw.shared is not None:
            return
        if step.chunks:  # a reader of them is made for it: they come once in a table's life
            with closing(self._own.reader(self._own.topics.images, self._given_up.is_set)) as images:
                yield from chunk_changes(read_chunks(images, step, lambda _: None), program.is_wanted)

    def _changes_of(
        self, raw: RawCut | None, step: Cut, program: FeedProgram, damaged: DamagedRecords
    ) -> Iterator[RowChanges]:
        if raw is not None and raw.shared is not None:
            yield from raw.shared.rows(program.is_wanted, None, damaged)
        elif raw is not None:
            yield from gather_rows(iter(raw.records), step, program.is_wanted, None, damaged)
        else:  # again from its start, and none of it is kept
            log.info("cut is too large to hold", extra={"upto_ts": step.upto_ts, "bytes_max": RAW_BYTES_MAX})
            with closing(self._own.reader(self._own.topics.region_events, self._given_up.is_set)) as reader:
                records = raw_records(reader, step, lambda _: None, keeps_unknown=True)
                yield from gather_rows(records, step, program.is_wanted, None, damaged)
