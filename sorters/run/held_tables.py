"""What a frontier record says for the tables of a changefeed: of the held ones, which it waits for."""

from dataclasses import replace

from schemas.ddl.job import JobScope
from schemas.rawlog.frontier import FrontierRecord, HeldDdl
from sorters.core.cut.cut import ChangefeedFrontier, frontier_for
from sorters.core.feed.feed import CompiledFeed
from sorters.core.feed.scope import concerns, held_for
from sorters.run.sources import SchemaSource


def frontier_of_tables(record: FrontierRecord, schemas: SchemaSource, feed: CompiledFeed) -> ChangefeedFrontier:
    """Return a record's frontier for a changefeed; where something is held, the schemas are read up to the record."""
    if not (record.held or record.held_ddl):
        return frontier_for(record, lambda _: False)
    # Which of the held tables are ours is told by the schema at the record's own ts, whatever has been read since.
    schemas.advance(record.ddl_high)
    store = schemas.store

    def stops_us(held: HeldDdl) -> bool:
        scope = JobScope(
            ts=held.ts, start_ts=held.start_ts, schema=held.schema, table=held.table, table_id=held.table_id
        )
        return concerns(scope, store, feed)

    return frontier_for(replace(record, held=held_for(record, store, feed)), lambda _: True, stops_us)
