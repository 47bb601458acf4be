"""The lake tables that a run knows: by their names, as the catalog has them, or known not to be there."""

from collections.abc import Iterable, Iterator
from contextlib import suppress

from schemas.config.sink.iceberg import IcebergConfig
from schemas.ddl.schema_change import StoredTable
from schemas.ids import Ts
from schemas.tidb.table import TableVersion
from sorters.core.feed.feed import CompiledFeed
from sorters.core.lake.columns import checked_name
from sorters.core.lake.commits import LakeProgress
from sorters.core.lake.errors import LakeSchemaError, LakeTableGoneError
from sorters.core.lake.refusals import BEGIN_ANEW
from sorters.run.lake.at_once import at_once
from sorters.run.lake.catalog import LakeCatalog
from sorters.run.lake.creation import NewTable, create
from sorters.run.lake.names import LakeName
from sorters.run.lake.table import LakeTable


class KnownTables:
    """Of one changefeed."""

    def __init__(self, catalog: LakeCatalog, settings: IcebergConfig, feed: CompiledFeed) -> None:
        self._catalog, self._settings, self._feed = catalog, settings, feed
        self._tables: dict[LakeName, LakeTable] = {}
        self._absent = set[LakeName]()
        """What the catalog has not, as far as is known: who makes one there makes :meth:`make` fail, and the run."""

    def __iter__(self) -> Iterator[LakeName]:
        """Yield the names of those that are there."""
        return iter(self._tables)

    def __getitem__(self, name: LakeName) -> LakeTable:
        return self._tables[name]

    def each(self) -> list[LakeTable]:
        """Return those that are there."""
        return list(self._tables.values())

    def load(self, names: Iterable[LakeName]) -> None:
        """Ask the catalog for tables that are not known yet, some at a time."""
        names = [name for name in names if name not in self._tables and name not in self._absent]
        for name, there in zip(names, at_once(self._load, names, "find"), strict=True):
            self.take(name, there)

    def _load(self, name: LakeName) -> LakeTable | None:
        table = self._catalog.load(name)
        if table is not None:
            table.progress()  # kept there: it is asked for next
        return table

    def newest_tag(self) -> Ts | None:
        """Return the newest tag that any of them has."""
        return max((ts for table in self.each() for ts in table.progress().tags), default=None)

    def find(self, name: LakeName) -> LakeTable | None:
        """Return a table, which the catalog is asked for once; None: there is none."""
        if name not in self._tables and name not in self._absent:
            self.take(name, self._catalog.load(name))
        return self._tables.get(name)

    def take(self, name: LakeName, table: LakeTable | None) -> None:
        """Know a table from now on, or that there is none."""
        if table is None:
            self._absent.add(name)
        else:
            self._tables[name] = table
            self._absent.discard(name)

    def forget(self, name: LakeName) -> None:
        """Know nothing of a table any more."""
        self._tables.pop(name, None)

    def check_there(self) -> None:
        """Refuse to go on where the catalog has no longer what it had: the next run would make it anew, without a word,
        and its tags would show rows from here on alone.

        Raises:
            LakeTableGoneError: tables have been dropped, or moved elsewhere.
            Exception: the catalog does not answer.
        """
        gone = [str(name) for name in self._tables if not self._catalog.has(name)]
        if gone:
            raise LakeTableGoneError(
                "somebody else has dropped a lake table, or moved it: bring it back and resume; or resume without it, "
                "which makes it anew from the checkpoint on, and ask for rows of before by `tidebus table backfill`",
                tables=", ".join(gone)[:500],
            )

    def make(self, new: NewTable) -> LakeTable:
        """Make a table, which is known from :meth:`take` on.

        Raises:
            LakeSchemaError: Iceberg cannot have it so.
        """
        return create(self._catalog, self._settings, new)

    def progress(self, version: TableVersion) -> LakeProgress | None:
        """Return how far a table version's lake table is; None: there is none yet. It may have another id by now: then
        it has had all rows of this one that lie before the DDL.

        Raises:
            LakeTakenError: one of its name is not the changefeed's.
        """
        table = self.find(self.name(version))
        return None if table is None else table.progress()

    def own(self, version: TableVersion) -> LakeTable:
        """Return the lake table, which is there, that a table version's rows go to.

        Raises:
            LakeSchemaError: one of its name is not its own.
        """
        table = self._tables[self.name(version)]
        if table.table_id != version.table_id:
            reason = "another table of TiDB is written to it"
            where = {"lake_table": str(table.name), "tidb_id": table.table_id, "what_helps": BEGIN_ANEW}
            raise LakeSchemaError("a table cannot be a lake table", table=version.name, reason=reason, **where)
        return table

    def name(self, version: TableVersion) -> LakeName:
        """Return the name of a table version's lake table.

        Raises:
            LakeSchemaError: it cannot name folders.
        """
        routed = self._feed.routes.version(version)
        schema, table = (checked_name(part, version) for part in (routed.schema, routed.table))
        above = (self._settings.namespace,) if self._settings.namespace else ()
        return LakeName((*above, schema), table)

    def name_or_none(self, version: TableVersion) -> LakeName | None:
        """Return the same of a table as it was before a DDL; None: there has been no lake table of it."""
        with suppress(LakeSchemaError):
            return self.name(version)
        return None

    def covers(self, stored: StoredTable | None) -> bool:
        """Tell whether rows of a table go into the lake; of none they do not."""
        return (
            stored is not None
            and stored.has_rows
            and self._feed.contains(stored.schema, stored.table, eligible=stored.eligible)
        )
