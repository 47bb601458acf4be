"""What a Spark task of a query does: it reads a share of a batch from the raw log and makes Arrow batches of it."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.sql.datasource import InputPartition

from schemas.changes import RowChanges
from schemas.ids import TableId
from schemas.rawlog.region_batch import read_batch_head
from sorters.core.columnar.row_changes import join_rows
from sorters.core.cut.cut import Cut, overlaps
from sorters.core.source.change_rows import Program, drop_repeats
from sorters.core.source.start_image import StartChunk, StillToCome
from sorters.cut.image_chunks import raw_chunk
from sorters.cut.raw_records import raw_records
from sorters.cut.record_rows import rows_of_record
from sorters.log.raw_topic_reader import raw_topic_reader
from sorters.source.python_worker import settle_worker

CHUNK_ROWS: Final = 32_768
"""Changes of one physical table that go through the columnar steps at once, as in a cut (sorters/cut/worker.py)."""
CHUNK_BYTES: Final = 32 * 1024 * 1024


@dataclass
class ChangesPartition(InputPartition):  # type: ignore[misc] # pyspark's classes have no types here
    """A task's work. Spark carries it from the driver's process to the task as it carries the code."""

    kafka: Mapping[str, object] = field(repr=False)
    """librdkafka's settings, secrets among them."""
    topic: str
    cut: Cut
    tables: frozenset[TableId]
    program: Program
    held: StillToCome | None = None
    """What an image holds of the cut's changes; None: nothing."""
    number: int = 0
    count: int = 1
    """The task reads share ``number`` of ``count`` of the cut."""

    def batches(self) -> Iterator[Any]:
        """Yield the rows of the task as ``pyarrow.RecordBatch``, in no particular order.

        Raises:
            KafkaUnreachableError, HistoryLostError: Kafka does not hand the records out.
            CorruptDataError: a record or row does not decode.
        """
        settle_worker()
        with contextlib.closing(raw_topic_reader(self.kafka, self.topic)) as reader:
            records = raw_records(reader, self.cut, lambda _: None, self.number, self.count)
            for rows in each_once(gathered(records, self.cut, self.tables), self.cut):
                yield from self.program.batches(rows if self.held is None else self.held.left(rows))


@dataclass
class ImagePartition(InputPartition):  # type: ignore[misc] # pyspark's classes have no types here
    """A task that reads a chunk of the image which a query started at."""

    kafka: Mapping[str, object] = field(repr=False)
    """librdkafka's settings, secrets among them."""
    topic: str
    chunk: StartChunk
    program: Program

    def batches(self) -> Iterator[Any]:
        """Yield the rows of the chunk, as inserts at its ts, as ``pyarrow.RecordBatch``.

        Raises:
            KafkaUnreachableError, HistoryLostError: Kafka does not hand the records out.
            ImageChunkBrokenError, CorruptDataError: they are not what the frontier record tells of.
        """
        settle_worker()
        with contextlib.closing(raw_topic_reader(self.kafka, self.topic)) as reader:
            for rows in raw_chunk(reader, self.chunk.landed).rows():
                yield from self.program.batches(self.chunk.rows(rows))


def gathered(records: Iterable[bytes], cut: Cut, tables: frozenset[TableId]) -> Iterator[RowChanges]:
    """Yield the rows of a cut, those of one physical table joined to chunks."""
    waiting: dict[TableId, list[RowChanges]] = {}
    count = size = 0
    for record in records:
        head = read_batch_head(record)
        if head.table_id not in tables or not overlaps(head, cut.after_ts, cut.upto_ts):
            continue
        rows = rows_of_record(record, head, cut)
        if not len(rows):
            continue
        waiting.setdefault(head.table_id, []).append(rows)
        count, size = count + len(rows), size + len(record)
        if count >= CHUNK_ROWS or size >= CHUNK_BYTES:
            yield from map(join_rows, waiting.values())
            waiting.clear()
            count = size = 0
    yield from map(join_rows, waiting.values())


def each_once(chunks: Iterable[RowChanges], cut: Cut) -> Iterator[RowChanges]:
    """Yield each change of a cut once: where it may hold repeats, all rows of a physical table as one chunk."""
    if not cut.may_repeat:
        yield from chunks
        return
    tables: dict[TableId, list[RowChanges]] = {}
    for rows in chunks:
        tables.setdefault(rows.table_id, []).append(rows)
    for parts in tables.values():
        yield drop_repeats(join_rows(parts))
