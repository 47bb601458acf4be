"""What a changefeed covers at a ts: which tables, and so which topics."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from schemas.ddl.bad_jobs import BadJob
from schemas.ddl.job import DdlType, JobScope
from schemas.ddl.schema_change import StoredTable
from schemas.ddl.schema_store import SchemaStore
from schemas.ids import TableId, Ts
from schemas.rawlog.frontier import FrontierRecord, HeldTables
from schemas.tidb.info_json import number_in
from sorters.core.encode.wire.protocol import Partitions
from sorters.core.feed.feed import CompiledFeed

_BRINGS_SCHEMA = frozenset({DdlType.CREATE_SCHEMA, DdlType.RECOVER_SCHEMA})


def tables_between(store: SchemaStore, after_ts: Ts, upto_ts: Ts, feed: CompiledFeed) -> Iterator[StoredTable]:
    """Yield every version of a table of the changefeed that a row within ``(after_ts, upto_ts]`` may have."""
    yield from tables_at(store, after_ts, feed)
    yield from tables_made_between(store, after_ts, upto_ts, feed)


def tables_at(store: SchemaStore, ts: Ts, feed: CompiledFeed) -> Iterator[StoredTable]:
    """Yield the tables of the changefeed as DDLs up to ``ts`` left them."""
    return (stored for stored in store.stored_at(ts) if _covers(feed, stored))


def schemas_at(store: SchemaStore, ts: Ts, feed: CompiledFeed) -> set[str]:
    """Return the schemas of the changefeed, those without tables too, as DDLs up to ``ts`` left them."""
    names = store.schema_names()
    for change in reversed(store.changes):  # the store knows them as they are now: what came later is undone
        if change.job.finished_ts <= ts:
            break
        if change.schema_dropped:
            names[change.job.schema_id] = change.schema
        elif change.job.type in _BRINGS_SCHEMA and change.job.db_info is not None:
            names.pop(number_in(change.job.db_info, "id"), None)
    return {name for name in names.values() if feed.filter.matches_schema(name)}


def table_at(store: SchemaStore, table_id: TableId, ts: Ts, feed: CompiledFeed) -> StoredTable | None:
    """Return one of :func:`tables_at`."""
    stored = store.stored_table_at(table_id, ts)
    return stored if stored is not None and _covers(feed, stored) else None


def tables_made_between(store: SchemaStore, after_ts: Ts, upto_ts: Ts, feed: CompiledFeed) -> Iterator[StoredTable]:
    """Yield what each DDL within ``(after_ts, upto_ts]`` made of tables of the changefeed, in order."""
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
    return covered_since(store, table_id, ts, feed) is not None


def covered_since(store: SchemaStore, table_id: TableId, ts: Ts, feed: CompiledFeed) -> Ts | None:
    """Return above which ts rows of a physical table may go downstream, or None if none up to ``ts`` may.

    Of a table that nobody knows all may.
    """
    if store.is_system(table_id):
        return None
    versions = [(valid_after, version) for valid_after, version in store.versions_of(table_id) if valid_after <= ts]
    if not versions:
        return Ts(0)
    fits = (since for since, v in versions if v is not None and feed.contains(v.schema, v.table, eligible=v.eligible))
    return min(fits, default=None)


def held_for(record: FrontierRecord, store: SchemaStore, feed: CompiledFeed) -> tuple[HeldTables, ...]:
    """Return what a record holds of the changefeed's tables, as the schema at the record's ts tells them.

    A table that came into the changefeed by a DDL (a partition's exchange) after it was held is waited for from that
    DDL on: the changefeed has gone that far without it.
    """
    held = []
    for group in record.held:
        since_of_tables = [covered_since(store, table, record.resolved_ts, feed) for table in group.tables]
        since = min((ts for ts in since_of_tables if ts is not None), default=None)
        if since is not None:
            held.append(replace(group, ts=max(group.ts, since)))
    return tuple(held)


def concerns(scope: JobScope, store: SchemaStore, feed: CompiledFeed) -> bool:
    """Tell whether a DDL job that cannot be read or applied may change what goes downstream: it must not be passed.

    Not one that ``ignore-txn-start-ts`` names, nor one of a single table that is not the changefeed's by its name, and
    was not just before the job. The answer is the same whether ``store`` could take the job or not.
    """
    if scope.start_ts in feed.ignore_start_ts:
        return False
    if not scope.schema or feed.filter.matches(scope.schema, scope.table):
        return True
    before = Ts(scope.ts - 1)
    known = any(valid_after <= before for valid_after, _ in store.versions_of(scope.table_id))
    return known and covers_table(store, scope.table_id, before, feed)


def check_jobs(bad: Iterable[BadJob], upto_ts: Ts, store: SchemaStore, feed: CompiledFeed) -> None:
    """Check that the schema of a changefeed is whole up to ``upto_ts``; ``bad`` are the jobs that ``store`` lacks.

    Raises:
        BusError: the changefeed needs one of them; the error names it.
    """
    for job in bad:
        if job.scope.ts <= upto_ts and concerns(job.scope, store, feed):
            raise job.error


def _covers(feed: CompiledFeed, stored: StoredTable) -> bool:
    return stored.has_rows and feed.contains(stored.schema, stored.table, eligible=stored.eligible)
