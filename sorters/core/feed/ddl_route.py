"""Table routes of a changefeed over DDL events, and what two tables under one name would be."""

from collections.abc import Iterable
from dataclasses import replace

from schemas.ddl.job import DdlType
from schemas.ddl.schema_change import SchemaChange, StoredTable
from schemas.ddl.schema_store import SchemaStore
from schemas.ids import Ts
from sorters.core.feed.feed import CompiledFeed
from sorters.core.filter.table_filter import fold
from sorters.core.route.table_route import TableRouteConflictError, TableRoutes, TableRoutingError
from sorters.core.sql.ddl_event import DdlEvent
from sorters.core.sql.table_names import Name, StatementNames, with_other_names
from sorters.core.sql.tokens import UnsupportedSqlError

_UNPARSED = frozenset({DdlType.ADD_FULLTEXT_INDEX, DdlType.CREATE_HYBRID_INDEX})
"""TiCDC refuses these under routes: TiDB's parser does not know their statements."""


def routed_event(event: DdlEvent, routes: TableRoutes) -> DdlEvent:
    """Return a DDL event as the destination gets it: tables under their names there, also in its query.

    Raises:
        TableRoutingError: its query names a table that is routed, and cannot be written with other names.
    """
    if not routes.any:
        return event
    names = StatementNames(
        route=routes.name,
        tables=_tables(event),
        referred=_referred(event),
        view_select=_view_select(event),
    )
    try:
        query = with_other_names(event.original_query, names, charset=event.charset, sql_mode=event.sql_mode)
    except UnsupportedSqlError as error:
        raise _failed(event, str(error)) from error
    if query is not None and event.type in _UNPARSED:
        raise _failed(event, f"{event.type_name} under a route")
    schema, table = routes.name(event.schema, event.table)
    pre_schema, pre_table = routes.name(event.pre_schema, event.pre_table) if event.pre_schema else ("", "")
    return replace(
        event,
        schema=schema,
        table=table,
        pre_schema=pre_schema,
        pre_table=pre_table,
        restored_query=event.restored_query if query is None else query,
        restored=event.restored or query is not None,
        is_routed=query is not None,
        pre=event.pre and routes.stored(event.pre),
        post=event.post and routes.stored(event.post),
        referred=tuple(routes.name(schema, table) for schema, table in event.referred if table),
    )


def check_targets(store: SchemaStore, ts: Ts, feed: CompiledFeed) -> None:
    """Make sure that no two tables of a changefeed have one name at the destination, as they stand at ``ts``.

    Raises:
        TableRouteConflictError: two have.
    """
    if feed.routes.any:
        _check(feed, (table for table in store.stored_at(ts) if _is_sent(feed, table)), None)


def check_new_targets(change: SchemaChange, store: SchemaStore, feed: CompiledFeed) -> None:
    """Make sure that no table which a DDL has made or renamed came under the name of another one.

    Raises:
        TableRouteConflictError: one did.
    """
    if not feed.routes.any:
        return
    made = [
        item.post
        for item in change.tables
        if item.post is not None and _is_sent(feed, item.post) and _name(item.pre) != _name(item.post)
    ]
    if made:
        targets = {_folded(feed.routes.name(table.schema, table.table)) for table in made}
        # A chain of renames ends where its last step left each table, and so does what is asked here.
        _check(feed, (table for table in store.stored_at(change.job.finished_ts) if _is_sent(feed, table)), targets)


def _check(feed: CompiledFeed, tables: Iterable[StoredTable], only: set[Name] | None) -> None:
    sources: dict[Name, Name] = {}
    for table in tables:
        source = (table.schema, table.table)
        target = feed.routes.name(*source)
        if only is not None and _folded(target) not in only:
            continue
        other = sources.setdefault(_folded(target), source)
        if other != source:
            raise TableRouteConflictError(
                "two tables are routed to one; a destination table holds the rows of one table: give target-table "
                "{schema} and {table}, or leave one out by filter.rules",
                tables=f"{'.'.join(other)},{'.'.join(source)}",
                target=".".join(target),
            )


def _is_sent(feed: CompiledFeed, table: StoredTable) -> bool:
    return not table.is_sequence and feed.contains(table.schema, table.table, eligible=table.eligible)


def _name(table: StoredTable | None) -> Name | None:
    return None if table is None else (table.schema, table.table)


def _folded(name: Name) -> Name:
    """TiDB's names ignore case."""
    return fold(name[0]), fold(name[1])


def _tables(event: DdlEvent) -> tuple[Name, ...]:
    """Return the first names in the event's statement."""
    table = (event.schema, event.table)
    if event.type is DdlType.RENAME_TABLE:
        return (event.pre_schema, event.pre_table), table
    return (table,)


def _referred(event: DdlEvent) -> dict[str, str]:
    """Return the schemas of tables that are referred to, where their names say which one is meant."""
    schemas: dict[str, set[str]] = {}
    for schema, table in event.referred:
        schemas.setdefault(table.lower(), set()).add(schema)
    return {table: names.pop() for table, names in schemas.items() if len(names) == 1}


def _view_select(event: DdlEvent) -> str:
    if event.type is not DdlType.CREATE_VIEW or event.post is None:
        return ""
    view = event.post.info().get("view")
    return str(view.get("view_select") or "") if isinstance(view, dict) else ""


def _failed(event: DdlEvent, reason: str) -> TableRoutingError:
    return TableRoutingError(
        "a ddl cannot be written with the names that dispatchers route its tables to; name its start_ts in "
        "filter.ignore-txn-start-ts and run at the destination what it is to do",
        table=f"{event.schema}.{event.table}" if event.table else event.schema,
        start_ts=event.start_ts,
        commit_ts=event.commit_ts,
        query=event.original_query[:4000],
        reason=reason,
    )
