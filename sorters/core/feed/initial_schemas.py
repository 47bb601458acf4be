"""Schemas that go out before all else of a changefeed that begins with images: CREATE statements as of its start_ts.

A database that lacks a table then gets it before any row and any DDL; one that has the table keeps it. So it is with
schemas, all that the filter lets through: a table that comes later needs its schema, and no DDL of that may come.
Views come behind the tables (:mod:`sorters.core.feed.initial_views`). From there on the changefeed's DDL keeps all of
it as the source's is, so that a table has the right shape at each chunk's ts.

Consumers of topics get them as DDL events in the protocol's own form, each in its table's topic; commit_ts = start_ts
in the position marks them, as it marks rows of images: no job has that. simple has bootstraps for it.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from schemas.ddl.job import DdlType
from schemas.ddl.schema_change import StoredTable
from schemas.ddl.schema_store import SchemaStore
from schemas.ids import Ts
from schemas.sink.position import Position, PositionClass
from sorters.core.encode.sql.create_table import create_schema, create_table
from sorters.core.feed.companions import SCHEMAS_AT_ONCE, ddl_position, event_copies
from sorters.core.feed.feed import CompiledFeed
from sorters.core.feed.initial_views import NotToldError, ToldViews, told_views
from sorters.core.feed.scope import schemas_at, tables_at
from sorters.core.records.order import OutputRecords, join_records, no_records
from sorters.core.sql.ddl_event import DdlEvent, event_of_no_job

_SCHEMA, _TABLE, _VIEW = 0, 1, 2
"""What a position's key begins with: schemas come before tables, and these before views."""


def initial_schemas(
    store: SchemaStore, ts: Ts, feed: CompiledFeed, encoded_at_ms: int, *, tables_max: int = SCHEMAS_AT_ONCE
) -> Iterator[OutputRecords]:
    """Yield the DDL events of ``ts``, in the order of positions, some at a time; none if the changefeed sends none.

    Raises:
        CorruptDataError: a TableInfo does not decode.
    """
    if feed.initial_schemas is None:
        return
    tables = sorted(_told_tables(store, ts, feed), key=lambda table: table.table_id)
    waiting = [no_records()]
    for number, (key, topic, event) in enumerate(_statements(store, ts, feed, tables), 1):
        position = Position(ts, PositionClass.BOOTSTRAP, key=key).encode()
        if not feed.has_processors:
            event = replace(event, start_ts=ts, seq=number)
            position = ddl_position(event)
        waiting.append(event_copies(event, topic, position, feed, encoded_at_ms))
        if number % tables_max == 0:
            yield join_records(waiting)
            waiting = [no_records()]
    yield join_records(waiting)


def initial_topics(store: SchemaStore, ts: Ts, feed: CompiledFeed) -> set[str]:
    """Return the topics of :func:`initial_schemas`, beside the default one."""
    tables = list(_told_tables(store, ts, feed))
    views = _told_views(store, ts, feed, tables).events
    return {feed.topic(each.schema, each.table) for each in (*tables, *(view for view, _ in views))}


def not_told(store: SchemaStore, ts: Ts, feed: CompiledFeed) -> NotToldError | None:
    """Return what is to be said of views and sequences that :func:`initial_schemas` leaves out; None: none is.

    Raises:
        CorruptDataError: a TableInfo does not decode.
    """
    return _told_views(store, ts, feed, _told_tables(store, ts, feed)).note()


def _told_views(store: SchemaStore, ts: Ts, feed: CompiledFeed, tables: Iterable[StoredTable]) -> ToldViews:
    return ToldViews() if feed.initial_schemas is None else told_views(store, ts, feed, tables)


def _told_tables(store: SchemaStore, ts: Ts, feed: CompiledFeed) -> Iterator[StoredTable]:
    """Yield the tables of ``ts`` that a destination is told of; none where it is told of none."""
    wanted = feed.initial_schemas
    if wanted is not None:
        yield from (table for table in tables_at(store, ts, feed) if wanted.wants(table.schema, table.table))


def _statements(
    store: SchemaStore, ts: Ts, feed: CompiledFeed, tables: Sequence[StoredTable]
) -> Iterator[tuple[bytes, str, DdlEvent]]:
    """Yield keys of positions, topics and events."""
    routed = [(feed.topic(table.schema, table.table), feed.routes.stored(table)) for table in tables]
    schemas: dict[str, tuple[str, str]] = {}
    for source, (_, table) in zip(tables, routed, strict=True):
        # As they are now: what changed them since ts goes out as a DDL, and says so once more.
        schemas.setdefault(table.schema, store.schema_options(source.schema))
    for name in sorted(schemas_at(store, ts, feed) - {table.schema for table in tables}):
        for schema in feed.routes.schemas(name):
            schemas.setdefault(schema, store.schema_options(name))
    start_ts, views = Ts(0), _told_views(store, ts, feed, tables).events
    for view, event in views:
        schemas.setdefault(event.schema, store.schema_options(view.schema))
    for number, (schema, options) in enumerate(sorted(schemas.items())):
        query = create_schema(schema, *options)
        event = event_of_no_job(DdlType.CREATE_SCHEMA, ts, schema, query, start_ts=start_ts)
        yield _key(_SCHEMA, number), feed.default_topic, event
    for topic, table in routed:
        query = create_table(table)
        event = event_of_no_job(DdlType.CREATE_TABLE, ts, table.schema, query, start_ts=start_ts, post=table)
        yield _key(_TABLE, table.table_id), topic, event
    for number, (view, event) in enumerate(views):
        yield _key(_VIEW, number), feed.topic(view.schema, view.table), event


def _key(kind: int, number: int) -> bytes:
    return kind.to_bytes(1, "big") + number.to_bytes(8, "big")
