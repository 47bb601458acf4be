"""A query of the Spark source that starts at an image comes to the table, wherever its chunks and batches end."""

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.changes import Op
from schemas.ddl.job import DdlType
from schemas.ids import TableId, Ts
from schemas.rawlog.ddl_record import DdlRecord
from schemas.rawlog.frontier import HeldTables
from schemas.rawlog.image_batch import ImageBatch, ImageRows, ScanName, encode_image_batch
from schemas.rawlog.images import ImageChunk, ImageState, KeyRange
from sorters.core.source.errors import NoImageError, NotReachedError, SourceOptionError
from sorters.core.source.offsets import SourceOffset
from sorters.core.source.options import SourceOptions, read_options
from sorters.core.source.row_shape import RowShape
from sorters.core.source.table_history import table_at
from sorters.log.failures import HistoryLostError
from sorters.source import task as task_module
from sorters.source.data_source import TideBusReader
from sorters.source.query import Query, spark_schema
from sorters.source.task import ImagePartition
from tests.support.lakes.lake_bank import row
from tests.support.rawlog.memory_raw_log import MemoryEvents, MemoryLog, MemoryTableLog
from tests.support.rawlog.raw_log import Change, row_key
from tests.support.recorded.ddl_jobs import job, table_info

MINE, FIRST_TS, LAST_TS, HANDLES = 7, 10, 60, 8
Row = tuple[int, str, int, int | None]
"""_commit_version, _change_type, id, v."""


class Image:
    """The images topic: each scan's records behind one that belongs to nobody."""

    def __init__(self) -> None:
        self.records: list[bytes] = []

    def land(self, ts: int, number: int, keys: KeyRange, rows: Mapping[bytes, bytes]) -> ImageChunk:
        """Land a chunk whole, in batches of two rows."""
        start, items = len(self.records), sorted(rows.items())
        for attempt in (1, 0):
            at = keys.start
            for sequence, first in enumerate(range(0, max(len(items), 1), 2)):
                part = items[first : first + 2]
                last = first + 2 >= len(items)
                end = keys.end if last else part[-1][0] + b"\0"
                keys_of, values_of = (pa.array([each[side] for each in part], pa.binary()) for side in (0, 1))
                batch = ImageBatch(
                    scan=ScanName(Ts(ts), number, attempt),
                    table_id=TableId(MINE),
                    sequence=sequence,
                    last=last,
                    start=at,
                    end=end,
                    rows=ImageRows(key=keys_of, value=values_of),
                )
                self.records += encode_image_batch(batch, 1, 1 << 20)
                at = end
        return ImageChunk(
            ts=Ts(ts),
            number=number,
            attempt=0,
            table_id=TableId(MINE),
            feeds=("default/someone@1",),
            keys=keys,
            partition=0,
            offsets=(start, len(self.records)),
            rows=len(items),
            bytes=sum(len(key) + len(value) for key, value in items),
        )

    def read_all(self, ranges: Mapping[int, tuple[int, int]]) -> Iterator[tuple[int, int, bytes]]:
        for partition, (start, end) in ranges.items():
            for offset in range(start, end):
                yield partition, offset, self.records[offset]

    def close(self) -> None:
        """Nothing is open."""


class Events(MemoryEvents):
    """Region events that can be let go of."""

    def close(self) -> None:
        """Nothing is open."""


