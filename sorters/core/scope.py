"""What a changefeed covers at a ts: which tables, and so which topics."""

from collections.abc import Iterator

from schemas.ids import TableId, Ts
from schemas.tidb.schema_change import StoredTable
from schemas.tidb.schema_store import SchemaStore
from sorters.core.encode.protocol import Partitions
from sorters.core.feed import CompiledFeed


def tables_between(store: SchemaStore, after_ts: Ts, upto_ts: Ts, feed: CompiledFeed) -> Iterator[StoredTable]:
    """Yield every version of a table of the changefeed that a row within ``(after_ts, upto_ts]`` may have."""
    for stored in store.stored_at(after_ts):
        if _covers(feed, stored):
            yield stored
    for change in store.changes_between(after_ts, upto_ts):
        for table in change.tables:
            if table.post is not None and _covers(feed, table.post):
                yield table.post


def watermark_topics_at(store: SchemaStore, ts: Ts, feed: CompiledFeed) -> tuple[str, ...]:
    """Return the topics that get a watermark of ``ts``: those of the tables there are then, and the default topic."""
    if feed.encoder.watermark_partitions is Partitions.NONE:
        return ()
    tables = ((stored.schema, stored.table) for stored in store.stored_at(ts) if _covers(feed, stored))
    return feed.dispatcher.watermark_topics(tables)


def covers_table(store: SchemaStore, table_id: TableId, ts: Ts, feed: CompiledFeed) -> bool:
    """Tell whether rows of a physical table up to ``ts`` may go downstream; of one that nobody knows, they may."""
    if store.is_system(table_id):
        return False
    versions = [version for valid_after, version in store.versions_of(table_id) if valid_after <= ts]
    if not versions:
        return True
    return any(v is not None and feed.contains(v.schema, v.table, eligible=v.eligible) for v in versions)


def _covers(feed: CompiledFeed, stored: StoredTable) -> bool:
    return stored.has_rows and feed.contains(stored.schema, stored.table, eligible=stored.eligible)
