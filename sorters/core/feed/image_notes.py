"""What the watermarks of a cut say of table images to who reads the topics: which tables are whole.

A pure function of the cut and the schema at its end. Within a cut nothing changes but by its chunks, which go out at
its end; so what waits at the end is what waited at its beginning without what they complete.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, Self

from schemas.ddl.schema_store import SchemaStore
from schemas.ids import TableId, Ts
from schemas.rawlog.images import ImageChunk, KeyRange, merge_keys
from schemas.sink.image_note import WAITING_MAX, ImageNote, TableName, WatermarkNote
from schemas.sink.position import Position, PositionClass
from sorters.core.cut.cut import Cut
from sorters.core.cut.images import LeftOut
from sorters.core.feed.feed import CompiledFeed
from sorters.core.feed.scope import tables_at


def note_of(cut: Cut, tables: "NotedTables") -> ImageNote | None:
    """Return what watermarks of a cut's end say; None: no image was to come when the cut began."""
    before, after = tables.whole(cut), tables.whole(cut, cut.chunks)
    count = tables.count(cut)
    if count == len(before):
        return None
    left = count - len(after)
    waiting = tables.waiting(cut) - after if left <= WAITING_MAX * _PARTITIONS_LOOKED_AT else None
    ended = {tables.names[table] for table in after - before}
    whole = tuple(sorted(name for name in ended if tables.is_whole(cut, name, after)))
    names = None if waiting is None else tuple(sorted({tables.names[table] for table in waiting}))
    return ImageNote(left, whole, names)


_PARTITIONS_LOOKED_AT: Final = 64
"""Of a table, on average, for the names of those that wait to be looked at."""


def watermark_note(cut: Cut, note: ImageNote) -> WatermarkNote:
    """Return a note as it is put to the watermarks of a cut."""
    return WatermarkNote(Position(cut.upto_ts, PositionClass.WATERMARK).encode(), note.encode())


class NotedTables:
    """A changefeed's tables as DDLs up to a ts left them; another one after a DDL."""

    def __init__(self, ids: Mapping[TableName, Sequence[TableId]]) -> None:
        """Take the physical ids of each table, by its name at the destination."""
        self._ids = ids
        self.names = {table: name for name, tables in ids.items() for table in tables}
        """By physical id."""
        self._sorted = sorted(self.names)

    @classmethod
    def at(cls, store: SchemaStore, ts: Ts, feed: CompiledFeed) -> Self:
        """Return those that the schema has; with 100,000 of them it takes a fraction of a second."""
        tables = tables_at(store, ts, feed)
        return cls({feed.routes.name(stored.schema, stored.table): stored.physical_ids for stored in tables})

    def count(self, cut: Cut) -> int:
        """Return how many physical tables a cut speaks of: those that images are under way of, or were of late."""
        return sum(end - start for start, end in self._spans(cut))

    def waiting(self, cut: Cut) -> frozenset[TableId]:
        """Return these tables."""
        return frozenset(table for start, end in self._spans(cut) for table in self._sorted[start:end])

    def whole(self, cut: Cut, chunks: Sequence[ImageChunk] = ()) -> frozenset[TableId]:
        """Return those of them that are whole as the cut begins, or behind ``chunks``."""
        return frozenset(
            table
            for waits in _waits(cut)
            for table in waits.done.keys() | {chunk.table_id for chunk in chunks}
            if table in self.names and waits.of_table(table) and _is_whole(table, waits, chunks)
        )

    def is_whole(self, cut: Cut, name: TableName, whole: Collection[TableId]) -> bool:
        """Tell whether no partition of a table is one of them but those that are ``whole``."""
        others = (table for table in self._ids[name] if table not in whole)
        return not any(waits.of_table(table) for table in others for waits in _waits(cut))

    def _spans(self, cut: Cut) -> list[tuple[int, int]]:
        """Return them as slices of the sorted ids that do not overlap."""
        ranges = (item for waits in _waits(cut) for item in waits.tables)
        spans: list[tuple[int, int]] = []
        for item in sorted(ranges):
            start, end = bisect_left(self._sorted, item.first), bisect_right(self._sorted, item.last)
            start = max(start, spans[-1][1]) if spans else start
            if start < end:
                spans.append((start, end))
        return spans


def _waits(cut: Cut) -> Iterator[LeftOut]:
    return (waits for waits in (cut.left_out, cut.read_again) if waits is not None)


def _is_whole(table: TableId, waits: LeftOut, chunks: Iterable[ImageChunk]) -> bool:
    own = [chunk.keys for chunk in chunks if chunk.table_id == table]
    done = merge_keys([*waits.done.get(table, ()), *own])
    every = KeyRange.of_table(table)
    return any(keys.start <= every.start and every.end <= keys.end for keys in done)
