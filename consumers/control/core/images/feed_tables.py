"""Which physical tables a changefeed has, and which came to it with rows, as DDL jobs come."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Self

from consumers.control.core.images.inputs import Replaced
from schemas.ddl.job import DdlType
from schemas.ddl.schema_change import SchemaChange, StoredTable
from schemas.ids import TableId, Ts

WITHOUT_ROWS: Final = frozenset(
    {
        *(DdlType.CREATE_TABLE, DdlType.CREATE_TABLES, DdlType.TRUNCATE_TABLE),
        *(DdlType.ADD_PARTITION, DdlType.TRUNCATE_PARTITION),
    }
)
"""Jobs whose new ids are empty."""
MOVES_ROWS: Final = frozenset(
    {DdlType.REORGANIZE_PARTITION, DdlType.ALTER_TABLE_PARTITIONING, DdlType.REMOVE_PARTITIONING}
)
"""Jobs that give rows other ids."""
_NEW_PARTITIONS: Final = frozenset({DdlType.ADD_PARTITION, DdlType.TRUNCATE_PARTITION})
Contains = Callable[[StoredTable], bool]
Rank = Callable[[StoredTable], int | None]
"""Returns where a table comes among those that come first; None: after them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedTables:
    """One changefeed's; another one where its filter changes."""

    contains: Contains
    wants: Contains
    """Of tables that it contains: whether their rows from before are wanted."""
    current: frozenset[TableId] = frozenset()
    lost: tuple[tuple[Ts, TableId], ...] = ()
    """Ids that went, with the finished_ts of the job; ascending."""
    entered: tuple[tuple[Ts, TableId], ...] = ()
    """Ids that came with rows that are wanted; ascending."""
    unwanted: frozenset[TableId] = frozenset()
    is_known: bool = True
    """False: nobody knows its rules. It contains all tables, and each that DDL may bring into some changefeed with rows
    counts as come."""
    rank: Rank = lambda _: None
    ranks: Mapping[TableId, int] = field(default_factory=dict)
    """Of tables that come first; those that went may be among them still."""

    @classmethod
    def at(
        cls,
        tables: Iterable[StoredTable],
        contains: Contains,
        wants: Contains,
        rank: Rank = lambda _: None,
        *,
        is_known: bool = True,
    ) -> Self:
        """Return it as of a schema with these tables."""
        own = [table for table in tables if contains(table)]
        return cls(
            contains=contains,
            wants=wants,
            current=frozenset(table for stored in own for table in stored.physical_ids),
            unwanted=frozenset(table for stored in own if not wants(stored) for table in stored.physical_ids),
            is_known=is_known,
            rank=rank,
            ranks=_ranks(own, rank),
        )

    def with_ddl(self, change: SchemaChange) -> Self:
        """Return it after a DDL job."""
        ts = change.job.finished_ts
        before = {table for item in change.tables if item.pre for table in item.pre.physical_ids}
        after = {table: stored for table, stored in _after(change).items() if self.contains(stored)}
        gone = self.current & before - after.keys()
        come = after.keys() - self.current
        is_empty = change.job.type in WITHOUT_ROWS or change.job.type in MOVES_ROWS
        with_rows = come & before if is_empty else come
        unwanted = {table for table, stored in after.items() if not self.wants(stored)}
        entered = with_rows - unwanted if self.is_known else _seen_otherwise(change)
        return replace(
            self,
            current=self.current - gone | come,
            lost=(*self.lost, *((ts, table) for table in sorted(gone))),
            entered=(*self.entered, *((ts, table) for table in sorted(entered))),
            unwanted=self.unwanted - gone - after.keys() | unwanted,
            ranks=self._ranks_after(change, after),
        )

    def _ranks_after(self, change: SchemaChange, after: Mapping[TableId, StoredTable]) -> Mapping[TableId, int]:
        ranks = _ranks({id(stored): stored for stored in after.values()}.values(), self.rank)
        if not ranks and not self.ranks.keys() & after.keys():
            return self.ranks
        return {table: rank for table, rank in self.ranks.items() if table not in after} | ranks

    def tables(self, since_ts: Ts) -> list[TableId]:
        """Return the ids that it has, and those that went above ``since_ts``; ascending."""
        return sorted(self.current.union(table for ts, table in self.lost if ts > since_ts))

    def entered_by(self, is_passed: Callable[[Ts], bool]) -> list[TableId]:
        """Return what came with rows by jobs that pass now, also if it is gone: its rows may be under another id."""
        return sorted({table for ts, table in self.entered if is_passed(ts)})

    def forget_below(self, ts: Ts) -> Self:
        """Return it without what went or came at or below ``ts``."""
        if not self.lost and not self.entered:
            return self
        return replace(
            self,
            lost=tuple(item for item in self.lost if item[0] > ts),
            entered=tuple(item for item in self.entered if item[0] > ts),
        )


def _after(change: SchemaChange) -> dict[TableId, StoredTable]:
    """Return what physical ids belong to after a DDL job: of a table that RENAME TABLE moves twice, where it ends."""
    final = {item.post.table_id: item.post for item in change.tables if item.post is not None}
    return {table: stored for stored in final.values() for table in stored.physical_ids}


def _seen_otherwise(change: SchemaChange) -> set[TableId]:
    """Return the tables with rows that some rules contain after a DDL job and not before it."""
    if change.job.type in WITHOUT_ROWS or change.job.type in MOVES_ROWS:
        return set()
    before = {table: item.pre for item in reversed(change.tables) if item.pre for table in item.pre.physical_ids}
    return {
        table
        for table, stored in _after(change).items()
        if table not in before or _seen(before[table]) != _seen(stored)
    }


def _seen(stored: StoredTable) -> tuple[object, ...]:
    """Return what rules go by."""
    return stored.schema, stored.table, stored.eligible


def _ranks(tables: Iterable[StoredTable], rank: Rank) -> dict[TableId, int]:
    ranked = ((stored, rank(stored)) for stored in tables)
    return {table: at for stored, at in ranked if at is not None for table in stored.physical_ids}


def replaced_by(change: SchemaChange) -> Replaced | None:
    """Return which ids have the rows of which others after a DDL job, or are new beside others; None: none."""
    if change.job.type not in MOVES_ROWS | _NEW_PARTITIONS:
        return None
    before = {table for item in change.tables if item.pre for table in item.pre.physical_ids}
    after = {table for item in change.tables if item.post for table in item.post.physical_ids}
    if change.job.type in _NEW_PARTITIONS:
        return Replaced(frozenset(before), frozenset(after - before), is_empty=True)
    return Replaced(frozenset(before - after), frozenset(after - before))
