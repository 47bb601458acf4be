"""Row changes of one table to output records: the one path that the Spark job and the dry run share.

Order of steps: the schema valid just before each row's commit_ts, table filter and eligibility, mount, event filter,
update split, dispatch, column selectors, encode, position. What hangs on the table alone is decided once a table
version, never per row.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from schemas.changes import RowChanges
from schemas.ddl.layered_schemas import LayeredSchemas
from schemas.ddl.schema_store import SchemaStore
from schemas.ids import Ts
from schemas.tidb.table import TableVersion
from sorters.core.cut.cut import keep_where
from sorters.core.feed.claim_check import StoreClaim
from sorters.core.feed.feed import CompiledFeed
from sorters.core.feed.large_messages import NamedRows, Room
from sorters.core.filter.row_conditions import TableConditions
from sorters.core.mount.alike_tables import AlikeTables
from sorters.core.mount.column import value_text
from sorters.core.mount.corrupt_rows import OnCorrupt, corrupt_error, corrupt_rows
from sorters.core.mount.mounted import ROW_OPS, MountedColumns, MountedPart, RowKind
from sorters.core.mount.mounter import mount
from sorters.core.records.order import OUTPUT_SCHEMA, OutputRecords, join_records, row_positions
from sorters.core.route.dispatch import Route
from sorters.core.route.split_update import split_columns, split_mask

CDC_WRITE_SOURCE = 0xFF
"""Bits of ``txn_source`` that say which replication wrote a transaction; 0: a user did. What TiKV's own ``filter_loop``
leaves out, which a raw log that several changefeeds share cannot ask for."""
COLUMNS_MAX = 4_096
"""Of a table in TiDB (``table-column-count-limit``)."""
CELLS_MAX = 1_000_000
"""Columns times rows of what is encoded at once: some 200 MiB of debezium, 50 of the others."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What :func:`run` is told beside rows, schemas and changefeed."""

    encoded_at_ms: int
    store_claim: StoreClaim | None
    on_corrupt: OnCorrupt | None


def run(
    rows: RowChanges,
    schemas: SchemaStore | LayeredSchemas,
    feed: CompiledFeed,
    *,
    encoded_at_ms: int,
    with_table: bool = False,
    store_claim: StoreClaim | None = None,
    on_corrupt: OnCorrupt | None = None,
) -> OutputRecords:
    """Turn row changes of one physical table into records of the sink topics, in no particular order.

    Args:
        rows: of any commit_ts that ``schemas`` knows.
        encoded_at_ms: the time that messages say they were encoded at.
        with_table: add a column ``table`` (``schema.table``), for people.
        store_claim: stores whole messages that are too large, before this returns; None: they are named and not stored.
        on_corrupt: is told of rows that do not fit their checksum, if the feed verifies them and goes on all the same.

    Raises:
        UnknownTableError, SchemaGoneError: no schema ever said that the table exists.
        CorruptDataError: a row does not decode; fields name table, key and commit_ts.
        CorruptChecksumError: a row does not fit its checksum, and the feed must not go on then.
        EncodeRefusedError, MessageTooLargeError: a row has no message in this protocol or topic.
    """
    parts, settings = [], Settings(encoded_at_ms, store_claim, on_corrupt)
    for version, group in wanted_versions(rows, schemas, feed):
        records = run_version(group, version, feed, settings)
        if with_table:
            records = records.append_column("table", pa.repeat(version.name, records.num_rows))
        parts.append(records)
    if parts:
        return join_records(parts)
    empty = OUTPUT_SCHEMA.empty_table()
    return empty.append_column("table", pa.array([], pa.string())) if with_table else empty


def wanted_versions(
    rows: RowChanges, schemas: SchemaStore | LayeredSchemas, feed: CompiledFeed
) -> Iterator[tuple[TableVersion, RowChanges]]:
    """Yield the rows of each schema version that the changefeed is to get.

    Raises:
        UnknownTableError, SchemaGoneError: see :meth:`SchemaStore.lookup`.
    """
    if feed.ignore_start_ts:
        rows = keep_where(rows, ~np.isin(rows.start_ts, np.fromiter(feed.ignore_start_ts, np.int64)))
    if feed.bdr_mode and rows.txn_source.any():
        rows = keep_where(rows, rows.txn_source & CDC_WRITE_SOURCE == 0)
    for version, group in by_version(rows, schemas):
        if feed.contains(version.schema, version.table, eligible=version.eligible):
            yield version, group


