"""What frontier records say of table images to one changefeed: what its cuts leave out, which chunks they emit.

Of tables whose rows are read again (backfill, resync) nothing is left out, and which ranges are done is said as well: a
state proof that begins with such an image counts changes of those ranges alone.

The image law (docs/architecture.md): for two of its frontiers F1 before F2, chunks that F2 lists with ``R1 < ts <= R2``
go out at their ts, and of tables that it waits for with ``initial`` changes up to R2 go out only of keys that are done.
So each such ts ends a cut, and within one cut what is left out does not change.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from schemas.changes import BinaryArray
from schemas.ids import TableId, Ts
from schemas.rawlog.images import (
    IdRange,
    ImageChunk,
    ImageMode,
    ImageState,
    KeyRange,
    holds_id,
    merge_keys,
)

_NONE_DONE: Final[Mapping[TableId, tuple[KeyRange, ...]]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Which changes a cut leaves out: those of tables in ``tables`` whose key is in no range that is done."""

    tables: tuple[IdRange, ...]
    done: Mapping[TableId, tuple[KeyRange, ...]] = field(default_factory=lambda: _NONE_DONE)

    def of_table(self, table_id: TableId) -> bool:
        """Tell whether any change of a table may be left out."""
        return holds_id(self.tables, table_id)

    def kept(self, table_id: TableId, keys: BinaryArray) -> npt.NDArray[np.bool_] | None:
        """Return which rows of a table go out, by their raw keys; None: all."""
        if not self.of_table(table_id):
            return None
        mask = within_ranges(keys, ((item.start, item.end) for item in self.done.get(table_id, ())))
        return None if mask.all() else mask


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedImages:
    """The images part of one frontier record for one changefeed."""

    initial: tuple[IdRange, ...]
    done: Mapping[TableId, tuple[KeyRange, ...]]
    """Of the tables that are waited for."""
    chunks: tuple[ImageChunk, ...]
    """By ts, then number."""
    resync: tuple[IdRange, ...] = ()
    backfill: tuple[IdRange, ...] = ()

    def left_out_after(self, ts: Ts) -> LeftOut | None:
        """Return what is left out of changes above ``ts`` and up to the next chunk's; None: nothing."""
        return self._waits_after(ts, self.initial)

    def read_again_after(self, ts: Ts) -> LeftOut | None:
        """Return the same of tables whose rows are read once more while all of their changes go out."""
        return self._waits_after(ts, (*self.resync, *self.backfill))

    def _waits_after(self, ts: Ts, tables: tuple[IdRange, ...]) -> LeftOut | None:
        if not tables:
            return None
        done = {table_id: ranges for table_id, ranges in self.done.items() if holds_id(tables, table_id)}
        for chunk in self.chunks:
            if chunk.ts <= ts and holds_id(tables, chunk.table_id):
                done[chunk.table_id] = merge_keys([*done.get(chunk.table_id, ()), chunk.keys])
        return LeftOut(tables, done)

    def has_chunk(self, after_ts: Ts, upto_ts: Ts) -> bool:
        """Tell whether one goes out within ``(after_ts, upto_ts]``."""
        return any(after_ts < chunk.ts <= upto_ts for chunk in self.chunks)

    def chunks_at(self, ts: Ts) -> tuple[ImageChunk, ...]:
        """Return the chunks that go out at ``ts``."""
        return tuple(chunk for chunk in self.chunks if chunk.ts == ts)

    def mode_of(self, table_id: TableId) -> ImageMode:
        """Return how rows of a chunk are meant."""
        if holds_id(self.initial, table_id):
            return ImageMode.INITIAL
        return ImageMode.RESYNC if holds_id(self.resync, table_id) else ImageMode.BACKFILL

    def resynced(self, chunks: Iterable[ImageChunk]) -> frozenset[TableId]:
        """Return the tables of chunks that are to lose what their image lacks."""
        if not self.resync:
            return frozenset()
        return frozenset(chunk.table_id for chunk in chunks if self.mode_of(chunk.table_id) is ImageMode.RESYNC)

    def steps(self, after_ts: Ts, upto_ts: Ts) -> Iterator[tuple[Ts, Ts, LeftOut | None, tuple[ImageChunk, ...]]]:
        """Yield ``(after, upto, left out, chunks at upto)``, which divide ``(after_ts, upto_ts]``."""
        for ts in sorted({chunk.ts for chunk in self.chunks if after_ts < chunk.ts < upto_ts} | {upto_ts}):
            yield after_ts, ts, self.left_out_after(after_ts), self.chunks_at(ts)
            after_ts = ts


def within_ranges(keys: BinaryArray, ranges: Iterable[tuple[bytes, bytes]]) -> npt.NDArray[np.bool_]:
    """Return which raw keys lie within any of the ranges ``[start, end)``."""
    mask = np.zeros(len(keys), np.bool_)
    for bounds in ranges:
        start, end = (pa.scalar(bound, pa.binary()) for bound in bounds)
        within = pc.and_(pc.greater_equal(keys, start), pc.less(keys, end))
        mask |= within.to_numpy(zero_copy_only=False)
    return mask


def images_of(state: ImageState, name: str) -> FeedImages | None:
    """Return what a record says to a changefeed; None: it is not registered.

    A changefeed that was registered and waits for nothing has none of anything, and is not None.
    """
    feed = state.feed(name)
    if feed is None:
        return None
    chunks = sorted(
        (chunk for chunk in state.chunks if name in chunk.feeds), key=lambda chunk: (chunk.ts, chunk.number)
    )
    return FeedImages(
        initial=feed.initial,
        done={
            image.table_id: image.done
            for image in state.tables
            if name in image.feeds and image.done and feed.mode_of(image.table_id) is not None
        },
        chunks=tuple(chunks),
        resync=feed.resync,
        backfill=feed.backfill,
    )
