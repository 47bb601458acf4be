"""Lake tables as Iceberg's own Java library has them, in the driver's JVM: what is no row goes by it, not by SQL."""

import threading
import uuid
from collections.abc import Iterable, Iterator
from typing import Any

from schemas.ids import TableId, Ts
from schemas.nodes.changefeed import ChangefeedInfo
from schemas.sink.topic import life_of
from sorters.core.lake.columns import LakeColumn
from sorters.core.lake.errors import LakeSchemaError
from sorters.core.lake.evolution import field_doc
from sorters.core.lake.layout import LakeLayout
from sorters.run.lake.names import LakeName
from sorters.run.lake.properties import (
    BRANCH_PREFIX,
    CHANGEFEED,
    FILE_SIZE,
    IMAGE_TO_COME,
    LIFE,
    MADE_BEHIND,
    SCHEMA_TS,
    TABLE_ID,
    WATERMARK,
)
from sorters.run.lake.rows import LakeRows
from sorters.run.lake.table import LakeOwner, LakeTable, StagedMove

NEW_TABLE = {
    "format-version": "2",
    "write.merge.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.delete.mode": "merge-on-read",
    "write.distribution-mode": "none",
    # Each commit and each tag writes one; nobody reads those of before.
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}


def lake_owner(info: ChangefeedInfo) -> LakeOwner:
    """Return who a changefeed's tables say they belong to, with a branch that nobody has."""
    changefeed = f"{info.namespace}/{info.changefeed_id}"
    branch = f"{BRANCH_PREFIX}{uuid.uuid4().hex}"
    return LakeOwner(changefeed=changefeed, life=f"{changefeed}/{life_of(info)}", branch=branch)


