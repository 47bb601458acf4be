"""Rows of one table version to output records: the steps of a row, on the one path that ``run_chunks`` is.

Order of steps: the schema valid just before each row's commit_ts, table filter and eligibility
(:mod:`sorters.core.rows.wanted_rows`), mount, event filter, update split, soft deletes, dispatch, column selectors,
encode, position. What hangs on the table alone is decided once a table version, never per row.
"""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from schemas.changes import BinaryArray, RowChanges
from schemas.sink.position import RowOp
from schemas.tidb.table import TableVersion
from sorters.core.columnar.row_changes import slices_of_rows
from sorters.core.columnar.spans import IntArray
from sorters.core.encode.sql.rows import SqlRowsEncoder, is_keyless
from sorters.core.encode.wire.protocol import EncodedRows, Encoder
from sorters.core.feed.claim_check import StoreClaim
from sorters.core.feed.feed import CompiledFeed
from sorters.core.feed.large_messages import NamedRows, Room
from sorters.core.filter.kept_rows import kept_rows
from sorters.core.filter.soft_deletes import check_active_active, sent_parts, soft_delete_time, without_deletes
from sorters.core.flow.ledger import FlowLedger
from sorters.core.mount.alike_tables import AlikeTables
from sorters.core.mount.column import value_text
from sorters.core.mount.corrupt_rows import OnCorrupt, corrupt_error, corrupt_rows
from sorters.core.mount.mounted import ROW_OPS, MountedColumns, MountedPart, RowKind
from sorters.core.mount.mounter import mount
from sorters.core.records.order import OutputRecords, make_records, no_records, row_positions
from sorters.core.route.dispatch import Route
from sorters.core.route.split_update import has_unseen_unique, may_free_keys, split_all, split_by_keys

CELLS_MAX = 1_000_000
"""Columns times rows of what is encoded at once: some 200 MiB of debezium, 50 of the others."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What :func:`run_version` needs beside rows, schema and changefeed."""

    encoded_at_ms: int
    store_claim: StoreClaim | None
    on_corrupt: OnCorrupt | None
    ledger: FlowLedger | None = None
    """Is told of rows that are left out, and of updates that are split."""


