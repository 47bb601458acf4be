"""What changefeeds have got of tables: chunks that all readers have passed, tables that are whole or gone."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from consumers.control.core.images.inputs import ImageInputs, Replaced, WantingFeed
from schemas.ids import TableId
from schemas.rawlog.frontier import needed_ts
from schemas.rawlog.images import (
    IdRange,
    ImageBarrier,
    ImageChunk,
    ImageFeed,
    ImageMode,
    ImageScan,
    ImageState,
    KeyRange,
    TableImage,
    holds_id,
    merge_ids,
    merge_keys,
    missing_keys,
    without_id,
)

Done = dict[TableId, dict[str, tuple[KeyRange, ...]]]
"""By table and changefeed."""


def done_of(state: ImageState) -> Done:
    """Return what the begun tables have."""
    done: Done = {}
    for image in state.tables:
        done.setdefault(image.table_id, {}).update(dict.fromkeys(image.feeds, image.done))
    return done


def with_done(state: ImageState, done: Done) -> ImageState:
    """Return the state with other ranges done; changefeeds that have the same of a table are together."""
    images: list[TableImage] = []
    for table_id in sorted(done):
        groups: dict[tuple[KeyRange, ...], list[str]] = {}
        for feed in sorted(done[table_id]):
            groups.setdefault(done[table_id][feed], []).append(feed)
        images += [TableImage(table_id=table_id, feeds=tuple(feeds), done=keys) for keys, feeds in groups.items()]
    return replace(state, tables=tuple(images))


def without_gone_feeds(state: ImageState, feeds: Mapping[str, WantingFeed]) -> ImageState:
    """Return the state without changefeeds that are no more; their scans go on where others get them."""
    return _without_feeds(state, {feed.feed for feed in state.feeds} - feeds.keys())


def _without_feeds(state: ImageState, gone: set[str]) -> ImageState:
    if not gone:
        return state
    return replace(without_table(state, gone, None), feeds=tuple(feed for feed in state.feeds if feed.feed not in gone))


def without_table(state: ImageState, gone: Iterable[str], table_id: TableId | None) -> ImageState:
    """Return the state in which changefeeds have got nothing of a table, and get nothing of its scans; None: of any."""
    gone = frozenset(gone)

    def others(item: ImageScan | ImageChunk | TableImage) -> tuple[str, ...]:
        if table_id is not None and item.table_id != table_id:
            return item.feeds
        return tuple(feed for feed in item.feeds if feed not in gone)

    barriers: list[ImageBarrier] = []
    for barrier in state.barriers:
        scans = tuple(replace(scan, feeds=feeds) for scan in barrier.scans if (feeds := others(scan)))
        held = tuple(feed for feed in barrier.feeds if any(feed in scan.feeds for scan in scans))
        if scans:
            barriers.append(replace(barrier, feeds=held, scans=scans))
    return replace(
        state,
        barriers=tuple(barriers),
        chunks=tuple(replace(chunk, feeds=feeds) for chunk in state.chunks if (feeds := others(chunk))),
        tables=tuple(replace(image, feeds=feeds) for image in state.tables if (feeds := others(image))),
    )


def take_passed(state: ImageState, seen: ImageInputs) -> ImageState:
    """Return the state in which chunks that every reader has passed are done, and tables that are whole are so."""
    passed_ts = needed_ts(seen.before)
    passed = [chunk for chunk in state.chunks if chunk.ts <= passed_ts]
    if not passed:
        return state
    done = done_of(state)
    for chunk in passed:
        of_table = done.setdefault(chunk.table_id, {})
        for feed in chunk.feeds:
            of_table[feed] = merge_keys([*of_table.get(feed, ()), chunk.keys])
    feeds = {feed.feed: feed for feed in state.feeds}
    for table_id, of_table in list(done.items()):
        for name in [name for name, keys in of_table.items() if not missing_keys(KeyRange.of_table(table_id), keys)]:
            del of_table[name]
            feeds[name] = _without_table(feeds[name], table_id)
        if not of_table:
            del done[table_id]
    state = replace(
        state,
        feeds=tuple(feeds[feed.feed] for feed in state.feeds),
        chunks=tuple(chunk for chunk in state.chunks if chunk.ts > passed_ts),
    )
    return with_done(state, done)


def take_wishes(state: ImageState, seen: ImageInputs) -> ImageState:
    """Return the state with what is wanted now: new changefeeds, tables that have come, tables asked for; and without
    tables that there are no more.
    """
    feeds = {feed.feed: feed for feed in state.feeds}
    parts: Done = {}
    for name, wanting in sorted(seen.feeds.items()):
        feed = feeds[name] if name in feeds else _new_feed(name, wanting, all_know=seen.all_know)
        if feed is None:
            continue
        state, feed = _with_entered(state, feed, wanting, seen.replaced)
        asked = _asked_whole(feed, wanting)
        for (mode, table), keys in sorted(wanting.ranged.items()):
            # A part has its place in the record at once, so it waits for that as tables do that are to begin.
            is_free = feed.mode_of(table) is None and table not in asked
            if is_free and len(state.tables) + len(parts) < seen.limits.tables_max:
                asked[table] = mode
                parts.setdefault(table, {})[name] = missing_keys(KeyRange.of_table(table), keys)
        # Who asked may not know yet that its rows have other ids: both are waited for, until the old one is gone.
        replaced = (*seen.replaced_before, *seen.replaced)
        for table, mode in _with_moved(asked, ImageFeed(feed=name), replaced).items():
            feed = feed if feed.mode_of(table) else with_table(feed, mode, table)
        # Where a barrier holds it back, rows of tables that are gone may still be to come for it.
        is_held = seen.before.images.barrier_of(name) is not None
        feeds[name] = feed if is_held else _of_these_tables(feed, wanting.tables)
        if not wanting.wants_initial and not feeds[name].waits:
            del feeds[name]
    state = _without_feeds(state, {feed.feed for feed in state.feeds} - feeds.keys())
    return _with_parts(replace(state, feeds=tuple(feeds.values())), parts, feeds)


def _new_feed(name: str, wanting: WantingFeed, *, all_know: bool) -> ImageFeed | None:
    """Return a changefeed that is to be registered; None: it wants nothing, or not all know of images."""
    is_asked = bool(wanting.ranged) or any(wanting.requested.values())
    if not all_know or not (wanting.wants_initial or is_asked):
        return None
    feed = ImageFeed(feed=name)
    return replace(feed, initial=_first_ranges(wanting)) if wanting.wants_initial else feed


def _with_entered(
    state: ImageState, feed: ImageFeed, wanting: WantingFeed, replaced: Iterable[Replaced]
) -> tuple[ImageState, ImageFeed]:
    """Return both with the changefeed waiting for tables that DDL has brought into it: for all of their rows, whatever
    it has of them.
    """
    came = {
        table: ImageMode.RESYNC if feed.mode_of(table) is ImageMode.RESYNC else ImageMode.BACKFILL
        for table in wanting.came_late
    }
    come = _with_moved(came | dict.fromkeys(wanting.entered, ImageMode.INITIAL), feed, replaced)
    for table in sorted(come):
        state = without_table(state, [feed.feed], table)
        feed = with_table(_without_table(feed, table), come[table], table)
    return state, feed


def _asked_whole(feed: ImageFeed, wanting: WantingFeed) -> dict[TableId, ImageMode]:
    """Return the tables that are asked for whole and that the changefeed does not wait for already."""
    asked: dict[TableId, ImageMode] = {}
    for mode, tables in wanting.requested.items():
        for table in sorted(tables):
            if feed.mode_of(table) is None:
                asked.setdefault(table, mode)
    return asked


def _with_parts(state: ImageState, parts: Done, feeds: Mapping[str, ImageFeed]) -> ImageState:
    """Return the state with the rest of tables done of which ``parts`` are asked for, and nothing done of tables that
    their changefeed waits for no more.
    """
    before = done_of(state)
    done = before | {table: before.get(table, {}) | of_part for table, of_part in parts.items()}
    kept: Done = {}
    for table, of_table in done.items():
        if left := {name: keys for name, keys in of_table.items() if name in feeds and feeds[name].mode_of(table)}:
            kept[table] = left
    return state if kept == before else with_done(state, kept)


def _with_moved(
    waits: Mapping[TableId, ImageMode], feed: ImageFeed, replaced: Iterable[Replaced]
) -> dict[TableId, ImageMode]:
    """Return the tables waited for with those that have rows of them, or of tables of ``feed``, after DDL."""
    come = dict(waits)
    for change in replaced:
        # What has come just now may move on at once, where more than one DDL lies between two records.
        modes = [mode for table in sorted(change.gone) if (mode := come.get(table) or feed.mode_of(table)) is not None]
        # Some of it is downstream, so what is deleted from now on must go out as well: nothing is left out.
        anew = ImageMode.RESYNC if ImageMode.RESYNC in modes else ImageMode.BACKFILL
        if modes and not (change.is_empty and anew is not ImageMode.RESYNC):
            come.update(dict.fromkeys(change.come, anew))
    return come


def _first_ranges(wanting: WantingFeed) -> tuple[IdRange, ...]:
    """Return the tables of a new changefeed in few ranges: ids in between that are not its own cost nothing. Those of
    its own that it wants no image of end a range, for all of its tables in one are scanned.
    """
    ranges: list[IdRange] = []
    goes_on = False
    for table in wanting.tables:
        is_wanted = table not in wanting.unwanted
        if is_wanted and goes_on:
            ranges[-1] = IdRange(ranges[-1].first, table)
        elif is_wanted:
            ranges.append(IdRange(table, table))
        goes_on = is_wanted
    return tuple(ranges)


def with_table(feed: ImageFeed, mode: ImageMode, table_id: TableId) -> ImageFeed:
    """Return the changefeed waiting for one more table."""
    return feed.with_ids(mode, merge_ids([*feed.ids(mode), IdRange(table_id, table_id)]))


def _without_table(feed: ImageFeed, table_id: TableId) -> ImageFeed:
    for mode in ImageMode:
        if holds_id(feed.ids(mode), table_id):
            feed = feed.with_ids(mode, without_id(feed.ids(mode), table_id))
    return feed


def _of_these_tables(feed: ImageFeed, tables: Sequence[TableId]) -> ImageFeed:
    """Return the changefeed with ranges that begin and end with a table that it has."""
    for mode in ImageMode:
        shrunk = tuple(item for wide in feed.ids(mode) if (item := _shrunk(wide, tables)) is not None)
        if shrunk != feed.ids(mode):
            feed = feed.with_ids(mode, shrunk)
    return feed


def _shrunk(wide: IdRange, tables: Sequence[TableId]) -> IdRange | None:
    first, end = bisect_left(tables, wide.first), bisect_right(tables, wide.last)
    return IdRange(tables[first], tables[end - 1]) if first < end else None
