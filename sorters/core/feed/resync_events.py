"""What consumers are told of a resync beside rows: DDL events as no user has said them.

commit_ts = start_ts in their position is what marks them, as it marks rows of images: no job has that. They stand where
nothing of the image goes out: the first chunk of a resync is a range without keys, its opening.

**Topics.** A topic has no place for "delete what is not among these rows", and which keys its consumers have nobody
knows. So with the opening they are told to empty the table, by a TRUNCATE TABLE in the protocol's own form; the rows
come at later ts, among all changes in between.

**Databases** lose rows range by range (:mod:`sorters.core.rows.lacking_rows`). Of a table whose ranges they cannot tell
(:func:`~sorters.core.encode.sql.key_ranges.range_misfit`) they note the keys with the opening, strike off what is
written (:mod:`sorters.core.rows.noted_forms`), and delete what is left with the chunk that makes the table whole.

**Partitions** are resynced each by itself, and are one table to consumers. So the first opening of any of them counts,
and the last of them to become whole.
"""

from collections.abc import Collection, Iterator
from dataclasses import replace

from schemas.ddl.job import DdlType
from schemas.ddl.schema_change import StoredTable
from schemas.ddl.schema_store import SchemaStore
from schemas.ids import TableId, Ts
from schemas.rawlog.images import ImageChunk, KeyRange, holds_id, is_opening, merge_keys
from schemas.sink.sql_rows import ResyncStep
from sorters.core.cut.cut import Cut
from sorters.core.encode.sql.key_ranges import range_misfit
from sorters.core.feed.companions import ddl_position, ddl_topic, event_copies
from sorters.core.feed.ddl_route import routed_event
from sorters.core.feed.feed import CompiledFeed
from sorters.core.feed.scope import table_at
from sorters.core.records.order import OutputRecords, join_records, no_records
from sorters.core.sql.ddl_event import DdlEvent, event_of_no_job
from sorters.core.sql.tokens import quote_name


def resync_events(cut: Cut, store: SchemaStore, feed: CompiledFeed) -> list[DdlEvent]:
    """Return what topics or a database are told at the end of a cut; a table that has gone is none.

    Raises:
        CorruptDataError: a TableInfo does not decode.
    """
    if not cut.resynced or (feed.has_processors and not feed.is_sql):
        return []
    events: list[DdlEvent] = []
    for stored in resynced_tables(cut, store, feed):
        step = _step(cut, stored)
        if step is None or (feed.is_sql and not _is_noted(store, stored)):
            continue
        if feed.is_sql or step is not ResyncStep.DELETE:
            events.append(_event(cut, len(events), stored, step if feed.is_sql else None))
    return events


def resync_records(events: Collection[DdlEvent], feed: CompiledFeed, encoded_at_ms: int) -> OutputRecords:
    """Return :func:`resync_events` as records."""
    records = [no_records()]
    for event in events:
        sent = routed_event(event, feed.routes)
        records.append(event_copies(sent, ddl_topic(event, feed), ddl_position(event), feed, encoded_at_ms))
    return join_records(records)


def noted_names(cut: Cut, store: SchemaStore, feed: CompiledFeed) -> dict[tuple[str, str, Ts], TableId]:
    """Return the tables whose keys a database may have noted within a cut: by schema and table as the destination has
    them, and the version; each with the id by which it notes them.
    """
    if not feed.is_sql or not cut.resync:
        return {}
    names: dict[tuple[str, str, Ts], TableId] = {}
    for item in cut.resync:
        for table_id in range(item.first, item.last + 1):
            for stored in store.stored_of(TableId(table_id)):
                if stored is not None and _is_noted(store, stored):
                    schema, table = feed.routes.name(stored.schema, stored.table)
                    names[schema, table, stored.version] = stored.table_id
    return names


def resynced_tables(cut: Cut, store: SchemaStore, feed: CompiledFeed) -> Iterator[StoredTable]:
    """Yield the tables that a cut has chunks of which are resynced, in the order of their ids."""
    tables: set[TableId] = set()
    for physical_id in {chunk.table_id for chunk in cut.chunks} & cut.resynced:
        version = store.table_at(physical_id, Ts(cut.upto_ts + 1))
        if version is not None:
            tables.add(version.table_id)
    for table_id in sorted(tables):
        if (stored := table_at(store, table_id, cut.upto_ts, feed)) is not None:
            yield stored


def truncate_query(stored: StoredTable) -> str:
    """Return the statement by which consumers empty a table."""
    return f"TRUNCATE TABLE {quote_name(stored.schema)}.{quote_name(stored.table)}"


def _is_noted(store: SchemaStore, stored: StoredTable) -> bool:
    return stored.eligible and range_misfit(store.decoded(stored)) is not None


def _step(cut: Cut, stored: StoredTable) -> ResyncStep | None:
    """Tell whether a table's resync begins or ends with a cut."""
    waiting = [table for table in stored.physical_ids if holds_id(cut.resync, table)]
    if any(chunk.table_id in waiting and is_opening(chunk) for chunk in cut.chunks):
        return _first_step(cut, stored, waiting)
    done_before = all(_is_whole(cut, table, ()) for table in waiting)
    return ResyncStep.DELETE if not done_before and all(_is_whole(cut, t, cut.chunks) for t in waiting) else None


def _first_step(cut: Cut, stored: StoredTable, waiting: Collection[TableId]) -> ResyncStep | None:
    """Return what begins a table's resync; None: another opening has begun it.

    All partitions are asked for at once, begin in the order of their ids, and those that come later are resynced too.
    So the first opening is that before which none has anything done, and below which none is whole already. By one that
    is not waited for although it came later, rows would be noted that no image strikes off.
    """
    others = [table for table in stored.physical_ids if table not in waiting]
    if any(_done(cut, table) for table in waiting) or any(table < max(waiting) for table in others):
        return None
    return ResyncStep.FORGET if others else ResyncStep.NOTE


def _done(cut: Cut, table: TableId) -> tuple[KeyRange, ...]:
    return () if cut.read_again is None else cut.read_again.done.get(table, ())


def _is_whole(cut: Cut, table: TableId, chunks: Collection[ImageChunk]) -> bool:
    own = [chunk.keys for chunk in chunks if chunk.table_id == table]
    every = KeyRange.of_table(table)
    return any(keys.start <= every.start and every.end <= keys.end for keys in merge_keys([*_done(cut, table), *own]))


def _event(cut: Cut, number: int, stored: StoredTable, step: ResyncStep | None) -> DdlEvent:
    event = event_of_no_job(
        DdlType.TRUNCATE_TABLE,
        cut.upto_ts,
        stored.schema,
        truncate_query(stored),
        start_ts=cut.upto_ts,
        seq=number,
        pre=stored,
        post=stored,
    )
    return replace(event, step=step)
