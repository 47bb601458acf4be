"""Chunks of table images in a cut: which records are theirs, and what their rows become."""

import json
import pickle
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from schemas.changes import Op, RowChanges
from schemas.config.changefeed import load_changefeed
from schemas.ddl.job import DdlType
from schemas.ddl.schema_store import SchemaStore
from schemas.ids import RegionId, TableId, Ts, UpstreamId
from schemas.nodes.changefeed import ChangefeedInfo
from schemas.rawlog.image_batch import ImageBatch, ImageRows, ScanName, encode_image_batch
from schemas.rawlog.image_chunk import ImageChunkBrokenError
from schemas.rawlog.images import IdRange, ImageChunk, KeyRange
from schemas.rawlog.region_batch import RegionBatch, encode_region_batch
from schemas.sink.position import RowOp, decode_position
from schemas.sink.sql_rows import decode_form, decode_rows
from schemas.sink.topic import sorter_config
from schemas.tidb.keys import row_key
from schemas.tidb.row_v2 import encode_row_v2
from sorters.core.cut.cut import Cut
from sorters.core.cut.images import LeftOut
from sorters.core.feed.feed import compile_feed
from sorters.core.records.order import OutputRecords, no_records
from sorters.cut.image_chunks import RawChunk, read_chunks
from sorters.cut.raw_cut import RawCut, with_chunks
from sorters.cut.whole_cut import whole_cut
from sorters.cut.worker import FeedProgram
from tests.support.recorded.ddl_jobs import PRIMARY, column, job, snapshot, table_info

S = Ts(1_000)
ONE, TWO, LATE = TableId(11), TableId(12), TableId(13)
MANY = 300
"""Rows that are mounted as columns."""
PROTOCOLS = "canal-json&enable-tidb-extension=true", "open-protocol&max-batch-size=1", "simple", "debezium"


def rows_of(table: TableId, *handles: int) -> dict[bytes, bytes]:
    return {row_key(table, handle): encode_row_v2({2: bytes([handle % 100])}) for handle in handles}


def scan_of(number: int, attempt: int = 0) -> ScanName:
    return ScanName(S, number, attempt)


def landed(table: TableId, scan: ScanName, rows: Mapping[bytes, bytes], per_batch: int = 7) -> list[bytes]:
    """Return the records of a scan of a whole table."""
    whole, items = KeyRange.of_table(table), list(rows.items())
    records, at = list[bytes](), whole.start
    for sequence, first in enumerate(range(0, len(items), per_batch)):
        part = items[first : first + per_batch]
        is_last = first + per_batch >= len(items)
        end = whole.end if is_last else part[-1][0] + b"\0"
        key, value = (pa.array([row[side] for row in part], pa.binary()) for side in (0, 1))
        batch = ImageBatch(
            scan=scan, table_id=table, sequence=sequence, last=is_last, start=at, end=end,
            rows=ImageRows(key=key, value=value),
        )  # fmt: skip
        records += encode_image_batch(batch, 1, 1 << 20)
        at = end
    return records


def chunk_of(table: TableId, number: int, rows: Mapping[bytes, bytes], offsets: tuple[int, int]) -> ImageChunk:
    return ImageChunk(
        ts=S, number=number, attempt=0, table_id=table, feeds=("f",), keys=KeyRange.of_table(table), partition=3,
        offsets=offsets, rows=len(rows), bytes=sum(len(key) + len(value) for key, value in rows.items()),
    )  # fmt: skip


class Topic:
    """The images topic's partition 3; says what was read."""

    def __init__(self, records: list[bytes]) -> None:
        self.records = records
        self.ranges: list[tuple[int, int]] = []

    def read_all(self, ranges: Mapping[int, tuple[int, int]]) -> Iterator[tuple[int, int, bytes]]:
        ((partition, (start, end)),) = ranges.items()
        assert partition == 3
        self.ranges.append((start, end))
        yield from ((3, offset, self.records[offset]) for offset in range(start, end))


def cut_of(*chunks: ImageChunk, after_ts: int = 500) -> Cut:
    return Cut(
        after_ts=Ts(after_ts), upto_ts=S, start=(0,), end=(9,), may_repeat=False, ddl_end=0, chunks=tuple(chunks)
    )


def program(protocol: str, store: SchemaStore | None = None, config: dict[str, Any] | None = None) -> FeedProgram:
    feed = compile_feed(load_changefeed(f"kafka://h:1/t?protocol={protocol}", config or {}), "default")
    feed = replace(feed, partitions={"t": 2}, topic_message_bytes={"t": 1 << 20})
    return FeedProgram(store or snapshot(("d", 1, [table_info(11, "one"), table_info(12, "two")])), feed)


