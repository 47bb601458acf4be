"""What a chunk of a resync says beside its rows: which rows a database may hold that the chunk lacks.

They stand in the order as DELETEs of the image, (S, S): above all changes up to S and before the chunk's own rows, in
the partition of the table. What is written above S stands behind them, so they take nothing of it back.
"""

from collections.abc import Callable

import pyarrow as pa

from schemas.changes import BinaryArray
from schemas.ddl.layered_schemas import LayeredSchemas
from schemas.ddl.schema_store import SchemaStore
from schemas.rawlog.images import ImageChunk, is_opening
from schemas.sink.position import Position, PositionClass, RowOp
from schemas.sink.sql_rows import SqlRow, TableForm, encode_form, encode_rows
from schemas.tidb.table import TableVersion
from sorters.core.encode.sql.key_ranges import LackingRange, lacking_ranges, range_misfit
from sorters.core.encode.sql.rows import SqlRowsEncoder
from sorters.core.feed.feed import CompiledFeed
from sorters.core.flow.ledger import FlowLedger
from sorters.core.records.order import OutputRecords, make_records, no_records


def lacking_records(
    chunk: ImageChunk,
    keys: Callable[[], BinaryArray],
    schemas: SchemaStore | LayeredSchemas,
    feed: CompiledFeed,
    ledger: FlowLedger | None = None,
) -> OutputRecords:
    """Return what deletes the rows that a chunk lacks. Nothing where no database reads on, where the table is not the
    changefeed's any more, and where it has become one whose rows cannot be deleted so: its image goes on as a backfill.

    Args:
        chunk: of a table that is resynced.
        keys: gives the raw keys of the chunk's rows, ascending.
        ledger: is told of the records, which come of no row that was landed.

    Raises:
        UnknownTableError, SchemaGoneError: see :meth:`SchemaStore.lookup`.
        CorruptDataError: a key does not decode.
    """
    if not isinstance(feed.encoder, SqlRowsEncoder) or is_opening(chunk):
        return no_records()
    table = schemas.lookup(chunk.table_id, chunk.ts)
    if not isinstance(table, TableVersion) or not _takes(feed, table):
        return no_records()
    ranges = list(lacking_ranges(table, chunk.keys, keys()))
    if not ranges:
        return no_records()
    route, _ = feed.select(table)
    form = _form(feed.routes.version(table))
    values = [_value(form, chunk, lacking) for lacking in ranges]
    positions = pa.array([_position(chunk, lacking) for lacking in ranges], pa.binary())
    partition = route.partition((), chunk.ts, feed.partitions[route.topic])
    if ledger is not None:
        ledger.split(positions)
    count = len(ranges)
    columns = [
        pa.repeat(pa.scalar(route.topic, pa.string()), count),
        pa.repeat(pa.scalar(partition, pa.int32()), count),
        pa.repeat(pa.scalar(encode_form(form), pa.binary()), count),
        pa.array(values, pa.binary()),
        positions,
    ]
    return make_records(columns)


def _takes(feed: CompiledFeed, table: TableVersion) -> bool:
    if not feed.contains(table.schema, table.table, eligible=table.eligible) or range_misfit(table) is not None:
        return False
    return RowOp.DELETE not in feed.events.ignored_ops(table.schema, table.table)


def _form(table: TableVersion) -> TableForm:
    key = tuple(table.columns[offset].name for offset in table.key_columns)
    return TableForm(schema=table.schema, table=table.table, version=table.version, columns=(), key=key)


def _value(form: TableForm, chunk: ImageChunk, lacking: LackingRange) -> bytes:
    return encode_rows(form, [SqlRow(chunk.ts, chunk.ts, RowOp.DELETE, lacking.condition)])


def _position(chunk: ImageChunk, lacking: LackingRange) -> bytes:
    return Position(chunk.ts, PositionClass.ROW, chunk.ts, RowOp.DELETE, lacking.start).encode()
