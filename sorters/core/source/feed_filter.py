"""Which changes of a table a query of a changefeed has: those that the changefeed replicates. Pure.

Where rows go, under which names and with which columns is of no meaning to a DataFrame, and is left aside.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from schemas.changes import RowChanges
from schemas.config.settings import ChangefeedConfig
from schemas.tidb.table import TableVersion
from schemas.tidb.time_zone import load_zone
from sorters.core.filter.event_filter import EventFilter
from sorters.core.filter.kept_rows import kept_rows, wanted_changes
from sorters.core.filter.soft_deletes import check_active_active, sent_parts, soft_delete_time, without_deletes
from sorters.core.filter.table_filter import TableFilter
from sorters.core.filter.update_columns import UpdateColumns
from sorters.core.mount.mounted import MountedPart


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedFilter:
    """A changefeed's filters, compiled. Holds nothing else of its settings: Spark sends it to tasks."""

    tables: TableFilter
    events: EventFilter
    update_columns: UpdateColumns
    force_replicate: bool
    bdr_mode: bool
    active_active: bool
    ignore_start_ts: frozenset[int]

    @classmethod
    def of(cls, config: ChangefeedConfig) -> Self:
        """Compile a changefeed's filters. Rows are mounted in UTC; value expressions see them in its own zone."""
        zone, rules = load_zone(config.time_zone), config.filter
        return cls(
            tables=TableFilter(rules.rules, config.case_sensitive),
            events=EventFilter(
                rules.event_filters,
                config.origin,
                case_sensitive=config.case_sensitive,
                zone=zone,
                session_zone=zone,
            ),
            update_columns=UpdateColumns(config),
            force_replicate=config.force_replicate,
            bdr_mode=config.bdr_mode,
            active_active=config.enable_active_active,
            ignore_start_ts=frozenset(rules.ignore_txn_start_ts),
        )

    def contains(self, table: TableVersion) -> bool:
        """Tell whether the changefeed replicates a table version."""
        return (table.eligible or self.force_replicate) and self.tables.matches(table.schema, table.table)

    def changes(self, rows: RowChanges) -> RowChanges:
        """Return the changes of transactions that the changefeed does not ignore."""
        return wanted_changes(rows, self.ignore_start_ts, bdr_mode=self.bdr_mode)

    def rows(self, table: TableVersion, parts: Sequence[MountedPart]) -> Sequence[MountedPart]:
        """Return the rows of a table version as the changefeed replicates them: those that it does not ignore, see
        :func:`kept_rows`, and of a soft-delete table what :mod:`sorters.core.filter.soft_deletes` says.
        """
        if not self.contains(table):
            return ()
        kept = kept_rows(parts, table, self.events, self.update_columns)[0]
        if self.active_active:
            check_active_active(table)
            return without_deletes(kept)
        return sent_parts(kept, soft_delete_time(table, is_sql=False)) if table.soft_deletes else kept