def written(
    chunks: tuple[RawChunk, ...], by: FeedProgram, raw: list[bytes] | None = None, left_out: LeftOut | None = None
) -> OutputRecords:
    cut = replace(cut_of(*(each.chunk for each in chunks)), left_out=left_out)
    whole = whole_cut(cut, RawCut(raw or [], 0, chunks=chunks), by, no_records(), 1, 1 << 30)
    assert whole is not None
    assert whole.rows == whole.records.num_rows
    return whole.records


def raw_chunk(table: TableId, number: int, *handles: int) -> RawChunk:
    rows = rows_of(table, *handles)
    return RawChunk(chunk_of(table, number, rows, (0, 0)), tuple(landed(table, scan_of(number), rows)))


def inserts(table: TableId, *handles: int, ts: int = S) -> bytes:
    """Return a record of region-events that inserts rows at a ts; at S as no transaction does, which began before."""
    rows = rows_of(table, *handles)
    count = len(rows)
    changes = RowChanges(
        table_id=table,
        commit_ts=np.full(count, ts, np.int64),
        start_ts=np.full(count, ts if ts == S else ts - 1, np.int64),
        op=np.full(count, Op.PUT, np.int8),
        key=pa.array(list(rows), pa.binary()),
        value=pa.array(list(rows.values()), pa.binary()),
        old_value=pa.array([b""] * count, pa.binary()),
        txn_source=np.zeros(count, np.int64),
    )
    return encode_region_batch(RegionBatch(region_id=RegionId(1), may_repeat=False, rows=changes), 1)


def test_records_of_a_chunk_are_those_of_its_scan_between_its_offsets() -> None:
    rows = rows_of(ONE, *range(20))
    mine, tried = landed(ONE, scan_of(0), rows), landed(ONE, scan_of(0, attempt=1), rows)
    other = landed(TWO, scan_of(1), rows_of(TWO, 5))
    topic = Topic([*other, mine[0], tried[0], *other, *mine[1:], *tried[1:], b"not of the topic"])
    chunk = chunk_of(ONE, 0, rows, (1, 1 + len(mine) + 2))
    sizes: list[int] = []
    (raw,) = read_chunks(topic, cut_of(chunk), sizes.append)
    assert raw.records == tuple(mine)
    assert sizes == [len(record) for record in mine]
    (changes,) = raw.rows()
    assert (changes.key.to_pylist(), changes.value.to_pylist()) == (list(rows), list(rows.values()))
    assert set(changes.commit_ts.tolist()) == set(changes.start_ts.tolist()) == {S}


