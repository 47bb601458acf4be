"""Records that stem from no row: watermarks and DDL events, at their place in the order."""

from collections.abc import Iterable, Sequence

import pyarrow as pa

from schemas.ids import Ts
from schemas.position import Position, PositionClass
from schemas.tidb.schema_store import SchemaStore
from sorters.core.encode.protocol import Partitions
from sorters.core.feed import CompiledFeed
from sorters.core.order import OUTPUT_SCHEMA, OutputRecords


def watermark_records(ts: Ts, topics: Sequence[str], feed: CompiledFeed, encoded_at_ms: int) -> OutputRecords:
    """Return a watermark for each partition of ``topics``; none if the protocol has no watermarks."""
    value = feed.encoder.encode_watermark(ts, encoded_at_ms=encoded_at_ms)
    if value is None:
        return OUTPUT_SCHEMA.empty_table()
    position = Position(ts, PositionClass.WATERMARK).encode()
    return _copies(((topic, _partitions(feed, topic)) for topic in topics), value, position)


def _partitions(feed: CompiledFeed, topic: str) -> range:
    which = feed.encoder.watermark_partitions
    return range(feed.partitions[topic] if which is Partitions.ALL else 1 if which is Partitions.FIRST else 0)


def _copies(homes: Iterable[tuple[str, Iterable[int]]], value: bytes, position: bytes) -> OutputRecords:
    pairs = [(topic, partition) for topic, partitions in homes for partition in partitions]
    n = len(pairs)
    columns = [
        pa.array([topic for topic, _ in pairs], pa.string()),
        pa.array([partition for _, partition in pairs], pa.int32()),
        pa.nulls(n, pa.binary()),
        pa.array([value] * n, pa.binary()),
        pa.array([position] * n, pa.binary()),
    ]
    return pa.table(columns, schema=OUTPUT_SCHEMA)


def ddl_topics(store: SchemaStore, after_ts: Ts, upto_ts: Ts, feed: CompiledFeed) -> set[str]:
    return set()


def ddl_records(store: SchemaStore, after_ts: Ts, upto_ts: Ts, feed: CompiledFeed, encoded_at_ms: int) -> OutputRecords:
    return OUTPUT_SCHEMA.empty_table()
