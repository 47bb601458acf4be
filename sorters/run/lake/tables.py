"""The lake tables of one run: each is written, follows its DDL, and is tagged with all others."""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa

from schemas.config.sink.iceberg import IcebergConfig
from schemas.ddl.schema_change import SchemaChange
from schemas.ddl.schema_store import SchemaStore
from schemas.errors import InvariantBrokenError
from schemas.ids import Ts
from schemas.tidb.table import TableVersion
from sorters.core.cut.cut import Cut
from sorters.core.cut.images import LeftOut
from sorters.core.feed.feed import CompiledFeed
from sorters.core.feed.scope import table_at, tables_at
from sorters.core.lake.changes import written_columns
from sorters.core.lake.columns import key_names, lake_columns
from sorters.core.lake.commits import LakeProgress, is_torn, may_tag, unfinished_tag
from sorters.core.lake.errors import LakeSchemaError
from sorters.core.lake.evolution import check_fields, says_changes
from sorters.core.lake.resync import TableStep, table_step
from sorters.run.lake.catalog import LakeCatalog
from sorters.run.lake.creation import create_each, new_table
from sorters.run.lake.ddl import LakeDdl
from sorters.run.lake.files import LakeFiles
from sorters.run.lake.held_changes import TableChanges
from sorters.run.lake.known_tables import KnownTables
from sorters.run.lake.maintenance import maintain_each
from sorters.run.lake.moves import Move, NotOfferedError, Tagging, publish, publish_all
from sorters.run.lake.names import LakeName
from sorters.run.lake.resyncs import end_idle_resync, resyncing_move
from sorters.run.lake.rows import LakeRows
from sorters.run.lake.table import LakeTable
from sorters.run.lake.tags import note_images, tag_each, untag_each

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Written:
    """What the changes of a table have come to."""

    rows: int = 0
    by_spark: bool = False
    """Whether Spark wrote its files, and not this process."""


