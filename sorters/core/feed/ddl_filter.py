"""Which DDL events of a job a changefeed sends on (reference: TiCDC's ``filter.go`` and ``ddl_puller.go``).

The schema store takes every job; here it is only decided what goes downstream, and whether the changefeed may go on.
"""

from dataclasses import replace

from schemas.ddl.job import DdlType
from schemas.ddl.schema_change import SchemaChange
from schemas.errors import Action, BusError
from sorters.core.encode.sql.create_table import create_table
from sorters.core.feed.feed import CompiledFeed
from sorters.core.sql.ddl_event import DdlEvent, Eligibility, ddl_events, eligibility
from sorters.core.sql.tokens import MODE_NO_BACKSLASH_ESCAPES

_BDR_PRIMARY = "primary"
"""In bidirectional replication only this cluster's DDL is sent on, as in TiCDC."""
_RENAMES = (DdlType.RENAME_TABLE, DdlType.RENAME_TABLES)


class TableBecameIneligibleError(BusError):
    """A DDL took away the last usable key of a replicated table: its rows could not be told apart from here on."""

    code, action = "sorter.table_became_ineligible", Action.STOP_CHANGEFEED


class RenameIntoFilterError(BusError):
    """A table that the filter left out got a name that the filter takes in, and no image is to bring what it held."""

    code, action = "sorter.rename_into_filter", Action.STOP_CHANGEFEED


def events_to_send(change: SchemaChange, feed: CompiledFeed) -> list[DdlEvent]:
    """Return the events of a job that go downstream.

    Raises:
        TableBecameIneligibleError, RenameIntoFilterError: the changefeed must not go on; as in TiCDC.
        CorruptDataError: the TableInfo of a table that is renamed into the filter does not decode.
    """
    if change.job.start_ts in feed.ignore_start_ts:
        return []
    events = [
        _created(event) if _enters(event, feed) else event for event in ddl_events(change) if _matches(event, feed)
    ]
    if not events:
        return []
    if not feed.force_replicate:
        verdict = eligibility(change)
        if verdict is Eligibility.BECAME_INELIGIBLE:
            raise TableBecameIneligibleError(
                "table has no primary key and no not-null unique key any more, and force-replicate is off",
                table=f"{events[0].schema}.{events[0].table}",
                commit_ts=events[0].commit_ts,
                query=events[0].original_query[:200],
            )
        if verdict is Eligibility.INELIGIBLE:
            return []
    return [event for event in events if not _ignored(event, feed)]


def _matches(event: DdlEvent, feed: CompiledFeed) -> bool:
    if not event.table:
        return feed.filter.matches_schema(event.schema)
    if event.type not in _RENAMES:
        return feed.filter.matches(event.schema, event.table)
    if not _enters(event, feed):
        return feed.filter.matches(event.pre_schema, event.pre_table)
    if _is_imaged(event, feed):
        return True
    raise RenameIntoFilterError(
        "table is renamed into the filter",
        table=f"{event.pre_schema}.{event.pre_table}",
        new_table=f"{event.schema}.{event.table}",
        commit_ts=event.commit_ts,
        query=event.original_query[:200],
    )


def _enters(event: DdlEvent, feed: CompiledFeed) -> bool:
    """Tell whether a table gets a name that the filter takes in, from one that it leaves out."""
    return (
        event.type in _RENAMES
        and feed.filter.matches(event.schema, event.table)
        and not feed.filter.matches(event.pre_schema, event.pre_table)
    )


def _is_imaged(event: DdlEvent, feed: CompiledFeed) -> bool:
    """Tell whether an image brings the rows that a table has when it enters."""
    table = event.post
    return (
        feed.initial is not None
        and table is not None
        and table.has_rows
        and feed.contains(table.schema, table.table, eligible=table.eligible)
        and feed.initial.wants(table.schema, table.table)
    )


def _created(event: DdlEvent) -> DdlEvent:
    """Return the CREATE TABLE that a rename into the filter is to a destination: the old name is not known there."""
    assert event.post is not None
    query = create_table(event.post)
    return replace(
        event,
        type=DdlType.CREATE_TABLE,
        pre_schema="",
        pre_table="",
        pre=None,
        original_query=query,
        restored_query=query,
        restored=True,
        sql_mode=MODE_NO_BACKSLASH_ESCAPES,
        referred=(),
    )


def _ignored(event: DdlEvent, feed: CompiledFeed) -> bool:
    if feed.bdr_mode and event.bdr_role != _BDR_PRIMARY:
        return True
    schema, table = (event.pre_schema, event.pre_table) if event.pre_table else (event.schema, event.table)
    return feed.events.ignores_ddl(event.type_name, event.original_query, schema, table)
