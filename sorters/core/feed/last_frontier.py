"""Up to where a changefeed's destination can be brought by what Kafka holds, once nothing more will come.

The last record of the frontier topic says up to which ts the raw log is whole. Tables that it holds are whole up to
less; a destination is consistent only at a ts up to which all of its tables are, so the least of them counts. A DDL
job that could not be read ends what is known just before it, and so does a barrier of table images that is still open,
for nobody will close it; a changefeed that waits to be known to the frontier has not begun.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from schemas.ddl.job import JobScope
from schemas.ddl.schema_store import SchemaStore
from schemas.ids import TableId, Ts
from schemas.rawlog.frontier import FrontierRecord, HeldDdl
from sorters.core.cut.cut import ChangefeedFrontier, frontier_for, with_images
from sorters.core.feed.feed import CompiledFeed
from sorters.core.feed.scope import concerns, covered_since, held_for


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBack:
    """Why a changefeed cannot be brought to the frontier's own resolved_ts."""

    ts: Ts
    """Up to here it can."""
    tables: tuple[str, ...]
    """That are whole only up to ``ts``; of a DDL job, those that it may concern, of a barrier those that were scanned:
    none stands for any.
    """
    ddl_start_ts: Ts | None = None
    """Of a DDL job that could not be read: what ``filter.ignore-txn-start-ts`` takes to pass it over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastFrontier:
    """What the last record says for one changefeed."""

    owner_rev: int
    resolved_ts: Ts
    """Up to here all that is not held has landed."""
    consistent_ts: Ts
    """Up to here all of the changefeed has: ``resolved_ts``, or the least of ``held``."""
    held: tuple[HeldBack, ...]
    """What lowers it, of the changefeed's tables only."""
    low: tuple[int, ...]
    """Per raw partition: rows above ``consistent_ts`` are at or above."""


def last_frontier(
    record: FrontierRecord,
    store: SchemaStore,
    feed: CompiledFeed,
    *,
    image_name: str = "",
    waits_at: Ts | None = None,
) -> LastFrontier:
    """Return what the end of the frontier topic means for a changefeed.

    Args:
        record: where a reader of the whole topic stands (:func:`schemas.rawlog.frontier.follow_frontier`).
        store: the schemas up to ``record.ddl_high``.
        feed: the changefeed's settings.
        image_name: what frontier records call it where they say of table images; '': it goes by none.
        waits_at: where it stands until they know it; None: it need not be known.
    """
    frontier = with_images(_frontier(record, store, feed), record.images, image_name, waits_at=waits_at)
    held = [*_tables(record, store, feed), *_jobs(record, store, feed), *_images(record, store, image_name)]
    if frontier.images is None and waits_at is not None:
        held.append(HeldBack(ts=waits_at, tables=()))
    return LastFrontier(
        owner_rev=record.owner_rev,
        resolved_ts=record.resolved_ts,
        consistent_ts=min([record.resolved_ts, *(group.ts for group in held)]),
        held=tuple(sorted(held, key=lambda group: (group.ts, group.tables))),
        low=frontier.low,
    )


def _frontier(record: FrontierRecord, store: SchemaStore, feed: CompiledFeed) -> ChangefeedFrontier:
    mine = replace(record, held=held_for(record, store, feed))
    return frontier_for(mine, lambda _: True, lambda held: concerns(_scope(held), store, feed))


def _tables(record: FrontierRecord, store: SchemaStore, feed: CompiledFeed) -> Iterator[HeldBack]:
    for group in held_for(record, store, feed):
        mine = [table for table in group.tables if covered_since(store, table, record.resolved_ts, feed) is not None]
        names = sorted({table_name(store, table, record.resolved_ts) for table in mine})
        yield HeldBack(ts=group.ts, tables=tuple(names))


def _jobs(record: FrontierRecord, store: SchemaStore, feed: CompiledFeed) -> Iterator[HeldBack]:
    for held in record.held_ddl:
        if concerns(_scope(held), store, feed):
            tables = (f"{held.schema}.{held.table}",) if held.table else ()
            # Rows at the job's own ts stand before it, but a cut that ends there would have to pass the job.
            yield HeldBack(ts=Ts(held.ts - 1), tables=tables, ddl_start_ts=held.start_ts)


def _images(record: FrontierRecord, store: SchemaStore, image_name: str) -> Iterator[HeldBack]:
    barrier = record.images.barrier_of(image_name)
    if barrier is not None and barrier.ts <= record.resolved_ts:
        mine = {scan.table_id for scan in barrier.scans if image_name in scan.feeds}
        names = sorted(table_name(store, table, record.resolved_ts) for table in mine)
        yield HeldBack(ts=Ts(barrier.ts - 1), tables=tuple(names))


def _scope(held: HeldDdl) -> JobScope:
    return JobScope(ts=held.ts, start_ts=held.start_ts, schema=held.schema, table=held.table, table_id=held.table_id)


def table_name(store: SchemaStore, table: TableId, ts: Ts) -> str:
    """Return the name that a physical table has at ``ts``, or had last; of one that nobody knows, its id."""
    versions = [version for since, version in store.versions_of(table) if since <= ts and version is not None]
    return versions[-1].name if versions else f"table id {table}"
