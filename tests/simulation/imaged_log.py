"""The topics of an upstream whose table images were simulated (:mod:`compose.simulation.images`), as bytes: what
captures have landed of rows and of images, the frontier records, and the schemas.

Which changefeeds a table is of stands in its name, behind a low line: ``t3_ac`` is of ``a`` and ``c``. Where a table
comes to others it is renamed.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from compose.simulation.images.scanner import ImageRecord
from compose.simulation.images.tables import Change, SimTable
from compose.simulation.images.world import ImageWorld
from schemas.changes import Op, RowChanges
from schemas.ddl.bad_jobs import BadJobs
from schemas.ddl.job import DdlType
from schemas.ddl.schema_store import SchemaStore
from schemas.ids import RegionId, TableId, Ts
from schemas.rawlog.frontier import FrontierRecord
from schemas.rawlog.image_batch import ImageBatch, ImageRows, ScanName, encode_image_batch
from schemas.rawlog.images import ImageChunk
from schemas.rawlog.region_batch import RegionBatch, SharedRecord, encode_region_batch
from schemas.tidb.keys import row_key
from schemas.tidb.row_v2 import encode_row_v2
from schemas.tidb.table import TableVersion
from sorters.cut.raw_cut import RawCut, read_cut
from tests.support.recorded.ddl_jobs import job, snapshot, table_info

LAGGARD_ID = TableId(1_000_002)
"""What lags at times: :data:`compose.simulation.images.owner.LAGGARD` is its span."""
SCHEMA_ID = 1


def encoded_value(value: int | None) -> bytes:
    """Return a row as TiKV has it; empty: there is none."""
    return b"" if value is None else encode_row_v2({2: value.to_bytes(4, "little")})


def table_name(table: SimTable, feeds: frozenset[str]) -> str:
    """Return the name of a table that these changefeeds contain."""
    return f"t{table.logical}_{letters(feeds)}" if feeds else f"away{table.table_id}_"


def letters(feeds: frozenset[str]) -> str:
    """Return the letters of changefeeds."""
    return "".join(sorted(feed.split("/")[1][0] for feed in feeds))


class MemoryTopic:
    """A partition; a :class:`~sorters.cut.raw_cut.RawReader` for one that reads alone."""

    def __init__(self, records: list[bytes]) -> None:
        self.records = records

    def read_all(self, ranges: Mapping[int, tuple[int, int]]) -> Iterator[tuple[int, int, bytes]]:
        for partition, (start, end) in ranges.items():
            for offset in range(start, end):
                yield partition, offset, self.records[offset]

    def read_cut(self, cut: Any, raw_bytes_max: int) -> RawCut | None:
        return read_cut(self, cut, raw_bytes_max)

    def close(self) -> None:
        """Nothing is held."""


class MemoryFrontier:
    """A :class:`~sorters.run.sources.FrontierSource` of records that were followed."""

    def __init__(self, records: list[FrontierRecord]) -> None:
        self.records = records

    def record_before(self, offset: int) -> FrontierRecord:
        return self.records[offset - 1]

    def end(self) -> int:
        return len(self.records)

    def read(self, start: int, end: int) -> Iterator[FrontierRecord]:
        yield from self.records[start:end]

    def find(self, after_ts: Ts) -> int:
        return bisect_right(self.records, after_ts, key=lambda record: record.resolved_ts)


class AllSchemas:
    """A :class:`~sorters.run.sources.SchemaSource` that has read the whole ddl topic."""

    def __init__(self, store: SchemaStore) -> None:
        self.store, self.bad = store, BadJobs().jobs

    def advance(self, ddl_end: int) -> bool:
        return False

    def forget(self, checkpoint_ts: Ts) -> None:
        """Others need them."""


@dataclass(frozen=True, slots=True)
class ImagedLog:
    """All topics of one upstream."""

    world: ImageWorld
    events: list[bytes]
    images: list[bytes]
    frontier: MemoryFrontier

    @classmethod
    def of(cls, world: ImageWorld) -> "ImagedLog":
        """Return what a world that has come to its end has written."""
        chunks = {chunk for record in world.broker.followed for chunk in record.images.chunks}
        sizes = {_scan_of(chunk): _bytes_of(world, chunk) for chunk in chunks}
        # The simulation counts no bytes.
        frontier = [
            replace(
                record,
                images=replace(
                    record.images,
                    chunks=tuple(replace(each, bytes=sizes[_scan_of(each)]) for each in record.images.chunks),
                ),
            )
            if record.images.chunks
            else record
            for record in world.broker.followed
        ]
        events = [_event(world, change) for change in world.tables.changes]
        return cls(world, events, _image_records(world, chunks), MemoryFrontier(frontier))

    def schemas(self) -> AllSchemas:
        """Return all schemas, as a service of its own has them.

        Raises:
            AssertionError: they are not what the world's tables are.
        """
        tables = self.world.tables.tables.values()
        lagging = letters(frozenset(name for name, each in self.world.readers.items() if each.contains_laggard))
        first_ts = min(ts for table in tables for ts, _ in table.covers)
        store = snapshot(("d", SCHEMA_ID, [table_info(LAGGARD_ID, f"lag_{lagging}")]), ts=first_ts - 1)
        # Rows that move leave a table, and come to another, at one ts.
        steps = sorted(
            (ts, number == 0, table.table_id, table_name(table, feeds))
            for table in tables
            for number, (ts, feeds) in enumerate(table.covers)
        )
        for number, (ts, is_new, table_id, name) in enumerate(steps):
            kind = DdlType.CREATE_TABLE if is_new else DdlType.RENAME_TABLE
            query = f"CREATE TABLE `{name}` (id INT PRIMARY KEY, v INT)" if is_new else f"RENAME TABLE x TO `{name}`"
            info = table_info(table_id, name)
            done = job(ts, kind, schema_id=SCHEMA_ID, table_id=table_id, query=query, table_info=info)
            store.apply(replace(done, payload={**done.payload, "id": number + 1}))
        for ts, _, table_id, name in steps:
            version = store.lookup(table_id, Ts(ts + 1))
            assert isinstance(version, TableVersion)
            assert version.table == name, (version.table, name)
        return AllSchemas(store)


def _event(world: ImageWorld, change: Change) -> bytes:
    table = world.tables.tables[change.table_id]
    old = table.read(change.number, Ts(change.commit_ts - 1))
    rows = RowChanges(
        table_id=change.table_id,
        commit_ts=np.array([change.commit_ts], np.int64),
        start_ts=np.array([change.commit_ts - 1], np.int64),
        op=np.array([Op.DELETE if change.value is None else Op.PUT], np.int8),
        key=pa.array([change.key], pa.binary()),
        value=pa.array([encoded_value(change.value)], pa.binary()),
        old_value=pa.array([encoded_value(old)], pa.binary()),
        txn_source=np.zeros(1, np.int64),
    )
    return SharedRecord(encode_region_batch(RegionBatch(region_id=RegionId(1), may_repeat=False, rows=rows), 1))


def _scan_of(chunk: ImageChunk) -> ScanName:
    return ScanName(chunk.ts, chunk.number, chunk.attempt)


def _own_records(world: ImageWorld, chunk: ImageChunk) -> list[int]:
    """Return the offsets of a chunk's records that have a row."""
    start, end = chunk.offsets
    return [at for at in range(start, end) if world.is_of(chunk, world.topic[at]) and world.topic[at].rows]


