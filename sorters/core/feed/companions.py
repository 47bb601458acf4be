"""Records that stem from no row: watermarks, DDL events and bootstraps, where they stand in the order."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa

from schemas.ddl.schema_change import StoredTable
from schemas.ddl.schema_store import SchemaStore
from schemas.ids import TableId, Ts
from schemas.sink.position import Position, PositionClass
from sorters.core.cut.bootstrap_pace import due_tables, last_tick
from sorters.core.encode.wire.protocol import EncodedMessage, Partitions
from sorters.core.feed.ddl_filter import events_to_send
from sorters.core.feed.ddl_route import check_new_targets, routed_event
from sorters.core.feed.feed import Bootstraps, CompiledFeed
from sorters.core.feed.scope import table_at, tables_at, tables_made_between
from sorters.core.records.order import OutputRecords, join_records, make_records, no_records
from sorters.core.sql.ddl_event import DdlEvent

SCHEMAS_AT_ONCE = 500
"""Tables whose schemas are records at once: of some 3 KiB each, and once for each partition."""
HOMES_KEPT = 256
"""Lists of topics and partitions that are kept as columns: where a changefeed's watermarks go, 36 bytes a partition."""

Home = range | tuple[int, ...]
"""Partitions of a topic."""


def watermark_records(ts: Ts, topics: Sequence[str], feed: CompiledFeed, encoded_at_ms: int) -> OutputRecords:
    """Return a watermark for each partition of ``topics``; none if the protocol has no watermarks."""
    message = feed.encoder.encode_watermark(ts, encoded_at_ms=encoded_at_ms)
    if message is None:
        return no_records()
    position = Position(ts, PositionClass.WATERMARK).encode()
    which = feed.encoder.watermark_partitions
    return copies(((topic, partitions_of(which, feed, topic)) for topic in topics), message, position)


def partitions_of(which: Partitions, feed: CompiledFeed, topic: str) -> range:
    """Return the partitions of a topic that get a message."""
    return range(feed.partitions[topic] if which is Partitions.ALL else 1 if which is Partitions.FIRST else 0)


def copies(homes: Iterable[tuple[str, Home]], message: EncodedMessage, position: bytes) -> OutputRecords:
    """Return one message as records of topics and partitions."""
    topics, partitions = _homes(tuple(homes))
    same = [pa.repeat(pa.scalar(each, pa.binary()), len(topics)) for each in (message.key, message.value, position)]
    return make_records([topics, partitions, *same])


@lru_cache(maxsize=HOMES_KEPT)
def _homes(homes: tuple[tuple[str, Home], ...]) -> tuple[Any, Any]:
    """Return topic and partition of each record: at each cut of a changefeed its watermarks go to the same ones."""
    pairs = [(topic, partition) for topic, partitions in homes for partition in partitions]
    topics = pa.array([topic for topic, _ in pairs], pa.string())
    return topics, pa.array([partition for _, partition in pairs], pa.int32())


def ddl_topic(event: DdlEvent, feed: CompiledFeed) -> str:
    """Return the topic of a DDL event: the old name's."""
    pre = (event.pre_schema, event.pre_table) if event.pre_table else None
    return feed.dispatcher.ddl_topic(pre=pre, post=(event.schema, event.table))


def ddl_position(event: DdlEvent) -> bytes:
    """Return where a DDL event stands among the records: behind the rows of its commit_ts, by its number in the job."""
    return Position(event.commit_ts, PositionClass.DDL, event.start_ts, key=event.seq.to_bytes(4, "big")).encode()


def event_copies(event: DdlEvent, topic: str, position: bytes, feed: CompiledFeed, encoded_at_ms: int) -> OutputRecords:
    """Return a DDL event as records of its topic; none if the protocol has no such message."""
    message = feed.encoder.encode_ddl(event, encoded_at_ms=encoded_at_ms)
    if message is None:
        return no_records()
    return copies([(topic, partitions_of(feed.encoder.ddl_partitions, feed, topic))], message, position)


def ddl_topics(store: SchemaStore, after_ts: Ts, upto_ts: Ts, feed: CompiledFeed) -> set[str]:
    """Return the topics of :func:`ddl_records`.

    Raises:
        TableBecameIneligibleError, RenameIntoFilterError: see :func:`events_to_send`.
        TableRouteConflictError: a table came under the name of another one.
    """
    return {ddl_topic(event, feed) for event in _events(store, after_ts, upto_ts, feed)}


