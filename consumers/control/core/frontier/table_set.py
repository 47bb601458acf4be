"""Which tables must be pulled, and from which ts, as the DDL feed comes.

Immutable: the owner keeps one, feeds it with each DDL that the schema store has applied and asks it at each published
R. All user tables count, ineligible ones too; views and sequences have no physical ids. A table that a DDL with
finished_ts T creates starts at T (what a partition reorganisation wrote to it before is not a change of the table);
one that is dropped or truncated stays until R >= T, because its rows up to T are promised.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Self

from schemas.ddl.schema_change import SchemaChange
from schemas.ddl.schema_store import SchemaStore
from schemas.errors import InvariantBrokenError
from schemas.ids import TableId, Ts

_NONE: Mapping[TableId, Ts] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSet:
    """``starts``: each table that must be pulled and the ts from which on, by physical id."""

    known_ts: Ts
    """Every DDL with finished_ts at or below it is in here; so no R above it may be published."""
    starts: Mapping[TableId, Ts] = field(default_factory=lambda: _NONE)
    dropped: Mapping[TableId, Ts] = field(default_factory=lambda: _NONE)
    """The part of ``starts`` that has an end, and its finished_ts."""

    @classmethod
    def at_snapshot(cls, store: SchemaStore, ts: Ts) -> Self:
        """Return the tables of ``store`` at ``ts``, the snapshot's ts or a later one, all starting there."""
        return cls(known_ts=ts, starts=dict.fromkeys(store.pullable_tables_at(ts), ts))

    def with_ddl(self, change: SchemaChange) -> "TableSet":
        """Return the set after a DDL job.

        Raises:
            InvariantBrokenError: the job is older than one before it.
        """
        before = {table for item in change.tables if item.pre for table in item.pre.physical_ids}
        after = {table for item in change.tables if item.post for table in item.post.physical_ids}
        return self.with_change(change.job.finished_ts, gone=before - after, come=after - before)

    def with_change(self, finished_ts: Ts, *, gone: Iterable[TableId], come: Iterable[TableId]) -> "TableSet":
        """Return the set after a DDL at ``finished_ts`` that ended the tables ``gone`` and began ``come``.

        Raises:
            InvariantBrokenError: the job is older than one before it.
        """
        if finished_ts < self.known_ts:
            raise InvariantBrokenError("DDL jobs out of order", finished_ts=finished_ts, known_ts=self.known_ts)
        starts, dropped = dict(self.starts), dict(self.dropped)
        for table in gone:
            if table in starts:
                dropped[table] = finished_ts
        for table in come:
            # A recovered table, or the other half of an exchange, may be pulled still: it has missed nothing.
            if dropped.pop(table, None) is None:
                starts.setdefault(table, finished_ts)
        return replace(self, known_ts=finished_ts, starts=starts, dropped=dropped)

    def known_up_to(self, ts: Ts) -> "TableSet":
        """Return the set with the knowledge that no other DDL up to ``ts`` exists."""
        return replace(self, known_ts=max(self.known_ts, ts))

    def published(self, resolved_ts: Ts, held: Mapping[TableId, Ts] = _NONE) -> "TableSet":
        """Return the set without the tables that ended at or below the published R, or the ts where they are held."""
        over = {table for table, ts in self.dropped.items() if ts <= min(resolved_ts, held.get(table, resolved_ts))}
        if not over:
            return self
        return replace(
            self,
            starts={table: ts for table, ts in self.starts.items() if table not in over},
            dropped={table: ts for table, ts in self.dropped.items() if table not in over},
        )