def encodable(rows: RowChanges, table: TableVersion) -> Iterator[RowChanges]:
    """Divide rows of one table version where their messages together might grow too large.

    What a message holds beside its values grows with the columns: debezium names each one's schema twice, in some 200
    bytes. So the cells of a chunk are bounded here; the bytes of its values are by whoever gathered the rows.
    """
    return slices_of_rows(rows, max(1, CELLS_MAX // max(len(table.columns), 1)))


def of_alike(part: MountedPart) -> AlikeTables:
    """Return the tables of a part of such a pass."""
    assert part.alike is not None
    return part.alike


@dataclass(frozen=True, slots=True, eq=False)
class SplitRows:
    """Records that come of no row of their own."""

    positions: BinaryArray
    number: IntArray
    """Which of alike tables each is of; 0 where there is one."""


@dataclass(frozen=True, slots=True, eq=False)
class EncodedPass:
    """Rows of a pass as messages: all of it that does not hang on where they go."""

    table: TableVersion
    """Of which the rows are, or which the others are alike."""
    parts: tuple[MountedPart, ...]
    """With rows that are numbered part after part."""
    mounted: MountedColumns
    """The same, with the columns that are sent."""
    encoded: EncodedRows
    keys: BinaryArray
    """Of the rows in TiKV."""
    commit_ts: IntArray
    positions: BinaryArray
    split: SplitRows | None = None
    """The DELETEs that updates became, with a PUT or alone; None: there are none."""
    partitions: dict[Hashable, npt.NDArray[np.int32]] = field(default_factory=dict)
    """Of the rows, by what they hang on: changefeeds that send the same mostly hash the same."""

    @property
    def tables(self) -> int:
        """How many alike tables there are."""
        return len(of_alike(self.parts[0]).versions)

    @property
    def number(self) -> IntArray:
        """Which of alike tables each row is of."""
        return np.concatenate([of_alike(part).number for part in self.parts])


def run_version(
    rows: RowChanges, table: TableVersion, feed: CompiledFeed, settings: Settings, alike: AlikeTables | None = None
) -> OutputRecords:
    """Turn rows of one table version, or of tables that are ``alike`` it, into records, in no particular order.

    ``alike`` says which table each row is of, and where it goes. Else the changefeed's settings treat all of them as
    they treat ``table``, leave nothing out, and do not verify checksums; an error may name any of them, and so does a
    message that is too large for any of their topics, whatever is to become of such.

    Raises:
        CorruptDataError: a row does not decode; fields name table, key and commit_ts.
        CorruptChecksumError: a row does not fit its checksum, and the feed must not go on then.
        EncodeRefusedError, SinkMessageTooLargeError: a row has no message in this protocol or topic.
    """
    passed = encode_pass(rows, table, feed, settings, alike)
    return no_records() if passed is None else route_pass(passed, feed, settings, alike)


def encode_pass(
    rows: RowChanges, table: TableVersion, feed: CompiledFeed, settings: Settings, alike: AlikeTables | None
) -> EncodedPass | None:
    """Mount, filter and encode rows; None: nothing is left of them. See :func:`run_version`.

    Of alike tables the result hangs on nothing of the feed but its encoder, zone, ``split_updates``, table routes, and
    :meth:`Encoder.topic_part` of each table.
    """
    encoded_at_ms = settings.encoded_at_ms
    if feed.active_active:
        check_active_active(table)
    kept = kept_parts(rows, table, feed, settings.on_corrupt, alike, settings.ledger)
    groups = _sent_groups(kept, table, feed)
    if table.soft_deletes and settings.ledger is not None:
        _tell_soft_deletes(rows, kept, groups, settings.ledger)
    parts, source = _numbered(groups)
    if not len(source):
        return None
    route, selection = feed.select(table)
    mounted = MountedColumns(table=table, count=len(source), parts=parts)
    if selection is not None:
        mounted = replace(mounted, table=selection.table, parts=tuple(selection.of(part) for part in parts))
    mounted = feed.routes.mounted(mounted)
    encoded = _encoder_of(table, feed).encode_rows(
        mounted, topic=route.topic, encoded_at_ms=encoded_at_ms, schema_ids=feed.schema_ids
    )
    for part in parts:  # after the encoder, which has looked at most values already
        part.check()
    as_they_are = len(source) == len(rows) and bool((source == np.arange(len(rows))).all())
    keys = rows.key if as_they_are else rows.key.take(pa.array(source))
    commit_ts = np.concatenate([part.commit_ts for part in parts])
    op = np.concatenate([np.full(len(part), ROW_OPS[part.kind], np.int8) for part in parts])
    positions = row_positions(commit_ts, np.concatenate([part.start_ts for part in parts]), op, keys)
    return EncodedPass(
        table, parts, mounted, encoded, keys, commit_ts, positions, _split_rows(rows, kept, groups, alike)
    )


def _encoder_of(table: TableVersion, feed: CompiledFeed) -> Encoder:
    """Return what encodes a table's rows. A database is told where an event filter may leave out what frees a key: a
    row that upstream deleted is there still when its key comes again. Such a table shares no pass with others.
    """
    if not isinstance(feed.encoder, SqlRowsEncoder):
        return feed.encoder
    ignored = feed.events.may_ignore(table.schema, table.table)
    if RowOp.DELETE in ignored or (RowOp.UPDATE in ignored and may_free_keys(table)):
        return replace(feed.encoder, overwrites=True)
    return feed.encoder


def kept_parts(
    rows: RowChanges,
    table: TableVersion,
    feed: CompiledFeed,
    on_corrupt: OnCorrupt | None = None,
    alike: AlikeTables | None = None,
    ledger: FlowLedger | None = None,
) -> list[MountedPart]:
    """Mount rows of one table version, or of tables that are alike it; return those that no event filter ignores, and
    tell ``ledger`` of the others.

    Raises:
        CorruptDataError, CorruptChecksumError: see :func:`run_version`.
    """
    if alike is None:
        mounted_parts = mount(table, rows, zone=feed.zone, with_checksum=feed.verify_checksums).parts
    else:
        mixed = mount(table, rows, zone=feed.zone, small_rows=0).parts
        mounted_parts = tuple(replace(part, alike=alike.take(part.rows)) for part in mixed)
    corrupt = corrupt_rows(mounted_parts)
    if corrupt.count and feed.stop_at_corrupt:
        raise corrupt_error(corrupt)
    if corrupt.count and on_corrupt is not None:
        on_corrupt(corrupt)
    kept, left_out = kept_rows(mounted_parts, table, feed.events, feed.update_columns)
    if ledger is not None:
        for reason, numbers in left_out.items():
            ledger.leave_out(reason, rows, _mask(len(rows), numbers))
    return kept


def route_pass(passed: EncodedPass, feed: CompiledFeed, settings: Settings, alike: AlikeTables | None) -> OutputRecords:
    """Say where the rows of a pass go, and see that their messages may. See :func:`run_version`.

    ``alike`` has the topics of this feed; who encoded the pass may have others.
    """
    table, parts = passed.table, passed.parts
    route, _ = feed.select(table)
    if alike is None:
        topic = pa.repeat(route.topic, len(passed.commit_ts))
        # Rows are numbered part after part, so what is made part by part stands in the order of the messages.
        partition = np.concatenate([partitions_of(part, route, feed.partitions[route.topic]) for part in parts])
    else:
        topic = alike.named(passed.number)
        partition = alike_partitions(passed, route, [feed.partitions[name] for name in alike.topics])
    positions = passed.positions
    named = NamedRows(table=table, topic=route.topic, keys=passed.keys, commit_ts=passed.commit_ts, positions=positions)
    topics = (route.topic,) if alike is None else alike.topics
    room = Room(
        limit=feed.row_message_limit(*topics),
        large=feed.large_messages if alike is None else None,
        store_claim=settings.store_claim,
        what_helps=feed.what_helps_large_rows,
    )
    encoded = room.within_limit(passed.encoded, passed.mounted, named, settings.encoded_at_ms)
    records = make_records([topic, pa.array(partition), encoded.keys, encoded.values, positions])
    if passed.split is not None and settings.ledger is not None:  # only now: a pass that is refused runs again
        settings.ledger.split(passed.split.positions)
    return records


def alike_partitions(passed: EncodedPass, route: Route, counts: list[int]) -> npt.NDArray[np.int32]:
    """Return the partition of each row of alike tables whose topics have these counts of partitions: int32. It hangs on
    the rows, and on nothing else but what it is kept by.
    """
    key = route.rule, route.column_offsets, route.column_names, tuple(counts)
    known = passed.partitions.get(key)
    if known is None:
        is_one = len(set(counts)) == 1
        each = (counts[0] if is_one else np.array(counts)[of_alike(part).number] for part in passed.parts)
        parts = zip(passed.parts, each, strict=True)
        known = np.concatenate([partitions_of(part, route, count) for part, count in parts])
        passed.partitions[key] = known  # of two threads at the same time the same
    return known


def _sent_groups(kept: Iterable[MountedPart], table: TableVersion, feed: CompiledFeed) -> list[list[MountedPart]]:
    """Return what is sent of each kept part: updates may be split, and tables with soft deletes have rules of their own
    (:mod:`sorters.core.filter.soft_deletes`).
    """
    if feed.is_sql and (is_keyless(table) or has_unseen_unique(table)):
        groups = [split_all(part) for part in kept]
    else:
        groups = [split_by_keys(part) if feed.split_updates else [part] for part in kept]
    if not table.soft_deletes:
        return groups
    if feed.active_active:
        return [without_deletes(group) for group in groups]
    offset = soft_delete_time(table, is_sql=feed.is_sql)
    return [sent_parts(group, offset) for group in groups]


def _mask(count: int, numbers: list[IntArray]) -> npt.NDArray[np.bool_]:
    mask = np.zeros(count, np.bool_)
    mask[np.concatenate(numbers)] = True
    return mask


def _tell_soft_deletes(
    rows: RowChanges, kept: Sequence[MountedPart], groups: Sequence[list[MountedPart]], ledger: FlowLedger
) -> None:
    """Tell of a soft-delete table's DELETEs that are left out, and of the PUTs of updates that go out as DELETEs.

    A DELETE half that is left out is no row that was landed.
    """
    for before, sent in zip(kept, groups, strict=True):
        if before.kind is RowKind.DELETE:
            ledger.leave_out("hard_delete", rows, _mask(len(rows), [before.rows]))
        elif before.kind is RowKind.UPDATE:
            deleted = [part.rows for part in sent if part.kind is RowKind.DELETE]
            if deleted:
                ledger.leave_out("soft_delete", rows, _mask(len(rows), deleted))


def _split_rows(
    rows: RowChanges, kept: Sequence[MountedPart], groups: Sequence[list[MountedPart]], alike: AlikeTables | None
) -> SplitRows | None:
    """Return the DELETEs that updates became, with a PUT or alone, as the rows were landed."""
    of_updates = (group for before, group in zip(kept, groups, strict=True) if before.kind is RowKind.UPDATE)
    halves = [part.rows for group in of_updates for part in group if part.kind is RowKind.DELETE]
    if not halves:
        return None
    at = np.concatenate(halves)
    op = np.full(len(at), ROW_OPS[RowKind.DELETE], np.int8)
    positions = row_positions(rows.commit_ts[at], rows.start_ts[at], op, rows.key.take(pa.array(at)))
    return SplitRows(positions, np.zeros(len(at), np.int64) if alike is None else alike.number[at])


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


def partitions_of(part: MountedPart, route: Route, count: int | IntArray) -> npt.NDArray[np.int32]:
    """Return the partition of each row of a part, of ``count``, which is one a row where there are alike tables that
    go to several topics: int32.
    """
    if isinstance(count, int) and count == 1:
        return np.zeros(len(part), np.int32)
    if not route.column_offsets:
        return route.partitions((), part.commit_ts, count, part.alike)
    rows = part.old_rows if part.kind is RowKind.DELETE else part.new_rows
    if rows is not None:
        specs = [(at, part.table.columns[at]) for at in route.column_offsets]
        texts = ([value_text(spec, row[at]) for at, spec in specs] for row in rows)
        pairs = zip(texts, part.commit_ts.tolist(), strict=True)
        assert isinstance(count, int)  # alike tables come as columns
        return np.array([route.partition(text, ts, count) for text, ts in pairs], np.int32)
    columns = part.old_columns() if part.kind is RowKind.DELETE else part.new_columns()
    return route.partitions([columns[at].text for at in route.column_offsets], part.commit_ts, count, part.alike)
