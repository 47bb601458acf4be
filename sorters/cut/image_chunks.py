"""Chunks of table images that go out with a cut: their records, read whole, and their rows as changes at the cut's end.

A row of an image is put by a transaction that began at its commit_ts, which no transaction of an upstream does: so what
a record is of stands in its position (docs/formats/position.md).
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from schemas.changes import BinaryArray, RowChanges
from schemas.errors import CorruptDataError
from schemas.ids import TableId
from schemas.rawlog.image_batch import ImageRows, ScanName, read_image_record
from schemas.rawlog.image_chunk import ImageChunkBrokenError, read_chunk
from schemas.rawlog.images import ImageChunk
from sorters.core.columnar.row_changes import join_rows
from sorters.core.cut.cut import Cut
from sorters.cut.raw_records import ReadsRanges

log = logging.getLogger(__name__)

ROWS_AT_ONCE = 32_768
"""Rows that go through the columnar steps at once, as of the raw log; a scan lands some 2,000 in a record."""


@dataclass(frozen=True, slots=True)
class RawChunk:
    """A chunk and the records of its scan, without those of others between its offsets."""

    chunk: ImageChunk
    records: tuple[bytes, ...]
    undecoded: tuple[int, ...] = ()
    """Offsets of records between the chunk's that nobody can read: strays, unless the chunk turns out to be broken."""

    def keys(self) -> BinaryArray:
        """Return the raw keys of all its rows, ascending.

        Raises:
            ImageChunkBrokenError, CorruptDataError: see :meth:`rows`.
        """
        batches = [batch.key for batch in self._batches()]
        keys: BinaryArray = pa.concat_arrays([pa.array([], pa.binary()), *batches])
        return keys

    def rows(self) -> Iterator[RowChanges]:
        """Yield the chunk's rows, in key order. They count only once the iteration has ended by itself.

        Raises:
            ImageChunkBrokenError, CorruptDataError: the records are not what the frontier record tells of.
        """
        waiting, count = list[RowChanges](), 0
        for batch in self._batches():
            waiting.append(batch.changes(self.chunk.table_id, self.chunk.ts))
            count += len(batch.key)
            if count >= ROWS_AT_ONCE:
                yield join_rows(waiting)
                waiting, count = [], 0
        if count:
            yield join_rows(waiting)

    def _batches(self) -> Iterator[ImageRows]:
        try:
            yield from read_chunk(self.records, self.chunk)
        except ImageChunkBrokenError as error:
            if self.undecoded:
                where = f"{self.chunk.partition}:{self.undecoded[0]}"
                error.fields.update(undecoded_record=where, undecoded=len(self.undecoded))
            raise


def read_chunks(
    reader: ReadsRanges, cut: Cut, on_bytes: Callable[[int], None], number: int = 0, count: int = 1
) -> Iterator[RawChunk]:
    """Yield the chunks of a cut that task ``number`` of ``count`` reads, each whole; those without a row are not read,
    and yielded only where the destination is to lose what they lack.

    Args:
        reader: of the images topic.
        on_bytes: gets the size of each record that is kept.

    Raises:
        KafkaUnreachableError, HistoryLostError: see :meth:`TopicReader.read_all`.
    """
    for at, chunk in enumerate(cut.chunks):
        if at % count == number and (chunk.rows or chunk.table_id in cut.resynced):
            yield raw_chunk(reader, chunk, on_bytes)


def raw_chunk(reader: ReadsRanges, chunk: ImageChunk, on_bytes: Callable[[int], None] = lambda _: None) -> RawChunk:
    """Read one chunk; see :func:`read_chunks`."""
    undecoded: list[int] = []
    records = tuple(_own_records(reader, chunk, on_bytes, undecoded.append)) if chunk.rows else ()
    return RawChunk(chunk, records, tuple(undecoded))


def chunk_tables(cut: Cut) -> frozenset[TableId]:
    """Return the physical tables of which a cut emits rows of images, or says what they lack."""
    return cut.resynced.union(chunk.table_id for chunk in cut.chunks if chunk.rows)


def chunk_changes(
    chunks: Iterable[RawChunk], is_wanted: Callable[[TableId], bool], on_rows: Callable[[int], None] | None = None
) -> Iterator[RowChanges]:
    """Yield the rows of chunks as changes; those of tables that are not wanted are passed over. ``on_rows`` gets how
    many a chunk has, by its frontier record.
    """
    for raw in chunks:
        if is_wanted(raw.chunk.table_id):
            if on_rows is not None:
                on_rows(raw.chunk.rows)
            yield from raw.rows()


def _own_records(
    reader: ReadsRanges, chunk: ImageChunk, on_bytes: Callable[[int], None], on_undecoded: Callable[[int], None]
) -> Iterator[bytes]:
    """Yield the records of a chunk's scan. What does not decode is passed over: if it was the scan's, the chunk is not
    whole, and whoever takes its rows finds that (:func:`~schemas.rawlog.image_chunk.read_chunk`).
    """
    scan = ScanName(chunk.ts, chunk.number, chunk.attempt)
    for partition, offset, value in reader.read_all({chunk.partition: chunk.offsets}):
        try:
            head, _ = read_image_record(value)
        except CorruptDataError as error:
            extra = {"partition": partition, "offset": offset, "code": error.code, "error": str(error)}
            log.error("a record of the images topic does not decode, and is passed over", extra=extra)
            on_undecoded(offset)
            continue
        if head.scan == scan:
            on_bytes(len(value))
            yield value
