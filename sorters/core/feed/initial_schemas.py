"""Schemas that go out before all else of a changefeed that begins with images: CREATE statements as of its start_ts.

A database that lacks a table then gets it, and its schema, before any row and any DDL; one that has the table keeps it.
From there on the changefeed's DDL keeps it as the source's is, so that it has the right shape at each chunk's ts.
"""

from collections.abc import Iterator

from schemas.ddl.job import DdlType
from schemas.ddl.schema_change import StoredTable
from schemas.ddl.schema_store import SchemaStore
from schemas.ids import TableId, Ts
from schemas.sink.position import Position, PositionClass
from sorters.core.encode.sql.create_table import create_schema, create_table
from sorters.core.feed.companions import SCHEMAS_AT_ONCE, copies, partitions_of
from sorters.core.feed.feed import CompiledFeed
from sorters.core.feed.scope import tables_at
from sorters.core.records.order import OutputRecords, join_records, no_records
from sorters.core.sql.ddl_event import DdlEvent

_SCHEMA, _TABLE = 0, 1
"""What a position's key begins with: schemas come before tables."""
Statement = tuple[bytes, DdlEvent]
"""The key of its position, and what is sent."""


def initial_schemas(
    store: SchemaStore, ts: Ts, feed: CompiledFeed, encoded_at_ms: int, *, tables_max: int = SCHEMAS_AT_ONCE
) -> Iterator[OutputRecords]:
    """Yield the DDL events of ``ts``, in the order of positions, some at a time; none if the changefeed sends none.

    Raises:
        CorruptDataError: a TableInfo does not decode.
    """
    if feed.initial_schemas is None:
        return
    wanted = feed.initial_schemas
    stored = (table for table in tables_at(store, ts, feed) if wanted.wants(table.schema, table.table))
    tables = sorted((feed.routes.stored(table) for table in stored), key=lambda table: table.table_id)
    schemas = sorted({table.schema for table in tables})
    waiting = [no_records()]
    for number, (key, event) in enumerate(_statements(ts, schemas, tables), 1):
        message = feed.encoder.encode_ddl(event, encoded_at_ms=encoded_at_ms)
        if message is not None:
            topic = feed.dispatcher.ddl_topic(pre=None, post=(event.schema, event.table))
            position = Position(ts, PositionClass.BOOTSTRAP, key=key).encode()
            partitions = partitions_of(feed.encoder.ddl_partitions, feed, topic)
            waiting.append(copies([(topic, partitions)], message, position))
        if number % tables_max == 0:
            yield join_records(waiting)
            waiting = [no_records()]
    yield join_records(waiting)


def _statements(ts: Ts, schemas: list[str], tables: list[StoredTable]) -> Iterator[Statement]:
    for number, schema in enumerate(schemas):
        yield _key(_SCHEMA, number), _event(ts, DdlType.CREATE_SCHEMA, schema, create_schema(schema))
    for table in tables:
        yield (
            _key(_TABLE, table.table_id),
            _event(ts, DdlType.CREATE_TABLE, table.schema, create_table(table), table),
        )


def _key(kind: int, number: int) -> bytes:
    return kind.to_bytes(1, "big") + number.to_bytes(8, "big")


def _event(ts: Ts, ddl_type: DdlType, schema: str, query: str, table: StoredTable | None = None) -> DdlEvent:
    return DdlEvent(
        job_id=0,
        commit_ts=ts,
        start_ts=Ts(0),
        seq=0,
        type=ddl_type,
        schema=schema,
        table="" if table is None else table.table,
        table_id=TableId(0) if table is None else table.table_id,
        pre_schema="",
        pre_table="",
        original_query=query,
        restored_query=query,
        restored=True,
        charset="",
        collation="",
        sql_mode=0,
        bdr_role="",
        post=table,
        pre=None,
        referred=(),
    )