def _bytes_of(world: ImageWorld, chunk: ImageChunk) -> int:
    rows = (row for at in _own_records(world, chunk) for row in world.topic[at].rows)
    return sum(len(key) + len(encoded_value(value)) for key, value in rows)


def _image_records(world: ImageWorld, chunks: set[ImageChunk]) -> list[bytes]:
    """Return the images topic. What counts for nobody is of an attempt that no chunk names."""
    batches: dict[int, ImageBatch] = {}
    for chunk in chunks:
        own, start = _own_records(world, chunk), chunk.keys.start
        for sequence, at in enumerate(own):
            last = sequence == len(own) - 1
            end = chunk.keys.end if last else world.topic[at].rows[-1][0] + b"\0"
            batches[at] = _batch(world.topic[at], _scan_of(chunk), sequence, start, end, last=last)
            start = end
    records = list[bytes]()
    for at, record in enumerate(world.topic):
        key = row_key(record.table_id, 0)
        scan = ScanName(record.barrier_ts, record.number, record.attempt + 1_000)
        batch = batches.get(at) or _batch(record, scan, 0, key, key + b"\xff", last=True)
        records += encode_image_batch(batch, 1, 1 << 20)
    assert len(records) == len(world.topic)
    return records


def _batch(record: ImageRecord, scan: ScanName, sequence: int, start: bytes, end: bytes, *, last: bool) -> ImageBatch:
    return ImageBatch(
        scan=scan,
        table_id=record.table_id,
        sequence=sequence,
        last=last,
        start=start,
        end=end,
        rows=ImageRows(
            key=pa.array([key for key, _ in record.rows], pa.binary()),
            value=pa.array([encoded_value(value) for _, value in record.rows], pa.binary()),
        ),
    )