def test_record_that_is_none_of_the_topic_is_passed_over_and_named_by_its_place(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rows = rows_of(ONE, *range(20))
    mine = landed(ONE, scan_of(0), rows)
    topic = Topic([mine[0], b"not of the topic", *mine[1:]])
    (raw,) = read_chunks(topic, cut_of(chunk_of(ONE, 0, rows, (0, len(topic.records)))), lambda _: None)
    assert [key for changes in raw.rows() for key in changes.key.to_pylist()] == list(rows)
    assert [(vars(record)["partition"], vars(record)["offset"]) for record in caplog.records] == [(3, 1)]


def test_chunk_with_a_record_that_is_damaged_is_refused_and_names_it() -> None:
    rows = rows_of(ONE, *range(20))
    mine = landed(ONE, scan_of(0), rows)
    topic = Topic([mine[0], b"\x01" + mine[1][1:], *mine[2:]])
    (raw,) = read_chunks(topic, cut_of(chunk_of(ONE, 0, rows, (0, len(mine)))), lambda _: None)
    for take in (raw.keys, lambda: list(raw.rows())):
        with pytest.raises(ImageChunkBrokenError) as caught:
            take()
        assert caught.value.fields["undecoded_record"] == "3:1"


def test_chunk_whose_rows_a_disk_has_changed_is_refused_by_the_name_of_a_broken_chunk_and_says_where_it_stands() -> (
    None
):
    rows = rows_of(ONE, *range(20))
    mine = landed(ONE, scan_of(0), rows)
    topic = Topic([mine[0], mine[1][:-1] + bytes([mine[1][-1] ^ 1]), *mine[2:]])
    (raw,) = read_chunks(topic, cut_of(chunk_of(ONE, 0, rows, (0, len(mine)))), lambda _: None)
    for take in (raw.keys, lambda: list(raw.rows())):
        with pytest.raises(ImageChunkBrokenError, match="checksum does not fit") as caught:
            take()
        where = ("table_id", "partition", "first_offset", "last_offset", "sequence")
        assert [caught.value.fields[name] for name in where] == [ONE, 3, 0, len(mine) - 1, 1]


def test_chunk_that_lacks_a_record_is_refused_before_anything_is_written() -> None:
    raw = raw_chunk(ONE, 0, *range(20))
    with pytest.raises(ImageChunkBrokenError):
        written((replace(raw, records=raw.records[:-1]),), program("canal-json"))


@pytest.mark.parametrize("tasks", [1, 2, 3, 5])
def test_tasks_share_chunks_whole_and_each_once_and_read_no_empty_one(tasks: int) -> None:
    rows = rows_of(ONE, *range(10))
    topic = Topic(landed(ONE, scan_of(0), rows))
    full = [replace(chunk_of(ONE, 0, rows, (0, 2)), keys=KeyRange.of_table(ONE)) for _ in range(3)]
    cut = cut_of(*full, chunk_of(TWO, 1, {}, (2, 2)))
    shares = [list(read_chunks(topic, cut, lambda _: None, number, tasks)) for number in range(tasks)]
    assert sum(map(len, shares)) == len(topic.ranges) == 3
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_cut_has_the_tables_of_its_chunks_and_is_bounded_with_them() -> None:
    rows = rows_of(TWO, *range(10))
    topic = Topic(landed(TWO, scan_of(0), rows))
    cut = cut_of(chunk_of(TWO, 0, rows, (0, 2)), chunk_of(LATE, 1, {}, (2, 2)))
    raw = RawCut([inserts(ONE, 1, ts=700)], 100)
    assert raw.tables(cut) == {ONE, TWO}
    joined = with_chunks(raw, topic, cut, 100 + sum(map(len, topic.records)))
    assert joined is not None
    assert joined.raw_bytes == 100 + sum(map(len, topic.records))
    assert with_chunks(raw, topic, cut, joined.raw_bytes - 1) is None


@pytest.mark.parametrize(
    "protocol", ["canal-json&enable-tidb-extension=true", "open-protocol&max-batch-size=1", "simple", "debezium"]
)
@pytest.mark.parametrize("count", [3, MANY])
def test_rows_of_chunks_become_what_inserts_at_their_ts_would_become(protocol: str, count: int) -> None:
    chunks = raw_chunk(ONE, 0, *range(count)), raw_chunk(TWO, 1, 1, 2)
    same = [inserts(ONE, *range(count)), inserts(TWO, 1, 2)]
    by = program(protocol, config={"sink": {"dispatchers": [{"matcher": ["*.*"], "partition": "index-value"}]}})
    assert written(chunks, by).equals(written((), by, same))
    # In the order of keys, behind all changes up to their ts.
    records = written(chunks, by, [inserts(ONE, 7, ts=900), inserts(TWO, 3, ts=S - 1)]).to_pylist()
    positions = [decode_position(record["position"]) for record in records if record["partition"] == 0]
    assert positions == sorted(positions)
    assert {position.start_ts for position in positions} <= {899, S - 2, S}


def test_left_out_are_changes_and_not_rows_of_images() -> None:
    raw, left_out = [inserts(ONE, 1, ts=700)], LeftOut((IdRange(ONE, ONE),))
    records = written((raw_chunk(ONE, 0, 5),), program("canal-json"), raw, left_out).to_pylist()
    assert [json.loads(record["value"])["data"][0]["id"] for record in records] == ["5"]


def test_chunk_of_a_table_that_the_changefeed_does_not_contain_just_before_is_passed_over() -> None:
    store = snapshot(("d", 1, [table_info(11, "one"), table_info(12, "two")]))
    made = job(Ts(900), DdlType.CREATE_TABLE, schema_id=1, table_id=13, table_info=table_info(13, "three"))
    gone = job(Ts(950), DdlType.DROP_TABLE, schema_id=1, table_id=12)
    late = job(Ts(1_001), DdlType.CREATE_TABLE, schema_id=1, table_id=14, table_info=table_info(14, "four"))
    for done in (made, gone, late):
        assert store.apply(done) is not None
    by = program("canal-json", store, {"filter": {"rules": ["d.*", "!d.one"]}})
    chunks = tuple(raw_chunk(TableId(table), number, 1) for number, table in enumerate((11, 12, 13, 14)))
    assert [json.loads(record["value"])["table"] for record in written(chunks, by).to_pylist()] == ["three"]


@pytest.mark.parametrize("count", [3, MANY])
def test_debezium_tells_rows_of_images_from_inserts_in_one_batch(count: int) -> None:
    raw = [inserts(ONE, *range(1_000, 1_000 + count), ts=S - 1)]
    chunk = raw_chunk(ONE, 0, *range(count))
    records = written((chunk,), program("debezium&debezium-disable-schema=true"), raw)
    payloads = [json.loads(record["value"])["payload"] for record in records.to_pylist()]
    assert [(row["op"], row["source"]["snapshot"], row["before"]) for row in payloads] == [
        *[("c", "false", None)] * count,
        *[("r", "incremental", None)] * count,
    ]


@pytest.mark.parametrize("count", [2, MANY])
def test_row_of_an_image_is_written_over_what_a_database_has_of_its_key(count: int) -> None:
    info = ChangefeedInfo(changefeed_id="f", upstream=UpstreamId("u"), sink_uri="", config={}, start_ts=Ts(1))
    config = sorter_config(load_changefeed("mysql://u:p@h:3306/", {}), info, "h:1")
    feed = compile_feed(config, "default")
    topic = feed.default_topic
    feed = replace(feed, partitions={topic: 1}, topic_message_bytes={topic: 1 << 20})
    by = FeedProgram(program("canal-json").schemas, feed)
    raw = RawCut([inserts(ONE, *range(count), ts=700)], 0, chunks=(raw_chunk(ONE, 0, *range(count, 2 * count)),))
    whole = whole_cut(cut_of(), raw, by, no_records(), 1, 1 << 30)
    assert whole is not None
    said: list[tuple[int, RowOp, int, object]] = []
    for record in whole.records.to_pylist():
        rows, form = decode_rows(record["value"]), decode_form(record["key"])
        assert rows.is_read.tolist() == [form.uniques is not None] * len(rows)
        said += [
            (row.commit_ts, RowOp(row.op), int(row.key), form.uniques)
            for row in (rows.row(at, form) for at in range(len(rows)))
        ]
    assert said == [
        *((700, RowOp.INSERT, key, None) for key in range(count)),
        *((S, RowOp.UPDATE, key, (("id",),)) for key in range(count, 2 * count)),
    ]


def test_a_cut_with_images_goes_to_spark_tasks_as_it_is() -> None:
    cut = replace(cut_of(chunk_of(ONE, 0, rows_of(ONE, 1), (0, 1))), left_out=LeftOut((IdRange(ONE, TWO),), {ONE: ()}))
    assert pickle.loads(pickle.dumps(cut)) == cut


_EVENTS: dict[str, Any] = {"matcher": ["d.one"], "ignore-event": ["insert"]}
_VALUES: dict[str, Any] = {"matcher": ["d.one"], "ignore-insert-value-expr": "v > 5"}


@pytest.mark.parametrize(
    ("config", "sent"),
    [
        ({"filter": {"event-filters": [_EVENTS]}}, 2),
        ({"filter": {"event-filters": [_VALUES]}}, 6 + 2),
        ({"sink": {"column-selectors": [{"matcher": ["d.one"], "columns": ["id"]}]}}, 20 + 2),
        ({"bdr-mode": True}, 20 + 2),
        ({"filter": {"ignore-txn-start-ts": [500]}}, 20 + 2),
        ({"filter": {"rules": ["d.two"]}}, 2),
    ],
    ids=["event filter", "value expression", "column selector", "bdr-mode", "ignored transaction", "filter"],
)
def test_rows_of_chunks_are_to_other_settings_what_inserts_at_their_ts_are(config: dict[str, Any], sent: int) -> None:
    chunks, same = (
        (raw_chunk(ONE, 0, *range(20)), raw_chunk(TWO, 1, 1, 2)),
        [inserts(ONE, *range(20)), inserts(TWO, 1, 2)],
    )
    columns = [column(1, "id", not_null=True, flag=PRIMARY), column(2, "v")]
    store = snapshot(("d", 1, [table_info(11, "one", columns=columns), table_info(12, "two", columns=columns)]))
    by = program("canal-json&enable-tidb-extension=true", store, config)
    records = written(chunks, by)
    assert records.num_rows == sent
    assert records.equals(written((), by, same))
    if "sink" in config:
        messages = [json.loads(record["value"]) for record in records.to_pylist()]
        assert {tuple(message["data"][0]) for message in messages if message["table"] == "one"} == {("id",)}
