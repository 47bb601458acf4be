"""What DDL do to lake tables: they are made, emptied, get other fields, or stop the changefeed."""

import logging
from collections.abc import Callable, Sequence

from schemas.config.sink.iceberg import IcebergConfig
from schemas.ddl.schema_change import SchemaChange, StoredTable, TableChange
from schemas.ddl.schema_store import SchemaStore
from schemas.tidb.table import TableVersion
from sorters.core.cut.images import LeftOut
from sorters.core.feed.ddl_filter import events_to_send
from sorters.core.feed.ddl_route import check_new_targets
from sorters.core.feed.feed import CompiledFeed
from sorters.core.lake.columns import LakeColumn, key_names, lake_columns, lake_type
from sorters.core.lake.commits import (
    check_rows,
    empties,
    ends_resync,
    filled_columns,
    is_anothers,
    is_imaged,
    is_renamed,
)
from sorters.core.lake.errors import LakeSchemaError
from sorters.core.lake.evolution import Evolution, plan_anew, plan_evolution, says_changes
from sorters.core.lake.refusals import BEGIN_ANEW, by_ddl, by_rows, filter_rule
from sorters.core.lake.remade import Remade
from sorters.core.lake.values import lake_array
from sorters.core.mount.filled_columns import ConstantColumn
from sorters.run.lake.creation import NewTable
from sorters.run.lake.files import LakeFiles
from sorters.run.lake.known_tables import KnownTables
from sorters.run.lake.moves import publish
from sorters.run.lake.resyncs import end_resync, resyncing_move
from sorters.run.lake.rows import LakeRows
from sorters.run.lake.table import LakeTable

log = logging.getLogger(__name__)


