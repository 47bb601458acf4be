"""Tables that consumers begin anew, for a resync: a TRUNCATE TABLE as no user has said it.

A topic has no place for "delete what is not among these rows", and which keys its consumers have nobody knows. So a
resync tells them to empty the table, at a ts at which nothing of its image goes out: the first chunk of a resync is a
range without keys, and the rows come at later ts, among all changes in between. It is a DDL event in the protocol's own
form; commit_ts = start_ts in its position is what marks it, as it marks rows of images: no job has that.

A database loses rows range by range. It is emptied only of a table whose ranges it cannot tell
(:func:`~sorters.core.encode.sql.key_ranges.range_misfit`); the user has said yes to that when asking for the resync.
"""

from collections.abc import Iterator

from schemas.ddl.job import DdlType
from schemas.ddl.schema_change import StoredTable
from schemas.ddl.schema_store import SchemaStore
from schemas.ids import TableId
from schemas.rawlog.images import is_opening
from sorters.core.cut.cut import Cut
from sorters.core.encode.sql.key_ranges import range_misfit
from sorters.core.feed.companions import ddl_position, ddl_topic, event_copies
from sorters.core.feed.ddl_route import routed_event
from sorters.core.feed.feed import CompiledFeed
from sorters.core.feed.scope import table_at
from sorters.core.records.order import OutputRecords, join_records, no_records
from sorters.core.sql.ddl_event import DdlEvent, event_of_no_job
from sorters.core.sql.tokens import quote_name


def emptied_tables(cut: Cut, feed: CompiledFeed) -> frozenset[TableId]:
    """Return the tables whose resync begins with a cut, where consumers of topics or a database may have to be told."""
    if not cut.resynced or (feed.has_processors and not feed.is_sql):
        return frozenset()
    return frozenset(
        chunk.table_id for chunk in cut.chunks if chunk.table_id in cut.resynced and is_opening(chunk.keys)
    )


def truncate_query(stored: StoredTable) -> str:
    """Return the statement by which consumers empty a table."""
    return f"TRUNCATE TABLE {quote_name(stored.schema)}.{quote_name(stored.table)}"


def emptied_records(cut: Cut, store: SchemaStore, feed: CompiledFeed, encoded_at_ms: int) -> OutputRecords:
    """Return the TRUNCATE events of a cut: of :func:`emptied_tables`, one each.

    A table that has gone, or become partitioned since the resync was asked for, gets none; nor one of which a database
    deletes range by range.

    Raises:
        CorruptDataError: a TableInfo does not decode.
    """
    records = [no_records()]
    for event in _events(cut, store, feed):
        sent = routed_event(event, feed.routes)
        records.append(event_copies(sent, ddl_topic(event, feed), ddl_position(event), feed, encoded_at_ms))
    return join_records(records)


def _events(cut: Cut, store: SchemaStore, feed: CompiledFeed) -> Iterator[DdlEvent]:
    for number, table_id in enumerate(sorted(emptied_tables(cut, feed))):
        stored = table_at(store, table_id, cut.upto_ts, feed)
        if stored is None or stored.partition_ids:
            continue
        if not feed.is_sql or (stored.eligible and range_misfit(stored.decode()) is not None):
            yield _event(cut, number, stored)


def _event(cut: Cut, number: int, stored: StoredTable) -> DdlEvent:
    query = truncate_query(stored)
    return event_of_no_job(
        DdlType.TRUNCATE_TABLE,
        cut.upto_ts,
        stored.schema,
        query,
        start_ts=cut.upto_ts,
        seq=number,
        pre=stored,
        post=stored,
    )
