"""The image that a query starts at: ranges of the table's keys, each as of a ts of its own. Pure.

Rows of a range go out at its ts, as a transaction of that ts would; of changes to its keys those above it. What was at
or below it is in the image. So a range counts whichever changefeed it was scanned for, and ranges of several images may
make one up: of two that hold a key the newer one counts.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas.changes import RowChanges
from schemas.ids import TableId, Ts
from schemas.rawlog.images import ImageChunk, KeyRange, merge_keys, missing_keys
from sorters.core.columnar.row_changes import rows_where
from sorters.core.columnar.spans import BoolArray
from sorters.core.source.row_counts import RowCounts


@dataclass(frozen=True, slots=True)
class StartChunk:
    """A landed chunk, and for which of its keys it counts."""

    landed: ImageChunk
    keys: tuple[KeyRange, ...]

    def holds(self, keys: Any) -> BoolArray:
        """Tell of each raw key (a ``pyarrow.BinaryArray``) whether the chunk counts for it."""
        held = np.zeros(len(keys), np.bool_)
        for each in self.keys:
            start, end = pa.scalar(each.start, pa.binary()), pa.scalar(each.end, pa.binary())
            held |= pc.and_(pc.greater_equal(keys, start), pc.less(keys, end)).to_numpy(zero_copy_only=False)
        return held

    def rows(self, rows: RowChanges) -> RowChanges:
        """Return the rows of the chunk that count."""
        held = self.holds(rows.key)
        return rows if held.all() else rows_where(rows, held)


@dataclass(frozen=True, slots=True)
class StartImage:
    """The chunks, by ts. Each key of the table is in one of them."""

    chunks: tuple[StartChunk, ...]

    @property
    def before_ts(self) -> Ts:
        """Where a query of the whole image starts."""
        return Ts(self.chunks[0].landed.ts - 1)

    @property
    def upto_ts(self) -> Ts:
        """From here on the image says nothing any more."""
        return self.chunks[-1].landed.ts

    def between(self, after_ts: Ts, upto_ts: Ts) -> tuple[StartChunk, ...]:
        """Return the chunks whose rows go out within ``(after_ts, upto_ts]``."""
        return tuple(chunk for chunk in self.chunks if after_ts < chunk.landed.ts <= upto_ts)

    def counts(self, after_ts: Ts, upto_ts: Ts) -> RowCounts:
        """Count their rows, by what frontier records say of the chunks: never too few."""
        landed = [chunk.landed for chunk in self.between(after_ts, upto_ts) if chunk.landed.rows]
        return RowCounts(
            np.array([chunk.ts for chunk in landed], np.int64), np.array([chunk.rows for chunk in landed], np.int64)
        )

    def still_to_come(self, after_ts: Ts) -> "StillToCome | None":
        """Return which changes above ``after_ts`` an image holds; None: none."""
        chunks = tuple(chunk for chunk in self.chunks if chunk.landed.ts > after_ts)
        return StillToCome(chunks) if chunks else None


@dataclass(frozen=True, slots=True)
class StillToCome:
    """Chunks that go out above the start of a cut: what changed their keys up to their ts does not go out by itself."""

    chunks: tuple[StartChunk, ...]

    def left(self, rows: RowChanges) -> RowChanges:
        """Return the changes of one physical table that no image holds."""
        kept = np.ones(len(rows), np.bool_)
        for chunk in self.chunks:
            if chunk.landed.table_id == rows.table_id:
                before = rows.commit_ts <= chunk.landed.ts
                if before.any():
                    kept &= ~(before & chunk.holds(rows.key))
        return rows if kept.all() else rows_where(rows, kept)


def newest_image(chunks: Iterable[ImageChunk], tables: Mapping[TableId, Ts]) -> StartImage | None:
    """Return the image that the newest chunks of some physical tables make up; None: keys are in none of them.

    Args:
        tables: since when each is the table's: an image counts above that ts.
    """
    newest_first = sorted(set(chunks), key=lambda chunk: (chunk.ts, chunk.number, chunk.attempt), reverse=True)
    chosen: list[StartChunk] = []
    for table, since_ts in tables.items():
        whole = KeyRange.of_table(table)
        covered: tuple[KeyRange, ...] = ()
        for chunk in newest_first:
            if chunk.table_id != table or chunk.ts <= since_ts:
                continue
            keys = missing_keys(chunk.keys, covered)
            if keys:
                chosen.append(StartChunk(chunk, keys))
                covered = merge_keys([*covered, *keys])
            if not missing_keys(whole, covered):
                break
        else:
            return None
    chosen.sort(key=lambda each: (each.landed.ts, each.landed.number))
    return StartImage(tuple(chosen)) if chosen else None