class LakeTables:
    """Tables of one changefeed that this run knows."""

    def __init__(
        self,
        catalog: LakeCatalog,
        rows: LakeRows,
        settings: IcebergConfig,
        feed: CompiledFeed,
        check_lease: Callable[[], None],
    ) -> None:
        """``check_lease`` raises where this process must write nothing more."""
        self._catalog, self._rows, self._settings = catalog, rows, settings
        self._check_lease, self._feed = check_lease, feed
        self._files = LakeFiles(rows.session._jvm, catalog.owner.branch)
        self._tables = KnownTables(catalog, settings, feed)
        self._ddl = LakeDdl(self._tables, rows, self._files, settings, feed, check_lease)
        self._moves: dict[LakeName, Move] = {}
        """Those whose rows of the step under way stand in the branch, and wait for all others."""

    def find(
        self, checkpoint_ts: Ts, store: SchemaStore, schema_at: Callable[[Ts], SchemaStore]
    ) -> tuple[Ts, frozenset[str]] | None:
        """Take up the tables that there are at the checkpoint, and at their newest tag, which may be beyond it; return
        a watermark that those at the tag have all, and not all its tag, and their names.

        Args:
            store: knows all DDL up to the checkpoint.
            schema_at: returns one that knows all up to a ts.
        """
        names = self._load(checkpoint_ts, store)
        newest = self._tables.newest_tag()
        if newest is not None and newest > checkpoint_ts:
            names = self._load(newest, schema_at(newest))
        tables = [table for name in names if (table := self._tables.find(name)) is not None]
        progress = {str(table.name): table.progress() for table in tables}
        unfinished = unfinished_tag(progress)
        if unfinished is None or not self._catalog.transacts or not is_torn(progress, unfinished):
            return unfinished
        log.warning("catalog has moved some lake tables only: their tag is taken back", extra={"ts": unfinished[0]})
        untag_each(tables, unfinished[0], self._check_lease)
        return None

    def _load(self, ts: Ts, store: SchemaStore) -> list[LakeName]:
        """Take up those that there are of the tables at a ts; return the names of all. One that cannot be a lake table
        is none, and stops nothing before it has rows.
        """
        names = []
        for stored in tables_at(store, ts, self._feed):
            with suppress(LakeSchemaError):
                names.append(self._tables.name(store.decoded(stored)))
        self._tables.load(names)
        return names

    def check_there(self) -> None:
        """See :meth:`KnownTables.check_there`."""
        self._tables.check_there()

    def progress(self, version: TableVersion) -> LakeProgress | None:
        """See :meth:`KnownTables.progress`."""
        return self._tables.progress(version)

    def create(self, versions: Iterable[TableVersion], step: Cut, is_stopping: Callable[[], bool]) -> None:
        """Make the lake tables that these of a step have not yet; some of them where ``is_stopping`` comes between.

        Raises:
            LakeSchemaError: one cannot be a lake table.
            Exception: Spark's, Py4J's.
        """
        first = dict[LakeName, TableVersion]()
        for version in versions:
            first.setdefault(self._tables.name(version), version)
        absent = [(name, version) for name, version in first.items() if self._tables.find(name) is None]
        newest = self._tables.newest_tag() if absent else None
        wanted = [new_table(name, version, step, newest) for name, version in absent]
        created = create_each(wanted, self._tables.make, self._check_lease, is_stopping)
        for new in wanted:
            if new.name in created.tables:
                self._tables.take(new.name, created.tables[new.name])
        created.raise_first(wanted)

    def write(self, changes: TableChanges, step: Cut) -> Written:
        """Write the changes of a table within a step of a cut, rows of its image among them; :meth:`create` has been
        called for it, and others may be written at the time. There may be none where its image is a resync's: then what
        it says of keys is noted. Main shows them from :meth:`move` on, or from now.

        Raises:
            LakeSchemaError, LakeValueError: its lake table cannot hold them.
            Exception: Spark's, Py4J's.
        """
        version, mode = changes.version, self._settings.mode
        name = self._tables.name(version)
        self._check_lease()
        table = self._tables.own(version)
        if table.schema_ts > version.version:
            raise InvariantBrokenError("rows of a lake table are older than the ddl that it follows", table=str(name))
        if name in self._moves:  # as another version, whose rows wait for main as it is
            self.move(step.upto_ts, tags=False)
        if table.schema_ts < version.version:
            self._ddl.evolve_for_rows(table, version)

        written, is_said = Written(), says_changes(table.fields())
        columns = lake_columns(version, mode, says_changes=is_said)

        def groups() -> Iterator[pa.Table]:
            for group in changes.groups():
                written.rows += int(group.num_rows)
                yield written_columns(group, version, mode, says_changes=is_said)

        def put() -> None:
            if changes.is_empty:
                return
            check_fields(table.fields(), columns, version.name, str(name))
            keys = key_names(version) if mode == "upsert" else ()
            written.rows, files = 0, self._files
            if files.append(table, groups()) if mode == "append" else files.merge(table, groups(), keys):
                return
            written.rows, written.by_spark = 0, True
            for rows in groups():
                if mode == "append":
                    self._rows.append(name, rows)
                else:
                    self._rows.merge(name, rows, keys)

        move = resyncing_move(table, self._files, put, step.upto_ts, self.table_step(version, step))
        if self._catalog.transacts:
            move.resync = move.prepare()
            self._moves[name] = move
        else:
            publish(move, self._check_lease)
        log.debug("lake table is written", extra={"table": str(name), "rows": written.rows, "upto_ts": step.upto_ts})
        return written

    def move(self, upto_ts: Ts, *, tags: bool) -> None:
        """Let main of all tables show what was written of a step, at once where the catalog can; with the tag of the
        step's end, where ``tags`` says that nothing else comes before it.
        """
        moves, self._moves = self._moves, {}
        if not moves:
            return
        progress = [table.progress() for table in self._tables.each()]
        tags = tags and may_tag(progress, upto_ts) and not any(each.image_to_come for each in progress)
        tagging = self._tagging(upto_ts, [name for name in self._tables if name not in moves]) if tags else None
        try:
            publish_all(self._catalog, moves, tagging, self._check_lease)
        except NotOfferedError as error:
            self._refuse_transactions(error)
            for move in moves.values():
                publish(move, self._check_lease)

    def table_step(self, version: TableVersion, step: Cut) -> TableStep | None:
        """Return what a step says of a table's resync; None: there is none, in mode append."""
        return table_step(step, version.table_id, version.physical_ids) if self._settings.mode == "upsert" else None

    def follow(self, change: SchemaChange, store: SchemaStore, left_out: LeftOut | None = None) -> None:
        """See :meth:`LakeDdl.follow`."""
        self._ddl.follow(change, store, left_out)

    def tag(self, watermark_ts: Ts, names: Collection[str] | None = None) -> None:
        """Tag tables, where all that there are stand at the watermark or below; ``names`` None: all of them."""
        if not may_tag((table.progress() for table in self._tables.each()), watermark_ts):
            log.info("lake tables are not tagged: one is beyond", extra={"watermark_ts": watermark_ts})
            return
        wanted = [name for name in self._tables if names is None or str(name) in names]
        tables = [self._tables[name] for name in wanted]
        if all(watermark_ts in table.progress().tags for table in tables):
            return  # it went with their rows
        note_images(tables, self._check_lease)
        if self._catalog.transacts:
            try:
                tagging = self._tagging(watermark_ts, wanted)
                publish_all(self._catalog, {}, tagging, self._check_lease)
            except NotOfferedError as error:
                self._refuse_transactions(error)
            else:
                return
        tag_each(tables, watermark_ts, self._settings.tags_kept, self._check_lease)

    def _tagging(self, watermark_ts: Ts, names: Iterable[LakeName]) -> Tagging:
        idle = [self._tables[name] for name in names]
        return Tagging(
            watermark_ts,
            self._settings.tags_kept,
            [table for table in idle if watermark_ts not in table.progress().tags],
        )

    def _refuse_transactions(self, error: NotOfferedError) -> None:
        log.info("catalog moves no tables together: they move one by one", extra={"reason": str(error)})
        self._catalog.transacts = False

    def maintain(
        self, last: Cut | None, store: SchemaStore, is_stopping: Callable[[], bool], *, compacts: bool = True
    ) -> None:
        """Compact each table and let its snapshots expire; ``last`` is the last cut of which all has been written.
        ``compacts`` False: only let tables forget a resync that is over, so that others may compact them.
        """

        def settle(table: LakeTable) -> None:
            stored = None if last is None else table_at(store, table.table_id, last.upto_ts, self._feed)
            if last is not None and stored is not None:
                step = self.table_step(store.decoded(stored), last)
                end_idle_resync(table, step, last.after_ts, self._check_lease)

        session = self._rows.session if compacts else None
        maintain_each(self._tables.each(), session, settle, self._check_lease, is_stopping)

    def name(self, version: TableVersion) -> LakeName:
        """See :meth:`KnownTables.name`."""
        return self._tables.name(version)

    def covers(self, change: SchemaChange) -> bool:
        """Tell whether a DDL changes tables of the changefeed."""
        return any(self._tables.covers(side) for table in change.tables for side in (table.pre, table.post))