class LakeCatalog:
    """A catalog, as a changefeed sees it: its own tables."""

    def __init__(self, rows: LakeRows, owner: LakeOwner) -> None:
        """The catalog is Spark's own object: one of its kind in a process holds no lock that the other waits for."""
        self.owner = owner
        self._gateway, self._jvm = rows.session.sparkContext._gateway, rows.session._jvm
        self._catalog = rows.catalog()
        self._namespaces, self._making_namespace = set[tuple[str, ...]](), threading.Lock()
        """Those that are known to be there."""
        self._is_rest = rows.may_transact
        self.transacts = self._is_rest
        """Whether it moves several tables at once, as far as is known."""

    def load(self, name: LakeName) -> LakeTable | None:
        """Return a table of this changefeed; None: there is none of that name.

        Raises:
            LakeTakenError: it is another changefeed's, or another one's of this name.
            LakeWatermarkLostError: somebody has turned it back.
        """
        if not self.has(name):
            return None
        table = self._loaded(name)
        table.check_main()
        return table

    def has(self, name: LakeName) -> bool:
        """Tell whether there is a table of a name, whoever's it is."""
        return bool(self._catalog.tableExists(self._identifier(name)))

    def _loaded(self, name: LakeName) -> LakeTable:
        return self._table(self._catalog.loadTable(self._identifier(name)), name)

    def _table(self, table: Any, name: LakeName) -> LakeTable:
        return LakeTable(table, name, self.owner, self._jvm, is_sent_as_changes=self._is_rest)

    def tables(self) -> Iterator[LakeTable]:
        """Yield the tables of this changefeed, wherever in the warehouse they stand."""
        spaces = [self._jvm.org.apache.iceberg.catalog.Namespace.empty()]
        while spaces:
            space = spaces.pop()
            spaces += list(self._catalog.listNamespaces(space))
            for identifier in list(self._catalog.listTables(space)) if space.levels() else ():
                table = self._catalog.loadTable(identifier)
                if table.properties().get(LIFE) == self.owner.life:
                    levels = tuple(str(level) for level in identifier.namespace().levels())
                    yield self._table(table, LakeName(levels, str(identifier.name())))

    def create(  # noqa: PLR0913 # what a table says from the beginning on
        self,
        name: LakeName,
        columns: Iterable[LakeColumn],
        layout: LakeLayout,
        table_id: TableId,
        schema_ts: Ts,
        watermark_ts: Ts,
        *,
        file_size_bytes: int | None = None,
        image_to_come: bool = False,
        made_behind_ts: Ts | None = None,
    ) -> LakeTable:
        """Create a table that is not there, with an empty snapshot that says ``watermark_ts``; safe in several threads
        at once. ``file_size_bytes``: where a data file ends; None: Iceberg's default. ``made_behind_ts``: a tag that
        others have, beyond the watermark.

        Raises:
            LakeSchemaError: Iceberg cannot lay it out so.
        """
        with self._making_namespace:  # by one thread alone: the other would be told that it is there
            if name.namespace not in self._namespaces:
                namespace = self._namespace(name)
                if not self._catalog.namespaceExists(namespace):
                    self._catalog.createNamespace(namespace)
                self._namespaces.add(name.namespace)
        types, fields = self._jvm.org.apache.iceberg.types.Types, self._jvm.java.util.ArrayList()
        for number, column in enumerate(columns, 1):
            kind = types.fromPrimitiveString(column.type)
            fields.append(types.NestedField.optional(number, column.name, kind, field_doc(column)))
        properties = self._jvm.java.util.HashMap()
        for key, value in {**NEW_TABLE, CHANGEFEED: self.owner.changefeed, LIFE: self.owner.life}.items():
            properties[key] = value
        properties[TABLE_ID], properties[SCHEMA_TS] = str(table_id), str(schema_ts)
        properties[WATERMARK] = str(watermark_ts)
        if file_size_bytes is not None:
            properties[FILE_SIZE] = str(file_size_bytes)
        if image_to_come:
            properties[IMAGE_TO_COME] = "true"
        if made_behind_ts is not None:
            properties[MADE_BEHIND] = str(made_behind_ts)
        schema = self._jvm.org.apache.iceberg.Schema(fields)
        builder = self._catalog.buildTable(self._identifier(name), schema).withProperties(properties)
        builder = self._laid_out(builder, schema, layout, name)
        transaction = builder.createTransaction()
        transaction.newAppend().set(WATERMARK, str(watermark_ts)).commit()
        transaction.commitTransaction()
        return self._loaded(name)

    def commit(self, moves: Iterable[tuple[LakeName, StagedMove]]) -> None:
        """Move tables at once, all or none.

        Raises:
            Py4JJavaError: one of them has moved, the catalog has no such request, or it is not known what became of it.
        """
        commits, create = self._jvm.java.util.ArrayList(), self._jvm.org.apache.iceberg.catalog.TableCommit.create
        for name, move in moves:
            commits.append(create(self._identifier(name), move.before, move.after))
        self._catalog.commitTransaction(commits)

    def _laid_out(self, builder: Any, schema: Any, layout: LakeLayout, name: LakeName) -> Any:
        spec = self._jvm.org.apache.iceberg.PartitionSpec.builderFor(schema)
        order = self._jvm.org.apache.iceberg.SortOrder.builderFor(schema)
        try:
            for term in layout.partitions:
                add = getattr(spec, term.transform.removesuffix("s"))
                spec = add(term.column) if term.width is None else add(term.column, term.width)
            for by in layout.order:
                order = order.desc(by.column) if by.descends else order.asc(by.column)
            return builder.withPartitionSpec(spec.build()).withSortOrder(order.build())
        except Exception as error:  # Py4J's, with Iceberg's own words: a type that has no days, a name that is taken
            java = getattr(error, "java_exception", None)
            if java is None:
                raise
            reason = f"partitioning or sort-order does not fit: {java.getMessage()}"
            helps = "mend partitioning or sort-order of [sink.iceberg-config] and resume"
            where = {"table": str(name), "what_helps": helps}
            raise LakeSchemaError("a table cannot be a lake table", **where, reason=reason) from error

    def _namespace(self, name: LakeName) -> Any:
        parts = self._gateway.new_array(self._jvm.java.lang.String, len(name.namespace))
        for at, part in enumerate(name.namespace):
            parts[at] = part
        return self._jvm.org.apache.iceberg.catalog.Namespace.of(parts)

    def _identifier(self, name: LakeName) -> Any:
        return self._jvm.org.apache.iceberg.catalog.TableIdentifier.of(self._namespace(name), name.table)
