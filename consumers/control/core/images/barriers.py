"""Barriers: which ranges are scanned next, at what ts and by whom, and what is made of what landed."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from heapq import nsmallest
from itertools import islice, pairwise
from typing import Final

from consumers.control.core.images.inputs import ImageInputs, WantingFeed, is_behind
from consumers.control.core.images.progress import Done, done_of, with_done
from schemas.ids import CaptureId, TableId, Ts, physical_ms
from schemas.rawlog.images import (
    IdRange,
    ImageBarrier,
    ImageChunk,
    ImageFeed,
    ImageMode,
    ImageScan,
    ImageState,
    KeyRange,
    ScanResult,
    holds_key,
    missing_keys,
    opening_of,
)

_LAST: Final = 1 << 30
"""The rank of tables without one."""

# -- the end of a barrier ----------------------------------------------------------------------------------------------


def close_barriers(state: ImageState, seen: ImageInputs) -> ImageState:
    """Return the state without barriers that are over, and with the chunks that landed for them.

    A barrier with chunks ends in a record with R at or above its ts: by then every DDL up to it is known.
    """
    open_ones, chunks, cancelled = [], list(state.chunks), []
    for barrier in state.barriers:
        results = [(scan, _result(barrier, scan, seen.scanners)) for scan in barrier.scans]
        is_late = physical_ms(seen.now_ts) - physical_ms(barrier.ts) > seen.limits.barrier_ms
        if not is_late and any(result is None for _, result in results):
            open_ones.append(barrier)
            continue
        landed = [(scan, result) for scan, result in results if result is not None and _is_landed(scan, result)]
        if landed and seen.resolved_ts < barrier.ts:
            open_ones.append(barrier)
            continue
        if barrier.ts in seen.ddl_ts:
            landed = []
        chunks += [_chunk(barrier.ts, scan, result) for scan, result in landed]
        if len(landed) < len(barrier.scans):
            cancelled.append(barrier.ts)
    if len(open_ones) == len(state.barriers):
        return state
    return replace(state, barriers=tuple(open_ones), chunks=tuple(chunks), cancelled=tuple(cancelled))


_LOST = ScanResult(barrier_ts=Ts(0), number=0, failure="images.capture_lost")


def _result(
    barrier: ImageBarrier, scan: ImageScan, scanners: Mapping[CaptureId, tuple[ScanResult, ...]]
) -> ScanResult | None:
    """Return what came of a scan; None: nothing yet."""
    results = scanners.get(scan.capture)
    if results is None:
        return _LOST
    return next((item for item in results if (item.barrier_ts, item.number) == (barrier.ts, scan.number)), None)


def _is_landed(scan: ImageScan, result: ScanResult) -> bool:
    return not result.failure and scan.keys.start < result.reached


def _chunk(ts: Ts, scan: ImageScan, result: ScanResult) -> ImageChunk:
    return ImageChunk(
        ts=ts,
        number=scan.number,
        attempt=result.attempt,
        table_id=scan.table_id,
        feeds=scan.feeds,
        keys=KeyRange(scan.keys.start, min(result.reached, scan.keys.end)),
        partition=result.partition,
        offsets=result.offsets,
        rows=result.rows,
        bytes=result.bytes,
    )


# -- the next barrier --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Gap:
    """A range of a table that all of ``feeds`` miss, and no other changefeed of the group."""

    table_id: TableId
    keys: KeyRange
    feeds: tuple[str, ...]


def open_barrier(state: ImageState, seen: ImageInputs) -> ImageState:
    """Return the state with one barrier more, where one may be: for a changefeed that waits, and all that wait for
    some of the same tables, so that a range is scanned once.
    """
    if seen.new_ts is None or seen.new_ts <= seen.resolved_ts or not seen.scanners or not seen.all_know:
        return state
    if len(state.barriers) >= seen.limits.barriers_max or _is_too_soon(state, seen):
        return state
    busy = {feed for barrier in state.barriers for feed in barrier.feeds}
    busy.update(feed for chunk in state.chunks for feed in chunk.feeds)
    running = [feed for feed in state.feeds if feed.feed in seen.feeds and _may_begin(seen.feeds[feed.feed], seen)]
    held = [feed for feed in state.feeds if feed.feed in busy]
    done = done_of(state)
    for leader in running:
        if not leader.waits or leader.feed in busy or any(_shares(leader, other) for other in held):
            continue
        group = [feed for feed in running if feed.feed not in busy and _shares(leader, feed)]
        if gaps := _gaps(group, done, seen):
            return _with_barrier(state, seen, seen.new_ts, gaps, done)
    return state


def _may_begin(wanting: WantingFeed, seen: ImageInputs) -> bool:
    return wanting.is_running and not is_behind(wanting.lag_max_s, wanting.checkpoint_ts, seen.now_ts)


def _is_too_soon(state: ImageState, seen: ImageInputs) -> bool:
    latest_ts = max(state.cancelled, default=Ts(0))
    return physical_ms(seen.now_ts) < physical_ms(latest_ts) + seen.limits.retry_ms


def _shares(left: ImageFeed, right: ImageFeed) -> bool:
    """Tell whether both may wait for a table. That nobody scans what another is about to get, they take turns together
    even where the ranges have only ids in common that are no table.
    """
    return any(a.first <= b.last and b.first <= a.last for a in _ids(left) for b in _ids(right))


def _ids(feed: ImageFeed) -> Iterable[IdRange]:
    return (*feed.initial, *feed.backfill, *feed.resync)


def _gaps(group: list[ImageFeed], done: Done, seen: ImageInputs) -> list[_Gap]:
    """Return what to scan: by the tables' ranks, those that are begun before others, then those of the lowest ids."""
    room = seen.limits.tables_max - len(done)
    scans_max = min(_scans_max(feed, seen) for feed in group)
    wanted = {*done, *(table for feed in group for table in _next_tables(feed, seen))}
    ranks = {table: min(_rank(feed, table, seen) for feed in group) for table in wanted}
    gaps: list[_Gap] = []
    for table in sorted(wanted, key=lambda table: (ranks[table], table not in done, table)):
        if len(gaps) == scans_max:
            break
        if table not in done and room <= 0:
            continue
        feeds = [feed for feed in group if feed.mode_of(table) and _may_have(feed, table, seen)]
        gap = _gap(table, [feed.feed for feed in feeds], _with_openings(table, feeds, done.get(table, {})))
        if gap is not None:
            room -= table not in done
            gaps.append(gap)
    return gaps


