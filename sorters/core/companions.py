"""Records that stem from no row: watermarks and DDL events, at their place in the order."""

from collections.abc import Iterable, Sequence

import pyarrow as pa

from schemas.ids import Ts
from schemas.position import Position, PositionClass
from schemas.tidb.schema_store import SchemaStore
from sorters.core.ddl_event import DdlEvent
from sorters.core.ddl_filter import events_to_send
from sorters.core.encode.protocol import Message, Partitions
from sorters.core.feed import CompiledFeed
from sorters.core.order import OUTPUT_SCHEMA, OutputRecords, join_records


def watermark_records(ts: Ts, topics: Sequence[str], feed: CompiledFeed, encoded_at_ms: int) -> OutputRecords:
    """Return a watermark for each partition of ``topics``; none if the protocol has no watermarks."""
    message = feed.encoder.encode_watermark(ts, encoded_at_ms=encoded_at_ms)
    if message is None:
        return OUTPUT_SCHEMA.empty_table()
    position = Position(ts, PositionClass.WATERMARK).encode()
    which = feed.encoder.watermark_partitions
    return _copies(((topic, _partitions(which, feed, topic)) for topic in topics), message, position)


def _partitions(which: Partitions, feed: CompiledFeed, topic: str) -> range:
    return range(feed.partitions[topic] if which is Partitions.ALL else 1 if which is Partitions.FIRST else 0)


def _copies(homes: Iterable[tuple[str, Iterable[int]]], message: Message, position: bytes) -> OutputRecords:
    pairs = [(topic, partition) for topic, partitions in homes for partition in partitions]
    n = len(pairs)
    columns = [
        pa.array([topic for topic, _ in pairs], pa.string()),
        pa.array([partition for _, partition in pairs], pa.int32()),
        pa.array([message.key] * n, pa.binary()),
        pa.array([message.value] * n, pa.binary()),
        pa.array([position] * n, pa.binary()),
    ]
    return pa.table(columns, schema=OUTPUT_SCHEMA)


def ddl_topics(store: SchemaStore, after_ts: Ts, upto_ts: Ts, feed: CompiledFeed) -> set[str]:
    """Return the topics of :func:`ddl_records`.

    Raises:
        TableBecameIneligibleError, RenameIntoFilterError: see :func:`events_to_send`.
    """
    return {_ddl_topic(event, feed) for event in _events(store, after_ts, upto_ts, feed)}


def ddl_records(store: SchemaStore, after_ts: Ts, upto_ts: Ts, feed: CompiledFeed, encoded_at_ms: int) -> OutputRecords:
    """Return the DDL events with ``after_ts < commit_ts <= upto_ts``, in the partitions that the protocol says.

    Raises:
        TableBecameIneligibleError, RenameIntoFilterError: see :func:`events_to_send`.
    """
    tables = [OUTPUT_SCHEMA.empty_table()]
    for event in _events(store, after_ts, upto_ts, feed):
        message = feed.encoder.encode_ddl(event, encoded_at_ms=encoded_at_ms)
        if message is not None:
            topic = _ddl_topic(event, feed)
            partitions = _partitions(feed.encoder.ddl_partitions, feed, topic)
            key = event.seq.to_bytes(4, "big")
            position = Position(event.commit_ts, PositionClass.DDL, event.start_ts, key=key).encode()
            tables.append(_copies([(topic, partitions)], message, position))
    return join_records(tables)


def _events(store: SchemaStore, after_ts: Ts, upto_ts: Ts, feed: CompiledFeed) -> list[DdlEvent]:
    return [event for change in store.changes_between(after_ts, upto_ts) for event in events_to_send(change, feed)]


def _ddl_topic(event: DdlEvent, feed: CompiledFeed) -> str:
    """Return the topic of a DDL event: the old name's."""
    pre = (event.pre_schema, event.pre_table) if event.pre_table else None
    return feed.dispatcher.ddl_topic(pre=pre, post=(event.schema, event.table))
