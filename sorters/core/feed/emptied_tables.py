"""Tables that consumers of topics begin anew, for a resync: a TRUNCATE TABLE as no user has said it.

A topic has no place for "delete what is not among these rows", and which keys its consumers have nobody knows. So a
resync tells them to empty the table, at a ts at which nothing of its image goes out: the first chunk of a resync is a
range without keys, and the rows come at later ts, among all changes in between. It is a DDL event in the protocol's own
form; commit_ts = start_ts in its position is what marks it, as it marks rows of images: no job has that.
"""

from collections.abc import Iterator

from schemas.ddl.job import DdlType
from schemas.ddl.schema_change import StoredTable
from schemas.ddl.schema_store import SchemaStore
from schemas.ids import TableId
from schemas.rawlog.images import is_opening
from schemas.sink.position import Position, PositionClass
from sorters.core.cut.cut import Cut
from sorters.core.feed.companions import copies, partitions_of
from sorters.core.feed.ddl_route import routed_event
from sorters.core.feed.feed import CompiledFeed
from sorters.core.feed.scope import table_at
from sorters.core.records.order import OutputRecords, join_records, no_records
from sorters.core.sql.ddl_event import DdlEvent
from sorters.core.sql.tokens import quote_name


def emptied_tables(cut: Cut, feed: CompiledFeed) -> frozenset[TableId]:
    """Return the tables whose resync begins with a cut, where consumers read what goes out."""
    if not cut.resynced or feed.has_processors:
        return frozenset()
    return frozenset(
        chunk.table_id for chunk in cut.chunks if chunk.table_id in cut.resynced and is_opening(chunk.keys)
    )


def emptied_records(cut: Cut, store: SchemaStore, feed: CompiledFeed, encoded_at_ms: int) -> OutputRecords:
    """Return the TRUNCATE events of a cut: of :func:`emptied_tables`, one each.

    A table that has gone, or become partitioned since the resync was asked for, gets none.

    Raises:
        CorruptDataError: a TableInfo does not decode.
    """
    records = [no_records()]
    for event in _events(cut, store, feed):
        message = feed.encoder.encode_ddl(routed_event(event, feed.routes), encoded_at_ms=encoded_at_ms)
        if message is None:
            continue
        topic = feed.dispatcher.ddl_topic(pre=None, post=(event.schema, event.table))
        partitions = partitions_of(feed.encoder.ddl_partitions, feed, topic)
        key = event.seq.to_bytes(4, "big")
        position = Position(event.commit_ts, PositionClass.DDL, event.start_ts, key=key).encode()
        records.append(copies([(topic, partitions)], message, position))
    return join_records(records)


def _events(cut: Cut, store: SchemaStore, feed: CompiledFeed) -> Iterator[DdlEvent]:
    for number, table_id in enumerate(sorted(emptied_tables(cut, feed))):
        stored = table_at(store, table_id, cut.upto_ts, feed)
        if stored is not None and not stored.partition_ids:
            yield _event(cut, number, stored)


def _event(cut: Cut, number: int, stored: StoredTable) -> DdlEvent:
    query = f"TRUNCATE TABLE {quote_name(stored.schema)}.{quote_name(stored.table)}"
    return DdlEvent(
        job_id=0,
        commit_ts=cut.upto_ts,
        start_ts=cut.upto_ts,
        seq=number,
        type=DdlType.TRUNCATE_TABLE,
        schema=stored.schema,
        table=stored.table,
        table_id=stored.table_id,
        pre_schema="",
        pre_table="",
        original_query=query,
        restored_query=query,
        restored=True,
        charset="",
        collation="",
        sql_mode=0,
        bdr_role="",
        post=stored,
        pre=stored,
        referred=(),
    )