@dataclass
class Case:
    """A log of one table with an image of it, and what a query of it must deliver."""

    log: MemoryLog
    image: Image
    expected: list[Row]
    table: dict[int, int | None]
    """At the end."""


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Rows from before the log, changes in it, and chunks at any ts; some ranges are scanned twice, at other ts."""
    log, image, values = MemoryLog(partitions=2), Image(), dict[int, int]()
    before = draw(st.dictionaries(st.integers(0, HANDLES - 1), st.integers(0, 99), max_size=HANDLES))
    _snapshot(log)
    log.publish(FIRST_TS)
    at_ts, changes, values = {FIRST_TS: dict(before)}, list[tuple[Change, list[Row]]](), dict(before)
    for ts in range(FIRST_TS + 1, LAST_TS):
        if draw(st.integers(0, 2)):
            handle, number = draw(st.integers(0, HANDLES - 1)), draw(st.integers(0, 99))
            changes.append(_change(values, ts, handle, number, gone=draw(st.integers(0, 3)) == 0))
        at_ts[ts] = dict(values)
    bounds = sorted(draw(st.sets(st.integers(1, HANDLES - 1), max_size=3)))
    chunks = []
    for number, (low, high) in enumerate(zip([None, *bounds], [*bounds, None], strict=True)):
        for again in range(draw(st.integers(1, 2))):
            ts = draw(st.integers(FIRST_TS + 1, LAST_TS - 1))
            held = {
                row_key(MINE, handle): row(v)
                for handle, v in at_ts[ts].items()
                if (low or 0) <= handle < (HANDLES if high is None else high)
            }
            chunks.append(image.land(ts, number + 10 * again, _range(low, high), held))
    _land(log, changes, chunks, draw(st.randoms(use_true_random=False)))
    chosen = {handle: max(c.ts for c in chunks if _holds(c.keys, handle)) for handle in range(HANDLES)}
    expected = [each for _, rows in changes for each in rows if each[0] > chosen[each[2]]]
    expected += [(ts, "insert", handle, at_ts[ts][handle]) for handle, ts in chosen.items() if handle in at_ts[ts]]
    return Case(log, image, expected, dict(values))


def _change(values: dict[int, int], ts: int, handle: int, number: int, *, gone: bool) -> tuple[Change, list[Row]]:
    """Change a row; return the change, and the rows that it comes to."""
    old = values.get(handle)
    old_value = b"" if old is None else row(old)
    if gone and old is not None:
        del values[handle]
        return Change(ts, row_key(MINE, handle), b"", old_value, op=Op.DELETE), [(ts, "delete", handle, old)]
    values[handle] = number
    rows: list[Row] = [] if old is None else [(ts, "update_preimage", handle, old)]
    rows.append((ts, "insert" if old is None else "update_postimage", handle, number))
    return Change(ts, row_key(MINE, handle), row(number), old_value), rows


def _range(low: int | None, high: int | None) -> KeyRange:
    whole = KeyRange.of_table(TableId(MINE))
    return KeyRange(
        whole.start if low is None else row_key(MINE, low), whole.end if high is None else row_key(MINE, high)
    )


def _holds(keys: KeyRange, handle: int) -> bool:
    return keys.start <= row_key(MINE, handle) < keys.end


def _land(
    log: MemoryLog, changes: list[tuple[Change, list[Row]]], chunks: list[ImageChunk], any_of: random.Random
) -> None:
    """Land the changes in some order, and list each chunk in the records that follow its ts, for a while."""
    listed = 0
    for at in range(0, len(changes), 5):
        part = [change for change, _ in changes[at : at + 5]]
        any_of.shuffle(part)
        for change in part:
            log.land(any_of.randint(0, 1), MINE, [change])
        resolved = max(change.commit_ts for change in part)
        due = [chunk for chunk in chunks if resolved - 25 < chunk.ts <= resolved]
        listed += 1
        log.publish(resolved, images=ImageState(version=(1, listed), chunks=tuple(due)))
    log.publish(LAST_TS, images=ImageState(version=(1, listed + 1), chunks=tuple(chunks)))
    log.lose_lows()


def _snapshot(log: MemoryLog, name: str = "mine") -> None:
    log.ddl.append(DdlRecord(kind="schema", ts=Ts(5), schema_id=1, payload={"id": 1, "db_name": {"O": "d", "L": "d"}}))
    log.ddl.append(DdlRecord(kind="table", ts=Ts(5), schema_id=1, payload=table_info(MINE, name)))
    log.ddl.append(DdlRecord(kind="snapshot_end", ts=Ts(5), payload={}))


def query_of(log: MemoryLog, rows_max: int) -> Query:
    given = {"raw": "u", "table": "d.mine", "kafka": "k:1", "startingTs": "image", "maxRowsPerBatch": str(rows_max)}
    options: SourceOptions = read_options(given, stream=True)
    table_log = MemoryTableLog(log, options)
    table_log.newest()
    store = table_log.schemas.store
    query = Query(options, spark_schema(RowShape.of(store.decoded(table_at(store, options.table, Ts(LAST_TS))))))
    query.__dict__["log"] = table_log
    return query


def rows_of(case: Case, query: Query, start: SourceOffset, end: SourceOffset) -> list[Row]:
    """Return what the tasks of a batch make of it."""
    readers = {query.log.topics.images: case.image, query.log.topics.region_events: Events(case.log)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task_module, "settle_worker", lambda: None)
        patch.setattr(task_module, "raw_topic_reader", lambda _, topic, **__: readers[topic])
        batches = [batch for task in query.partitions(start, end) for batch in task.batches()]
    names = ("_commit_version", "_change_type", "id", "v")
    return [tuple(each[name] for name in names) for batch in batches for each in batch.to_pylist()]


@settings(max_examples=40, deadline=None)
@given(cases(), st.integers(1, 12))
def test_query_that_starts_at_an_image_comes_to_the_table_wherever_it_is_restarted(case: Case, rows_max: int) -> None:
    query = query_of(case.log, rows_max)
    start = query.offset_at("image")
    delivered = list[Row]()
    while (end := query.next_end(start)) != start:
        rows = rows_of(case, query, start, end)
        assert len(rows) <= rows_max or len({each[0] for each in rows}) == 1
        # A query that goes on from the checkpoint plans the same, though newer images may be there by then.
        read_back = SourceOffset.read(start.as_json())
        assert query_of(case.log, rows_max).next_end(read_back) == end
        assert Counter(rows_of(case, query_of(case.log, rows_max), read_back, end)) == Counter(rows)
        delivered += rows
        start = end
    assert Counter(delivered) == Counter(case.expected)
    replayed = dict[int, int | None]()
    for _, kind, handle, v in sorted(delivered, key=lambda each: each[0]):
        if kind in ("insert", "update_postimage"):
            replayed[handle] = v
        elif kind == "delete":
            replayed.pop(handle)
    assert replayed == case.table


def test_start_at_an_image_that_is_not_whole_or_whose_changes_are_gone_is_refused() -> None:
    log, image = MemoryLog(partitions=1), Image()
    _snapshot(log)
    log.publish(10)
    log.land(0, MINE, [Change(15, row_key(MINE, 1), row(1))])
    log.publish(20)
    half = image.land(18, 1, _range(None, 3), {row_key(MINE, 1): row(1)})
    log.publish(30, images=ImageState(version=(1, 1), chunks=(half,)))

    with pytest.raises(NoImageError) as raised:
        query_of(log, 10).offset_at("image")
    assert raised.value.fields["chunks"] == 1

    rest = image.land(25, 2, _range(3, None), {})
    log.publish(40, images=ImageState(version=(1, 2), chunks=(rest,)))
    assert query_of(log, 10).offset_at("image") == SourceOffset(Ts(17), 1, (0, 4))
    log.oldest[0] = 1
    with pytest.raises(HistoryLostError) as lost:
        query_of(log, 10).offset_at("image")
    assert lost.value.fields["asked_ts"] == 17


def test_image_from_before_a_table_had_its_name_is_no_start_of_a_query_by_it() -> None:
    """What changed between the image and the RENAME was of another name, which the query does not read."""
    log, image = MemoryLog(partitions=1), Image()
    _snapshot(log, "yours")
    log.ddl.append(job(20, DdlType.RENAME_TABLE, schema_id=1, table_id=MINE, table_info=table_info(MINE, "mine")))
    log.publish(10)
    chunks = [image.land(ts, ts, _range(None, None), {row_key(MINE, 1): row(ts)}) for ts in (18, 20)]
    log.publish(30, images=ImageState(version=(1, 1), chunks=tuple(chunks)))

    with pytest.raises(NoImageError):
        query_of(log, 10).offset_at("image")

    chunks = [image.land(21, 21, _range(None, None), {row_key(MINE, 1): row(21)})]
    log.publish(40, images=ImageState(version=(1, 2), chunks=tuple(chunks)))
    query = query_of(log, 10)
    start = query.offset_at("image")
    case = Case(log, image, [(21, "insert", 1, 21)], {1: 21})
    assert rows_of(case, query, start, query.next_end(start)) == case.expected


def test_read_that_would_end_within_the_image_it_starts_at_is_refused() -> None:
    """Handles 5 and 6 are scanned at 40: who reads up to 30 would see the table without them."""
    log, image = MemoryLog(partitions=1), Image()
    _snapshot(log)
    log.publish(FIRST_TS)
    low = image.land(20, 1, _range(None, 4), {row_key(MINE, 1): row(1)})
    high = image.land(40, 2, _range(4, None), {row_key(MINE, 5): row(5), row_key(MINE, 6): row(6)})
    log.publish(30)
    log.publish(39)
    log.publish(LAST_TS, images=ImageState(version=(1, 1), chunks=(low, high)))

    for ending_ts in (30, 39):
        with pytest.raises(SourceOptionError, match="image") as raised:
            _reader(log, ending_ts).partitions()
        assert raised.value.fields == {"option": "endingTs", "seen": ending_ts, "image_upto_ts": 40}
    for at_the_end_or_above in (40, 41, None):
        tasks = _reader(log, at_the_end_or_above).partitions()
        assert sum(isinstance(task, ImagePartition) for task in tasks) == 2

    lags = HeldTables(tables=(TableId(MINE),), ts=Ts(35), low=(0,))
    log.publish(LAST_TS + 1, held=(lags,), images=ImageState(version=(1, 1), chunks=(low, high)))
    with pytest.raises(NotReachedError) as later:
        _reader(log, None).partitions()
    assert later.value.fields == {"resolved_ts": 35, "image_upto_ts": 40}


def _reader(log: MemoryLog, ending_ts: int | None) -> TideBusReader:
    given = {"raw": "u", "table": "d.mine", "kafka": "k:1", "startingTs": "image"}
    options = read_options(given if ending_ts is None else given | {"endingTs": str(ending_ts)}, stream=False)
    table_log = MemoryTableLog(log, options)
    table_log.newest()
    store = table_log.schemas.store
    reader = TideBusReader(
        options, spark_schema(RowShape.of(store.decoded(table_at(store, options.table, Ts(LAST_TS)))))
    )
    reader._query.__dict__["log"] = table_log
    return reader