class LakeDdl:
    """Lets the tables of one changefeed follow DDL."""

    def __init__(  # the parts of a run, wired once
        self,
        tables: KnownTables,
        rows: LakeRows,
        files: LakeFiles,
        settings: IcebergConfig,
        feed: CompiledFeed,
        check_lease: Callable[[], None],
    ) -> None:
        self._tables, self._rows, self._files, self._settings, self._feed = tables, rows, files, settings, feed
        self._check_lease = check_lease

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
        if is_sent:  # of all of them, before any is touched: two may swap names
            self._each(change, lambda sides: self._check_rename(sides, store))
        self._each(change, lambda sides: self._follow_each(change, sides, store, left_out, is_sent=is_sent))

    @staticmethod
    def _each(change: SchemaChange, do: Callable[[TableChange], None]) -> None:
        """Do something with each table of a DDL, which is named where it is refused."""
        for sides in change.tables:
            named = sides.post or sides.pre
            try:
                do(sides)
            except LakeSchemaError as error:
                assert named is not None
                raise by_ddl(error, change, named.schema, named.table) from error

    def _follow_each(
        self, change: SchemaChange, table: TableChange, store: SchemaStore, left_out: LeftOut | None, *, is_sent: bool
    ) -> None:
        comes = self._tables.covers(table.post) and not self._tables.covers(table.pre)
        if table.pre is not None and self._tables.covers(table.pre):
            self._end_resync(change, table.pre, store, stays=self._tables.covers(table.post))
        # Where a filter leaves the DDL out and rows have other columns from here on, they bring them.
        if self._tables.covers(table.post) and is_sent:
            self._follow_table(change, table, store, left_out)
        elif comes:
            self._come(change, table, store, left_out)
        elif table.pre is None or not self._tables.covers(table.pre):
            return
        elif table.post is not None and self._tables.covers(table.post):
            self._take_id(table.pre, table.post, store)
        else:
            name = self._tables.name_or_none(store.decoded(table.pre))
            if name is not None:
                self._tables.forget(name)

    def _come(self, change: SchemaChange, sides: TableChange, store: SchemaStore, left_out: LeftOut | None) -> None:
        """Let a table come to the changefeed by a DDL that a filter leaves out."""
        assert sides.post is not None
        post = store.decoded(sides.post)
        table = self._tables.find(self._tables.name(post))
        if table is None or self._settings.mode == "append" or table.schema_ts >= post.version:
            return
        table.look()
        self._check_lease()
        self._begin_anew(change, sides, table, post, left_out)

    def _take_id(self, pre: StoredTable, post: StoredTable, store: SchemaStore) -> None:
        """Let a lake table go on under its table's new id, where a filter leaves the DDL out that gives it one."""
        if pre.table_id == post.table_id:
            return
        table = self._tables.find(self._tables.name(store.decoded(post)))
        if table is not None and table.table_id == pre.table_id:
            table.look()
            self._check_lease()
            table.evolve(Evolution(), post.table_id, None)
            log.info("lake table goes on under another id", extra={"table": str(table.name), "id": post.table_id})

    def _end_resync(self, change: SchemaChange, pre: StoredTable, store: SchemaStore, *, stays: bool) -> None:
        if not ends_resync(change, stays):
            return
        name = self._tables.name_or_none(store.decoded(pre))
        table = None if name is None else self._tables.find(name)
        if table is not None:
            end_resync(table, change.job.finished_ts, self._check_lease)

    def _begin_anew(
        self,
        change: SchemaChange,
        sides: TableChange,
        table: LakeTable,
        post: TableVersion,
        left_out: LeftOut | None,
    ) -> bool:
        """Let a lake table follow a DDL from nothing, where it held another table's rows, or where its table comes to
        the changefeed (again) and an image brings all: nobody knows what has gone from it meanwhile. What it holds is
        kept in mode append, in fields of the other table's where it is another's. False: it is to follow it as it is.
        """
        imaged, ts, appends = is_imaged(post, left_out), change.job.finished_ts, self._settings.mode == "append"
        comes = imaged and not self._tables.covers(sides.pre)
        if is_anothers(table.table_id, sides):
            wanted = self._columns(table, post)
            evolution = plan_anew(
                table.fields(), wanted, str(table.name), table.laid_by(), set_aside_at=ts if appends else None
            )
        elif comes and not appends:
            evolution = self._evolution(table, post, None)
        else:
            return False
        if appends:
            table.evolve(evolution, post.table_id, post.version)
        else:
            table.evolve(evolution, post.table_id, post.version, ts, image_to_come=imaged)
        log.info("lake table begins anew", extra={"table": str(table.name), "ts": ts})
        return True

    def _follow_table(
        self, change: SchemaChange, sides: TableChange, store: SchemaStore, left_out: LeftOut | None
    ) -> None:
        assert sides.post is not None
        post, mode, ts = store.decoded(sides.post), self._settings.mode, change.job.finished_ts
        name = self._tables.name(post)
        table = self._tables.find(name)
        if table is not None:
            table.look()
        self._check_lease()
        if table is not None and table.schema_ts >= post.version:
            return
        if mode == "upsert":
            others = table is not None and is_anothers(table.table_id, sides)
            imaged = is_imaged(post, left_out)
            check_rows(change, str(name), is_there=table is not None, imaged=imaged, is_anothers=others)
        if table is None:
            if sides.pre is None:
                new = NewTable(name, post, ts, image_to_come=False, newest_tag=self._tables.newest_tag())
                self._tables.take(name, self._tables.make(new))
            return
        if self._begin_anew(change, sides, table, post, left_out):
            return
        emptied_at = ts if mode == "upsert" and empties(change) else None
        pre = None if sides.pre is None else store.decoded(sides.pre)
        holds_rows = mode == "upsert" and emptied_at is None
        remade = Remade.by_ddl(change, pre, post)
        evolution = self._evolution(table, post, remade if holds_rows else None)
        left = {field.name.lower() for field in table.fields()} - {name.lower() for name, _ in evolution.set_aside}
        filled = filled_columns(pre, post, remade.former, left) if pre is not None and holds_rows else ()
        table.evolve(evolution, post.table_id, None if filled else post.version, emptied_at)
        if filled:
            self._fill(table, post, filled)

    def evolve_for_rows(self, table: LakeTable, version: TableVersion) -> None:
        """Give a lake table the columns of rows, whose DDL the changefeed leaves out.

        Raises:
            LakeSchemaError: it cannot have them.
        """
        remade = Remade(version) if self._settings.mode == "upsert" else None
        table.look()
        self._check_lease()
        try:
            evolution = self._evolution(table, version, remade)
        except LakeSchemaError as error:
            raise by_rows(error, version.schema, version.table, version.version) from error
        table.evolve(evolution, version.table_id, version.version)

    def _evolution(self, table: LakeTable, version: TableVersion, remade: Remade | None) -> Evolution:
        """Return what a lake table must become to have the columns of a table version; ``remade``: see
        :func:`plan_evolution`.

        Raises:
            LakeSchemaError: it cannot.
        """
        mode = self._settings.mode
        return plan_evolution(
            table.fields(),
            self._columns(table, version),
            str(table.name),
            table.laid_by(),
            set_aside_at=version.version if self._settings.type_change == "new-column" else None,
            keys=key_names(version) if mode == "upsert" else (),
            remade=remade,
        )

    def _columns(self, table: LakeTable, version: TableVersion) -> tuple[LakeColumn, ...]:
        return lake_columns(version, self._settings.mode, says_changes=says_changes(table.fields()))

    def _fill(self, table: LakeTable, version: TableVersion, offsets: Sequence[int]) -> None:
        def put() -> None:
            for offset in offsets:
                spec = version.columns[offset]
                value = None
                if spec.absent_value is not None:
                    column = ConstantColumn(spec, spec.absent_value, 1)
                    value = lake_array(column, lake_type(spec), version.name)[0].as_py()
                self._rows.fill(table.name, spec.name, value)

        # Each row stands in a file of now then, so that none tells which are from before: a resync ends with it.
        move = resyncing_move(table, self._files, put, table.progress().watermark_ts, None)
        publish(move, self._check_lease, version.version)

    def _check_rename(self, sides: TableChange, store: SchemaStore) -> None:
        """Refuse to rename a lake table: a Hadoop catalog cannot. One of the old name that is another table's by now is
        none.
        """
        covered = self._tables.covers(sides.pre) and self._tables.covers(sides.post)
        if not covered or sides.pre is None or sides.post is None or not is_renamed(sides.pre, sides.post):
            return
        pre, post = store.decoded(sides.pre), store.decoded(sides.post)
        old = self._tables.name_or_none(pre)
        if old is None:
            return
        table = None if old == self._tables.name(post) else self._tables.find(old)
        if table is not None and table.table_id == pre.table_id:
            reason, rule = "a catalog of files cannot rename a table", filter_rule(post.schema, post.table)[1:]
            helps = (
                f"route its new name to the old one and resume: a rule of [sink] dispatchers with matcher {rule}, "
                f"target-schema {old.namespace[-1]} and target-table {old.table}; or {BEGIN_ANEW}"
            )
            where = {"table": pre.name, "renamed": post.name}
            raise LakeSchemaError("lake table cannot follow a ddl", **where, reason=reason, what_helps=helps)