def pieces(rows: RowChanges, schemas: SchemaStore | LayeredSchemas) -> Iterator[RowChanges]:
    """Divide row changes of one physical table where their messages together might grow too large.

    What a message holds beside its values grows with the columns: debezium tells each one's schema twice, in some 200
    bytes. So the cells of a piece are bounded, and the bytes of its values are by whoever gathered the rows.
    """
    if len(rows) <= CELLS_MAX // COLUMNS_MAX:
        if len(rows):
            yield rows
        return
    place = np.searchsorted(schemas.boundaries_of(rows.table_id), rows.commit_ts, side="left")
    starts = np.unique(place, return_index=True)[1]
    # Whether rows of a table that nobody knows are an error is for whoever runs them to say: some may be left out.
    versions = (schemas.table_at(rows.table_id, Ts(int(rows.commit_ts[at]))) for at in starts.tolist())
    columns = max((len(one.columns) for one in versions if one is not None), default=1)
    count = max(1, CELLS_MAX // max(columns, 1))
    if len(rows) <= count:
        yield rows
        return
    number = np.arange(len(rows)) // count
    for one in range(int(number[-1]) + 1):
        yield keep_where(rows, number == one)


def by_version(rows: RowChanges, schemas: SchemaStore | LayeredSchemas) -> Iterator[tuple[TableVersion, RowChanges]]:
    """Yield the rows of each schema version; rows of a table that is gone or was not there yet are skipped.

    Raises:
        UnknownTableError, SchemaGoneError: see :meth:`SchemaStore.lookup`.
    """
    if not len(rows):
        return
    place = np.searchsorted(schemas.boundaries_of(rows.table_id), rows.commit_ts, side="left") - 1
    one_version = bool((place == place[0]).all())
    for number in place[:1].tolist() if one_version else np.unique(place).tolist():
        group = rows if one_version else keep_where(rows, place == number)
        found = schemas.lookup(rows.table_id, Ts(int(group.commit_ts[0])))
        if isinstance(found, TableVersion):
            yield found, group


def run_version(
    rows: RowChanges, table: TableVersion, feed: CompiledFeed, settings: Settings, alike: AlikeTables | None = None
) -> OutputRecords:
    """Turn rows of one table version, or of tables that are ``alike`` it, into records, in no particular order.

    ``alike`` says which table each row is of. The changefeed's settings then treat all of them as they treat ``table``,
    leave nothing out, and do not verify checksums; an error may name any of them, and so does a message that is too
    large, whatever is to become of such.

    Raises:
        BusError: see :func:`run`.
    """
    encoded_at_ms, on_corrupt = settings.encoded_at_ms, settings.on_corrupt
    ignored = feed.events.ignored_ops(table.schema, table.table)
    if alike is None:
        found = mount(table, rows, zone=feed.zone, with_checksum=feed.verify_checksums).parts
    else:
        mixed = mount(table, rows, zone=feed.zone, small_rows=0).parts
        found = tuple(replace(part, alike=alike.take(part.rows)) for part in mixed)
    corrupt = corrupt_rows(found)
    if corrupt.count and feed.stop_at_corrupt:
        raise corrupt_error(corrupt)
    if corrupt.count and on_corrupt is not None:
        on_corrupt(corrupt)
    kept = _kept([part for part in found if ROW_OPS[part.kind] not in ignored], feed.events.conditions(table))
    for part in found:
        if ROW_OPS[part.kind] in ignored:
            part.check()
    parts, source = _numbered(_split(part) if feed.split_updates else [part] for part in kept)
    if not len(source):
        return OUTPUT_SCHEMA.empty_table()
    route, selection = feed.select(table)
    mounted = MountedColumns(table=table, count=len(source), parts=parts)
    if selection is not None:
        mounted = replace(mounted, table=selection.table, parts=tuple(selection.of(part) for part in parts))
    encoded = feed.encoder.encode_rows(
        mounted, topic=route.topic, encoded_at_ms=encoded_at_ms, schema_ids=feed.schema_ids
    )
    for part in parts:  # after the encoder, which has looked at most values already
        part.check()
    # Rows are numbered part after part, so what is made part by part stands in the order of the messages.
    partition = np.concatenate([partitions_of(part, route, feed.partitions[route.topic]) for part in parts])
    as_they_are = len(source) == len(rows) and bool((source == np.arange(len(rows))).all())
    keys = rows.key if as_they_are else rows.key.take(pa.array(source))
    commit_ts = np.concatenate([part.commit_ts for part in parts])
    op = np.concatenate([np.full(len(part), ROW_OPS[part.kind], np.int8) for part in parts])
    positions = row_positions(commit_ts, np.concatenate([part.start_ts for part in parts]), op, keys)
    named = NamedRows(table=table, topic=route.topic, keys=keys, commit_ts=commit_ts, positions=positions)
    room = Room(
        limit=feed.row_message_limit(route.topic),
        large=feed.large_messages if alike is None else None,
        store_claim=settings.store_claim,
        what_helps=feed.what_helps_large_rows,
    )
    encoded = room.within_limit(encoded, mounted, named, encoded_at_ms)
    return pa.table(
        [pa.repeat(route.topic, len(source)), pa.array(partition), encoded.keys, encoded.values, positions],
        schema=OUTPUT_SCHEMA,
    )


def _kept(parts: list[MountedPart], conditions: TableConditions | None) -> list[MountedPart]:
    """Return the rows that no value expression ignores."""
    if conditions is None:
        return parts
    kept = []
    for part in parts:
        ignored = conditions.ignored(part)
        if ignored is None:
            kept.append(part)
            continue
        part.check()  # whole, as TiCDC decodes it before it filters
        if not ignored.all():
            kept.append(part.take(np.flatnonzero(~ignored)))
    return kept


def _split(part: MountedPart) -> list[MountedPart]:
    """Divide updates of a unique or handle key into their halves; other parts stay as they are."""
    if part.kind is not RowKind.UPDATE:
        return [part]
    # A column in the row key cannot differ: both sides of an update have one key.
    offsets = [offset for offset in split_columns(part.table) if not part.table.columns[offset].in_key]
    if not offsets:
        return [part]
    old, new = part.old_columns(), part.new_columns()
    mask = split_mask([old[at].text for at in offsets], [new[at].text for at in offsets], np.ones(len(part), np.bool_))
    if not mask.any():
        return [part]
    halves = part.split(np.flatnonzero(mask))
    return [part.take(np.flatnonzero(~mask)), *halves] if not mask.all() else [*halves]


def _numbered(groups: Iterable[list[MountedPart]]) -> tuple[tuple[MountedPart, ...], npt.NDArray[np.int64]]:
    """Number the rows of the parts one after the other; return also each one's number in the batch that was mounted."""
    parts: list[MountedPart] = []
    source: list[npt.NDArray[np.int64]] = []
    at = 0
    for part in (part for group in groups for part in group):
        source.append(part.rows)
        parts.append(replace(part, rows=np.arange(at, at + len(part), dtype=np.int64)))
        at += len(part)
    return tuple(parts), np.concatenate(source) if source else np.zeros(0, np.int64)


def partitions_of(part: MountedPart, route: Route, count: int) -> npt.NDArray[np.int32]:
    """Return the partition of each row of a part, of ``count``: int32."""
    if not route.column_offsets:
        return route.partitions((), part.commit_ts, count, part.alike)
    rows = part.old_rows if part.kind is RowKind.DELETE else part.new_rows
    if rows is not None:
        specs = [(at, part.table.columns[at]) for at in route.column_offsets]
        texts = ([value_text(spec, row[at]) for at, spec in specs] for row in rows)
        pairs = zip(texts, part.commit_ts.tolist(), strict=True)
        return np.array([route.partition(text, ts, count) for text, ts in pairs], np.int32)
    columns = part.old_columns() if part.kind is RowKind.DELETE else part.new_columns()
    return route.partitions([columns[at].text for at in route.column_offsets], part.commit_ts, count, part.alike)
