"""Which tables a prologue needs, by a changefeed's settings and the sorters' compiler: producers know neither."""

from collections.abc import Collection, Sequence

from schemas.config.changefeed import load_changefeed
from schemas.ddl.bad_jobs import BadJobs
from schemas.ddl.schema_change import SchemaChange, StoredTable
from schemas.ddl.schema_store import SchemaStore
from schemas.ids import TableId, Ts
from schemas.nodes.changefeed import ChangefeedInfo
from schemas.rawlog.ddl_record import DdlRecord
from sorters.core.feed.feed import compile_feed
from sorters.core.feed.scope import concerns


def prologue_tables(info: ChangefeedInfo, records: Sequence[DdlRecord], end_ts: Ts) -> Collection[TableId]:
    """Return the physical tables that the changefeed had at the snapshot's ts or at any time up to ``end_ts``.

    More than it needs, never less: a table of any name that the filter lets through, dropped, truncated, exchanged and
    ineligible ones too.

    Args:
        info: the changefeed.
        records: of the ddl topic, from its first one on.
        end_ts: later jobs are not looked at.

    Raises:
        BusError: a job up to ``end_ts`` that may concern the changefeed cannot be read or applied: which tables it made
            is not known, and their rows would be missed.
    """
    feed = compile_feed(load_changefeed(info.sink_uri, info.config), info.namespace)
    store, bad_jobs = SchemaStore.empty(), BadJobs()
    versions: list[StoredTable] = []
    for record in records:
        if record.kind in ("job", "undecodable") and record.ts > end_ts:
            break
        change = bad_jobs.apply(store, record)
        if record.kind == "snapshot_end" and not versions:
            versions += store.stored_at(record.ts)
        elif change is not None:
            versions += _sides(change)
    for job in bad_jobs.jobs:
        if concerns(job.scope, store, feed):
            raise job.error
    return {
        table
        for stored in versions
        if feed.filter.matches(stored.schema, stored.table)
        for table in stored.physical_ids
    }


def _sides(change: SchemaChange) -> list[StoredTable]:
    return [side for table in change.tables for side in (table.pre, table.post) if side is not None]
