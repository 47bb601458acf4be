"""The lake tables of one run: each is written, follows its DDL, and is tagged with all others."""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from schemas.config.sink.iceberg import IcebergConfig
from schemas.ddl.schema_change import SchemaChange, StoredTable, TableChange
from schemas.ddl.schema_store import SchemaStore
from schemas.errors import InvariantBrokenError
from schemas.ids import Ts
from schemas.tidb.table import TableVersion
from sorters.core.cut.cut import Cut
from sorters.core.cut.images import LeftOut
from sorters.core.feed.ddl_filter import events_to_send
from sorters.core.feed.ddl_route import check_new_targets
from sorters.core.feed.feed import CompiledFeed
from sorters.core.lake.changes import written_columns
from sorters.core.lake.columns import checked_name, key_names, lake_columns, lake_type
from sorters.core.lake.commits import (
    LakeProgress,
    check_rows,
    empties,
    ends_resync,
    filled_columns,
    is_imaged,
    is_renamed,
    is_torn,
    may_tag,
    unfinished_tag,
)
from sorters.core.lake.errors import LakeSchemaError
from sorters.core.lake.evolution import Evolution, plan_evolution, says_changes
from sorters.core.lake.resync import TableStep, table_step
from sorters.core.lake.values import lake_array
from sorters.core.mount.filled_columns import ConstantColumn
from sorters.run.lake.at_once import at_once
from sorters.run.lake.catalog import LakeCatalog
from sorters.run.lake.creation import NewTable, create, create_each, new_table
from sorters.run.lake.files import LakeFiles
from sorters.run.lake.held_changes import TableChanges
from sorters.run.lake.maintenance import maintain_each
from sorters.run.lake.moves import Move, NotOfferedError, Tagging, publish, publish_all
from sorters.run.lake.names import LakeName
from sorters.run.lake.resyncs import end_resync, resyncing_move
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
        self._catalog, self._rows, self._settings, self._feed = catalog, rows, settings, feed
        self._check_lease = check_lease
        self._files = LakeFiles(rows.session._jvm, catalog.owner.branch)
        self._tables: dict[LakeName, LakeTable] = {}
        self._absent = set[LakeName]()
        """What the catalog has not, as far as is known: who makes one there makes :meth:`create` fail, and the run."""
        self._moves: dict[LakeName, Move] = {}
        """Those whose rows of the step under way stand in the branch, and wait for all others."""

    def find(self, stored: Iterable[StoredTable], store: SchemaStore) -> tuple[Ts, frozenset[str]] | None:
        """Take up those that there are of these tables; return a watermark that they have all, and not all its tag, and
        the names of those that it is for.
        """
        names = [self.name(store.decoded(table)) for table in stored]
        for name, there in zip(names, at_once(self._load, names, "find"), strict=True):
            self._take(name, there)
        progress = {str(name): table.progress() for name, table in self._tables.items()}
        unfinished = unfinished_tag(progress)
        if unfinished is None or not self._catalog.transacts or not is_torn(progress, unfinished):
            return unfinished
        log.warning("catalog has moved some lake tables only: their tag is taken back", extra={"ts": unfinished[0]})
        untag_each(self._tables.values(), unfinished[0], self._check_lease)
        return None

    def _load(self, name: LakeName) -> LakeTable | None:
        table = self._catalog.load(name)
        if table is not None:
            table.progress()  # kept there: it is asked for next
        return table

    def progress(self, version: TableVersion) -> LakeProgress | None:
        """Return how far a table version's lake table is; None: there is none yet.

        Raises:
            LakeTakenError, LakeSchemaError: one of its name is not its own.
        """
        table = self._known(self.name(version))
        if table is not None and table.table_id != version.table_id:
            reason = "another table of TiDB is written to it"
            where = {"lake_table": str(table.name), "tidb_id": table.table_id}
            raise LakeSchemaError("a table cannot be a lake table", table=version.name, reason=reason, **where)
        return None if table is None else table.progress()

    def create(self, versions: Iterable[TableVersion], step: Cut, is_stopping: Callable[[], bool]) -> None:
        """Make the lake tables that these of a step have not yet; some of them where ``is_stopping`` comes between.

        Raises:
            LakeSchemaError: one cannot be a lake table.
            Exception: Spark's, Py4J's.
        """
        first = dict[LakeName, TableVersion]()
        for version in versions:
            first.setdefault(self.name(version), version)
        wanted = [new_table(name, version, step) for name, version in first.items() if self._known(name) is None]
        created = create_each(wanted, self._create, self._check_lease, is_stopping)
        for new in wanted:
            if new.name in created.tables:
                self._take(new.name, created.tables[new.name])
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
        name = self.name(version)
        self._check_lease()
        table = self._tables[name]
        if table.schema_ts > version.version:
            raise InvariantBrokenError("rows of a lake table are older than the ddl that it follows", table=str(name))
        if table.schema_ts < version.version:
            table.evolve(self._evolution(table, version), version.table_id, version.version)

        written, is_said = Written(), says_changes(table.fields())

        def groups() -> Iterator[pa.Table]:
            for group in changes.groups():
                written.rows += int(group.num_rows)
                yield written_columns(group, version, mode, says_changes=is_said)

        def put() -> None:
            if changes.is_empty:
                return
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
            if name in self._moves:
                self.move(step.upto_ts, tags=False)
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
        progress = [table.progress() for table in self._tables.values()]
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
        """Do what a DDL does to lake tables.

        Args:
            left_out: by the cut that the DDL lies in, for images to come.

        Raises:
            LakeSchemaError: one cannot follow it.
            TableBecameIneligibleError, RenameIntoFilterError, TableRouteConflictError: the changefeed must not go on.
        """
        check_new_targets(change, store, self._feed)
        is_sent = bool(events_to_send(change, self._feed))
        for table in change.tables:
            if self._covers(table.post) and not self._covers(table.pre):
                self._begin_anew(change, table, store, left_out)
            if table.pre is not None and self._covers(table.pre) and ends_resync(change, self._covers(table.post)):
                known = self._known(self.name(store.decoded(table.pre)))
                if known is not None:
                    end_resync(known, change.job.finished_ts, self._check_lease)
            # Where a filter leaves the DDL out and rows have other columns from here on, they bring them.
            if self._covers(table.post) and is_sent:
                self._follow_table(change, table, store, left_out)
            elif table.pre is not None and self._covers(table.pre) and not self._covers(table.post):
                self._tables.pop(self.name(store.decoded(table.pre)), None)

    def tag(self, watermark_ts: Ts, names: Collection[str] | None = None) -> None:
        """Tag tables, where all that there are stand at the watermark or below; ``names`` None: all of them."""
        if not may_tag((table.progress() for table in self._tables.values()), watermark_ts):
            log.info("lake tables are not tagged: one is beyond", extra={"watermark_ts": watermark_ts})
            return
        wanted = [(name, each) for name, each in self._tables.items() if names is None or str(name) in names]
        if all(watermark_ts in table.progress().tags for _, table in wanted):
            return  # it went with their rows
        tables = [table for _, table in wanted]
        note_images(tables, self._check_lease)
        if self._catalog.transacts:
            try:
                tagging = self._tagging(watermark_ts, [name for name, _ in wanted])
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

    def maintain(self, is_stopping: Callable[[], bool]) -> None:
        """Compact each table and let its snapshots expire."""
        maintain_each(self._tables.values(), self._rows.session, self._check_lease, is_stopping)

    def name(self, version: TableVersion) -> LakeName:
        """Return the name of a table version's lake table.

        Raises:
            LakeSchemaError: it cannot name folders.
        """
        routed = self._feed.routes.version(version)
        schema, table = (checked_name(part, version) for part in (routed.schema, routed.table))
        above = (self._settings.namespace,) if self._settings.namespace else ()
        return LakeName((*above, schema), table)

    def covers(self, change: SchemaChange) -> bool:
        """Tell whether a DDL changes tables of the changefeed."""
        return any(self._covers(side) for table in change.tables for side in (table.pre, table.post))

    def _covers(self, stored: StoredTable | None) -> bool:
        return (
            stored is not None
            and stored.has_rows
            and self._feed.contains(stored.schema, stored.table, eligible=stored.eligible)
        )

    def _known(self, name: LakeName) -> LakeTable | None:
        if name not in self._tables and name not in self._absent:
            self._take(name, self._catalog.load(name))
        return self._tables.get(name)

    def _take(self, name: LakeName, table: LakeTable | None) -> None:
        """Know a table from now on, or that there is none."""
        if table is None:
            self._absent.add(name)
        else:
            self._tables[name] = table
            self._absent.discard(name)

    def _create(self, new: NewTable) -> LakeTable:
        return create(self._catalog, self._settings, new)

    def _begin_anew(
        self, change: SchemaChange, sides: TableChange, store: SchemaStore, left_out: LeftOut | None
    ) -> None:
        """Empty what stands in a lake table whose table comes to the changefeed (again) by a DDL, where an image brings
        all its rows, or where it held another table's: nobody knows what has gone from it meanwhile.
        """
        assert sides.post is not None
        version, ts = store.decoded(sides.post), change.job.finished_ts
        table = self._known(self.name(version))
        if table is None or self._settings.mode == "append" or table.progress().watermark_ts >= ts:
            return
        imaged = is_imaged(version, left_out)
        if imaged or table.table_id != version.table_id:
            self._check_lease()
            table.evolve(Evolution(), version.table_id, None, ts, image_to_come=imaged)
            log.info("lake table begins anew", extra={"table": str(table.name), "ts": ts})

    def _follow_table(
        self, change: SchemaChange, sides: TableChange, store: SchemaStore, left_out: LeftOut | None
    ) -> None:
        assert sides.post is not None
        post, mode, ts = store.decoded(sides.post), self._settings.mode, change.job.finished_ts
        name = self.name(post)
        if sides.pre is not None and self._covers(sides.pre) and is_renamed(sides.pre, sides.post):
            self._check_rename(store.decoded(sides.pre), post)
        table = self._known(name)
        self._check_lease()
        if table is not None and table.schema_ts >= post.version:
            return
        if mode == "upsert":
            check_rows(change, str(name), is_there=table is not None, imaged=is_imaged(post, left_out))
        if table is None:
            if sides.pre is None:
                self._take(name, self._create(NewTable(name, post, ts, image_to_come=False)))
            return
        emptied_at = ts if mode == "upsert" and empties(change) else None
        evolution = self._evolution(table, post)
        pre = None if sides.pre is None else store.decoded(sides.pre)
        filled = filled_columns(pre, post) if pre is not None and mode == "upsert" and emptied_at is None else ()
        table.evolve(evolution, post.table_id, None if filled else post.version, emptied_at)
        if filled:
            self._fill(table, post, filled)

    def _evolution(self, table: LakeTable, version: TableVersion) -> Evolution:
        mode = self._settings.mode
        fields = table.fields()
        return plan_evolution(
            fields,
            lake_columns(version, mode, says_changes=says_changes(fields)),
            str(table.name),
            table.laid_by(),
            set_aside_at=version.version if self._settings.type_change == "new-column" else None,
            keys=key_names(version) if mode == "upsert" else (),
        )

    def _fill(self, table: LakeTable, version: TableVersion, offsets: Sequence[int]) -> None:
        def put() -> None:
            for offset in offsets:
                spec = version.columns[offset]
                value = lake_array(ConstantColumn(spec, spec.absent_value, 1), lake_type(spec), version.name)[0]
                self._rows.fill(table.name, spec.name, value.as_py())

        # Each row stands in a file of now then, so that none tells which are from before: a resync ends with it.
        move = resyncing_move(table, self._files, put, table.progress().watermark_ts, None)
        publish(move, self._check_lease, version.version)

    def _check_rename(self, pre: TableVersion, post: TableVersion) -> None:
        """Refuse to rename a lake table: a Hadoop catalog cannot."""
        if self.name(pre) != self.name(post) and self._known(self.name(pre)) is not None:
            reason = "a catalog of files cannot rename a table; route its new name to the old one by target-table"
            raise LakeSchemaError("lake table cannot follow a ddl", table=pre.name, renamed=post.name, reason=reason)