def ddl_records(store: SchemaStore, after_ts: Ts, upto_ts: Ts, feed: CompiledFeed, encoded_at_ms: int) -> OutputRecords:
    """Return the DDL events with ``after_ts < commit_ts <= upto_ts``, in the partitions that the protocol says.

    Raises:
        TableBecameIneligibleError, RenameIntoFilterError: see :func:`events_to_send`.
        TableRouteConflictError, TableRoutingError: a table came under the name of another one, or a query cannot be
            written with other names.
    """
    tables = [no_records()]
    for event in _events(store, after_ts, upto_ts, feed):
        sent = routed_event(event, feed.routes)
        tables.append(event_copies(sent, ddl_topic(event, feed), ddl_position(event), feed, encoded_at_ms))
    return join_records(tables)


def bootstrap_records(
    store: SchemaStore, after_ts: Ts, upto_ts: Ts, feed: CompiledFeed, encoded_at_ms: int, *, at_start: bool
) -> OutputRecords:
    """Return the schemas that consumers are told in ``(after_ts, upto_ts]``; none if the changefeed sends none.

    Those are: what each DDL made of a table, right after it, since a DDL event may be filtered away, or go to another
    topic than the rows; every table once an interval, at the tick of its own; and, ``at_start``, every table that there
    is when the changefeed begins, before all else. A row's schema is therefore always told before the row.

    Raises:
        CorruptDataError: a TableInfo does not decode.
    """
    if feed.bootstraps is None:
        return no_records()
    due: dict[tuple[Ts, TableId], StoredTable] = {}
    if at_start:
        due |= {(after_ts, stored.table_id): stored for stored in tables_at(store, after_ts, feed)}
    due |= {(stored.version, stored.table_id): stored for stored in tables_made_between(store, after_ts, upto_ts, feed)}
    interval_ms = feed.bootstraps.interval_ms
    # Of 100,000 tables a short cut has a few hundred to tell: nothing may go through all of them in each cut.
    for table_id in map(TableId, due_tables(store.table_ids(), after_ts, upto_ts, interval_ms).tolist()):
        tick, stored = last_tick(table_id, after_ts, upto_ts, interval_ms), table_at(store, table_id, upto_ts, feed)
        if tick is not None and stored is not None and stored.version <= tick:
            due[tick, table_id] = stored
    return _schemas_due(due, feed, feed.bootstraps, encoded_at_ms)


def start_bootstraps(
    store: SchemaStore,
    ts: Ts,
    feed: CompiledFeed,
    encoded_at_ms: int,
    *,
    tables_max: int = SCHEMAS_AT_ONCE,
    only: Mapping[str, range] | None = None,
) -> Iterator[OutputRecords]:
    """Yield what :func:`bootstrap_records` adds ``at_start``, in the order of positions, some tables at a time.

    All of it stands before the first row of its changefeed; with 100,000 tables it is more than a cut may hold.

    Args:
        only: the partitions that are told them, by topic; None: all.
    """
    if feed.bootstraps is None:
        return
    every = (
        table for table in tables_at(store, ts, feed) if only is None or feed.topic(table.schema, table.table) in only
    )
    tables = sorted(every, key=lambda stored: stored.table_id)
    for start in range(0, len(tables), tables_max):
        due = {(ts, stored.table_id): stored for stored in tables[start : start + tables_max]}
        yield _schemas_due(due, feed, feed.bootstraps, encoded_at_ms, only)


def _schemas_due(
    due: Mapping[tuple[Ts, TableId], StoredTable],
    feed: CompiledFeed,
    bootstraps: Bootstraps,
    encoded_at_ms: int,
    only: Mapping[str, range] | None = None,
) -> OutputRecords:
    tables = [no_records()]
    for (ts, table_id), stored in due.items():
        table = feed.routes.version(stored.decode())
        message = bootstraps.encoder.encode_bootstrap(table, encoded_at_ms=encoded_at_ms)
        topic = feed.topic(stored.schema, stored.table)
        position = Position(ts, PositionClass.BOOTSTRAP, key=table_id.to_bytes(8, "big")).encode()
        partitions: Home = partitions_of(bootstraps.partitions, feed, topic)
        if only is not None:
            partitions = tuple(partition for partition in partitions if partition in only[topic])
        tables.append(copies([(topic, partitions)], message, position))
    return join_records(tables)


def _events(store: SchemaStore, after_ts: Ts, upto_ts: Ts, feed: CompiledFeed) -> list[DdlEvent]:
    events = []
    for change in store.changes_between(after_ts, upto_ts):
        check_new_targets(change, store, feed)
        events += events_to_send(change, feed)
    return events