def _next_tables(feed: ImageFeed, seen: ImageInputs) -> list[TableId]:
    """Return some tables that a changefeed waits for: those of the lowest ranks, and those of the lowest ids."""
    wanting, count = seen.feeds[feed.feed], _scans_max(feed, seen) + seen.limits.tables_max
    tables, paused, ranks = wanting.tables, wanting.paused, wanting.ranks
    waiting = (
        tables[at]
        for item in sorted(_ids(feed))
        for at in range(bisect_left(tables, item.first), bisect_right(tables, item.last))
        if not paused or tables[at] not in paused
    )
    if not ranks:
        return list(islice(waiting, count))
    # All of them are looked at: those that come first may have the highest ids.
    return nsmallest(count, waiting, key=lambda table: (ranks.get(table, _LAST), table))


def _rank(feed: ImageFeed, table: TableId, seen: ImageInputs) -> int:
    return seen.feeds[feed.feed].ranks.get(table, _LAST)


def _scans_max(feed: ImageFeed, seen: ImageInputs) -> int:
    return seen.feeds[feed.feed].scans_max or seen.limits.scans_max


def _may_have(feed: ImageFeed, table: TableId, seen: ImageInputs) -> bool:
    wanting = seen.feeds[feed.feed]
    at = bisect_left(wanting.tables, table)
    return at < len(wanting.tables) and wanting.tables[at] == table and table not in wanting.paused


def _with_openings(
    table: TableId, feeds: Iterable[ImageFeed], done: Mapping[str, tuple[KeyRange, ...]]
) -> Mapping[str, tuple[KeyRange, ...]]:
    """Return what is done of a table as if of a resync that begins all but its opening were: that comes by itself."""
    opening = opening_of(table)
    rest = (KeyRange(opening.end, KeyRange.of_table(table).end),)
    begins = [feed.feed for feed in feeds if feed.mode_of(table) is ImageMode.RESYNC and not done.get(feed.feed)]
    return {**done, **dict.fromkeys(begins, rest)}


def _gap(table: TableId, feeds: list[str], done: Mapping[str, tuple[KeyRange, ...]]) -> _Gap | None:
    """Return the range that most of the changefeeds miss, the lowest of such: who joins late shares what is left, and
    gets what it has missed by itself.
    """
    whole = KeyRange.of_table(table)
    missing = {feed: missing_keys(whole, done.get(feed, ())) for feed in feeds}
    bounds = sorted({bound for ranges in missing.values() for item in ranges for bound in (item.start, item.end)})
    best: _Gap | None = None
    for start, end in pairwise(bounds):
        sharing = tuple(feed for feed in feeds if holds_key(missing[feed], start))
        if sharing and (best is None or len(sharing) > len(best.feeds)):
            best = _Gap(table, KeyRange(start, end), sharing)
    return best


def _with_barrier(state: ImageState, seen: ImageInputs, ts: Ts, gaps: list[_Gap], done: Done) -> ImageState:
    load = dict.fromkeys(sorted(seen.scanners), 0)
    for barrier in state.barriers:
        for scan in barrier.scans:
            if scan.capture in load:
                load[scan.capture] += 1
    scans: list[ImageScan] = []
    for number, gap in enumerate(gaps):
        capture = min(load, key=load.__getitem__)
        load[capture] += 1
        scans.append(
            ImageScan(
                number=number,
                capture=capture,
                table_id=gap.table_id,
                feeds=gap.feeds,
                keys=gap.keys,
                bytes_max=seen.limits.bytes_max,
            )
        )
        for feed in gap.feeds:
            done.setdefault(gap.table_id, {}).setdefault(feed, ())
    feeds = tuple(sorted({feed for gap in gaps for feed in gap.feeds}))
    opened = ImageBarrier(ts=ts, feeds=feeds, scans=tuple(scans), low=seen.low)
    return with_done(replace(state, barriers=(*state.barriers, opened)), done)
